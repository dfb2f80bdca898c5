"""A sidecar's outbound listeners: one for everything captured, those that it hands on to, and an HTTP proxy.

Captured connections arrive at ``virtualOutbound`` and are handed to the listener of their destination: an address and
port, or a port on the wildcard address. What no listener is for passes through or ends in a black hole, as the
outbound traffic policy says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envoy.config.core.v3 import base_pb2
from envoy.config.listener.v3.listener_pb2 import Listener

from mesh_pilot.envoy.core.protobuf import address, boolean
from mesh_pilot.envoy.filters.tcp import tcp_filters, tcp_proxy
from mesh_pilot.envoy.listeners.chains import (
    ANY,
    PLAIN_HTTP,
    RAW,
    Chain,
    Match,
    assemble,
    balance_exactly,
    chain,
    merge,
    sni_match,
)
from mesh_pilot.envoy.listeners.hcm import HttpManager, http_manager
from mesh_pilot.envoy.listeners.inspectors import inspectors, wait_for_client
from mesh_pilot.envoy.telemetry.access_logs import listener_access_logs
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.conflicts import Conflict
from mesh_pilot.mesh.listener_candidates import TcpMember
from mesh_pilot.mesh.names import BLACK_HOLE, listener_name
from mesh_pilot.mesh.outbound import ListenerShard, OutboundListener, listener_shards, outbound_listeners, share_plan
from mesh_pilot.mesh.policies import PolicyContext, outbound_context
from mesh_pilot.mesh.proxy.proxy_config import listener_buffer
from mesh_pilot.mesh.proxy.scope import OutboundScope, Plan, PlanShards, ResourceQuery
from mesh_pilot.mesh.proxy.span_source import NO_SOURCE, SpanSource
from mesh_pilot.mesh.sidecar_scope import unknown_destination
from mesh_pilot.mesh.virtual_services.l4 import (
    Conditions,
    L4Route,
    route_target,
    service_target,
    tcp_routes,
    tls_routes,
    to_cluster,
)
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.view import View

VIRTUAL_OUTBOUND = "virtualOutbound"
PASSTHROUGH_CHAIN = "PassthroughFilterChain"
HTTP_PROXY_ROUTES = "http_proxy"
"""Name of the route table of the HTTP proxy listener."""


@derived
def listener_plans(view: View, scope: OutboundScope, spans: SpanSource) -> PlanShards:
    """The outbound listeners of a scope in parts: those that services ask for, then those for everything else.

    Those of HTTP are shared by proxies whose spans say the same of them, the others by all of the scope.
    """
    shares = listener_shards(view, scope)
    proxy = http_proxy_port(view, scope)
    if proxy and any(listener_name(scope.loopback, proxy) in share_plan(view, share).listeners for share in shares):
        proxy = 0
    others = other_listeners.query(scope, proxy, spans if proxy else NO_SOURCE)
    return (*(service_listeners.query(share, spans) for share in shares), others)


@derived
def service_listeners(view: View, share: ListenerShard, spans: SpanSource) -> Plan:
    """The outbound listeners of a share."""
    return {
        name: outbound_listener.query(share.scope, held, spans if held.http is not None else NO_SOURCE)
        for name, held in share_plan(view, share).listeners.items()
    }


@derived
def other_listeners(_: View, scope: OutboundScope, proxy: int, spans: SpanSource) -> Plan:
    """The outbound listeners that are for no service; ``proxy`` is the port of the HTTP proxy, 0 for none."""
    plan: dict[str, ResourceQuery] = {}
    if proxy:
        plan[listener_name(scope.loopback, proxy)] = http_proxy_listener.query(scope, proxy, spans)
    if scope.interception is not Interception.NONE:
        plan[VIRTUAL_OUTBOUND] = virtual_outbound.query(scope)
    return plan


@derived
def outbound_conflicts(view: View, scope: OutboundScope) -> tuple[Conflict, ...]:
    """The services that the proxies of a scope can't reach as declared, because others have their place."""
    plan = outbound_listeners(view, scope)
    shared = (o for _, o in sorted(plan.listeners.items()) if len(o.tcp) > 1)
    merged = (c for o in shared for c in _tcp_chains(view, scope, o)[1])
    return (*(conflict for _, conflict in plan.conflicts), *merged)


@derived
def outbound_listener(view: View, scope: OutboundScope, listener: OutboundListener, spans: SpanSource) -> Resource:
    """One outbound listener."""
    header = Listener(
        name=listener.name,
        address=address(listener.bind, listener.port),
        traffic_direction=base_pb2.OUTBOUND,
    )
    if not listener.bind_to_port:
        header.bind_to_port.CopyFrom(boolean(False))
    if scope.is_on("OUTBOUND_LISTENER_EXACT_BALANCE"):
        balance_exactly(header)
    # What only one listener needs is remembered with it; only where many services meet their chains are apart.
    merged = (_tcp_chains if len(listener.tcp) > 1 else _tcp_chains.compute)(view, scope, listener)
    chains = list(merged[0])
    if listener.http is not None:
        chains.insert(0, _http_chain(view, outbound_context(scope, spans), listener))
    if listener.sniffed:
        wait_for_client(header, view)
    if listener.sniffed or any(c.match.server_names for c in chains):
        header.listener_filters.extend(inspectors(http=listener.sniffed))
    default = next((c for c in chains if c.match.is_any), None)
    if len(chains) > 1 and default is not None:
        chains.remove(default)
    elif default is None and not listener.bind_to_port:
        default = _passthrough_chain(view, scope)
    else:
        default = None
    return _assembled(view, outbound_context(scope), header, chains, default)


@derived
def virtual_outbound(view: View, scope: OutboundScope) -> Resource:
    """The listener to which the host's rules send what the application beside the proxy opens."""
    port = _listen_port(view)
    header = Listener(
        name=VIRTUAL_OUTBOUND,
        address=address(scope.wildcard, port),
        traffic_direction=base_pb2.OUTBOUND,
        use_original_dst=boolean(True),
    )
    if scope.interception is Interception.TPROXY:
        header.transparent.CopyFrom(boolean(True))
    own = chain(Match(port=port), [tcp_proxy(view, None, to_cluster(BLACK_HOLE))], name=f"{VIRTUAL_OUTBOUND}-blackhole")
    rest = _passthrough_chain(view, scope, f"{VIRTUAL_OUTBOUND}-catchall-tcp")
    return _assembled(view, outbound_context(scope), header, (own, rest))


@derived
def http_proxy_listener(view: View, scope: OutboundScope, port: int, spans: SpanSource) -> Resource:
    """The listener that applications use as their HTTP proxy."""
    name = listener_name(scope.loopback, port)
    header = Listener(name=name, address=address(scope.loopback, port), traffic_direction=base_pb2.OUTBOUND)
    context = outbound_context(scope, spans)
    manager = HttpManager(
        context, f"outbound_{name}", HTTP_PROXY_ROUTES, protocol=Protocol.HTTP_PROXY, forward_proxy=True
    )
    only = chain(ANY, [http_manager(view, manager)])
    return _assembled(view, context, header, (only,))


def _assembled(
    view: View, context: PolicyContext, header: Listener, chains: Sequence[Chain], default: Chain | None = None
) -> Resource:
    logs = listener_access_logs(view, context)
    return assemble(header, chains, default=default, logs=logs, buffer=listener_buffer(view, context.settings))


def http_proxy_port(view: View, scope: OutboundScope) -> int:
    """The port of the HTTP proxy listener: the proxy's own, else the mesh's; 0: there is none."""
    own = scope.meta("HTTP_PROXY_PORT")
    return int(own) if own.isdecimal() else _mesh_http_port(view)


@derived
def _listen_port(view: View) -> int:
    return view.mesh().proxy_listen_port


@derived
def _mesh_http_port(view: View) -> int:
    return view.mesh().proxy_http_port


def _http_chain(view: View, context: PolicyContext, listener: OutboundListener) -> Chain:
    manager = HttpManager(
        context,
        f"outbound_{listener.name}",
        listener.route_name,
        protocol=listener.http or Protocol.HTTP,
    )
    match = Match(protocols=PLAIN_HTTP, transport=RAW) if listener.sniffed else ANY
    return chain(match, [http_manager(view, manager)])


def _passthrough_chain(view: View, scope: OutboundScope, name: str = PASSTHROUGH_CHAIN) -> Chain:
    cluster = unknown_destination(view, scope.sidecar) or BLACK_HOLE
    return chain(ANY, [tcp_proxy(view, outbound_context(scope), to_cluster(cluster))], name=name)


@derived
def _tcp_chains(
    view: View, scope: OutboundScope, listener: OutboundListener
) -> tuple[tuple[Chain, ...], tuple[Conflict, ...]]:
    """The TCP chains of a listener, and who lost a place on it."""
    if len(listener.tcp) == 1:
        return merge(listener.name, _member_chains.compute(view, scope, listener.tcp[0]))
    return merge(listener.name, (c for member in listener.tcp for c in _member_chains(view, scope, member)))


@derived
def _member_chains(view: View, scope: OutboundScope, member: TcpMember) -> tuple[Chain, ...]:
    """The chains of one TCP service: those of its routes, and one for what they leave."""
    found = (view.config(key) for key in member.virtual_services)
    configs = [c for c in found if c is not None]
    conditions = Conditions(frozenset((MESH_GATEWAY,)), member.port, scope.namespace, scope.labels)
    if member.protocol.is_tls:
        routes = list(tls_routes(view, configs, conditions))
        covered = bool(routes)
    else:
        routes = list(tcp_routes(view, configs, conditions))
        covered = bool(routes) and routes[-1].is_any
    chains = list(_route_chains(view, scope, member, routes))
    if not covered:
        target = service_target(view, scope, member.service, member.cluster_port)
        names = (member.service.host,) if member.by_name or (target.sni_port and member.protocol.is_tls) else ()
        filters = tcp_filters(view, outbound_context(scope), target, member.protocol)
        chains.append(chain(sni_match(names, (member.cidr,)), filters, host=member.service.host))
    return tuple(chains)


def _route_chains(view: View, scope: OutboundScope, member: TcpMember, routes: Sequence[L4Route]) -> Iterator[Chain]:
    for route in routes:
        target = route_target(view, scope, route, member.port)
        match = sni_match(route.server_names, route.cidrs or (member.cidr,), route.source_cidrs)
        filters = tcp_filters(view, outbound_context(scope), target, member.protocol)
        yield chain(match, filters, host=member.service.host, configs=(route.config.key,))
