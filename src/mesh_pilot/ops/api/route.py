"""A route of the API: path, role, parameters and answer in one place, of which the app and OpenAPI are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
from starlette.requests import Request

from mesh_pilot.model.json import Json
from mesh_pilot.ops.api.visitors import Role, Scope
from mesh_pilot.ops.plane.state import PlaneState


class ApiError(Exception):
    """Answered with its status and ``{"error": reason}``, and what more there is to say."""

    def __init__(self, status: int, reason: str, **more: Json) -> None:
        super().__init__(reason)
        self.status = status
        self.more = more


TEXT: Mapping[str, Json] = {"type": "string"}
NUMBER: Mapping[str, Json] = {"type": "integer"}


def object_of(**fields: Mapping[str, Json]) -> Mapping[str, Json]:
    """The JSON schema of an object that has these fields, and perhaps others."""
    return {"type": "object", "properties": {name: dict(each) for name, each in fields.items()}}


def list_of(entry: Mapping[str, Json]) -> Mapping[str, Json]:
    """The JSON schema of a list."""
    return {"type": "array", "items": dict(entry)}


@attrs.frozen
class Parameter:
    """A parameter of the query, of the path where the path names it, or a header."""

    name: str
    description: str
    is_required: bool = False
    is_repeated: bool = False
    is_header: bool = False
    is_proxy: bool = False
    """True if it names a connected proxy: with several workers only the one is asked that has it."""
    schema: Mapping[str, Json] = TEXT


Work = Callable[[], Any]
"""The rest of the work for an answer. It uses only immutable values, so it can run in a thread."""

Found: TypeAlias = Any
"""A value of the route's type, work that gives one, or a response as it is (a stream, a file)."""

Merge = Callable[[Mapping[int, Any]], Json]
"""Makes one answer of the workers' answers, by their numbers; the first worker's comes first."""


Handler = Callable[[PlaneState, Request], Awaitable[Found]]
"""Makes the answer of a route. Raises ApiError."""


@attrs.frozen
class ApiRoute:
    """One method at one path."""

    path: str
    """Beneath ``/api/v1``, as Starlette's paths: ``/proxies/{name}``."""
    summary: str
    """One sentence, for OpenAPI and docs/api.md."""
    answer: Callable[[Request], Awaitable[Found]]
    """Raises ApiError."""
    method: str = "GET"
    role: Role = Role.VIEW
    scope: Scope = Scope.ALL
    """The place where the role is needed: in all namespaces unless the route says that less will do."""
    parameters: Sequence[Parameter] = ()
    merge: Merge | None = None
    """With several workers: None if the first one's answer is that of all."""
    sorted_by: str = ""
    """The answer is a list of objects, of which a request with ``limit`` gets a piece, in order of this member."""
    answers: Any = Json
    """The type of the answer, before it is JSON; its schema is made of it."""
    body: Mapping[str, Json] | None = None
    """The JSON schema of the request's body; None: it has none."""
    failures: Mapping[int, str] = attrs.field(factory=dict)
    """The meaning of statuses that not every route may answer."""


class ApiTopic:
    """The routes of one subject, in the order of their declaration: each a function of a plane and a request."""

    def __init__(self) -> None:
        self._declared: list[tuple[Handler, Callable[..., ApiRoute]]] = []

    def declare(self, path: str, summary: str, **more: Any) -> Callable[[Handler], Handler]:
        """Declare the decorated function a route; the arguments are those of `ApiRoute`."""

        def declared(handler: Handler) -> Handler:
            self._declared.append((handler, partial(ApiRoute, path, summary, **more)))
            return handler

        return declared

    def __call__(self, state: PlaneState) -> list[ApiRoute]:
        """The routes of one plane."""
        return [route(answer=partial(handler, state)) for handler, route in self._declared]


def listed(answers: Mapping[int, Any]) -> Json:
    """A ``Merge`` of lists: all entries, those of the first worker first."""
    return [entry for answer in answers.values() for entry in answer]


def first_found(answers: Mapping[int, Any]) -> Json:
    """A ``Merge`` for what one worker has and the others do not know."""
    found: Json = next(iter(answers.values()))
    return found
