"""The gateways of networks that Gateways of the Gateway API are: those with Istio's label of a network."""

from __future__ import annotations

from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.gateway_api.classes import is_served
from mesh_pilot.istio.gateway_api.gateways import HOSTNAME, IP_ADDRESS
from mesh_pilot.istio.gateway_api.listener_tls import is_auto_passthrough
from mesh_pilot.istio.gateway_api.values import Objects
from mesh_pilot.model.config import Config
from mesh_pilot.model.service import NETWORK_LABEL, NetworkGateway


def network_gateways(gateway: Config, objects: Objects, cluster_id: str) -> tuple[NetworkGateway, ...]:
    """The addresses of a Gateway, if its type is said, with the ports of its listeners for other networks.

    A host name may be that of a Service.
    """
    spec: api.GatewaySpec = gateway.spec
    network = gateway.labels.get(NETWORK_LABEL, "")
    if not network or is_served(spec.gateway_class_name, objects) is None:
        return ()
    ports = {each.port for each in spec.listeners if each.tls is not None and is_auto_passthrough(gateway, each)}
    addresses = {each.value for each in spec.addresses if each.type in (HOSTNAME, IP_ADDRESS) and each.value}
    return tuple(NetworkGateway(at, port, network, cluster_id) for at in sorted(addresses) for port in sorted(ports))
