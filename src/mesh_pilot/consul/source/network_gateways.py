"""The instances of a Consul service that are gateways of a network: those that say at which port.

Consul's wide-area address, ``TaggedAddresses.wan``, is their address for clients of other networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from mesh_pilot.consul.source.instance import ConsulInstance, port_number, said_cluster, said_network
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import is_ip, plain_address
from mesh_pilot.model.service import DEFAULT_GATEWAY_PORT, GATEWAY_PORT_LABEL, NetworkGateway

WIDE_AREA = "wan"
"""The tag of addresses for clients elsewhere."""
GATEWAY_PORT = "gateway_port"


def network_gateways(
    members: Iterable[ConsulInstance],
    is_healthy: Callable[[ConsulInstance], bool],
    is_host: Callable[[str], bool],
    problems: list[Problem],
) -> tuple[NetworkGateway, ...]:
    """The gateways among the instances of a service: those that are healthy or, where none is, all of them."""
    found = [(i, gateway) for i in members for gateway in _gateway(i, is_host, problems)]
    healthy = [gateway for i, gateway in found if is_healthy(i)]
    return tuple(sorted(set(healthy or [gateway for _, gateway in found])))


def _gateway(
    instance: ConsulInstance, is_host: Callable[[str], bool], problems: list[Problem]
) -> Iterator[NetworkGateway]:
    network = said_network(instance)
    key = GATEWAY_PORT if GATEWAY_PORT in instance.facts else GATEWAY_PORT_LABEL
    said = instance.facts.get(key, "")
    port = port_number(said)
    if said and not port:
        reason = f"{said!r} is not a port number: instance {instance.id!r} is not a gateway of its network"
        problems.append(Problem(f"Meta.{key}", reason))
        return
    if not said and network and instance.port == DEFAULT_GATEWAY_PORT:
        port = DEFAULT_GATEWAY_PORT
    if not port:
        return
    address, elsewhere = instance.reached_at(WIDE_AREA)
    if not is_ip(address) and not is_host(address):
        wrong = f"{address[:255]!r} is neither an IP address nor a host name"
        reason = f"instance {instance.id!r} is not a gateway: {wrong}"
        problems.append(Problem(f"TaggedAddresses.{WIDE_AREA}", reason))
        return
    yield NetworkGateway(
        plain_address(address) if is_ip(address) else address.removesuffix(".").lower(),
        elsewhere if port == instance.port else port,
        network,
        said_cluster(instance),
    )
