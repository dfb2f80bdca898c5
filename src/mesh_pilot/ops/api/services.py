"""Services merged over their sources, and their endpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs
import trio
from starlette.requests import Request

from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.model.json import Json
from mesh_pilot.model.service import Endpoint, Service, ServiceKey
from mesh_pilot.ops.api.paging import (
    OFFSET,
    PAGING,
    SEARCH,
    SORT,
    STATE,
    AssessedEntry,
    AssessedPiece,
    Paging,
    Piece,
    number_of,
)
from mesh_pilot.ops.api.route import NUMBER, ApiError, ApiTopic, Found, Parameter
from mesh_pilot.ops.api.visitors import Scope, sees
from mesh_pilot.ops.causes.services import assess_service, kept_services
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment
from mesh_pilot.ops.values.service_use import NO_USE, ServiceUse, ServiceUses
from mesh_pilot.ops.values.services import (
    DeclaredService,
    EndpointState,
    ServiceEndpoint,
    ServiceState,
    ServiceSummary,
    health_of,
)

NAMESPACE = Parameter("namespace", "A namespace.")
HOST = Parameter("host", "A full host name.")
REGISTRY = Parameter("registry", "A registry, such as Consul.")
HEALTH = Parameter("health", "HEALTHY, UNHEALTHY or DRAINING.")
ADDRESS = Parameter("address", "The address of an endpoint.")
IN_PATH = (Parameter("namespace", "The namespace."), Parameter("host", "The full host name."))
COUNT = Parameter("limit", "Endpoints of the answer, 1000 by default.", schema=NUMBER)

NAMED = 20
"""Clients of a service that are named."""

Row = tuple[Service, Sequence[Endpoint], Assessment]


def _all_clients(answers: Mapping[int, Any]) -> Json:
    """Clients of all workers; the rest is the same at each."""
    first, *others = answers.values()
    for answer in others:
        _add_clients(first, answer)
    found: Json = first
    return found


def _all_clients_of_each(answers: Mapping[int, Any]) -> Json:
    """The same for a list."""
    first, *others = answers.values()
    for answer in others:
        known = {(each["host"], each["namespace"]): each for each in answer["items"]}
        for each in first["items"]:
            _add_clients(each, known.get((each["host"], each["namespace"]), {"clients": 0}))
    found: Json = first
    return found


def _add_clients(known: dict[str, Any], more: Mapping[str, Any]) -> None:
    known["clients"] += more["clients"]
    if "called_by" in known:
        known["called_by"] = sorted([*known["called_by"], *more["called_by"]])[:NAMED]


routes = ApiTopic()


@routes.declare(
    "/services",
    "The services, merged over their sources; of each the number of endpoints by health.",
    parameters=(NAMESPACE, REGISTRY, SEARCH, STATE, SORT, *PAGING),
    answers=AssessedPiece[ServiceSummary],
    merge=_all_clients_of_each,
    scope=Scope.ANY,
)
async def listed(state: PlaneState, request: Request) -> Found:
    query, paging = dict(request.query_params), Paging.of(request)
    registry = query.get("registry", "")
    services, endpoints = [*state.world.services.items()], dict(state.world.endpoints.items())
    kept, is_seen = kept_services(state, state.facts()), sees(request)

    def entries() -> Iterator[AssessedEntry[Row]]:
        for key, service in services:
            if service is not None and registry in ("", service.registry) and is_seen(key.namespace):
                own = endpoints.get(key, ())
                found = assess_service(state, kept, service, own)
                names, row = (key.host, *service.addresses), (service, own, found)
                place = f"{key.host}/{key.namespace}"
                yield AssessedEntry(place, row, names, key.namespace, found.state, found.severity)

    uses, known = ServiceUses(state), dict[ServiceKey, ServiceUse]()
    if query.get("sort", "").removeprefix("-") in attrs.fields_dict(ServiceUse):
        known = dict(await in_turns((key, uses.of(service)) for key, service in services if service is not None))

    def shown(row: Row) -> ServiceSummary:
        return ServiceSummary.of(*row, known.get(row[0].key, NO_USE))

    piece = await trio.to_thread.run_sync(lambda: paging.assessed(entries(), query, shown))
    return attrs.evolve(piece, items=[_with_use(state, uses, each) for each in piece.items])


def _with_use(state: PlaneState, uses: ServiceUses, row: ServiceSummary) -> ServiceSummary:
    """A row with its use: that of those alone that are shown, as a mesh may have ten thousand."""
    service = state.world.services.peek(ServiceKey(row.service.host, row.service.namespace))
    return row if service is None else attrs.evolve(row, use=uses.of(service))


@routes.declare(
    "/services/{namespace}/{host}",
    "A service with its endpoints and their health.",
    parameters=(*IN_PATH, COUNT, OFFSET),
    answers=ServiceState,
    merge=_all_clients,
    scope=Scope.NAMESPACE,
)
async def one(state: PlaneState, request: Request) -> Found:
    key = ServiceKey(request.path_params["host"].lower(), request.path_params["namespace"])
    service = state.world.services.peek(key)
    if service is None:
        raise ApiError(404, f"no service {key.host} in namespace {key.namespace}")
    offset = number_of(request, "offset", 0, most=10_000_000)
    limit = number_of(request, "limit", 1000, most=10_000)
    endpoints = state.world.endpoints.peek(key)
    shown, kept = endpoints[offset : offset + limit], kept_services(state, state.facts())
    found, uses = assess_service(state, kept, service, endpoints), ServiceUses(state)
    use, clients = uses.of(service), [*islice(sorted(uses.clients(service)), NAMED)]
    return lambda: ServiceState(
        DeclaredService.of(service),
        found,
        health_of(endpoints),
        len(endpoints),
        [*map(EndpointState.of, shown)],
        use,
        clients,
    )


@routes.declare(
    "/endpoints",
    "The endpoints of all services.",
    parameters=(NAMESPACE, HOST, HEALTH, ADDRESS, *PAGING),
    answers=Piece[ServiceEndpoint],
    scope=Scope.ANY,
)
async def all_endpoints(state: PlaneState, request: Request) -> Found:
    query, paging = request.query_params, Paging.of(request)
    wanted = {name: query.get(name, "") for name in ("namespace", "host", "health", "address")}
    is_seen = sees(request)
    everything = [(key, each) for key, each in state.world.endpoints.items() if is_seen(key.namespace)]

    def found() -> Iterator[tuple[str, tuple[ServiceKey, Endpoint]]]:
        for key, endpoints in everything:
            if wanted["namespace"] not in ("", key.namespace) or wanted["host"] not in ("", key.host):
                continue
            for number, each in enumerate(endpoints):
                if wanted["health"].upper() not in ("", each.health.value):
                    continue
                if wanted["address"] in ("", each.address):
                    yield f"{key.host}/{key.namespace}/{number:07}", (key, each)

    return lambda: paging.piece(found(), _shown)


def _shown(found: tuple[ServiceKey, Endpoint]) -> ServiceEndpoint:
    key, endpoint = found
    return ServiceEndpoint(key.host, key.namespace, EndpointState.of(endpoint))
