"""Whether a patch is for an object: conditions on it and on what it is part of. Conditions that are absent hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.config.route.v3 import route_components_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Context, Patch
from mesh_pilot.envoy.listeners.inbound_chains import VIRTUAL_INBOUND
from mesh_pilot.envoy.listeners.outbound import VIRTUAL_OUTBOUND
from mesh_pilot.mesh.names import Direction, parse_cluster

Action = api.EnvoyFilterRouteConfigurationMatchRouteMatchAction

ACTIONS = {"route": Action.ROUTE, "redirect": Action.REDIRECT, "direct_response": Action.DIRECT_RESPONSE}
"""What a route does, by the field that says it."""

OLD_NAMES: Mapping[str, str] = {
    **{
        f"envoy.filters.http.{name}": f"envoy.{name}"
        for name in (
            "buffer", "cors", "csrf", "ext_authz", "fault", "grpc_http1_bridge", "grpc_json_transcoder", "grpc_web",
            "gzip", "health_check", "ip_tagging", "lua", "router", "squash",
        )
    },
    "envoy.filters.http.dynamo": "envoy.http_dynamo_filter",
    "envoy.filters.http.ratelimit": "envoy.rate_limit",
    **{
        f"envoy.filters.network.{name}": f"envoy.{name}"
        for name in (
            "client_ssl_auth", "ext_authz", "http_connection_manager", "mongo_proxy", "ratelimit", "redis_proxy",
            "tcp_proxy",
        )
    },
    **{
        f"envoy.filters.listener.{name}": f"envoy.listener.{name}"
        for name in ("http_inspector", "original_dst", "original_src", "proxy_protocol", "tls_inspector")
    },
}  # fmt: skip
"""What filters were called before Envoy 1.14: patches still match on it."""

Ports = tuple[tuple[int, int], ...]
"""Service ports of a router with the ports that it listens on for them."""


def cluster_matches(match: api.EnvoyFilterClusterMatch | None, name: str, hosts: Collection[str] = ()) -> bool:
    """``hosts`` are the services that an inbound cluster is for: its name does not say."""
    if match is None:
        return True
    if match.name:
        return match.name == name
    parts = parse_cluster(name)
    if parts is not None and parts.direction is Direction.OUTBOUND:
        hosts = (parts.host,)
    return (
        (not match.subset or (parts is not None and parts.subset == match.subset))
        and (not match.service or match.service in hosts)
        and (not match.port_number or (parts is not None and parts.port == match.port_number))
    )


def listener_may_match(patch: Patch, name: str) -> bool:
    """Whether a patch can be for the listener of this name; which port it has decides the rest."""
    match = patch.match.listener
    return match is None or match.name in ("", name)


def listener_matches(patch: Patch, listener: listener_pb2.Listener) -> bool:
    match = patch.match.listener
    if match is None:
        return True
    if match.name not in ("", listener.name):
        return False
    if not match.port_number or (_is_virtual(listener) and patch.apply_to is not ApplyTo.LISTENER):
        return True
    return bool(listener.address.socket_address.port_value == match.port_number)


def chain_matches(patch: Patch, listener: listener_pb2.Listener, chain: listener_components_pb2.FilterChain) -> bool:
    """Given that the listener matches. On the listeners of captured traffic a port number is the chain's."""
    outer = patch.match.listener
    if outer is None:
        return True
    own = chain.filter_chain_match
    if outer.port_number and _is_virtual(listener) and own.destination_port.value != outer.port_number:
        return False
    match = outer.filter_chain
    if match is None:
        return True
    protocols = match.application_protocols.split(",") if match.application_protocols else ()
    return (
        match.name in ("", chain.name)
        and (not match.sni or match.sni in own.server_names)
        and match.transport_protocol in ("", own.transport_protocol)
        and all(p.strip() in own.application_protocols for p in protocols)
        and match.destination_port in (0, own.destination_port.value)
    )


def network_filter_name(patch: Patch) -> str:
    """The network filter that a patch is about; empty: any."""
    listener = patch.match.listener
    chain = listener.filter_chain if listener is not None else None
    return chain.filter.name if chain is not None and chain.filter is not None else ""


def selected_name(patch: Patch) -> str:
    """The filter that a patch to filters is about, or goes before or after; empty: none in particular."""
    listener = patch.match.listener
    if listener is None:
        return ""
    if patch.apply_to is ApplyTo.LISTENER_FILTER:
        return listener.listener_filter
    if patch.apply_to is ApplyTo.NETWORK_FILTER:
        return network_filter_name(patch)
    outer = listener.filter_chain.filter if listener.filter_chain is not None else None
    return outer.sub_filter.name if outer is not None and outer.sub_filter is not None else ""


def is_named(wanted: str, name: str) -> bool:
    """Whether a filter has the name that a match says, which may be its old one."""
    return wanted in (name, OLD_NAMES.get(name, name))


def table_matches(patch: Patch, name: str, context: Context, ports: Ports) -> bool:
    """For a route configuration, by its name; ``ports`` are those of a router."""
    match = patch.match.route_configuration
    if match is None:
        return True
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
    """Given that the route configuration matches."""
    match = patch.match.route_configuration
    vhost = match.vhost if match is not None else None
    if vhost is None:
        return True
    return vhost.name in ("", host.name) and (not vhost.domain_name or vhost.domain_name in host.domains)


def names_route(patch: Patch) -> bool:
    """Whether a patch is about some routes only."""
    return _route_match(patch) is not None


def route_matches(patch: Patch, route: route_components_pb2.Route) -> bool:
    """Given that the virtual host matches."""
    match = _route_match(patch)
    if match is None:
        return True
    if match.name not in ("", route.name):
        return False
    action = ACTIONS.get(route.WhichOneof("action") or "")
    return match.action is Action.ANY or action is None or action is match.action


def _route_match(patch: Patch) -> api.EnvoyFilterRouteConfigurationMatchRouteMatch | None:
    match = patch.match.route_configuration
    return match.vhost.route if match is not None and match.vhost is not None else None


def _is_virtual(listener: listener_pb2.Listener) -> bool:
    return listener.name in (VIRTUAL_INBOUND, VIRTUAL_OUTBOUND)


def _table_port(name: str) -> int:
    """The port in the name of a sidecar's table; 0 where it has none."""
    parts = parse_cluster(name)
    if parts is not None:
        return parts.port
    return int(name) if name.isdecimal() else 0


def _gateway_table(name: str) -> tuple[int, str, str]:
    """Port, its name and ``namespace/gateway`` of a router's table: plaintext servers share theirs, and have only the
    port."""
    parts = name.split(".")
    port = int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 0
    if parts[0] == "https" and len(parts) >= 5:
        return port, parts[2], f"{parts[4]}/{parts[3]}"
    return port, "", ""


def _server_ports(bound: int, ports: Ports) -> Collection[int]:
    """The ports that servers of Gateways have where the router listens on this one."""
    return [service for service, listens in ports if listens == bound] or (bound,)
