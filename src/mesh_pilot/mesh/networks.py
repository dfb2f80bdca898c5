"""Multiple networks: clients reach endpoints of other networks through the gateways of these networks.

Rules: Istio's MeshNetworks. Gateways forward connections by SNI, so only endpoints with mesh mTLS can be reached.
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
    """The address ranges of networks, narrowest first."""
    registry_network: str = ""
    """The default network of a registry's endpoints."""

    @property
    def scale(self) -> int:
        """A factor for weights, so that they can be divided evenly among any network's gateways."""
        return math.lcm(*(len(g) for g in self.gateways.values()))

    def of(self, endpoint: Endpoint) -> str:
        """The network of an endpoint: as declared, else by address, else by registry; empty if unknown."""
        if endpoint.network:
            return endpoint.network
        try:
            address = ipaddress.ip_address(endpoint.address) if self.ranges else None
        except ValueError:
            address = None
        found = (name for network, name in self.ranges if address is not None and address in network)
        return next(found, self.registry_network)


@derived
def networks_with_gateways(view: View, registry: str) -> Networks | None:
    """The mesh's networks for services of a registry (name, case-insensitive; empty: none).

    None if no network has a gateway: all endpoints are then reached directly.
    """
    gateways: dict[str, tuple[Gateway, ...]] = {}
    ranges: list[tuple[IpNetwork, str]] = []
    registry_network = ""
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
            registry_network = registry_network or name
    if not gateways:
        return None
    ranges.sort(key=lambda r: (-r[0].prefixlen, str(r[0])))
    return Networks(gateways, tuple(ranges), registry_network)


def through_gateways(weights: Mapping[tuple[Gateway, ...], int]) -> list[tuple[Gateway, int]]:
    """Gateways with weights, given the weight of the endpoints behind each network's gateways."""
    divided: dict[Gateway, int] = defaultdict(int)
    for gateways, weight in weights.items():
        for gateway in gateways:
            divided[gateway] += weight // len(gateways)
    return [(gateway, weight) for gateway, weight in sorted(divided.items()) if weight]


@derived
def _service_gateways(view: View, host: str, port: int) -> tuple[Gateway, ...]:
    """The gateways of a network declared by a service of the registry: its endpoints for a port."""
    found: list[Gateway] = []
    for service in view.services_named(host):
        declared = service.port(port)
        if declared is not None:
            endpoints = view.endpoints(service.key)
            found += ((e.address, e.port) for e in endpoints if e.service_port == declared.name and is_ip(e.address))
    return tuple(sorted(set(found)))
