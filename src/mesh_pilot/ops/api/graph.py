"""The picture of the mesh: who routes to whom, as gateways, VirtualServices and Sidecars declare it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import attrs
from starlette.requests import Request

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.json import called
from mesh_pilot.ops.api.route import ApiTopic, Found, Parameter
from mesh_pilot.ops.api.visitors import Scope, sees
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.world.names import MESH_GATEWAY, full_gateway, full_host, registry_host

MOST = 200
"""Edges of an answer; ``total`` is the number of all."""

SEARCH = Parameter("q", "Only edges of which one end has this text in its name, in any case.")
NAMESPACE = Parameter("namespace", "Only what objects of this namespace declare.")


@attrs.frozen(order=True)
class GraphEdge:
    """An edge. The kinds of ends are those of ``GraphEnd``."""

    from_kind: str
    from_name: str
    to_kind: str
    to_name: str
    subset: str = ""


@attrs.frozen
class GraphNames:
    """The settings of the World by which names are resolved, and the hosts that there are."""

    domain: str
    short_names_in: str
    hosts: Mapping[str, str]
    """The namespace of the service of each host."""

    def full(self, host: str, namespace: str) -> str:
        return full_host(registry_host(host, self.short_names_in), namespace, self.domain)


@attrs.frozen
class GraphEnd:
    """An end of an edge."""

    kind: str
    """``gateway``, ``sidecar`` or ``service``; ``host`` for a name that requests ask for without a service of it, and
    ``unknown`` for a gateway or a destination that does not exist."""
    name: str
    namespace: str | None


@attrs.frozen
class RoutingEdge:
    """A route from one thing to another."""

    origin: GraphEnd = attrs.field(metadata=called("from"))
    target: GraphEnd = attrs.field(metadata=called("to"))
    """The same end as ``from`` where the routes of a service lead to itself, or to subsets of it."""
    subset: str
    """Empty: all endpoints of the service."""
    share: float
    """That of a request which no rule has conditions for; of an edge with conditions the largest."""
    is_conditional: bool
    """True if only requests that fulfil conditions go there."""
    object: str
    """The object that says so."""


@attrs.frozen
class RoutingGraph:
    """All routes between things of the mesh."""

    edges: Sequence[RoutingEdge]
    total: int


routes = ApiTopic()


@routes.declare(
    "/graph",
    "Who routes to whom: edges from gateways and Sidecars to hosts, and from hosts to destinations, with "
    f"their shares; at most {MOST}.",
    parameters=(SEARCH, NAMESPACE),
    answers=RoutingGraph,
    scope=Scope.ANY,
)
async def graph(state: PlaneState, request: Request) -> Found:
    query, world = request.query_params, state.world
    search, namespace = query.get("q", "").lower(), query.get("namespace", "")
    is_seen = sees(request)
    everything = [(key, config) for key, config in world.config.items() if is_seen(key.namespace)]
    services = [*world.services.items()]
    domain, short_names_in = world.settings["domain"], world.settings["short_names_in"]

    def answer() -> RoutingGraph:
        configs = {key: config for key, config in everything if config is not None and key.kind in SHOWN}
        hosts = {key.host: key.namespace for key, service in services if service is not None}
        return _picture(configs, GraphNames(domain, short_names_in, hosts), search, namespace)

    return answer


def _picture(configs: Mapping[ConfigKey, Config], names: GraphNames, search: str, namespace: str) -> RoutingGraph:
    shares: dict[GraphEdge, tuple[bool, float, str]] = {}
    for key, config in configs.items():
        if namespace not in ("", key.namespace):
            continue
        read = _READERS.get(key.kind)
        for edge, share, is_for_any in read(config, configs, names) if read is not None else ():
            if search in edge.from_name.lower() or search in edge.to_name.lower():
                shares[edge] = max(shares.get(edge, (False, 0.0, "")), (is_for_any, share, str(key)))

    gateways = {f"{key.namespace}/{key.name}" for key in configs if key.kind == "Gateway"}

    def end(kind: str, name: str) -> GraphEnd:
        if kind == "gateway" and name not in gateways:
            return GraphEnd("unknown", name, None)
        is_service = kind in ("host", "unknown") and name in names.hosts
        return GraphEnd("service" if is_service else kind, name, names.hosts.get(name) if is_service else None)

    edges = [
        RoutingEdge(
            end(edge.from_kind, edge.from_name),
            end(edge.to_kind, edge.to_name),
            edge.subset,
            round(share, 4),
            not is_for_any,
            origin,
        )
        for edge, (is_for_any, share, origin) in islice(sorted(shares.items()), MOST)
    ]
    return RoutingGraph(edges, len(shares))


Edges = Iterator[tuple[GraphEdge, float, bool]]
"""Edges with their shares, and whether any request may take them."""


def _of_virtual_service(config: Config, configs: Mapping[ConfigKey, Config], names: GraphNames) -> Edges:
    spec: api.VirtualService = config.spec
    hosts = [names.full(host, config.namespace) for host in spec.hosts]
    gateways = {full_gateway(name, config.namespace, names.domain) for name in spec.gateways} - {MESH_GATEWAY}
    for host in hosts:
        for gateway in gateways:
            yield GraphEdge("gateway", gateway, "host", host), 1.0, True
        for destination, subset, share, is_for_any in _destinations(spec, config.namespace, configs, names):
            yield GraphEdge("host", host, "unknown", destination, subset), share, is_for_any


def _destinations(
    spec: api.VirtualService, namespace: str, configs: Mapping[ConfigKey, Config], names: GraphNames
) -> Iterator[tuple[str, str, float, bool]]:
    for rule in spec.http:
        is_for_any = not rule.match
        if rule.delegate is not None:
            there = rule.delegate.namespace or namespace
            delegate = configs.get(ConfigKey("VirtualService", there, rule.delegate.name))
            for inner in delegate.spec.http if delegate is not None else ():
                for share in _shares(inner.route, there, names):
                    yield *share, is_for_any and not inner.match
        for share in _shares(rule.route, namespace, names):
            yield *share, is_for_any
    of_connections: tuple[api.TlsRoute | api.TcpRoute, ...] = (*spec.tls, *spec.tcp)
    for connections in of_connections:
        for share in _shares(connections.route, namespace, names):
            yield *share, not connections.match


def _shares(
    route: Iterable[api.HttpRouteDestination | api.RouteDestination], namespace: str, names: GraphNames
) -> Iterator[tuple[str, str, float]]:
    """The destinations of a rule: host, subset and share."""
    weights: dict[tuple[str, str], int] = {}
    for each in route:
        if each.destination is not None:
            to = names.full(each.destination.host, namespace), each.destination.subset
            weights[to] = weights.get(to, 0) + each.weight
    total = sum(weights.values())
    for (host, subset), weight in weights.items():
        yield host, subset, weight / total if total else 1 / len(weights)


def _of_sidecar(config: Config, configs: Mapping[ConfigKey, Config], names: GraphNames) -> Edges:
    """Only hosts that are named: a wildcard says nothing of who calls whom."""
    spec: api.Sidecar = config.spec
    for egress in spec.egress:
        for entry in egress.hosts:
            _, _, host = entry.partition("/")
            if host and "*" not in host:
                yield GraphEdge("sidecar", f"{config.namespace}/{config.name}", "host", host), 1.0, True


_READERS = {"VirtualService": _of_virtual_service, "Sidecar": _of_sidecar}

SHOWN = ("Gateway", *_READERS)
"""Kinds of objects that the picture is made of."""
