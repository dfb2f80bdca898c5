"""Multiple networks: clients reach endpoints of other networks through the gateways of these networks.

Rules: Istio's MeshNetworks and the labels of Services that are gateways of a network; services of Consul say it of
their instances. Gateways forward connections by SNI, so only endpoints with mesh mTLS can be reached.
"""

from __future__ import annotations

import ipaddress
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import Network
from mesh_pilot.engine import derived
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.service import (
    DEFAULT_GATEWAY_PORT,
    GATEWAY_PORT_LABEL,
    NETWORK_LABEL,
    Endpoint,
    Health,
    NetworkGateway,
    Service,
)
from mesh_pilot.world.view import View

_LARGE_SCALE = 10_000

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Gateways = tuple[NetworkGateway, ...]


@attrs.frozen
class Networks:
    """The networks of the mesh that have gateways."""

    gateways: Mapping[str, Gateways] = attrs.field(factory=dict)
    ranges: tuple[tuple[IpNetwork, str], ...] = ()
    """The address ranges of networks, narrowest first."""
    cluster_networks: Mapping[str, str] = attrs.field(factory=dict)
    """The networks of clusters' endpoints, by cluster id."""
    registry_network: str = ""
    """The default network of a registry's endpoints."""
    of_cluster: Mapping[tuple[str, str], Gateways] = attrs.field(factory=dict)
    """The gateways by network and cluster."""

    @property
    def scale(self) -> int:
        """A factor for weights, so that they can be divided among any network's gateways: evenly, if it is not too
        large for Envoy's weights."""
        sizes = [len(g) for g in (*self.gateways.values(), *self.of_cluster.values())]
        return min(math.lcm(*sizes), max(_LARGE_SCALE, *sizes))

    def of(self, endpoint: Endpoint) -> str:
        """The network of an endpoint: as declared, else by cluster, by address, or by registry; empty if unknown."""
        if endpoint.network:
            return endpoint.network
        if endpoint.cluster_id in self.cluster_networks:
            return self.cluster_networks[endpoint.cluster_id]
        try:
            address = ipaddress.ip_address(endpoint.address) if self.ranges else None
        except ValueError:
            address = None
        found = (name for network, name in self.ranges if address is not None and address in network)
        return next(found, self.registry_network)

    def gateways_to(self, network: str, cluster_id: str) -> Gateways:
        """The gateways to endpoints of a network: those of their cluster, else all of the network."""
        return self.of_cluster.get((network, cluster_id)) or self.gateways.get(network, ())


@derived
def networks_with_gateways(view: View, registry: str, registered: bool) -> Networks | None:
    """The mesh's networks for services of a registry (name, case-insensitive; empty: none).

    ``registered``: their endpoints are of the network of their cluster or address; those of ServiceEntries are not, as
    in Istio.

    None if no network has a gateway: all endpoints are then reached directly.
    """
    gateways, of_cluster = _gateways(view)
    if not gateways:
        return None
    return attrs.evolve(_declared_networks(view, registry, registered), gateways=gateways, of_cluster=of_cluster)


@derived
def declared_ranges(view: View) -> tuple[str, ...]:
    """The address ranges of the mesh's networks (``fromCidr``), each once, in order."""
    networks = view.networks().networks.values()
    ranges = {ipaddress.ip_network(e.from_cidr, strict=False) for n in networks for e in n.endpoints if e.from_cidr}
    return tuple(map(str, sorted(ranges, key=lambda r: (r.version, r.network_address.packed, r.prefixlen))))


@derived
def _declared_networks(view: View, registry: str, registered: bool) -> Networks:
    """See ``networks_with_gateways``; without the gateways."""
    ranges: list[tuple[IpNetwork, str]] = []
    clusters: dict[str, str] = {}
    own_clusters: dict[str, str] = {}
    registry_network = ""
    for name, network in sorted(view.networks().networks.items()):
        ranges += ((ipaddress.ip_network(e.from_cidr, strict=False), name) for e in network.endpoints if e.from_cidr)
        for named in _registries(network):
            of, _, cluster = named.partition("/")
            if registry and named.lower() == registry.lower():
                registry_network = registry_network or name
            if not cluster:
                clusters.setdefault(named, name)
            elif of.lower() == registry.lower():
                own_clusters.setdefault(cluster, name)
    ranges.sort(key=lambda r: (-r[0].prefixlen, str(r[0])))
    return Networks(
        ranges=tuple(ranges) if registered else (),
        cluster_networks={**clusters, **own_clusters} if registered else {},
        registry_network=registry_network,
    )


@derived
def network_at(view: View, registry: str, endpoint: Endpoint) -> str:
    """The network of an endpoint of a registry, whether or not any network has a gateway; empty if unknown."""
    return _declared_networks(view, registry, True).of(endpoint)


@derived
def network_gateways(view: View) -> Gateways:
    """The gateways of all networks, those with host names as they are."""
    return tuple(sorted({*_declared_gateways(view), *_labelled_gateways(view), *_gateway_objects(view)}))


def unresolved_hosts(view: View) -> frozenset[str]:
    """The host names of gateways whose addresses are to be found."""
    return frozenset(gateway.address for gateway in network_gateways(view) if not is_ip(gateway.address))


@derived
def _gateways(view: View) -> tuple[Mapping[str, Gateways], Mapping[tuple[str, str], Gateways]]:
    """The gateways with an IP address, by network, and by network and cluster."""
    by_network: dict[str, list[NetworkGateway]] = defaultdict(list)
    of_cluster: dict[tuple[str, str], list[NetworkGateway]] = defaultdict(list)
    for named in network_gateways(view):
        addresses = (named.address,) if is_ip(named.address) else view.host_addresses(named.address)
        for gateway in (named._replace(address=address) for address in addresses):
            by_network[gateway.network].append(gateway)
            if gateway.cluster_id:
                of_cluster[gateway.network, gateway.cluster_id].append(gateway)
    return (
        {name: _each_once(found) for name, found in by_network.items()},
        {key: _each_once(found) for key, found in of_cluster.items()},
    )


def _each_once(gateways: Iterable[NetworkGateway]) -> Gateways:
    """Each address and port once; that of a cluster rather than that of MeshNetworks."""
    found: dict[tuple[str, int], NetworkGateway] = {}
    for gateway in gateways:
        known = found.setdefault(gateway[:2], gateway)
        if not known.cluster_id:
            found[gateway[:2]] = gateway
    return tuple(found.values())


def _declared_gateways(view: View) -> Iterator[NetworkGateway]:
    """The gateways of MeshNetworks."""
    for name, network in view.networks().networks.items():
        # Pilot's order for a host: the Service's own external addresses, its instances that say that they are gateways,
        # then its endpoints; a name that no registry has is one of DNS.
        clusters = frozenset(_registries(network))
        for gateway in network.gateways:
            if gateway.address and is_ip(gateway.address):
                yield NetworkGateway(gateway.address, gateway.port, name)
            elif host := gateway.address or gateway.registry_service_name:
                external = [s for s in view.external_services() if s.host == host and s.cluster_id in clusters]
                registered = [g for s in view.external_services() if s.host == host for g in s.network_gateways]
                for service in external:
                    yield from _external(service, gateway.port, name)
                yield from (each._replace(network=name) for each in registered)
                if not external and not registered:
                    found = [*_service_gateways(view, host, gateway.port, name)]
                    yield from found
                    if not found and gateway.address:
                        yield NetworkGateway(gateway.address, gateway.port, name)


def _labelled_gateways(view: View) -> Iterator[NetworkGateway]:
    """The Services that say that they are the gateway of a network, or whose instances do."""
    for service in view.external_services():
        for gateway in service.network_gateways:
            named = gateway.network or _network_of_cluster(view, service.registry, gateway.cluster_id)
            if named:
                yield gateway._replace(network=named)
        network = service.labels.get(NETWORK_LABEL, "")
        if network:
            said = service.labels.get(GATEWAY_PORT_LABEL, "")
            port = int(said) if said.isdecimal() and len(said) <= 5 else DEFAULT_GATEWAY_PORT
            if service.port(port) is not None:
                yield from _external(service, port, network)


def _gateway_objects(view: View) -> Iterator[NetworkGateway]:
    """The gateways that the Gateway API has; the host name of a Service means its external addresses."""
    for gateway in view.gateway_objects():
        services = [s for s in view.external_services() if s.host == gateway.address.lower()]
        for service in services:
            yield from _external(service, gateway.port, gateway.network)
        if not services and (is_ip(gateway.address) or not view.services_named(gateway.address)):
            yield gateway


def _external(service: Service, port: int, network: str) -> Iterator[NetworkGateway]:
    """The external addresses of a service as gateways, at one of its ports."""
    number = dict(service.external_ports).get(port, port)
    for address in service.external_addresses:
        yield NetworkGateway(address, number, network, service.cluster_id)


def _network_of_cluster(view: View, registry: str, cluster_id: str) -> str:
    """The network of a cluster's endpoints, as MeshNetworks has it; empty if unknown."""
    declared = _declared_networks(view, registry, True)
    return declared.cluster_networks.get(cluster_id) or declared.registry_network


def _registries(network: Network) -> Iterator[str]:
    return (e.from_registry for e in network.endpoints if e.from_registry)


def through_gateways(weights: Mapping[Gateways, int]) -> list[tuple[NetworkGateway, int]]:
    """Gateways with weights, given the weight of the endpoints behind each group of gateways."""
    divided: dict[tuple[str, int], int] = defaultdict(int)
    first: dict[tuple[str, int], NetworkGateway] = {}
    for gateways, weight in weights.items():
        for gateway in gateways:
            first.setdefault(gateway[:2], gateway)
            divided[gateway[:2]] += weight // len(gateways)
    return [(first[at], weight) for at, weight in sorted(divided.items()) if weight]


def _service_gateways(view: View, host: str, port: int, network: str) -> Iterator[NetworkGateway]:
    """The gateways of a network declared by a service of the registry: its endpoints for a port."""
    for service in view.services_named(host):
        declared = service.port(port)
        if declared is not None:
            here = (e for e in view.endpoints(service.key) if e.service_port == declared.name)
            found = [e for e in here if e.address and not e.is_unix]
            for endpoint in [e for e in found if e.health is Health.HEALTHY] or found:
                yield NetworkGateway(endpoint.address, endpoint.port, network)
