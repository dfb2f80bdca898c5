"""Matches of patches: conditions on an object and on what contains it. An absent condition is true."""

from __future__ import annotations

from collections.abc import Collection

from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.config.route.v3 import route_components_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Context, Patch
from mesh_pilot.envoy.listeners.inbound import VIRTUAL_INBOUND
from mesh_pilot.envoy.listeners.outbound import VIRTUAL_OUTBOUND
from mesh_pilot.envoy.tls.common import RAW_SOCKET
from mesh_pilot.mesh.listeners.gateway_servers import ServerPorts
from mesh_pilot.mesh.names.resources import Direction, parse_cluster
from mesh_pilot.model.resource import plain_table_name

RouteAction = api.EnvoyFilterRouteConfigurationMatchRouteMatchAction

_ROUTE_ACTIONS = {
    "route": RouteAction.ROUTE,
    "redirect": RouteAction.REDIRECT,
    "direct_response": RouteAction.DIRECT_RESPONSE,
}
"""The action of a route by its field in Envoy's Route."""


def cluster_matches(match: api.EnvoyFilterClusterMatch | None, name: str, hosts: Collection[str] = ()) -> bool:
    """True if a cluster matches. ``hosts`` are the services of an inbound cluster, which its name does not contain."""
    if match is None:
        return True
    if match.name:
        return match.name == name
    parts = parse_cluster(name)
    if parts is not None and parts.direction is Direction.OUTBOUND:
        hosts = (parts.host,)
    return (
        (not match.subset or (parts is not None and parts.subset == match.subset))
        and (not match.service or match.service.lower() in hosts)
        and (not match.port_number or (parts is not None and parts.port == match.port_number))
    )


def listener_may_match(patch: Patch, name: str) -> bool:
    """False if a patch cannot be for a listener of this name; otherwise the listener decides, by its port."""
    match = patch.match.listener
    return match is None or match.name in ("", name)


def listener_matches(patch: Patch, listener: listener_pb2.Listener) -> bool:
    """True if a listener matches. ``chain_matches`` checks the port on the virtual listeners."""
    match = patch.match.listener
    if match is None:
        return True
    if match.name not in ("", listener.name):
        return False
    if not match.port_number or (_is_virtual(listener) and patch.apply_to is not ApplyTo.LISTENER):
        return True
    return bool(listener.address.socket_address.port_value == match.port_number)


def chain_matches(patch: Patch, listener: listener_pb2.Listener, chain: listener_components_pb2.FilterChain) -> bool:
    """True if a filter chain of a matching listener matches. On the virtual listeners the port is the chain's."""
    outer = patch.match.listener
    if outer is None:
        return True
    chain_match = chain.filter_chain_match
    if outer.port_number and _is_virtual(listener) and chain_match.destination_port.value != outer.port_number:
        return False
    match = outer.filter_chain
    if match is None:
        return True
    protocols = match.application_protocols.split(",") if match.application_protocols else ()
    return (
        match.name in ("", chain.name)
        and (not match.sni or match.sni in chain_match.server_names)
        and match.transport_protocol in ("", chain_match.transport_protocol)
        and all(p.strip() in chain_match.application_protocols for p in protocols)
        and match.destination_port in (0, chain_match.destination_port.value)
        # Without a transport socket Envoy passes bytes as they are.
        and match.transport_socket in ("", chain.transport_socket.name or RAW_SOCKET)
    )


def network_filter_name(patch: Patch) -> str:
    """The network filter that a patch selects; empty: any."""
    listener = patch.match.listener
    chain = listener.filter_chain if listener is not None else None
    return chain.filter.name if chain is not None and chain.filter is not None else ""


def selected_name(patch: Patch) -> str:
    """The filter that a patch to filters changes, or is inserted next to; empty: none is named."""
    listener = patch.match.listener
    if listener is None:
        return ""
    if patch.apply_to is ApplyTo.LISTENER_FILTER:
        return listener.listener_filter
    if patch.apply_to is ApplyTo.NETWORK_FILTER:
        return network_filter_name(patch)
    outer = listener.filter_chain.filter if listener.filter_chain is not None else None
    return outer.sub_filter.name if outer is not None and outer.sub_filter is not None else ""


def table_matches(patch: Patch, name: str, context: Context, ports: ServerPorts) -> bool:
    """True if the route table of this name matches; ``ports`` are those of a router."""
    match = patch.match.route_configuration
    if match is None:
        return True
    name = plain_table_name(name)
    if match.name not in ("", name):
        return False
    if context is not Context.GATEWAY:
        return match.port_number in (0, _table_port(name))
    port, port_name, gateway = _gateway_table(name)
    return (
        (not match.port_number or match.port_number in _server_ports(port, ports))
        and match.port_name in ("", port_name)
        and match.gateway in ("", gateway)
    )


def virtual_host_matches(patch: Patch, host: route_components_pb2.VirtualHost) -> bool:
    """True if a virtual host of a matching route table matches."""
    match = patch.match.route_configuration
    vhost = match.vhost if match is not None else None
    if vhost is None:
        return True
    name, domain = vhost.name.lower(), vhost.domain_name.lower()
    return name in ("", host.name.lower()) and (not domain or domain in host.domains)


def names_route(patch: Patch) -> bool:
    """True if a patch selects routes by name or action."""
    return _route_match(patch) is not None


def route_matches(patch: Patch, route: route_components_pb2.Route) -> bool:
    """True if a route of a matching virtual host matches."""
    match = _route_match(patch)
    if match is None:
        return True
    if match.name not in ("", route.name):
        return False
    action = _ROUTE_ACTIONS.get(route.WhichOneof("action") or "")
    return match.action is RouteAction.ANY or action is None or action is match.action


def _route_match(patch: Patch) -> api.EnvoyFilterRouteConfigurationMatchRouteMatch | None:
    match = patch.match.route_configuration
    return match.vhost.route if match is not None and match.vhost is not None else None


def _is_virtual(listener: listener_pb2.Listener) -> bool:
    return listener.name in (VIRTUAL_INBOUND, VIRTUAL_OUTBOUND)


def _table_port(name: str) -> int:
    """The port in the name of a sidecar's table; 0: none."""
    parts = parse_cluster(name)
    if parts is not None:
        return parts.port
    return int(name) if name.isdecimal() else 0


def _gateway_table(name: str) -> tuple[int, str, str]:
    """Port, port name and ``namespace/gateway`` in the name of a router's table.

    Plaintext servers share a table by their port; its name has neither port name nor Gateway.
    """
    parts = name.split(".")
    port = int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 0
    if parts[0] == "https" and len(parts) >= 5:
        return port, parts[2], f"{parts[4]}/{parts[3]}"
    return port, "", ""


def _server_ports(listens_on: int, ports: ServerPorts) -> Collection[int]:
    """The ports of Gateway servers for which the router listens on this port."""
    return [port for port, bound in ports if bound == listens_on] or (listens_on,)
