"""The config store by the API: an object with its version, changes of it, and whether the fleet has them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import trio
from starlette.requests import Request
from starlette.responses import Response

from mesh_pilot.istio.kinds import kind_named
from mesh_pilot.model.config import Config, ConfigKey, Origin
from mesh_pilot.model.json import IF_GIVEN, Json, as_json
from mesh_pilot.ops.api.config_body import (
    BodyProblem,
    Proposed,
    config_of,
    is_same,
    kind_or_error,
    problem_rows,
    proposed,
)
from mesh_pilot.ops.api.config_changes import (
    ANY,
    Author,
    ChangeAction,
    Changed,
    ConfigChanges,
    Expectation,
    note_refusal,
)
from mesh_pilot.ops.api.delivery import DeliveryState, delivered
from mesh_pilot.ops.api.route import NUMBER, TEXT, ApiError, ApiTopic, Found, Parameter, object_of
from mesh_pilot.ops.api.visitors import Role, Scope, visitor_of
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.configs import show_config
from mesh_pilot.ops.web.responses import json_response
from mesh_pilot.sources.config_store.documents import without_server_fields

LONGEST_WAIT = 600.0
"""Seconds that an answer may wait for the fleet."""

NO_NAMESPACE = "-"
"""The namespace in the path of an object that has none."""

PATH = "/config/{kind}/{namespace}/{name}"
IN_PATH = (
    Parameter("kind", "The kind: VirtualService, virtualservices or vs, in any case."),
    Parameter("namespace", f"The namespace; {NO_NAMESPACE} for a kind that has none."),
    Parameter("name", "The name."),
)
BOOLEAN = {"type": "boolean"}
DRY_RUN = Parameter("dryRun", "true: check all, and change nothing.", schema=BOOLEAN)
WAIT = Parameter("wait", f"Wait until all proxies have it, so many seconds at most ({LONGEST_WAIT:g}).", schema=NUMBER)
VERSION = Parameter("version", "The version that the object must have, as If-Match.")
IF_MATCH = Parameter("If-Match", 'The version that the object must have, in quotes; "*": any.', is_header=True)
IF_NONE_MATCH = Parameter("If-None-Match", "*: there must be no such object.", is_header=True)
FORCE = Parameter("force", "true: the version in the object's metadata does not count.", schema=BOOLEAN)

FAILURES = {
    409: "Conflict: stored elsewhere, in a shared file, changed since it was read, or no store is configured.",
    412: "It does not have the version that is expected; `version` is the one that it has.",
    413: "The body is too large.",
    422: "The object is not valid; `problems` has all that is wrong.",
    503: "The store cannot be read or written now.",
}


@attrs.frozen(kw_only=True)
class ChangedObject:
    """A change of the config store that was made, or would be."""

    action: ChangeAction
    object: str
    version: str
    """The version after; empty where there is none."""
    version_before: str
    where: str
    dry_run: bool
    warnings: Sequence[BodyProblem]
    delivery: DeliveryState | None = attrs.field(default=None, metadata=IF_GIVEN)


@attrs.frozen(kw_only=True)
class StoredObject:
    """An object as it is in the config store, else as it is in force."""

    object: Json
    version: str
    """The version that a change of it names; empty for one that is not in the store."""
    where: str
    in_store: bool
    in_force: str
    """The place of the version in force; empty if none is."""
    store: str
    """The place of the store; empty if there is none."""
    delivery: DeliveryState | None = attrs.field(default=None, metadata=IF_GIVEN)


routes = ApiTopic()


@routes.declare(
    PATH,
    "An object in the config store, or in force, with the version that a change of it names.",
    parameters=(*IN_PATH, WAIT),
    answers=StoredObject,
    failures={503: FAILURES[503]},
    scope=Scope.NAMESPACE,
)
async def one(state: PlaneState, request: Request) -> Found:
    key = _key(request)
    seconds = _checked(request)
    stored = await ConfigChanges(state, _author(request)).read(key)
    config = state.world.config.peek(key)
    if stored is None and config is None:
        raise ApiError(404, f"no object {key}")
    answer = _shown(state, key, stored, config)
    if seconds:
        if stored is not None and stored.document is not None:
            config = config_of(stored.document, key, Origin("api"))
        answer = attrs.evolve(answer, delivery=await _delivery(state, key, config, seconds))
    return _with_tag(answer, stored.version if stored is not None else "")


@routes.declare(
    PATH,
    "Create an object in the config store, or replace it; the body is the object in YAML or JSON.",
    method="PUT",
    role=Role.EDIT,
    parameters=(*IN_PATH, DRY_RUN, WAIT, VERSION, FORCE, IF_MATCH, IF_NONE_MATCH),
    answers=ChangedObject,
    body=object_of(apiVersion=TEXT, kind=TEXT, metadata=object_of(), spec=object_of()),
    failures=FAILURES,
    scope=Scope.NAMESPACE,
)
async def put(state: PlaneState, request: Request) -> Found:
    key, author, dry_run = _key(request), _author(request), _flag(request, "dryRun")
    seconds = _checked(request)
    body = await request.body()
    try:
        new = await trio.to_thread.run_sync(proposed, body, key)
    except ApiError as error:
        note_refusal(author, str(key), "PUT", error, dry_run)
        raise
    expected = _expected(request, new)
    changed = await ConfigChanges(state, author).put(key, new, expected, dry_run=dry_run)
    return await _answered(state, changed, seconds, dry_run, new)


@routes.declare(
    PATH,
    "Delete an object from the config store.",
    method="DELETE",
    role=Role.EDIT,
    parameters=(*IN_PATH, DRY_RUN, WAIT, VERSION, IF_MATCH),
    answers=ChangedObject,
    failures={status: FAILURES[status] for status in (409, 412, 503)},
    scope=Scope.NAMESPACE,
)
async def delete(state: PlaneState, request: Request) -> Found:
    key, dry_run = _key(request), _flag(request, "dryRun")
    seconds = _checked(request)
    changes = ConfigChanges(state, _author(request))
    changed = await changes.delete(key, _expected(request, None), dry_run=dry_run)
    return await _answered(state, changed, seconds, dry_run, None)


async def _delivery(state: PlaneState, key: ConfigKey, wanted: Config | None, seconds: float) -> DeliveryState:
    """How far an object has come, once every proxy has answered or the time is over."""
    found = await delivered(state, key, lambda config: is_same(config, wanted), seconds)
    return found.shown


async def _answered(
    state: PlaneState, changed: Changed, seconds: float, dry_run: bool, new: Proposed | None
) -> Response:
    """The answer to a change, once the fleet has it, if that is asked."""
    waits = seconds and not dry_run
    answer = ChangedObject(
        action=changed.action,
        object=str(changed.key),
        version=changed.after,
        version_before=changed.before,
        where=changed.location,
        dry_run=dry_run,
        warnings=problem_rows(new.config.warnings) if new is not None else (),
        delivery=await _delivery(state, changed.key, changed.config, seconds) if waits else None,
    )
    return _with_tag(answer, changed.after)


def _shown(state: PlaneState, key: ConfigKey, stored: Any, config: Config | None) -> StoredObject:
    """An object: as it is stored if it is, else as it is in force."""
    store = state.config_store
    found = partial(
        StoredObject,
        in_store=stored is not None,
        in_force=str(config.origin) if config is not None else "",
        store=store.place if store is not None else "",
    )
    if stored is None:
        assert config is not None
        shown = show_config(config)
        assert isinstance(shown, dict)
        document = {name: value for name, value in shown.items() if name != "origin"}
        return found(object=document, version="", where=str(config.origin))
    if stored.document is None:
        raise ApiError(409, f"{key} at {stored.location} cannot be read: fix it there, or replace it")
    document = without_server_fields(stored.document)
    metadata = dict(document.get("metadata") or {})
    metadata.setdefault("name", key.name)
    if key.namespace:
        metadata.setdefault("namespace", key.namespace)
    document["metadata"] = {**metadata, "resourceVersion": stored.version}
    return found(object=document, version=stored.version, where=stored.location)


def _with_tag(answer: ChangedObject | StoredObject, version: str) -> Response:
    response = json_response(as_json(answer))
    if version:
        response.headers["etag"] = f'"{version}"'
    return response


def _author(request: Request) -> Author:
    visitor = visitor_of(request)
    return Author(visitor.name, visitor.how, visitor.shown_subject) if visitor is not None else Author("", "")


def _key(request: Request) -> ConfigKey:
    """The key that a path names. Raises ApiError."""
    path = request.path_params
    kind = kind_or_error(kind_named(path["kind"]), path["kind"])
    namespace, name = path["namespace"], path["name"]
    if kind.cluster_scoped != (namespace == NO_NAMESPACE):
        what = f"has no namespace: write {NO_NAMESPACE}" if kind.cluster_scoped else "has a namespace"
        raise ApiError(400, f"{kind.name} {what}")
    return ConfigKey(kind.name, "" if kind.cluster_scoped else namespace, name)


def _checked(request: Request) -> float:
    """The seconds to wait for the fleet. Raises ApiError for what a request may not ask."""
    if "worker" in request.query_params:
        raise ApiError(400, "the config store is the control plane's, not a worker's: leave out worker")
    asked = request.query_params.get("wait", "")
    try:
        seconds = float(asked or 0)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_WAIT:
        raise ApiError(400, f"wait={asked[:20]}: must be seconds, {LONGEST_WAIT:g} at most")
    return seconds


def _flag(request: Request, name: str) -> bool:
    asked = request.query_params.get(name, "")
    if asked not in ("", "true", "false"):
        raise ApiError(400, f"{name}={asked[:20]}: must be true or false")
    return asked == "true"


def _expected(request: Request, new: Proposed | None) -> Expectation:
    """The state that the object is taken to be in, by headers, query and the body's metadata. Raises ApiError."""
    if_none, if_match = request.headers.get("if-none-match", ""), request.headers.get("if-match", "").strip()
    if if_none and if_none.strip() != ANY:
        raise ApiError(400, "If-None-Match can only be *: there must be no such object")
    tag = if_match.removeprefix("W/").strip('"')
    in_body = new.version if new is not None and not _flag(request, "force") else ""
    versions = {version for version in (tag, request.query_params.get("version", ""), in_body) if version}
    if len(versions) > 1:
        raise ApiError(400, f"different versions are expected: {', '.join(sorted(versions))}; name one")
    if versions and if_none:
        raise ApiError(400, "If-None-Match and a version exclude each other")
    return Expectation(next(iter(versions), ""), bool(if_none))
