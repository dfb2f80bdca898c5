"""Several networks: endpoints that a client cannot reach directly are reached through their network's gateways.

Rules: Istio's MeshNetworks. Gateways pass connections on by SNI, so only endpoints with mesh mTLS can be reached so.
"""

from __future__ import annotations

import ipaddress
import math
from collections import defaultdict
from collections.abc import Mapping

import attrs

from mesh_pilot.incremental import derived
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.service import Endpoint
from mesh_pilot.world.view import View

Gateway = tuple[str, int]
"""IP address and port."""

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@attrs.frozen
class Networks:
    """The networks of the mesh that have gateways."""

    gateways: Mapping[str, tuple[Gateway, ...]] = attrs.field(factory=dict)
    ranges: tuple[tuple[IpNetwork, str], ...] = ()
    """Addresses that belong to a network, narrowest range first."""
    registry_network: str = ""
    """The network that a registry's endpoints are in, if nothing else is said."""

    @property
    def scale(self) -> int:
        """What to multiply weights by so that they can be divided evenly among any network's gateways."""
        return math.lcm(*(len(g) for g in self.gateways.values()))

    def of(self, endpoint: Endpoint) -> str:
        """The network of an endpoint: its own word, else by its address, else by registry; empty when unknown."""
        if endpoint.network:
            return endpoint.network
        try:
            address = ipaddress.ip_address(endpoint.address) if self.ranges else None
        except ValueError:
            address = None
        found = (name for network, name in self.ranges if address is not None and address in network)
        return next(found, self.registry_network)


@derived
def networks(view: View, registry: str) -> Networks | None:
    """The mesh's networks as they are for services of a registry (by name, in whatever case; empty: none).

    None where no network has a gateway, so that everything is reached directly.
    """
    gateways: dict[str, tuple[Gateway, ...]] = {}
    ranges: list[tuple[IpNetwork, str]] = []
    own = ""
    for name, network in sorted(view.networks().networks.items()):
        found: list[Gateway] = []
        for gateway in network.gateways:
            if gateway.address and is_ip(gateway.address):
                found.append((gateway.address, gateway.port))
            elif host := gateway.address or gateway.registry_service_name:
                found += _service_gateways(view, host, gateway.port)
        if found:
            gateways[name] = tuple(sorted(set(found)))
        ranges += ((ipaddress.ip_network(e.from_cidr, strict=False), name) for e in network.endpoints if e.from_cidr)
        if registry and any((e.from_registry or "").lower() == registry.lower() for e in network.endpoints):
            own = own or name
    if not gateways:
        return None
    ranges.sort(key=lambda r: (-r[0].prefixlen, str(r[0])))
    return Networks(gateways, tuple(ranges), own)


def through_gateways(weights: Mapping[tuple[Gateway, ...], int]) -> list[tuple[Gateway, int]]:
    """Each gateway with the weight of what is behind it, given the weight behind each network's gateways."""
    shares: dict[Gateway, int] = defaultdict(int)
    for gateways, weight in weights.items():
        for gateway in gateways:
            shares[gateway] += weight // len(gateways)
    return [(gateway, share) for gateway, share in sorted(shares.items()) if share]


@derived
def _service_gateways(view: View, host: str, port: int) -> tuple[Gateway, ...]:
    """A network's gateways given as a service of the registry: its endpoints for a port."""
    found: list[Gateway] = []
    for service in view.services_named(host):
        declared = service.port(port)
        if declared is not None:
            endpoints = view.endpoints(service.key)
            found += ((e.address, e.port) for e in endpoints if e.service_port == declared.name and is_ip(e.address))
    return tuple(sorted(set(found)))
