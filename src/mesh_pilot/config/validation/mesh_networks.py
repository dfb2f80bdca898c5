"""Rules for MeshNetworks."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshNetworks, Network
from mesh_pilot.config.validation.context import check, error, warning
from mesh_pilot.config.validation.names import (
    dns_label_reason,
    fqdn_or_ip_reason,
    fqdn_reason,
    ip_reason,
    port_reason,
    subnet_reason,
)
from mesh_pilot.model.config import Problem


def validate(networks: MeshNetworks) -> Iterator[Problem]:
    """Everything that is wrong with the networks."""
    for name, network in networks.networks.items():
        path = f"networks[{name}]"
        if not name:
            yield error(path, "a network must have a name")
        yield from _check_network(path, network)


def _check_network(path: str, network: Network) -> Iterator[Problem]:
    for index, endpoint in enumerate(network.endpoints):
        here = f"{path}.endpoints[{index}]"
        if endpoint.from_cidr is not None:
            yield from check(f"{here}.fromCidr", subnet_reason(endpoint.from_cidr))
        elif endpoint.from_registry is not None:
            yield from check(f"{here}.fromRegistry", dns_label_reason(endpoint.from_registry))
        else:
            yield error(here, "needs fromCidr or fromRegistry")
    for index, gateway in enumerate(network.gateways):
        here = f"{path}.gateways[{index}]"
        if gateway.registry_service_name is not None:
            yield from check(f"{here}.registryServiceName", fqdn_reason(gateway.registry_service_name))
        elif gateway.address is not None:
            yield from check(f"{here}.address", fqdn_or_ip_reason(gateway.address))
            if ip_reason(gateway.address):
                reason = "is not an IP address: the endpoints of the service of this name are used, if there is one"
                yield warning(f"{here}.address", reason)
        else:
            yield error(here, "needs address or registryServiceName")
        yield from check(f"{here}.port", port_reason(gateway.port))
