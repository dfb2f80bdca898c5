"""Inbound listeners, and their filter chains: the connections that a port accepts, by protocol and mTLS mode.

A client's proxy declares mesh mTLS, and HTTP inside it, by ALPN; an inspector detects plaintext HTTP; the rest is TCP.
Rules: Istio's PeerAuthentication and protocol selection documents; matches as in Pilot (goldens ``sec-peer-auth``,
``svc-sniffing``).
"""

from __future__ import annotations

from enum import Enum, auto

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.config.listener.v3.listener_components_pb2 import Filter
from envoy.config.route.v3 import route_components_pb2, route_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import boolean, encode, seconds
from mesh_pilot.envoy.filters.tcp import tcp_filters
from mesh_pilot.envoy.listeners.filter_chains import (
    MESH_ALPNS,
    MESH_HTTP_ALPN,
    MESH_TCP_ALPN,
    PLAINTEXT_HTTP,
    RAW_BUFFER,
    TLS_TRANSPORT,
    ChainMatch,
    EncodedChain,
    balance_exactly,
    black_hole_chain,
    bound_listener,
    context_listener,
    filter_chain,
)
from mesh_pilot.envoy.listeners.hcm import HcmSettings, http_chain
from mesh_pilot.envoy.listeners.inspectors import inbound_filters, set_detection_timeout
from mesh_pilot.envoy.routes.action import application_retries
from mesh_pilot.envoy.routes.build import default_route
from mesh_pilot.envoy.telemetry.metrics import OUTSIDE, InboundSide
from mesh_pilot.envoy.tls.connect import connect_server_socket
from mesh_pilot.envoy.tls.downstream import downstream_tls, mesh_server_socket
from mesh_pilot.mesh.legacy.ports import legacy_keys
from mesh_pilot.mesh.listeners.inbound import (
    InboundPort,
    InboundSettings,
    inbound_ports,
    inbound_settings,
    inbound_stat_pattern,
)
from mesh_pilot.mesh.names.resources import (
    CONNECT_SERVICE_PREFIX,
    INBOUND_PASSTHROUGH,
    inbound,
    service_name,
    undeclared_stat_name,
)
from mesh_pilot.mesh.policies.peer_authentication import PeerMode
from mesh_pilot.mesh.proxy.plans import Plan, ResourceQuery
from mesh_pilot.mesh.proxy.scope import Workload
from mesh_pilot.mesh.routing.l4 import TcpTarget
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.connect import connect_leaf, parse_connect_id
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import Resource
from mesh_pilot.model.service import Protocol, ServiceKey
from mesh_pilot.world.view import View

VIRTUAL_INBOUND = "virtualInbound"


class _Payload(Enum):
    """The kind of protocol that a port carries."""

    HTTP = auto()
    TCP = auto()
    SNIFFED = auto()
    """Undeclared: HTTP is detected."""


@attrs.frozen
class _Connection:
    """A kind of connection that a port accepts."""

    transport: str
    alpn: tuple[str, ...]
    mesh_tls: bool
    """Mesh mTLS, which the proxy terminates."""
    http: bool


_MTLS_HTTP = _Connection(TLS_TRANSPORT, (), mesh_tls=True, http=True)
_MTLS_TCP = _Connection(TLS_TRANSPORT, (), mesh_tls=True, http=False)
_MESH_ALPN_HTTP = _Connection(TLS_TRANSPORT, MESH_ALPNS, mesh_tls=True, http=True)
_MESH_ALPN_TCP = _Connection(TLS_TRANSPORT, MESH_ALPNS, mesh_tls=True, http=False)
_DECLARED_HTTP = _Connection(TLS_TRANSPORT, MESH_HTTP_ALPN, mesh_tls=True, http=True)
_DECLARED_TCP = _Connection(TLS_TRANSPORT, MESH_TCP_ALPN, mesh_tls=True, http=False)
_APPLICATION_TLS = _Connection(TLS_TRANSPORT, (), mesh_tls=False, http=False)
"""TLS that the application terminates."""
_PLAINTEXT_HTTP = _Connection(RAW_BUFFER, (), mesh_tls=False, http=True)
_SNIFFED_HTTP = _Connection(RAW_BUFFER, PLAINTEXT_HTTP, mesh_tls=False, http=True)
_PLAINTEXT_TCP = _Connection(RAW_BUFFER, (), mesh_tls=False, http=False)

_ACCEPTED: dict[tuple[_Payload, PeerMode], tuple[_Connection, ...]] = {
    (_Payload.HTTP, PeerMode.STRICT): (_MTLS_HTTP,),
    (_Payload.HTTP, PeerMode.PERMISSIVE): (_MESH_ALPN_HTTP, _PLAINTEXT_HTTP),
    (_Payload.HTTP, PeerMode.DISABLE): (_PLAINTEXT_HTTP,),
    (_Payload.TCP, PeerMode.STRICT): (_MTLS_TCP,),
    (_Payload.TCP, PeerMode.PERMISSIVE): (_MESH_ALPN_TCP, _APPLICATION_TLS, _PLAINTEXT_TCP),
    (_Payload.TCP, PeerMode.DISABLE): (_PLAINTEXT_TCP,),
    (_Payload.SNIFFED, PeerMode.STRICT): (_DECLARED_HTTP, _MTLS_TCP),
    (_Payload.SNIFFED, PeerMode.PERMISSIVE): (
        _DECLARED_HTTP,
        _SNIFFED_HTTP,
        _DECLARED_TCP,
        _PLAINTEXT_TCP,
        _APPLICATION_TLS,
    ),
    (_Payload.SNIFFED, PeerMode.DISABLE): (_SNIFFED_HTTP, _PLAINTEXT_TCP),
}


_INSIDE_TLS = {Protocol.HTTPS: Protocol.HTTP, Protocol.TLS: Protocol.TCP}
"""The protocol inside a port's TLS, once the proxy has terminated it."""


@attrs.frozen(cache_hash=True)
class _ChainSettings:
    """All that the chains of a port have in common."""

    cluster: str
    protocol: Protocol
    mode: PeerMode
    http_name: str
    """Name of its HTTP chains."""
    tcp_name: str
    http_stats: str
    tcp_stats: str
    host: str
    service_port: int
    port: int = 0
    """The connection's destination port; 0: any."""
    config: ConfigKey | None = None
    service: ServiceKey | None = None
    upgraded: bool = False


@derived
def port_chains(view: View, settings: InboundSettings, port: InboundPort) -> tuple[EncodedChain, ...]:
    """The chains of one port.

    The TLS settings of an ingress listener apply only where mesh mTLS is off: a port cannot terminate both.
    """
    mode = settings.modes.at(port.number)
    server_tls = _ingress_tls(view, port.ingress) if port.ingress and mode is PeerMode.DISABLE else None
    chain = _ChainSettings(
        cluster=inbound(port.number),
        protocol=_INSIDE_TLS.get(port.protocol, port.protocol) if server_tls else port.protocol,
        mode=mode,
        http_name=port.name,
        tcp_name=port.name,
        http_stats=f"inbound_{port.name}",  # Istio applies inboundClusterStatName to TCP only
        tcp_stats=port.stat_name or inbound(port.number),
        host=port.host,
        service_port=port.service_port,
        port=port.number,
        config=port.config,
        service=port.service,
        upgraded=port.upgraded,
    )
    if server_tls is None:
        return (*_connect_chains(view, settings, chain, port.connect_id), *_chains(view, settings, chain))
    http = _payload(chain.protocol) is _Payload.HTTP
    return (
        filter_chain(
            ChainMatch(port=port.number, transport=TLS_TRANSPORT),
            _filters(view, settings, chain, http, mesh_tls=False),
            name=port.name,
            transport_socket=downstream_tls(view, server_tls, by_agent=settings.identity.by_agent),
            handshake=None,
            host=port.host,
            configs=_configs(view, settings, chain),
        ),
    )


@derived
def passthrough_chains(view: View, settings: InboundSettings, mode_ports: tuple[int, ...]) -> tuple[EncodedChain, ...]:
    """The chains for ports that no service declares; ``mode_ports`` are those of them with their own mTLS mode."""
    chains: list[EncodedChain] = []
    for port in (0, *mode_ports):
        chain = _ChainSettings(
            cluster=INBOUND_PASSTHROUGH,
            protocol=Protocol.AUTO,
            mode=settings.modes.at(port) if port else settings.modes.default,
            http_name=f"{VIRTUAL_INBOUND}-catchall-http",
            tcp_name=VIRTUAL_INBOUND,
            http_stats=INBOUND_PASSTHROUGH,
            tcp_stats=undeclared_stat_name(inbound_stat_pattern(view)) or INBOUND_PASSTHROUGH,
            host="",
            service_port=0,
            port=port,
        )
        chains += _chains(view, settings, chain)
    return tuple(chains)


def _chains(view: View, settings: InboundSettings, chain: _ChainSettings) -> tuple[EncodedChain, ...]:
    accepted = _ACCEPTED[_payload(chain.protocol), chain.mode]
    configs = _configs(view, settings, chain)
    return tuple(
        filter_chain(
            ChainMatch(port=chain.port, protocols=connection.alpn, transport=connection.transport),
            _filters(view, settings, chain, connection.http, mesh_tls=connection.mesh_tls),
            name=chain.http_name if connection.http else chain.tcp_name,
            transport_socket=mesh_server_socket(view, settings.identity) if connection.mesh_tls else None,
            handshake=None,
            host=chain.host,
            configs=configs,
        )
        for connection in accepted
    )


def _connect_chains(
    view: View, settings: InboundSettings, chain: _ChainSettings, connect_id: str
) -> tuple[EncodedChain, ...]:
    """The chain for callers of Consul's own mesh, which are told by the server name that they ask for.

    It exists once there is a leaf to present: Envoy would let a whole listener wait for a secret.
    """
    named = parse_connect_id(connect_id) if connect_id else None
    if named is None or chain.mode is PeerMode.DISABLE or view.secret("", connect_leaf(named.service)) is None:
        return ()
    is_http = _payload(chain.protocol) is _Payload.HTTP  # Consul's mesh detects nothing: undeclared is TCP
    return (
        filter_chain(
            ChainMatch(server_names=(f"*.internal.{named.trust_domain}",), port=chain.port, transport=TLS_TRANSPORT),
            _filters(view, settings, chain, is_http, mesh_tls=True),
            name=f"{chain.http_name if is_http else chain.tcp_name}-consul-connect",
            transport_socket=connect_server_socket(CONNECT_SERVICE_PREFIX + named.service, named.trust_domain),
            handshake=None,
            host=chain.host,
            configs=_configs(view, settings, chain),
        ),
    )


def _configs(view: View, settings: InboundSettings, chain: _ChainSettings) -> tuple[ConfigKey, ...]:
    """The objects that a chain is made from, except those of all chains of its listener."""
    context = settings.context_at(chain.port)
    return (*([chain.config] if chain.config else []), *legacy_keys(view, context.legacy, context.labels))


@derived
def _ingress_tls(view: View, ingress: tuple[ConfigKey, int]) -> api.ServerTlsSettings | None:
    key, index = ingress
    config = view.config(key)
    listeners: list[api.IstioIngressListener] = config.spec.ingress if config else []
    return listeners[index].tls if index < len(listeners) else None


def _payload(protocol: Protocol) -> _Payload:
    if protocol.is_http:
        return _Payload.HTTP
    return _Payload.TCP if protocol.is_tcp else _Payload.SNIFFED


def _filters(
    view: View, settings: InboundSettings, chain: _ChainSettings, http: bool, *, mesh_tls: bool
) -> list[Filter]:
    context = settings.context_at(chain.port)
    served = InboundSide(mesh_tls, _service_names(view, chain.service)) if context.spans.metrics else OUTSIDE
    if not http:
        target = TcpTarget(chain.tcp_stats, ((chain.cluster, 1),), idle_timeout=settings.idle_timeout)
        return tcp_filters(view, context, target, chain.protocol, served, chain.port)
    hcm = HcmSettings(
        context,
        chain.http_stats,
        routes=_inline_routes(
            chain.cluster,
            chain.host,
            chain.service_port,
            # gRPC clients retry themselves.
            None if chain.protocol in (Protocol.GRPC, Protocol.GRPC_WEB) else application_retries(view),
        ),
        protocol=chain.protocol if chain.protocol.is_http else Protocol.HTTP,
        served=served,
        port=chain.port,
        upgraded=chain.upgraded,
    )
    return http_chain(view, hcm)


def _service_names(view: View, key: ServiceKey | None) -> tuple[str, ...]:
    service = view.service(key) if key is not None else None
    return (service.host, service_name(service), service.namespace) if service is not None else ()


def _inline_routes(
    cluster: str, host: str, service_port: int, retries: route_components_pb2.RetryPolicy | None
) -> bytes:
    """An encoded RouteConfiguration that sends everything to the application's port.

    It is inline in the listener, for it cannot change without it. It sets no timeouts: those are the client's.
    """
    route = default_route(cluster, f"{host}:{service_port}/*")
    route.route.max_stream_duration.max_stream_duration.CopyFrom(seconds(0))
    if retries is not None:
        route.route.retry_policy.CopyFrom(retries)
    virtual_host = route_components_pb2.VirtualHost(name=f"inbound|http|{service_port}", domains=["*"], routes=[route])
    return encode(
        route_pb2.RouteConfiguration(name=cluster, virtual_hosts=[virtual_host], validate_clusters=boolean(False))
    )


@derived
def inbound_listeners(view: View, workload: Workload) -> Plan:
    """The inbound listeners of a workload, by name."""
    settings = inbound_settings(view, workload)
    ports = inbound_ports(view, workload)
    balanced = workload.scope.is_on("INBOUND_LISTENER_EXACT_BALANCE")
    plan: dict[str, ResourceQuery] = {
        p.listener_name: port_listener.query(settings, p, balanced) for p in ports if p.listen
    }
    if workload.scope.interception is not Interception.NONE:
        captured = tuple(p for p in ports if not p.listen)
        plan[VIRTUAL_INBOUND] = virtual_inbound.query(settings, captured, balanced)
    return plan


@derived
def virtual_inbound(view: View, settings: InboundSettings, ports: tuple[InboundPort, ...], balanced: bool) -> Resource:
    """The listener that the host redirects incoming connections to; ``balanced``: exactly, over Envoy's workers."""
    number = _listen_port(view)
    tproxy = settings.interception is Interception.TPROXY
    header = bound_listener(VIRTUAL_INBOUND, settings.wildcards, number, base_pb2.INBOUND)
    if balanced:
        balance_exactly(header)
    if tproxy:
        header.transparent.CopyFrom(boolean(True))
    declared = {p.number for p in ports}
    mode_ports = tuple(port for port, _ in settings.modes.ports if port not in declared)
    chains = [black_hole_chain(view, VIRTUAL_INBOUND, number), *passthrough_chains(view, settings, mode_ports)]
    for port in ports:
        chains += port_chains(view, settings, port)
    header.listener_filters.extend(inbound_filters(chains, captured=True, tproxy=tproxy))
    set_detection_timeout(header, view)
    return context_listener(view, settings.context, header, chains)


@derived
def port_listener(view: View, settings: InboundSettings, port: InboundPort, balanced: bool) -> Resource:
    """The listener of one port without capture: clients connect to it instead of to the application."""
    header = bound_listener(port.listener_name, port.listen, port.number, base_pb2.INBOUND)
    if balanced:
        balance_exactly(header)
    chains = port_chains(view, settings, port)
    header.listener_filters.extend(inbound_filters(chains, captured=False, tproxy=False))
    set_detection_timeout(header, view)
    return context_listener(view, settings.context, header, chains)


@derived
def _listen_port(view: View) -> int:
    return view.mesh().proxy_inbound_listen_port
