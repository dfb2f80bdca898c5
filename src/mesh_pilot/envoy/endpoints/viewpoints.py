"""The viewpoint of a client: the small part of it that a cluster's load assignment depends on.

Why its own value: ten thousand clients have ten thousand scopes and localities, but see a cluster in a few ways
only. An assignment that read the client itself would be made, kept and compared once for each client; with the
viewpoint as its key it is made once for each way, and clients with an equal viewpoint share its bytes. So a field is
added here only if the bytes depend on it, and is left at its default where it decides nothing: a client's network
where no network has a gateway, its cluster where the service is not bound to one.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.envoy.tls.upstream import TlsMode
from mesh_pilot.mesh.clusters.destination_rules import DestinationRuleRef, client_policy
from mesh_pilot.mesh.clusters.locality import (
    Preference,
    is_spread,
    locality_setting,
    nearest_first,
    preference,
    zone_aware_preference,
    zone_aware_setting,
)
from mesh_pilot.mesh.proxy.scope import ProxyLocality
from mesh_pilot.mesh.settings.mesh_defaults import cluster_defaults
from mesh_pilot.mesh.settings.networks import networks_with_gateways
from mesh_pilot.model.service import (
    TrafficDistribution,
)
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class EndpointViewpoint:
    """The parts of a client that a cluster's load assignment depends on."""

    preference: Preference = None
    network: str | None = None
    """The client's network; None if no network has a gateway: every endpoint is then reached directly."""
    cluster_id: str = ""
    """The client's cluster, if the service is reached within one cluster only."""
    network_view: frozenset[str] = frozenset()
    """See ``ProxyLocality.network_view``."""
    families: frozenset[int] = frozenset()
    """The IP versions of gateways that it can reach; empty: all."""
    private_to: str = ""
    """The client's cluster, if some endpoints are only for clients in the same cluster."""
    node: str | None = None
    """The client's node, if it uses the endpoints there only; None: all."""
    with_unhealthy: bool = False
    """True for clients that have to know of unhealthy endpoints, too."""
    tls_mode: int | None = None
    """The TLS mode that the client's DestinationRule sets for the cluster; None: none."""
    mesh_tls_only: bool = False
    """True for clusters named by SNI: endpoints without mesh mTLS are omitted. An AUTO_PASSTHROUGH gateway cannot
    verify the client's certificate, so connections may go only to endpoints whose own proxy does."""


class ServiceSpread(NamedTuple):
    """The way in which a service distributes its traffic."""

    distribution: TrafficDistribution
    node_local: bool
    has_private: bool = False
    """True if some endpoints are only for clients in the same cluster."""
    cluster_local: bool = False
    """True if all are."""


@derived
def endpoint_viewpoint(
    view: View,
    ref: DestinationRuleRef,
    port: int,
    subset: str,
    locality: ProxyLocality,
    by_sni: bool,
    spread: ServiceSpread,
) -> EndpointViewpoint:
    """A client's viewpoint of the cluster of a port and subset; ``by_sni``: of the cluster named by SNI."""
    has_networks = networks_with_gateways(view, "", False) is not None
    return EndpointViewpoint(
        preference=preference_of.compute(view, ref, port, subset, locality, spread.distribution),
        network=locality.network if has_networks else None,
        cluster_id=locality.cluster_id if spread.cluster_local else "",
        network_view=locality.network_view,
        families=_families(locality) if has_networks else frozenset(),
        private_to=locality.cluster_id if spread.has_private else "",
        node=locality.node if spread.node_local else None,
        with_unhealthy=client_policy(view, ref, port, subset).outlier_detection is not None
        or spread.distribution is not TrafficDistribution.ANY,
        tls_mode=cluster_tls_mode(view, ref, port, subset, by_sni=by_sni),
        mesh_tls_only=by_sni,
    )


@derived
def preference_of(
    view: View,
    ref: DestinationRuleRef,
    port: int,
    subset: str,
    locality: ProxyLocality,
    distribution: TrafficDistribution = TrafficDistribution.ANY,
) -> Preference:
    """The localities or labels that a client prefers under a rule, or under the service's traffic distribution."""
    policy = client_policy(view, ref, port, subset)
    if is_spread(policy.load_balancer, distribution):
        return nearest_first(distribution, locality)
    defaults = cluster_defaults(view)
    detects = policy.outlier_detection is not None
    zone_aware = zone_aware_setting(policy.load_balancer, defaults)
    if zone_aware is not None:
        return zone_aware_preference(zone_aware, locality)
    return preference(locality_setting(policy.load_balancer, defaults), locality, detects)


def _families(client: ProxyLocality) -> frozenset[int]:
    if client.ipv4 and client.ipv6:
        return frozenset()
    return frozenset((4,)) if client.ipv4 else frozenset((6,))


def cluster_tls_mode(view: View, ref: DestinationRuleRef, port: int, subset: str, *, by_sni: bool) -> int | None:
    """The TLS mode that a rule sets for a cluster.

    In one that is named by SNI (``by_sni``) the mesh's TLS passes through unseen: other TLS of the rule is not spoken.
    """
    tls = client_policy(view, ref, port, subset).tls
    if tls is None or (by_sni and tls.mode in (TlsMode.SIMPLE, TlsMode.MUTUAL)):
        return None
    return int(tls.mode)
