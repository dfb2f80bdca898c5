"""Resources that a proxy holds: their names in pieces, and one in full."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from starlette.requests import Request

from mesh_pilot.model.json import Json
from mesh_pilot.model.resource import ENVOY_TYPES, Resource
from mesh_pilot.ops.api.paging import PAGING, SEARCH, Paging, matches, paged_schema
from mesh_pilot.ops.api.route import (
    NUMBER,
    TEXT,
    ApiError,
    ApiRoute,
    Found,
    Parameter,
    first_found,
    list_of,
    object_of,
)
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.xds.ads.config_dump import resource_json

PROXY = Parameter("name", "A proxy: NAME.NAMESPACE, or its node id.", is_required=True)
TYPE = Parameter("type", "A type: CDS, EDS, LDS, RDS, ...", is_required=True)
RESOURCE = Parameter("resource", "The name of a resource.", is_required=True)

TYPES = {each.short: url for url, each in ENVOY_TYPES.items()}

OBJECTS_NAMED = 20
"""Objects that are named with a resource."""


@attrs.frozen
class HeldType:
    """The resources of a type that a proxy holds, as a snapshot that nobody changes."""

    version: str
    is_acked: bool
    resources: Mapping[str, Resource]


def routes(state: PlaneState) -> list[ApiRoute]:
    async def listed(request: Request) -> Found:
        held, paging, search = _held(state, request), Paging.of(request), request.query_params.get("q", "")

        def answer() -> Json:
            wanted = ((name, each) for name, each in held.resources.items() if matches(search, name))
            found = paging.piece(wanted, _row)
            assert isinstance(found, dict)
            return {"version": held.version, "is_acked": held.is_acked, **found}

        return answer

    async def one(request: Request) -> Found:
        held, name = _held(state, request), request.query_params.get("resource", "")
        resource = held.resources.get(name)
        if resource is None:
            raise ApiError(404, f"{request.path_params['name']} holds no {request.path_params['type']} {name[:200]!r}")
        return lambda: {**_row(resource), "is_acked": held.is_acked, "resource": resource_json(resource)}

    return [
        ApiRoute(
            "/proxies/{name}/resources/{type}",
            "The names of the resources of a type that a proxy holds, and the objects that they were made from.",
            listed,
            parameters=(PROXY, TYPE, SEARCH, *PAGING),
            merge=first_found,
            schema=paged_schema(object_of(name=TEXT, version=TEXT, bytes=NUMBER, made_from=list_of(TEXT))),
        ),
        ApiRoute(
            "/proxies/{name}/resource/{type}",
            "A resource that a proxy holds, with secrets redacted.",
            one,
            parameters=(PROXY, TYPE, RESOURCE),
            merge=first_found,
            schema=object_of(name=TEXT, version=TEXT, made_from=list_of(TEXT), resource=object_of()),
        ),
    ]


def _held(state: PlaneState, request: Request) -> HeldType:
    """Raises ApiError if no such proxy is connected here, or it has not requested the type."""
    proxy_id, short = request.path_params["name"], request.path_params["type"].upper()
    if short not in TYPES:
        raise ApiError(404, f"no type {short[:20]!r}; there are {', '.join(TYPES)}")
    for connection in state.xds.status.proxies():
        proxy, stream = connection.proxy, connection.stream
        if proxy is None or stream is None or proxy_id not in (proxy.id, proxy.name):
            continue
        for each in stream.statistics():
            if each.type_url == TYPES[short]:
                acked = each.nonce == each.acked_nonce
                return HeldType(each.version, acked, stream.client_state(each.type_url))
    raise ApiError(404, f"no proxy {proxy_id[:200]!r} that holds {short} is connected")


def _row(resource: Resource) -> dict[str, Json]:
    return {
        "name": resource.name,
        "version": resource.version,
        "bytes": len(resource.body),
        "made_from": [str(key) for key in resource.configs[:OBJECTS_NAMED]],
    }
