"""Resources that a proxy holds: their names in pieces, and one in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from starlette.requests import Request

from mesh_pilot.model.json import SPREAD, Json
from mesh_pilot.model.resource import ENVOY_TYPES, Resource
from mesh_pilot.ops.api.paging import PAGING, SEARCH, Paging, Piece, matches
from mesh_pilot.ops.api.route import (
    ApiError,
    ApiTopic,
    Found,
    Parameter,
    first_found,
)
from mesh_pilot.ops.api.visitors import Scope
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.proxies import find_proxy
from mesh_pilot.xds.ads.config_dump import resource_json

PROXY = Parameter("name", "A proxy: NAME.NAMESPACE, a node id or an address.", is_required=True, is_proxy=True)
TYPE = Parameter("type", "A type: CDS, EDS, LDS, RDS, ...", is_required=True)
RESOURCE = Parameter("resource", "The name of a resource.", is_required=True)

TYPES = {each.short: url for url, each in ENVOY_TYPES.items()}

OBJECTS_NAMED = 20
"""Objects that are named with a resource."""


@attrs.frozen
class HeldType:
    """The resources of a type that a proxy holds, as a snapshot that does not change."""

    version: str
    is_acked: bool
    resources: Mapping[str, Resource]


@attrs.frozen
class HeldResource:
    """A resource that a proxy holds."""

    name: str
    version: str
    bytes: int
    made_from: Sequence[str]
    """The first objects that it was made from."""

    @classmethod
    def of(cls, resource: Resource) -> HeldResource:
        objects = [str(key) for key in resource.configs[:OBJECTS_NAMED]]
        return cls(resource.name, resource.version, len(resource.body), objects)


@attrs.frozen
class HeldResources:
    """A piece of the resources of a type that a proxy holds."""

    version: str
    """The version that was sent last,"""
    is_acked: bool
    """and whether the proxy has accepted it."""
    piece: Piece[HeldResource] = attrs.field(metadata=SPREAD)


@attrs.frozen
class ResourceContent:
    """A resource that a proxy holds, in full."""

    held: HeldResource = attrs.field(metadata=SPREAD)
    is_acked: bool
    resource: Json
    """As Envoy's message in JSON, with secrets redacted."""


routes = ApiTopic()


@routes.declare(
    "/proxies/{name:path}/resources/{type}",
    "The resources of a type that a proxy holds; of each the name and the objects that it was made from.",
    parameters=(PROXY, TYPE, SEARCH, *PAGING),
    merge=first_found,
    answers=HeldResources,
    scope=Scope.PROXY,
)
async def listed(state: PlaneState, request: Request) -> Found:
    held, paging, search = _held(state, request), Paging.of(request), request.query_params.get("q", "")

    def answer() -> HeldResources:
        wanted = ((name, each) for name, each in held.resources.items() if matches(search, name))
        return HeldResources(held.version, held.is_acked, paging.piece(wanted, HeldResource.of))

    return answer


@routes.declare(
    "/proxies/{name:path}/resource/{type}",
    "A resource that a proxy holds, with secrets redacted.",
    parameters=(PROXY, TYPE, RESOURCE),
    merge=first_found,
    answers=ResourceContent,
    scope=Scope.PROXY,
)
async def one(state: PlaneState, request: Request) -> Found:
    held, name = _held(state, request), request.query_params.get("resource", "")
    resource = held.resources.get(name)
    if resource is None:
        raise ApiError(404, f"{request.path_params['name']} holds no {request.path_params['type']} {name[:200]!r}")
    return lambda: ResourceContent(HeldResource.of(resource), held.is_acked, resource_json(resource))


def _held(state: PlaneState, request: Request) -> HeldType:
    """Raises ApiError if no such proxy is connected here, or it has not requested the type."""
    name, short = request.path_params["name"], request.path_params["type"].upper()
    if short not in TYPES:
        raise ApiError(404, f"no type {short[:20]!r}; there are {', '.join(TYPES)}")
    proxy = find_proxy(state, name)
    for dump in state.xds.status.config_dump(proxy) if proxy is not None else ():
        if dump.type_url == TYPES[short]:
            return HeldType(dump.version, dump.is_acked, {resource.name: resource for resource in dump.resources})
    raise ApiError(404, f"no proxy {name[:200]!r} that holds {short} is connected")
