"""Load assignments (EDS): the endpoints of a cluster by locality, with weights, priorities and how to reach them.

A client's scope and locality are first reduced to a small ``EndpointViewpoint`` for the cluster; the assignment is made
from that, so that all clients with the same viewpoint share its bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.api.istio.security.v1beta1 import PeerAuthenticationMutualTlsMode as PeerAuthenticationMode
from mesh_pilot.envoy.endpoints import encode as endpoint_bytes
from mesh_pilot.envoy.endpoints.encode import lb_endpoint, locality_endpoints
from mesh_pilot.envoy.tls.upstream import TlsMode
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.destination_rules import (
    DestinationRuleRef,
    client_policy,
    destination_rule_ref,
    passes_through,
    rule,
    subset_labels,
)
from mesh_pilot.mesh.identities import port_endpoints
from mesh_pilot.mesh.locality import (
    Distribution,
    Failover,
    LabelPriority,
    Preference,
    distributed_weights,
    failover_level,
    label_level,
    label_of,
    locality_setting,
    preference,
    topology,
    zone_aware_preference,
    zone_aware_setting,
)
from mesh_pilot.mesh.mesh_defaults import cluster_defaults
from mesh_pilot.mesh.names import Direction, is_sni, parse_cluster
from mesh_pilot.mesh.networks import Gateway, Networks, networks, through_gateways
from mesh_pilot.mesh.peer_authentication import PeerMode, peer_modes
from mesh_pilot.mesh.proxy.scope import Labels, OutboundScope, ProxyLocality
from mesh_pilot.mesh.visibility import Discovery, discovery_of, scope_service
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import ENDPOINT, Resource, make_resource
from mesh_pilot.model.service import MESH_TLS_MODE, NOWHERE, Endpoint, Health, Locality, ServiceKey
from mesh_pilot.world.view import View

_UNHEALTHY = Health.UNHEALTHY


@attrs.frozen(cache_hash=True)
class EndpointViewpoint:
    """How a client sees the endpoints of a cluster."""

    preference: Preference = None
    network: str | None = None
    """The client's network; None where everything is reached directly."""
    detects_outliers: bool = False
    tls_modes: tuple[tuple[Labels, int], ...] = ()
    """TLS modes that the client's rule sets for endpoints with these labels; the first that fits counts."""
    mesh_tls_only: bool = False
    """Whether endpoints without mesh mTLS are left out, as in clusters named by SNI: an AUTO_PASSTHROUGH gateway cannot
    check a client's certificate, so connections may go only to endpoints whose own proxy does."""


@derived
def assignment(view: View, scope: OutboundScope, place: ProxyLocality, name: str) -> Resource | None:
    """The endpoints of a cluster of a scope, by the cluster's name; None where it has no EDS cluster of that name."""
    parsed = parse_cluster(name)
    if parsed is None or parsed.direction is not Direction.OUTBOUND:
        return None
    service = scope_service(view, scope, parsed.host)
    port = service.port(parsed.port) if service else None
    if service is None or port is None:
        return None
    ref = destination_rule_ref(view, scope.namespace, scope.labels, service.key)
    labels = subset_labels.compute(view, ref, parsed.subset)
    through = bool(ref) and passes_through(view, ref, parsed.port, parsed.subset)
    if labels is None or discovery_of(scope, service, through) is not Discovery.EDS:
        return None
    reach = endpoint_viewpoint(view, ref, parsed.port, parsed.subset, place, is_sni(name))
    origin = (service.config,) if service.config else ()
    return load_assignment(view, name, service.key, port.name, labels, reach, origin)


@derived
def endpoint_viewpoint(
    view: View, ref: DestinationRuleRef, port: int, subset: str, place: ProxyLocality, by_sni: bool
) -> EndpointViewpoint:
    """How a client at a place sees a port's endpoints under a rule; ``by_sni``: in a cluster named by SNI."""
    return EndpointViewpoint(
        preference=preference_of.compute(view, ref, port, subset, place),
        network=place.network if networks(view, "") is not None else None,
        detects_outliers=client_policy(view, ref, port, subset).outlier_detection is not None,
        tls_modes=tls_modes(view, ref, port),
        mesh_tls_only=by_sni,
    )


@derived
def preference_of(view: View, ref: DestinationRuleRef, port: int, subset: str, place: ProxyLocality) -> Preference:
    """Which endpoints a client at a place prefers under a rule."""
    policy = client_policy(view, ref, port, subset)
    defaults = cluster_defaults(view)
    detects = policy.outlier_detection is not None
    zone_aware = zone_aware_setting(policy.load_balancer, defaults)
    if zone_aware is not None:
        return zone_aware_preference(zone_aware, place, detects)
    return preference(locality_setting(policy.load_balancer, defaults), place, detects)


@derived
def load_assignment(
    view: View,
    name: str,
    service: ServiceKey,
    port: str,
    labels: Labels,
    reach: EndpointViewpoint,
    origin: tuple[ConfigKey, ...],
) -> Resource:
    """The endpoints of a service's port (by name) that have some labels, as a cluster of this name.

    ``origin``: what the service was made from.
    """
    return make_resource(name, ENDPOINT, encode_assignment(view, name, service, port, labels, reach), origin)


def encode_assignment(
    view: View, name: str, service: ServiceKey, port: str, labels: Labels, reach: EndpointViewpoint
) -> bytes:
    """The message itself, encoded; DNS clusters carry it with them."""
    chosen = port_endpoints(view, service, port)
    if not reach.detects_outliers:
        chosen = tuple(e for e in chosen if e.health is not _UNHEALTHY)
    if labels:
        chosen = tuple(e for e in chosen if _has_labels(e, labels))
    groups = _grouped(view, service, chosen, reach)
    return endpoint_bytes.load_assignment(
        name,
        (
            locality_endpoints(group.locality, (member.body for member in group.members), group.weight, group.priority)
            for group in _preferred(groups, reach.preference)
        ),
    )


# -- grouping


class _Member(NamedTuple):
    """One endpoint as a client sees it: itself, or a gateway that leads to it and others."""

    body: bytes
    """An LbEndpoint."""
    weight: int
    endpoint: Endpoint
    """For a gateway: one that has only what its network tells."""


@attrs.define
class _Group:
    locality: Locality
    members: list[_Member]
    weight: int
    priority: int = 0


def _grouped(view: View, service: ServiceKey, endpoints: Iterable[Endpoint], reach: EndpointViewpoint) -> list[_Group]:
    """Endpoints of a service by locality, each reached in its own way."""
    by_locality: dict[Locality, list[Endpoint]] = defaultdict(list)
    first: dict[tuple[str, int], Endpoint] = {}
    for endpoint in endpoints:
        first.setdefault((endpoint.address, endpoint.port), endpoint)
    for endpoint in first.values():
        by_locality[endpoint.locality].append(endpoint)
    known = networks(view, _registry(view, service)) if reach.network is not None else None
    home = None
    if _some_peers_disable(view):
        # Inline endpoints of a ServiceEntry have no namespace. For clients they are judged by the mesh's policy alone,
        # as in Istio; what a gateway passes on blindly has to fit the policies of the service's namespace too.
        home = service.namespace if reach.mesh_tls_only else ""
    groups = []
    for locality, held in sorted(by_locality.items()):
        members = _members(view, held, reach, known, home) if known else _direct(view, held, reach, home)
        if members:
            groups.append(_Group(locality, members, sum(m.weight for m in members)))
    return groups


@derived
def _registry(view: View, key: ServiceKey) -> str:
    service = view.service(key)
    return service.registry if service is not None else ""


def _direct(view: View, endpoints: Iterable[Endpoint], reach: EndpointViewpoint, home: str | None) -> list[_Member]:
    members = []
    for endpoint in endpoints:
        if endpoint.address:
            weight = endpoint.weight if endpoint.weight > 1 else 1
            mesh_tls = _takes_mesh_tls(view, endpoint, reach.tls_modes, home)
            if mesh_tls or not reach.mesh_tls_only:
                members.append(_Member(lb_endpoint(endpoint, weight, mesh_tls), weight, endpoint))
    return members


def _members(
    view: View, endpoints: Iterable[Endpoint], reach: EndpointViewpoint, known: Networks, home: str | None
) -> list[_Member]:
    members: list[_Member] = []
    behind: dict[tuple[Gateway, ...], int] = defaultdict(int)
    for endpoint in endpoints:
        weight = max(endpoint.weight, 1) * known.scale
        mesh_tls = _takes_mesh_tls(view, endpoint, reach.tls_modes, home)
        where = known.of(endpoint)
        gateways = known.gateways.get(where, ())
        if not gateways or not reach.network or where in ("", reach.network):
            if endpoint.address and (mesh_tls or not reach.mesh_tls_only):
                members.append(_Member(lb_endpoint(endpoint, weight, mesh_tls), weight, endpoint))
        elif mesh_tls or _demands_mesh_tls(endpoint, reach.tls_modes):
            behind[gateways] += weight
    members += (_gateway_member(known, gateway, weight) for gateway, weight in through_gateways(behind))
    return members


def _gateway_member(known: Networks, gateway: Gateway, weight: int) -> _Member:
    network = next(n for n, gateways in known.gateways.items() if gateway in gateways)
    endpoint = Endpoint(*gateway, "", network=network, labels=topology(NOWHERE, network))
    return _Member(lb_endpoint(endpoint, weight, True), weight, endpoint)


def _preferred(groups: list[_Group], wanted: Preference) -> list[_Group]:
    """Groups with weights and priorities as a client prefers them."""
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
            return _without_gaps([part for group in groups for part in _split(group, wanted)])
        case None:
            return groups


def _split(group: _Group, wanted: LabelPriority) -> list[_Group]:
    by_level: dict[int, list[_Member]] = defaultdict(list)
    for member in group.members:
        by_level[label_level(wanted, member.endpoint)].append(member)
    return [
        _Group(group.locality, members, sum(m.weight for m in members), level)
        for level, members in sorted(by_level.items())
    ]


def _without_gaps(groups: list[_Group]) -> list[_Group]:
    """Priorities 0, 1, 2, ...: Envoy refuses numbers left out."""
    levels = {level: i for i, level in enumerate(sorted({g.priority for g in groups}))}
    for group in groups:
        group.priority = levels[group.priority]
    return groups


# -- labels and mTLS


def _has_labels(endpoint: Endpoint, labels: Labels) -> bool:
    return all(label_of(endpoint, key) == value for key, value in labels)


def _takes_mesh_tls(view: View, endpoint: Endpoint, modes: tuple[tuple[Labels, int], ...], home: str | None) -> bool:
    """Whether a client should use mesh mTLS to an endpoint of a cluster that leaves it to the endpoint.

    ``home`` is the namespace of endpoints that have none; None where no policy turns mTLS off, so that none is asked.
    """
    if endpoint.tls_mode != MESH_TLS_MODE:
        return False
    ruled = _ruled_mode(endpoint, modes) if modes else None
    if ruled == TlsMode.DISABLE:
        return False
    if ruled == TlsMode.ISTIO_MUTUAL or home is None:
        return True
    accepts = peer_modes(view, endpoint.namespace or home, frozenset(endpoint.labels.items()))
    return accepts.at(endpoint.port) is not PeerMode.DISABLE


def _demands_mesh_tls(endpoint: Endpoint, modes: tuple[tuple[Labels, int], ...]) -> bool:
    return _ruled_mode(endpoint, modes) == TlsMode.ISTIO_MUTUAL


def _ruled_mode(endpoint: Endpoint, modes: tuple[tuple[Labels, int], ...]) -> int | None:
    return next((mode for labels, mode in modes if _has_labels(endpoint, labels)), None)


def tls_modes(view: View, ref: DestinationRuleRef, port: int) -> tuple[tuple[Labels, int], ...]:
    """The TLS modes that a rule sets for a port: a subset's for its endpoints in whatever cluster, then its own."""
    merged = rule(view, ref)
    modes = [(frozenset(s.labels.items()), _tls_mode(s.traffic_policy, port)) for s in merged.subsets.values()]
    modes.append((frozenset(), _tls_mode(merged.policy, port)))
    return tuple((labels, mode) for labels, mode in modes if mode is not None)


def _tls_mode(policy: api.TrafficPolicy | None, port: int) -> int | None:
    if policy is None:
        return None
    for settings in policy.port_level_settings:
        if settings.port is not None and settings.port.number == port and settings.tls is not None:
            return int(settings.tls.mode)
    return None if policy.tls is None else int(policy.tls.mode)


@derived
def _some_peers_disable(view: View) -> bool:
    """Whether any PeerAuthentication turns mTLS off anywhere: nearly always not, and then endpoints need no look."""
    for config in view.all_configs("PeerAuthentication"):
        modes = [config.spec.mtls, *config.spec.port_level_mtls.values()]
        if any(m is not None and m.mode == PeerAuthenticationMode.DISABLE for m in modes):
            return True
    return False
