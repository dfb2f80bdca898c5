"""Upstreams: what an outbound cluster connects to, how it finds endpoints, and which identities it accepts."""

from __future__ import annotations

from enum import Enum, auto
from operator import attrgetter

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.mesh.clusters.destination_rules import DestinationRuleRef
from mesh_pilot.mesh.names.resources import outbound, outbound_datagrams, outbound_sni
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.settings.mesh_defaults import cluster_defaults
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.proxy import Interception, NodeType
from mesh_pilot.model.service import Endpoint, Resolution, Service, ServiceKey
from mesh_pilot.model.spiffe import in_trust_domain, qualified
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class Upstream:
    """A port and subset of a service, with the DestinationRule that applies to the client."""

    service: ServiceKey
    port: int
    subset: str
    """Empty: the service as a whole."""
    rule: DestinationRuleRef
    by_sni: bool = False
    """True for the cluster of AUTO_PASSTHROUGH gateways, which forward connections by server name."""
    datagrams: bool = False
    """True for the cluster of UDP listeners."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        spelling = outbound_sni if self.by_sni else outbound_datagrams if self.datagrams else outbound
        return spelling(self.service.host, self.port, self.subset)


class Discovery(Enum):
    """How a cluster finds its endpoints."""

    EDS = auto()
    """This server sends them."""
    STRICT_DNS = auto()
    """All addresses of DNS names."""
    LOGICAL_DNS = auto()
    """One address of a DNS name at a time."""
    ORIGINAL_DST = auto()
    """The client's original destination."""
    DYNAMIC_DNS = auto()
    """The host that the request names, resolved by the proxy."""


BY_DNS = (Discovery.STRICT_DNS, Discovery.LOGICAL_DNS)
"""The endpoints are DNS names, and part of the cluster."""

_BY_RESOLUTION = {
    Resolution.CLIENT_SIDE: Discovery.EDS,
    Resolution.DNS: Discovery.STRICT_DNS,
    Resolution.DNS_ROUND_ROBIN: Discovery.LOGICAL_DNS,
    Resolution.PASSTHROUGH: Discovery.ORIGINAL_DST,
    Resolution.DYNAMIC_DNS: Discovery.DYNAMIC_DNS,
}


def discovery_of(scope: OutboundScope, service: Service, through: bool) -> Discovery:
    """How the clusters of a service find endpoints; ``through``: a rule turns load balancing off (PASSTHROUGH).

    A proxy only knows a client's original destination if connections are redirected to it. Other proxies (routers,
    sidecars without interception) use EDS instead.
    """
    knows_target = scope.type is NodeType.SIDECAR and scope.interception is not Interception.NONE and not scope.grpc
    found = _BY_RESOLUTION[service.resolution]
    if knows_target:
        return Discovery.ORIGINAL_DST if through else found
    return Discovery.EDS if found is Discovery.ORIGINAL_DST else found


_by_address = attrgetter("address", "port", "workload")


@derived
def port_endpoints(view: View, service: ServiceKey, port: str) -> tuple[Endpoint, ...]:
    """The endpoints of one port (by name) of a service, sorted by address.

    Those with a host name are left out unless it is a service of DNS: proxies resolve no names for others. They come
    from WorkloadEntries, and from other ServiceEntries for the host.
    """
    found = [e for e in view.endpoints(service) if e.service_port == port]
    if not _has_names(view, service):
        found = [e for e in found if is_ip(e.address) or not e.address or e.is_unix]
    return tuple(sorted(found, key=_by_address))


@derived
def _has_names(view: View, key: ServiceKey) -> bool:
    """True if a service's endpoints may be host names."""
    service = view.service(key)
    return service is not None and service.resolution in (Resolution.DNS, Resolution.DNS_ROUND_ROBIN)


@derived
def accepted_identities(view: View, service: ServiceKey, port: str) -> tuple[str, ...]:
    """The subject alternative names that clients accept from a service's port, sorted: the service accounts of its
    endpoints, also in the trust domain's aliases, and the names that the service declares.

    A derived value, so that endpoints that come and go with the same identities do not change clusters.
    """
    found = view.service(service)
    names = {e.service_account for e in port_endpoints(view, service, port)}
    names.discard("")
    defaults = cluster_defaults(view)
    if found is not None:
        names.update(
            qualified(name, defaults.trust_domain) if name.startswith("ns/") else name
            for name in found.subject_alt_names
        )
    aliased = (in_trust_domain(name, alias) for name in [*names] for alias in defaults.trust_domain_aliases)
    return tuple(sorted(names.union(name for name in aliased if name is not None)))
