"""Orders of an operator to a running control plane."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs
from starlette.requests import Request

from mesh_pilot.model.json import Json
from mesh_pilot.model.log_levels import NAMES, SCOPES, SWITCH, parse_levels
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.ops.api.accept import AcceptedLoss, accept_held
from mesh_pilot.ops.api.route import TEXT, ApiError, ApiTopic, Found, Parameter, object_of
from mesh_pilot.ops.api.visitors import Role, Scope
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.proxies import find_proxy
from mesh_pilot.xds.ads.proxy_names import is_pattern, machine_of

_MEANT = "NAME.NAMESPACE, a node id or an address; or a pattern such as web-*, for all of it."
PROXY = Parameter("proxy", f"Only this proxy: {_MEANT}", is_proxy=True)
NAME = Parameter("name", f"A proxy: {_MEANT}", is_proxy=True)
SOURCE = Parameter("source", "The name of a source.")

NAMED = 100
"""Proxies that an answer names."""


@attrs.frozen
class ReachedProxies:
    """The streams that an order reached, and the first of their proxies."""

    streams: int
    proxies: Sequence[str]


@attrs.frozen
class LogScope:
    """A part of the program, and the level of its log."""

    name: str
    description: str
    level: str


@attrs.frozen
class LogState:
    """The levels of the log."""

    levels: str
    """As for ``--log-level``."""
    started_with: str
    scopes: Sequence[LogScope]


def at_all(answers: Mapping[int, Any]) -> Json:
    """A ``Merge`` for orders that every worker carries out alike."""
    found: Json = next(iter(answers.values()))
    return found


def _together(answers: Mapping[int, Any]) -> Json:
    names = sorted({name for answer in answers.values() for name in answer["proxies"]})
    return {"streams": sum(answer["streams"] for answer in answers.values()), "proxies": names[:NAMED]}


routes = ApiTopic()


@routes.declare("/logs", "The levels of the log, by scope.", answers=LogState)
async def levels(state: PlaneState, _: Request) -> Found:
    return log_levels()


@routes.declare(
    "/logs",
    'Set levels of the log until the process ends: {"level": "xds:debug"}, or {"reset": true}.',
    method="POST",
    role=Role.OPERATE,
    merge=at_all,
    answers=LogState,
    body=object_of(level=TEXT, reset={"type": "boolean"}),
)
async def set_levels(state: PlaneState, request: Request) -> Found:
    asked = await json_body(request)
    if asked.get("reset") is True and set(asked) == {"reset"}:
        SWITCH.change(SWITCH.started_with)
    elif isinstance(asked.get("level"), str) and set(asked) == {"level"}:
        change_levels(str(asked["level"]))
    else:
        raise ApiError(400, 'the body must be {"level": "xds:debug,..."} or {"reset": true}')
    return log_levels()


@routes.declare(
    "/push",
    "Send proxies all that they hold once more, changed or not.",
    method="POST",
    role=Role.OPERATE,
    parameters=(PROXY,),
    merge=_together,
    answers=ReachedProxies,
    scope=Scope.PROXY,
)
async def push(state: PlaneState, request: Request) -> Found:
    return _done(state.xds.push_again(wanted_by(state, request.query_params.get("proxy", ""))))


@routes.declare(
    "/proxies/{name:path}/disconnect",
    "End the streams of a proxy; it connects again.",
    method="POST",
    role=Role.OPERATE,
    parameters=(NAME,),
    merge=_together,
    answers=ReachedProxies,
    scope=Scope.PROXY,
)
async def disconnect(state: PlaneState, request: Request) -> Found:
    found = _done(state.xds.disconnect(wanted_by(state, request.path_params["name"])))
    if not found.streams:
        raise ApiError(404, f"no connected proxy is called {request.path_params['name']!r}")
    return found


@routes.declare(
    "/sources/{source:path}/accept",
    "Release what is held of a source: it is gone for good.",
    method="POST",
    role=Role.OPERATE,
    parameters=(SOURCE,),
    answers=AcceptedLoss,
)
async def accept(state: PlaneState, request: Request) -> Found:
    return await accept_held(state, request.path_params["source"], request)


async def json_body(request: Request) -> Mapping[str, Any]:
    """The JSON object in the body. Raises ApiError."""
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise ApiError(400, "the body must be a JSON object")
    return found


def wanted_by(state: PlaneState, text: str) -> Callable[[Proxy], bool]:
    """The proxies that a pattern means, or the one of a name; empty: all. Raises SeveralProxies."""
    if not text:
        return lambda _: True
    if is_pattern(text):
        return lambda proxy: any(fnmatchcase(each, text) for each in (proxy.name, proxy.name.partition(".")[0]))
    chosen = find_proxy(state, text)
    return lambda proxy: chosen is not None and machine_of(proxy) == machine_of(chosen)


def log_levels() -> LogState:
    scopes = [LogScope(name, what, NAMES[SWITCH.levels.of(name)]) for name, what in SCOPES.items()]
    return LogState(SWITCH.levels.text(), SWITCH.started_with.text(), scopes)


def change_levels(text: str) -> None:
    """Set the levels that a string such as ``xds:debug`` names; the others stay. Raises ApiError."""
    try:
        SWITCH.change(parse_levels(text, SWITCH.levels))
    except ValueError as error:
        raise ApiError(400, str(error)) from None


def _done(names: list[str]) -> ReachedProxies:
    return ReachedProxies(len(names), sorted(set(names))[:NAMED])
