"""The routes of a host as a tree: VirtualServices, their rules, and destinations with their shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import attrs
import trio
from starlette.requests import Request

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.mesh.clusters.destination_rules import destination_rule_ref, subset_labels
from mesh_pilot.mesh.virtual_services.rules import http_rules
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.hosts import host_covers
from mesh_pilot.model.json import IF_GIVEN, SPREAD
from mesh_pilot.model.service import Health, Service, ServiceKey
from mesh_pilot.ops.api.route import ApiError, ApiTopic, Found, Parameter
from mesh_pilot.ops.api.route_words import http_actions, http_matches, l4_matches
from mesh_pilot.ops.api.visitors import Scope
from mesh_pilot.ops.causes.now import PlaneNow
from mesh_pilot.ops.causes.objects import assess_object, by_object
from mesh_pilot.ops.explain.precedence import leads_to
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment
from mesh_pilot.ops.values.truth import truth_now
from mesh_pilot.world import World
from mesh_pilot.world.indexes import VirtualServiceMeta

MOST = 50
"""VirtualServices of a host that are shown, and rules and destinations of each."""

NAMESPACE = Parameter("namespace", "The service's namespace.", is_required=True)
HOST = Parameter("host", "The service's host.", is_required=True)

Destinations = Sequence[tuple[api.Destination, int]]
"""Destinations with their weights."""


@attrs.frozen
class DestinationShare:
    """A destination of a rule with the share that it gets."""

    host: str
    subset: str
    port: int
    """0: that of the request."""
    share: float
    namespace: str | None
    """Null where there is no such service."""
    endpoints: int
    healthy: int
    rules: Sequence[str] | None = attrs.field(metadata=IF_GIVEN)
    """The DestinationRules that apply."""
    problem: str
    """Why nothing can be sent there; empty if it can."""


@attrs.frozen
class RouteRule:
    """A rule of a VirtualService."""

    name: str
    match: Sequence[str]
    """Conditions in words, of which one must hold; empty: any request."""
    actions: Sequence[str]
    to: Sequence[DestinationShare]


@attrs.frozen(kw_only=True)
class HostVirtualService:
    """A VirtualService with a host."""

    object: str
    origin: str
    assessment: Assessment = attrs.field(metadata=SPREAD)
    """True if proxies have what is said here: they may have an older version."""
    hosts: Sequence[str]
    gateways: Sequence[str]
    http: Sequence[RouteRule]
    tls: Sequence[RouteRule]
    tcp: Sequence[RouteRule]


@attrs.frozen
class GatewayToHost:
    """A gateway through which requests come to a service."""

    gateway: str
    """``NAMESPACE/NAME``."""
    hosts: Sequence[str]
    object: str
    """The VirtualService that leads from one to the other."""


@attrs.frozen
class HostRoutes:
    """The routes of a host as a tree, as a client of its namespace sees them."""

    host: str
    namespace: str
    virtual_services: Sequence[HostVirtualService]
    more: int
    """VirtualServices that are left out."""
    itself: DestinationShare
    """The service of the host, for requests that no rule is for."""
    export_to: Sequence[str]
    gateways: Sequence[GatewayToHost]


routes = ApiTopic()


@routes.declare(
    "/services/{namespace}/{host}/routes",
    "The routes of a host as a tree: VirtualServices, rules, and destinations with their shares, as a client "
    "of its namespace sees them.",
    parameters=(NAMESPACE, HOST),
    answers=HostRoutes,
    scope=Scope.NAMESPACE,
)
async def tree(state: PlaneState, request: Request) -> Found:
    host, namespace = request.path_params["host"].lower(), request.path_params["namespace"]
    world = state.world
    service = world.services.peek(ServiceKey(host, namespace))
    if service is None:
        raise ApiError(404, f"no service {host!r} in namespace {namespace!r}")
    metas = [metas for _, metas in world.virtual_services.items()]
    found = await trio.to_thread.run_sync(lambda: _covering(metas, host))
    configs = [*_configs(world, found[:MOST])]
    verdicts = await verdicts_on(state, [config.key for config in configs])
    shown = [virtual_service_shown(world, config, namespace, verdicts[config.key]) for config in configs]
    itself = _destination(world, namespace, host, "", 0, 1.0)
    through = [*islice(_gateways(world, service), MOST)]
    return HostRoutes(host, namespace, shown, max(0, len(found) - MOST), itself, sorted(service.export_to), through)


def _gateways(world: World, service: Service) -> Iterator[GatewayToHost]:
    for gateway in world.view.all_configs("Gateway"):
        name = f"{gateway.namespace}/{gateway.name}"
        for meta in world.view.virtual_services(name):
            if leads_to(world.view, meta, service):
                yield GatewayToHost(name, meta.hosts[:MOST], str(meta.key))


def _covering(metas: Iterable[Sequence[VirtualServiceMeta]], host: str) -> list[VirtualServiceMeta]:
    """The VirtualServices with a host, the oldest first."""
    found = {meta.key: meta for group in metas for meta in group if any(host_covers(own, host) for own in meta.hosts)}
    return sorted(found.values(), key=lambda meta: meta.order)


def _configs(world: World, metas: Iterable[VirtualServiceMeta]) -> Iterator[Config]:
    for meta in metas:
        config = world.config.peek(meta.key)
        if config is not None:
            yield config


async def verdicts_on(state: PlaneState, keys: Sequence[ConfigKey]) -> dict[ConfigKey, Assessment]:
    """How objects are now."""
    truth, errors = await truth_now(state, [("config", *key) for key in keys]), by_object(PlaneNow.of(state).errors)
    return {key: assess_object(state, truth.of(("config", *key)), errors.get(key, ())) for key in keys}


def virtual_service_shown(
    world: World, config: Config, client: str, verdict: Assessment, hosts: Sequence[str] = ()
) -> HostVirtualService:
    """A VirtualService as clients of a namespace see it; ``hosts``: those of its hosts that it is shown for."""
    spec: api.VirtualService = config.spec
    http: list[RouteRule] = []
    for rule in http_rules(world.view, config.key)[:MOST]:
        weighted = [(each.destination, each.weight) for each in rule.spec.route if each.destination is not None]
        to = _shares(world, weighted, rule.namespace, client)
        http.append(RouteRule(rule.spec.name, http_matches(rule.spec), http_actions(rule.spec), to))
    return HostVirtualService(
        object=str(config.key),
        origin=str(config.origin),
        assessment=verdict,
        hosts=[*(hosts or spec.hosts)[:MOST]],
        gateways=spec.gateways[:MOST] or ["mesh"],
        http=http,
        tls=[_l4(world, rule, config.namespace, client) for rule in spec.tls[:MOST]],
        tcp=[_l4(world, rule, config.namespace, client) for rule in spec.tcp[:MOST]],
    )


def _l4(world: World, rule: api.TlsRoute | api.TcpRoute, namespace: str, client: str) -> RouteRule:
    weighted = [(each.destination, each.weight) for each in rule.route if each.destination is not None]
    return RouteRule("", l4_matches(rule), (), _shares(world, weighted, namespace, client))


def _shares(world: World, weighted: Destinations, namespace: str, client: str) -> list[DestinationShare]:
    total = sum(weight for _, weight in weighted)
    found: list[DestinationShare] = []
    for destination, weight in weighted[:MOST]:
        share = weight / total if total else 1 / len(weighted)
        host = world.full_host(destination.host, namespace)
        port = destination.port.number if destination.port is not None else 0
        found.append(_destination(world, client, host, destination.subset, port, share))
    return found


def _destination(world: World, client: str, host: str, subset: str, port: int, share: float) -> DestinationShare:
    """A destination with the number of its endpoints; ``problem`` says why it has none."""
    share = round(share, 4)
    service = _service(world, client, host)
    if service is None:
        return DestinationShare(host, subset, port, share, None, 0, 0, None, "there is no such service")
    endpoints = world.endpoints.peek(service.key)
    rule = destination_rule_ref(world.view, client, None, service.key)
    problem = ""
    if subset:
        labels = subset_labels(world.view, rule, subset)
        if labels is None:
            endpoints, problem = (), f"no DestinationRule declares the subset {subset!r}"
        else:
            endpoints = tuple(each for each in endpoints if labels <= each.labels.items())
    if not endpoints and not problem and service.resolution.value == "EDS":
        problem = "there are no endpoints"
    healthy = sum(each.health is Health.HEALTHY for each in endpoints)
    rules = [str(key) for key in rule]
    return DestinationShare(host, subset, port, share, service.namespace, len(endpoints), healthy, rules, problem)


def _service(world: World, client: str, host: str) -> Service | None:
    """The service that a host means for a client: the one of its namespace, else the oldest that it may see."""
    named = world.services_named.peek(host)
    own = (service for service in named if service.namespace == client)
    return next(own, next(iter(named), None))
