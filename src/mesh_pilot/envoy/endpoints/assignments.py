"""Load assignments (EDS): the endpoints of a cluster by locality, with weights, priorities and TLS metadata.

A client's scope and locality are reduced to a small ``EndpointViewpoint`` of the cluster first, and the assignment
depends on that alone: all clients with an equal viewpoint share its bytes.

Endpoints are written as bytes by a format string: a service of a thousand is made again at each flap, and as many
objects would take ten times as long. Priorities come last, over whole localities, because failover, weights by locality
and zones all look at the same question, "how near is this?", and Envoy has one number for the answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

import attrs

from mesh_pilot.api.istio.security.v1beta1 import PeerAuthenticationMutualTlsMode as PeerAuthenticationMode
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import UNLIMITED
from mesh_pilot.envoy.core.upstream_names import upstream_metadata
from mesh_pilot.envoy.endpoints.encode import cluster_load_assignment, lb_endpoint, locality_lb_endpoints
from mesh_pilot.envoy.endpoints.viewpoints import EndpointViewpoint, ServiceSpread, endpoint_viewpoint
from mesh_pilot.envoy.tls.upstream import TlsMode
from mesh_pilot.mesh.clusters.cluster_local import is_cluster_local
from mesh_pilot.mesh.clusters.destination_rules import (
    DestinationRuleRef,
    destination_rule_ref,
    passes_through,
    subset_labels,
)
from mesh_pilot.mesh.clusters.locality import (
    FAILOVER_LEVELS,
    Distribution,
    Failover,
    LabelPriority,
    LabelsThenFailover,
    Preference,
    distributed_weights,
    failover_level,
    label_level,
    label_of,
    topology,
)
from mesh_pilot.mesh.clusters.upstreams import Discovery, discovery_of, port_endpoints
from mesh_pilot.mesh.legacy.authentication import ServedPort
from mesh_pilot.mesh.legacy.ports import any_legacy
from mesh_pilot.mesh.names.resources import ClusterName, Direction, is_sni, parse_cluster
from mesh_pilot.mesh.policies.peer_authentication import PeerMode, any_policy_disables, peer_modes
from mesh_pilot.mesh.policies.telemetry import called_service
from mesh_pilot.mesh.proxy.metric_source import endpoint_names, metrics_anywhere
from mesh_pilot.mesh.proxy.scope import OutboundScope, ProxyLocality
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.mesh.settings.networks import Gateways, Networks, networks_with_gateways, through_gateways
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import ENDPOINT, Resource, make_resource
from mesh_pilot.model.service import (
    MESH_TLS_MODE,
    NOWHERE,
    Endpoint,
    Health,
    Locality,
    NetworkGateway,
    Port,
    Service,
    ServiceKey,
)
from mesh_pilot.world.view import View

_UNHEALTHY = Health.UNHEALTHY
_NO_NETWORKS = Networks()


class _EdsCluster(NamedTuple):
    """A cluster of a scope, by its name."""

    parsed: ClusterName
    service: Service
    port: Port
    ref: DestinationRuleRef
    labels: Labels
    """The labels of its subset."""


def _eds_cluster(view: View, scope: OutboundScope, name: str) -> _EdsCluster | None:
    """None if the scope has no EDS cluster of this name."""
    parsed = parse_cluster(name)
    if parsed is None or parsed.direction is not Direction.OUTBOUND:
        return None
    service = called_service(view, scope, parsed.host, parsed.port)
    port = None
    if service is not None:
        port = service.datagram_port(parsed.port) if parsed.datagrams else service.port(parsed.port)
    if service is None or port is None:
        return None
    ref = destination_rule_ref(view, scope.namespace, scope.labels, service.key)
    labels = subset_labels.compute(view, ref, parsed.subset)
    through = bool(ref) and passes_through(view, ref, parsed.port, parsed.subset)
    if labels is None or discovery_of(scope, service, through) is not Discovery.EDS:
        return None
    return _EdsCluster(parsed, service, port, ref, labels)


@derived
def has_assignment(view: View, scope: OutboundScope, name: str) -> bool:
    """True if the clients of a scope are sent an assignment of this name."""
    return _eds_cluster(view, scope, name) is not None


@derived
def assignment(view: View, scope: OutboundScope, locality: ProxyLocality, name: str) -> Resource | None:
    """The endpoints of a scope's cluster, by its name; None if the scope has no EDS cluster of that name."""
    found = _eds_cluster(view, scope, name)
    if found is None:
        return None
    parsed, service, port, ref, labels = found
    spread = ServiceSpread(service.traffic_distribution, service.node_local)
    if locality.cluster_id:
        private, local = _has_private(view, service.key), is_cluster_local(view, parsed.host)
        spread = spread._replace(has_private=private, cluster_local=local)
    viewpoint = endpoint_viewpoint(view, ref, parsed.port, parsed.subset, locality, is_sni(name), spread)
    if parsed.datagrams:  # the gateways of other networks are for mesh mTLS
        viewpoint = attrs.evolve(viewpoint, tls_mode=TlsMode.DISABLE)
    return load_assignment(view, name, service.key, port.name, labels, viewpoint, service.configs)


@derived
def load_assignment(
    view: View,
    name: str,
    service: ServiceKey,
    port: str,
    labels: Labels,
    viewpoint: EndpointViewpoint,
    configs: tuple[ConfigKey, ...],
) -> Resource:
    """The endpoints of a service's port (by name) that have these labels, as the assignment of the cluster ``name``.

    ``configs``: the objects that the service was made from.
    """
    return make_resource(name, ENDPOINT, encode_assignment(view, name, service, port, labels, viewpoint), configs)


def encode_assignment(
    view: View, name: str, service: ServiceKey, port: str, labels: Labels, viewpoint: EndpointViewpoint
) -> bytes:
    """The encoded ClusterLoadAssignment; DNS clusters contain it."""
    chosen = port_endpoints(view, service, port)
    # One filter for each field of the viewpoint that is not at its default: mostly none is, and nothing is copied.
    if not viewpoint.with_unhealthy:
        chosen = tuple([e for e in chosen if e.health is not _UNHEALTHY])
    if viewpoint.private_to:
        chosen = tuple(e for e in chosen if not e.is_private or e.cluster_id == viewpoint.private_to)
    if viewpoint.node is not None:
        chosen = tuple(e for e in chosen if e.node == viewpoint.node)
    if viewpoint.cluster_id:
        chosen = tuple(e for e in chosen if e.cluster_id in ("", viewpoint.cluster_id))
    if labels:
        chosen = tuple(e for e in chosen if _has_labels(e, labels))
    groups = _locality_groups(view, service, chosen, viewpoint)
    return cluster_load_assignment(
        name,
        (
            locality_lb_endpoints(
                group.locality, (member.body for member in group.members), group.weight, group.priority
            )
            for group in _preferred(groups, viewpoint.preference)
        ),
    )


# -- grouping


class _Member(NamedTuple):
    """An endpoint that a client connects to: one of the service, or a gateway to another network."""

    body: bytes
    """An LbEndpoint."""
    weight: int
    endpoint: Endpoint
    """The endpoint; of a gateway, made up from its address and network."""


@attrs.define
class _LocalityGroup:
    locality: Locality
    members: list[_Member]
    weight: int
    priority: int = 0
    rank: int = 0
    """That of its endpoints: see `Endpoint.failover_rank`."""


@attrs.frozen
class _ServerSide:
    """The properties of a service, besides labels of its endpoints, on which their mTLS modes depend."""

    service: ServiceKey
    default_namespace: str
    """The namespace of endpoints without one."""
    ports: Mapping[str, int]
    """The service's ports by name, if a legacy policy may be about them."""

    def ports_of(self, endpoint: Endpoint) -> tuple[ServedPort, ...]:
        number = self.ports.get(endpoint.service_port)
        if number is None:
            return ()
        return (ServedPort(endpoint.port, self.service, number, endpoint.service_port),)


def _server_side(view: View, service: ServiceKey, viewpoint: EndpointViewpoint) -> _ServerSide:
    # Inline endpoints of a ServiceEntry have no namespace. For clients only the mesh's policy applies to them, as
    # in Istio; a gateway that passes connections through unseen has to respect the service's namespace, too.
    namespace = service.namespace if viewpoint.mesh_tls_only else ""
    declared = view.service(service) if any_legacy(view) else None
    return _ServerSide(service, namespace, {port.name: port.number for port in declared.ports} if declared else {})


def _locality_groups(
    view: View, service: ServiceKey, endpoints: Iterable[Endpoint], viewpoint: EndpointViewpoint
) -> list[_LocalityGroup]:
    """The endpoints of a service that a client can reach, by rank and locality; an address and port occurs once in a
    network.
    """
    by_locality: dict[tuple[int, Locality], list[Endpoint]] = defaultdict(list)
    first: dict[tuple[str, int, str], Endpoint] = {}
    with_networks = viewpoint.network is not None
    mesh_networks = networks_with_gateways(view, *_registry(view, service)) if with_networks else None
    for endpoint in endpoints:
        network = mesh_networks.of(endpoint) if mesh_networks else ""
        known_one = first.setdefault((endpoint.address, endpoint.port, network), endpoint)
        if endpoint.failover_rank < known_one.failover_rank:
            first[endpoint.address, endpoint.port, network] = endpoint
    # Networks are known only where one has a gateway. Weights are bounded after duplicates are gone, as Envoy counts
    # them.
    if viewpoint.network_view:
        known = mesh_networks or _NO_NETWORKS
        first = {at: e for at, e in first.items() if known.of(e) in ("", *viewpoint.network_view)}
    for endpoint in _bounded(first.values(), UNLIMITED // (mesh_networks.scale if mesh_networks else 1)):
        by_locality[endpoint.failover_rank, endpoint.locality].append(endpoint)
    servers = _server_side(view, service, viewpoint) if _some_peers_disable(view) else None
    named = service.namespace if metrics_anywhere(view) else None
    groups = []
    for (rank, locality), located in sorted(by_locality.items()):
        members = (
            _members(view, located, viewpoint, mesh_networks, servers, named)
            if mesh_networks
            else _direct_members(view, located, viewpoint, servers, named)
        )
        if members:
            groups.append(_LocalityGroup(locality, members, sum([m.weight for m in members]), rank=rank))
    return groups


def _bounded(endpoints: Collection[Endpoint], most: int) -> Iterable[Endpoint]:
    """Endpoints with weights that add up to ``most`` at the most, as Envoy demands; greater ones are scaled down."""
    total = sum([endpoint.weight for endpoint in endpoints])
    if total + len(endpoints) <= most:
        return endpoints
    room = most - len(endpoints)
    return [attrs.evolve(e, weight=max(e.weight, 0) * room // total + 1) for e in endpoints]


@derived
def _has_private(view: View, key: ServiceKey) -> bool:
    return any(endpoint.is_private for endpoint in view.endpoints(key))


@derived
def _registry(view: View, key: ServiceKey) -> tuple[str, bool]:
    """The registry of a service, and False if it is declared by a ServiceEntry."""
    service = view.service(key)
    return (service.registry, not service.declared_by_users) if service is not None else ("", False)


def _direct_members(
    view: View,
    endpoints: Iterable[Endpoint],
    viewpoint: EndpointViewpoint,
    servers: _ServerSide | None,
    named: str | None,
) -> list[_Member]:
    """Members for a client that reaches every endpoint directly. ``named``: the namespace for ``_names``; None:
    names are not needed."""
    members = []
    for endpoint in endpoints:
        if endpoint.address:
            weight = endpoint.weight if endpoint.weight > 1 else 1
            mesh_tls = _takes_mesh_tls(view, endpoint, viewpoint.tls_mode, servers)
            if mesh_tls or not viewpoint.mesh_tls_only:
                names = b"" if named is None else _names(endpoint, named)
                members.append(_Member(lb_endpoint(endpoint, weight, mesh_tls, names), weight, endpoint))
    return members


def _members(
    view: View,
    endpoints: Iterable[Endpoint],
    viewpoint: EndpointViewpoint,
    mesh_networks: Networks,
    servers: _ServerSide | None,
    named: str | None,
) -> list[_Member]:
    """Members by network: endpoints of the client's network directly, others through the gateways of theirs."""
    members: list[_Member] = []
    remote_weights: dict[Gateways, int] = defaultdict(int)
    for endpoint in endpoints:
        weight = max(endpoint.weight, 1) * mesh_networks.scale
        mesh_tls = _takes_mesh_tls(view, endpoint, viewpoint.tls_mode, servers)
        network = mesh_networks.of(endpoint)
        gateways = mesh_networks.gateways_to(network, endpoint.cluster_id)
        if not gateways or not viewpoint.network or network in ("", viewpoint.network):
            if endpoint.address and (mesh_tls or not viewpoint.mesh_tls_only):
                names = b"" if named is None else _names(endpoint, named)
                body = lb_endpoint(endpoint, weight, mesh_tls, names)
                if network != endpoint.network and isinstance(viewpoint.preference, LabelPriority | LabelsThenFailover):
                    endpoint = attrs.evolve(endpoint, network=network)
                members.append(_Member(body, weight, endpoint))
        # A gateway routes by the SNI of mesh mTLS: endpoints without it cannot be reached there.
        elif mesh_tls:
            remote_weights[_reachable(gateways, viewpoint.families)] += weight
    members += (_gateway_member(gateway, weight) for gateway, weight in through_gateways(remote_weights))
    return members


def _names(endpoint: Endpoint, namespace: str) -> bytes:
    """The names of an endpoint's workload, encoded, in a service of a namespace."""
    return upstream_metadata(endpoint_names(endpoint, namespace))


def _reachable(gateways: Gateways, families: frozenset[int]) -> Gateways:
    """The gateways with an address of these IP versions."""
    if not families:
        return gateways
    return tuple(gateway for gateway in gateways if (6 if ":" in gateway.address else 4) in families)


def _gateway_member(gateway: NetworkGateway, weight: int) -> _Member:
    address, port, network, cluster_id = gateway
    labels = topology(NOWHERE, network, cluster_id)
    endpoint = Endpoint(address, port, "", network=network, cluster_id=cluster_id, labels=labels)
    return _Member(lb_endpoint(endpoint, weight, True), weight, endpoint)


def _preferred(groups: list[_LocalityGroup], wanted: Preference) -> list[_LocalityGroup]:
    """Groups with the weights and priorities that a client's preference gives them within their rank."""
    if not groups or not groups[-1].rank:
        return _preferred_of_rank(groups, wanted)
    ranked: list[_LocalityGroup] = []
    for rank, of_rank in groupby(groups, key=lambda group: group.rank):
        # Percentages are about those who serve; who takes over for all of them takes all.
        is_share = isinstance(wanted, Distribution) and rank
        start = 1 + max((group.priority for group in ranked), default=-1)
        for group in _preferred_of_rank(list(of_rank), None if is_share else wanted):
            group.priority += start
            ranked.append(group)
    return ranked


def _preferred_of_rank(groups: list[_LocalityGroup], wanted: Preference) -> list[_LocalityGroup]:
    # Weights distribute within one priority, failover makes priorities; labels may split a locality into several
    # groups.
    match wanted:
        case Distribution():
            weights = distributed_weights(wanted, [(g.locality, g.weight) for g in groups])
            for group, weight in zip(groups, weights, strict=True):
                if weight is None:
                    group.members = []
                else:
                    group.weight = weight
            return groups
        case Failover():
            for group in groups:
                group.priority = failover_level(wanted, group.locality)
            return _without_gaps(groups)
        case LabelPriority():
            return _without_gaps([level for group in groups for level in _by_label_level(group, wanted)])
        case LabelsThenFailover():
            levels = [level for group in groups for level in _by_label_level(group, wanted.labels)]
            for group in levels:
                group.priority = group.priority * FAILOVER_LEVELS + failover_level(wanted.failover, group.locality)
            return _without_gaps(levels)
        case None:
            return groups


def _by_label_level(group: _LocalityGroup, wanted: LabelPriority) -> list[_LocalityGroup]:
    by_level: dict[int, list[_Member]] = defaultdict(list)
    for member in group.members:
        by_level[label_level(wanted, member.endpoint)].append(member)
    return [
        _LocalityGroup(group.locality, members, sum(m.weight for m in members), level)
        for level, members in sorted(by_level.items())
    ]


def _without_gaps(groups: list[_LocalityGroup]) -> list[_LocalityGroup]:
    """Renumber priorities to 0, 1, 2, ...: Envoy rejects gaps."""
    levels = {level: i for i, level in enumerate(sorted({g.priority for g in groups}))}
    for group in groups:
        group.priority = levels[group.priority]
    return groups


# -- labels and mTLS


def _has_labels(endpoint: Endpoint, labels: Labels) -> bool:
    return all(label_of(endpoint, key) == value for key, value in labels)


def _takes_mesh_tls(view: View, endpoint: Endpoint, mode: int | None, servers: _ServerSide | None) -> bool:
    """True if a client uses mesh mTLS to an endpoint; ``mode``: the TLS mode of its rule for the cluster.

    ``servers``: None if no policy turns mTLS off at all.
    """
    if endpoint.tls_mode != MESH_TLS_MODE:
        return False
    if mode is not None or servers is None:
        return mode in (None, TlsMode.ISTIO_MUTUAL)
    namespace, labels = endpoint.namespace or servers.default_namespace, frozenset(endpoint.labels.items())
    modes_there = peer_modes(view, namespace, labels, servers.ports_of(endpoint))
    return modes_there.at(endpoint.port) is not PeerMode.DISABLE


@derived
def _some_peers_disable(view: View) -> bool:
    """True if any policy turns mTLS off. Rarely so; if not, endpoints need not be looked at."""
    if any_policy_disables(view):
        return True
    for config in view.all_configs("PeerAuthentication"):
        modes = [config.spec.mtls, *config.spec.port_level_mtls.values()]
        if any(m is not None and m.mode == PeerAuthenticationMode.DISABLE for m in modes):
            return True
    return False
