"""A sidecar's outbound listeners: ``virtualOutbound``, the listeners of services, and an HTTP proxy.

The host redirects outgoing connections to ``virtualOutbound``, which hands each to the listener of its destination: an
address and port, or a port on the wildcard address. A connection without one passes through or fails, as the outbound
traffic policy says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3.route_pb2 import RouteConfiguration

from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import boolean, encode
from mesh_pilot.envoy.filters.tcp import tcp_filters, tcp_proxy
from mesh_pilot.envoy.listeners.filter_chains import (
    MATCH_ALL,
    PLAINTEXT_HTTP,
    RAW_BUFFER,
    ChainMatch,
    EncodedChain,
    balance_exactly,
    black_hole_chain,
    bound_listener,
    context_listener,
    filter_chain,
    merge_chains,
    sni_match,
)
from mesh_pilot.envoy.listeners.hcm import HcmSettings, http_chain
from mesh_pilot.envoy.listeners.inspectors import (
    await_server_name,
    http_inspector,
    set_detection_timeout,
    tls_inspector,
    undeclared_filters,
)
from mesh_pilot.envoy.routes.virtual_host import ALLOW_ANY_DYNAMIC_DNS, catch_all
from mesh_pilot.mesh.listeners.candidates import TcpMember
from mesh_pilot.mesh.listeners.conflicts import Conflict
from mesh_pilot.mesh.listeners.outbound import (
    ListenerShard,
    OutboundListener,
    listener_shards,
    outbound_listeners,
    shard_listeners,
)
from mesh_pilot.mesh.names.resources import BLACK_HOLE, REQUESTED_HOST, listener_name
from mesh_pilot.mesh.policies.context import PolicyContext, outbound_context
from mesh_pilot.mesh.proxy.plans import Plan, PlanShards, ResourceQuery
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.proxy.span_source import NO_SOURCE, SpanSource
from mesh_pilot.mesh.reach.unknown_hosts import unknown_destination, unknown_host
from mesh_pilot.mesh.routing.l4 import (
    L4Route,
    MatchContext,
    route_target,
    service_target,
    tcp_routes,
    tls_routes,
    to_cluster,
)
from mesh_pilot.mesh.virtual_hosts.authorizers import Authorizer, sidecar_authorizers, table_name
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.view import View

VIRTUAL_OUTBOUND = "virtualOutbound"
PASSTHROUGH_CHAIN = "PassthroughFilterChain"
UNDECLARED_SERVER_FIRST = timedelta(seconds=1)
"""The wait for a client at an undeclared port, where HTTP is resolved: the server may be the first to send."""
HTTP_PROXY_ROUTES = "http_proxy"
"""Name of the HTTP proxy listener's route table."""


@derived
def listener_plans(view: View, scope: OutboundScope, spans: SpanSource) -> PlanShards:
    """The outbound listeners of a scope: a shard for each of the services' shards, then the listeners of no service.

    Proxies share HTTP listeners if the tags of their spans are equal, other listeners in the whole scope.
    """
    shards = listener_shards(view, scope)
    proxy = http_proxy_port(view, scope)
    # A service on the same address and port takes precedence over the HTTP proxy.
    names = {listener_name(loopback, proxy) for loopback in scope.loopbacks}
    if proxy and any(not names.isdisjoint(shard_listeners(view, shard).listeners) for shard in shards):
        proxy = 0
    resolved = unknown_host(view, scope.sidecar) == REQUESTED_HOST
    others = other_listeners.query(scope, proxy, spans if proxy or resolved else spans.for_connections)
    return (*(service_listeners.query(shard, spans) for shard in shards), others)


@derived
def service_listeners(view: View, shard: ListenerShard, spans: SpanSource) -> Plan:
    """The outbound listeners of a shard."""
    plan: dict[str, ResourceQuery] = {}
    for listener in shard_listeners(view, shard).listeners.values():
        if listener.http is None:
            plan[listener.name] = outbound_listener.query(shard.scope, listener, spans.for_connections, ())
        else:
            # Read here, not by each listener, so that only those of other authorizers are made again.
            asked = sidecar_authorizers(view, shard.scope, listener.route_name)
            plan[listener.name] = outbound_listener.query(shard.scope, listener, spans, asked)
    return plan


@derived
def other_listeners(view: View, scope: OutboundScope, proxy: int, spans: SpanSource) -> Plan:
    """The outbound listeners that belong to no service; ``proxy``: port of the HTTP proxy, 0 for none."""
    plan: dict[str, ResourceQuery] = {}
    if proxy:
        plan[listener_name(scope.loopback, proxy)] = http_proxy_listener.query(scope, proxy, spans)
    if scope.interception is not Interception.NONE:
        resolved = unknown_host(view, scope.sidecar) == REQUESTED_HOST
        plan[VIRTUAL_OUTBOUND] = virtual_outbound.query(scope, spans if resolved else spans.for_connections)
    return plan


@derived
def outbound_conflicts(view: View, scope: OutboundScope) -> tuple[Conflict, ...]:
    """The services that proxies of a scope cannot reach as declared, because others have the same address or match."""
    plan = outbound_listeners(view, scope)
    several = (listener for _, listener in sorted(plan.listeners.items()) if len(listener.tcp) > 1)
    overlaps = (conflict for listener in several for conflict in _tcp_chains(view, scope, NO_SOURCE, listener)[1])
    return (*(conflict for _, conflict in plan.conflicts), *overlaps)


@derived
def outbound_listener(
    view: View, scope: OutboundScope, listener: OutboundListener, spans: SpanSource, asked: tuple[Authorizer, ...]
) -> Resource:
    """One outbound listener; ``asked``: the authorizers of its route table."""
    header = bound_listener(listener.name, (listener.bind, *listener.also), listener.port, base_pb2.OUTBOUND)
    if not listener.bind_to_port:
        header.bind_to_port.CopyFrom(boolean(False))
        header.ClearField("max_connections_to_accept_per_socket_event")
    if scope.is_on("OUTBOUND_LISTENER_EXACT_BALANCE"):
        balance_exactly(header)
    # Only a listener of several services needs their chains memoised apart from it.
    connections = spans.for_connections
    merged = (_tcp_chains if len(listener.tcp) > 1 else _tcp_chains.compute)(view, scope, connections, listener)
    chains = list(merged[0])
    if listener.http is not None:
        chains.insert(0, _http_chain(view, outbound_context(view, scope, spans), listener, asked))
    # Inspectors wait for the client: a listener has them only if a chain needs what they detect.
    await_server_name(header)
    if any(c.match.server_names for c in chains):
        header.listener_filters.append(tls_inspector())
    if listener.sniffed:
        header.listener_filters.append(http_inspector())
        set_detection_timeout(header, view)
    # The chain that matches all is Envoy's default filter chain if there are others. A listener that connections are
    # handed to needs a default: without one, Envoy would close those that no chain matches.
    default = next((c for c in chains if c.match.is_any), None)
    if len(chains) > 1 and default is not None:
        chains.remove(default)
    elif default is None and not (listener.bind_to_port and chains):
        default = _passthrough_chain(view, scope, connections)
    else:
        default = None
    return context_listener(view, outbound_context(view, scope), header, chains, default)


@derived
def virtual_outbound(view: View, scope: OutboundScope, spans: SpanSource) -> Resource:
    """The listener that the host redirects the application's connections to."""
    port = _listen_port(view)
    header = bound_listener(VIRTUAL_OUTBOUND, scope.wildcards, port, base_pb2.OUTBOUND)
    header.use_original_dst.CopyFrom(boolean(True))
    if scope.interception is Interception.TPROXY:
        header.transparent.CopyFrom(boolean(True))
    chains = [black_hole_chain(view, VIRTUAL_OUTBOUND, port)]
    if unknown_host(view, scope.sidecar) == REQUESTED_HOST:
        header.listener_filters.extend(undeclared_filters(_captured_ports(view, scope)))
        set_detection_timeout(header, view, UNDECLARED_SERVER_FIRST)
        chains.append(_undeclared_requests(view, scope, spans))
    chains.append(_passthrough_chain(view, scope, spans.for_connections, f"{VIRTUAL_OUTBOUND}-catchall-tcp"))
    return context_listener(view, outbound_context(view, scope), header, chains)


@derived
def _captured_ports(view: View, scope: OutboundScope) -> tuple[int, ...]:
    """The ports whose captured connections some listener gets."""
    listeners = outbound_listeners(view, scope).listeners.values()
    return tuple(sorted({listener.port for listener in listeners if not listener.bind_to_port}))


def _undeclared_requests(view: View, scope: OutboundScope, spans: SpanSource) -> EncodedChain:
    """The chain for HTTP on undeclared ports, where the host of each request is resolved."""
    routes = RouteConfiguration(
        name=ALLOW_ANY_DYNAMIC_DNS, validate_clusters=boolean(False), ignore_port_in_host_matching=True
    )
    routes.virtual_hosts.add().MergeFromString(catch_all(view, scope.sidecar))
    manager = HcmSettings(
        outbound_context(view, scope, spans),
        f"outbound_{VIRTUAL_OUTBOUND}_{ALLOW_ANY_DYNAMIC_DNS}",
        routes=encode(routes),
    )
    match = ChainMatch(protocols=PLAINTEXT_HTTP)
    return filter_chain(match, http_chain(view, manager), name=f"{VIRTUAL_OUTBOUND}-catchall-tcp-http")


@derived
def http_proxy_listener(view: View, scope: OutboundScope, port: int, spans: SpanSource) -> Resource:
    """The listener that applications can use as their HTTP proxy."""
    name = listener_name(scope.loopback, port)
    header = bound_listener(name, scope.loopbacks, port, base_pb2.OUTBOUND)
    set_detection_timeout(header, view)
    context = outbound_context(view, scope, spans)
    asked = sidecar_authorizers(view, scope, HTTP_PROXY_ROUTES)
    manager = HcmSettings(
        context,
        f"outbound_{name}",
        table_name(HTTP_PROXY_ROUTES, asked),
        protocol=Protocol.HTTP_PROXY,
        forward_proxy=True,
        port=port,
        authorizers=asked,
    )
    return context_listener(view, context, header, (filter_chain(MATCH_ALL, http_chain(view, manager)),))


def http_proxy_port(view: View, scope: OutboundScope) -> int:
    """The port of the HTTP proxy listener: of the node's metadata, else of the mesh config; 0: there is none."""
    of_node = scope.meta("HTTP_PROXY_PORT")
    return int(of_node) if of_node.isdecimal() else _mesh_http_port(view)


@derived
def _listen_port(view: View) -> int:
    return view.mesh().proxy_listen_port


@derived
def _mesh_http_port(view: View) -> int:
    return view.mesh().proxy_http_port


def _http_chain(
    view: View, context: PolicyContext, listener: OutboundListener, asked: tuple[Authorizer, ...]
) -> EncodedChain:
    manager = HcmSettings(
        context,
        f"outbound_{listener.name}",
        table_name(listener.route_name, asked),
        protocol=listener.http or Protocol.HTTP,
        port=listener.port,
        authorizers=asked,
    )
    match = ChainMatch(protocols=PLAINTEXT_HTTP, transport=RAW_BUFFER) if listener.sniffed else MATCH_ALL
    return filter_chain(match, http_chain(view, manager))


def _passthrough_chain(
    view: View, scope: OutboundScope, spans: SpanSource, name: str = PASSTHROUGH_CHAIN
) -> EncodedChain:
    cluster = unknown_destination(view, scope.sidecar) or BLACK_HOLE
    filters = [tcp_proxy(view, outbound_context(view, scope, spans), to_cluster(cluster))]
    return filter_chain(MATCH_ALL, filters, name=name, handshake=None)


@derived
def _tcp_chains(
    view: View, scope: OutboundScope, spans: SpanSource, listener: OutboundListener
) -> tuple[tuple[EncodedChain, ...], tuple[Conflict, ...]]:
    """The TCP chains of a listener, and the conflicts among them."""
    if len(listener.tcp) == 1:
        return merge_chains(listener.name, _member_chains.compute(view, scope, spans, listener.tcp[0]))
    members = (_member_chains(view, scope, spans, member) for member in listener.tcp)
    return merge_chains(listener.name, (chain for chains in members for chain in chains))


@derived
def _member_chains(view: View, scope: OutboundScope, spans: SpanSource, member: TcpMember) -> tuple[EncodedChain, ...]:
    """The chains of one TCP service: those of its routes, and one for connections that no route matches."""
    configs = [config for key in member.virtual_services if (config := view.config(key)) is not None]
    conditions = MatchContext(frozenset((MESH_GATEWAY,)), member.port, scope.namespace, scope.labels)
    if member.protocol.is_tls:
        routes = list(tls_routes(view, configs, conditions))
        covered = bool(routes)
    else:
        routes = list(tcp_routes(view, configs, conditions))
        covered = bool(routes) and routes[-1].is_any
    context = outbound_context(view, scope, spans)
    chains = list(_route_chains(view, scope, context, member, routes))
    if not covered:
        target = service_target(view, scope, member.service, member.cluster_port)
        has_names = member.by_name or (target.sni_port and member.protocol.is_tls)
        names = (member.service.host, *member.aliases) if has_names else ()
        filters = tcp_filters(view, context, target, member.protocol, port=member.port)
        chains.append(filter_chain(sni_match(names, (member.cidr,)), filters, host=member.service.host))
    return tuple(chains)


def _route_chains(
    view: View, scope: OutboundScope, context: PolicyContext, member: TcpMember, routes: Sequence[L4Route]
) -> Iterator[EncodedChain]:
    for route in routes:
        target = route_target(view, scope, route, member.port)
        match = sni_match(route.server_names, route.cidrs or (member.cidr,), route.source_cidrs)
        filters = tcp_filters(view, context, target, member.protocol, port=member.port)
        yield filter_chain(match, filters, host=member.service.host, configs=(route.config.key,))
