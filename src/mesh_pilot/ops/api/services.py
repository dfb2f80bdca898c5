"""Services merged over their sources, and their endpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.requests import Request

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
from mesh_pilot.ops.causes.services import assess_service, kept_services
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment
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

Row = tuple[Service, Sequence[Endpoint], Assessment]


routes = ApiTopic()


@routes.declare(
    "/services",
    "The services, merged over their sources, with the number of their endpoints by health.",
    parameters=(NAMESPACE, REGISTRY, SEARCH, STATE, SORT, *PAGING),
    answers=AssessedPiece[ServiceSummary],
)
async def listed(state: PlaneState, request: Request) -> Found:
    query, paging = dict(request.query_params), Paging.of(request)
    registry = query.get("registry", "")
    services, endpoints = [*state.world.services.items()], dict(state.world.endpoints.items())
    kept = kept_services(state, state.facts())

    def entries() -> Iterator[AssessedEntry[Row]]:
        for key, service in services:
            if service is not None and registry in ("", service.registry):
                own = endpoints.get(key, ())
                found = assess_service(state, kept, service, own)
                names, row = (key.host, *service.addresses), (service, own, found)
                place = f"{key.host}/{key.namespace}"
                yield AssessedEntry(place, row, names, key.namespace, found.state, found.severity)

    return lambda: paging.assessed(entries(), query, lambda row: ServiceSummary.of(*row))


@routes.declare(
    "/services/{namespace}/{host}",
    "A service with its endpoints and their health.",
    parameters=(*IN_PATH, COUNT, OFFSET),
    answers=ServiceState,
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
    found = assess_service(state, kept, service, endpoints)
    return lambda: ServiceState(
        DeclaredService.of(service), found, health_of(endpoints), len(endpoints), [*map(EndpointState.of, shown)]
    )


@routes.declare(
    "/endpoints",
    "The endpoints of all services.",
    parameters=(NAMESPACE, HOST, HEALTH, ADDRESS, *PAGING),
    answers=Piece[ServiceEndpoint],
)
async def all_endpoints(state: PlaneState, request: Request) -> Found:
    query, paging = request.query_params, Paging.of(request)
    wanted = {name: query.get(name, "") for name in ("namespace", "host", "health", "address")}
    everything = [*state.world.endpoints.items()]

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
