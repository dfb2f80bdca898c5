"""Orders of an operator to a running control plane."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from starlette.requests import Request

from mesh_pilot.model.json import Json
from mesh_pilot.model.log_levels import NAMES, SCOPES, SWITCH, parse_levels
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.ops.api.accept import accept_held
from mesh_pilot.ops.api.route import NUMBER, TEXT, ApiError, ApiRoute, Found, Parameter, list_of, object_of
from mesh_pilot.ops.api.visitors import Role
from mesh_pilot.ops.plane.state import PlaneState

PROXY = Parameter("proxy", "Only proxies of this name: web-1.shop, web-1, a pattern such as web-*, or a node id.")
NAME = Parameter("name", "A proxy: web-1.shop, web-1, a pattern such as web-*, or a node id.")
SOURCE = Parameter("source", "The name of a source.")

NAMED = 100
"""Proxies that an answer names."""

PROXIES = object_of(streams=NUMBER, proxies=list_of(TEXT))
LEVELS = object_of(levels=TEXT, started_with=TEXT, scopes=list_of(object_of(name=TEXT, description=TEXT, level=TEXT)))


def routes(state: PlaneState) -> list[ApiRoute]:
    async def push(request: Request) -> Found:
        return _done(state.xds.push_again(wanted_by(request.query_params.get("proxy", ""))))

    async def disconnect(request: Request) -> Found:
        found = _done(state.xds.disconnect(wanted_by(request.path_params["name"])))
        if not found["streams"]:
            raise ApiError(404, f"no connected proxy is called {request.path_params['name']!r}")
        return found

    async def accept(request: Request) -> Found:
        return await accept_held(state, request.path_params["source"], request)

    async def levels(_: Request) -> Found:
        return log_levels()

    async def set_levels(request: Request) -> Found:
        asked = await json_body(request)
        if asked.get("reset") is True and set(asked) == {"reset"}:
            SWITCH.change(SWITCH.started_with)
        elif isinstance(asked.get("level"), str) and set(asked) == {"level"}:
            change_levels(str(asked["level"]))
        else:
            raise ApiError(400, 'the body must be {"level": "xds:debug,..."} or {"reset": true}')
        return log_levels()

    return [
        ApiRoute("/logs", "The levels of the log, by scope.", levels, schema=LEVELS),
        ApiRoute(
            "/logs",
            'Set levels of the log until the process ends: {"level": "xds:debug"}, or {"reset": true}.',
            set_levels,
            method="POST",
            role=Role.OPERATE,
            merge=at_all,
            schema=LEVELS,
            body=object_of(level=TEXT, reset={"type": "boolean"}),
        ),
        ApiRoute(
            "/push",
            "Send proxies all that they hold once more, changed or not.",
            push,
            method="POST",
            role=Role.OPERATE,
            parameters=(PROXY,),
            merge=_together,
            schema=PROXIES,
        ),
        ApiRoute(
            "/proxies/{name:path}/disconnect",
            "End the streams of a proxy; it connects again.",
            disconnect,
            method="POST",
            role=Role.OPERATE,
            parameters=(NAME,),
            merge=_together,
            schema=PROXIES,
        ),
        ApiRoute(
            "/sources/{source:path}/accept",
            "Let go what is held of a source: it is gone for good.",
            accept,
            method="POST",
            role=Role.OPERATE,
            parameters=(SOURCE,),
            schema=object_of(source=TEXT, gone=NUMBER, first=TEXT),
        ),
    ]


async def json_body(request: Request) -> Mapping[str, Any]:
    """The JSON object in the body. Raises ApiError."""
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise ApiError(400, "the body must be a JSON object")
    return found


def wanted_by(name: str) -> Callable[[Proxy], bool]:
    """The proxies that a name or a pattern means; empty: all."""

    def wanted(proxy: Proxy) -> bool:
        short = proxy.name.partition(".")[0]
        return not name or name == proxy.id or fnmatchcase(proxy.name, name) or fnmatchcase(short, name)

    return wanted


def log_levels() -> Json:
    return {
        "levels": SWITCH.levels.text(),
        "started_with": SWITCH.started_with.text(),
        "scopes": [
            {"name": name, "description": what, "level": NAMES[SWITCH.levels.of(name)]} for name, what in SCOPES.items()
        ],
    }


def change_levels(text: str) -> None:
    """Set the levels that a text such as ``xds:debug`` names; the others stay. Raises ApiError."""
    try:
        SWITCH.change(parse_levels(text, SWITCH.levels))
    except ValueError as error:
        raise ApiError(400, str(error)) from None


def at_all(answers: Mapping[int, Any]) -> Json:
    """A ``Merge`` for orders that every worker carries out alike."""
    found: Json = next(iter(answers.values()))
    return found


def _done(names: list[str]) -> dict[str, Json]:
    return {"streams": len(names), "proxies": sorted(set(names))[:NAMED]}


def _together(answers: Mapping[int, Any]) -> Json:
    names = sorted({name for answer in answers.values() for name in answer["proxies"]})
    return {"streams": sum(answer["streams"] for answer in answers.values()), "proxies": names[:NAMED]}
