"""Filter chains for what comes in: which connections a port takes, by its protocol and its mTLS mode.

A client's proxy says by ALPN that it speaks mesh mTLS and whether HTTP is inside; plaintext HTTP is found by an
inspector; the rest is bytes. Rules: Istio's PeerAuthentication and protocol selection documents; Pilot's matches.
"""

from __future__ import annotations

from enum import Enum

import attrs
from envoy.config.listener.v3.listener_components_pb2 import Filter

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.filters.tcp import tcp_filters, tcp_proxy
from mesh_pilot.envoy.listeners.chains import MESH, MESH_BYTES, MESH_HTTP, PLAIN_HTTP, RAW, TLS, Chain, Match, chain
from mesh_pilot.envoy.listeners.hcm import HttpManager, http_manager
from mesh_pilot.envoy.listeners.inbound_routes import inbound_routes
from mesh_pilot.envoy.tls.downstream import downstream_tls, mesh_server_socket
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.inbound import InboundPort, InboundSettings
from mesh_pilot.mesh.names import BLACK_HOLE, INBOUND_PASSTHROUGH_V4, INBOUND_PASSTHROUGH_V6, inbound
from mesh_pilot.mesh.peer_authentication import PeerMode
from mesh_pilot.mesh.virtual_services.l4 import TcpTarget, to_cluster
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

VIRTUAL_INBOUND = "virtualInbound"


class Inside(Enum):
    """What a port carries."""

    HTTP = "HTTP"
    BYTES = "bytes"
    EITHER = "either"


@attrs.frozen
class _Take:
    """One kind of connection that a port takes."""

    transport: str
    protocols: tuple[str, ...]
    mesh_tls: bool
    """The mesh's TLS ends here."""
    http: bool


_MESH_ANY_HTTP = _Take(TLS, (), mesh_tls=True, http=True)
_MESH_ANY_BYTES = _Take(TLS, (), mesh_tls=True, http=False)
_MESH_HTTP = _Take(TLS, MESH, mesh_tls=True, http=True)
_MESH_TCP = _Take(TLS, MESH, mesh_tls=True, http=False)
_SAID_HTTP = _Take(TLS, MESH_HTTP, mesh_tls=True, http=True)
_SAID_BYTES = _Take(TLS, MESH_BYTES, mesh_tls=True, http=False)
_OWN_TLS = _Take(TLS, (), mesh_tls=False, http=False)
"""TLS of the application: passed on."""
_PLAIN_HTTP = _Take(RAW, (), mesh_tls=False, http=True)
_FOUND_HTTP = _Take(RAW, PLAIN_HTTP, mesh_tls=False, http=True)
_PLAIN_BYTES = _Take(RAW, (), mesh_tls=False, http=False)

_TAKES: dict[tuple[Inside, PeerMode], tuple[_Take, ...]] = {
    (Inside.HTTP, PeerMode.STRICT): (_MESH_ANY_HTTP,),
    (Inside.HTTP, PeerMode.PERMISSIVE): (_MESH_HTTP, _PLAIN_HTTP),
    (Inside.HTTP, PeerMode.DISABLE): (_PLAIN_HTTP,),
    (Inside.BYTES, PeerMode.STRICT): (_MESH_ANY_BYTES,),
    (Inside.BYTES, PeerMode.PERMISSIVE): (_MESH_TCP, _OWN_TLS, _PLAIN_BYTES),
    (Inside.BYTES, PeerMode.DISABLE): (_PLAIN_BYTES,),
    (Inside.EITHER, PeerMode.STRICT): (_SAID_HTTP, _MESH_ANY_BYTES),
    (Inside.EITHER, PeerMode.PERMISSIVE): (_SAID_HTTP, _FOUND_HTTP, _SAID_BYTES, _PLAIN_BYTES, _OWN_TLS),
    (Inside.EITHER, PeerMode.DISABLE): (_FOUND_HTTP, _PLAIN_BYTES),
}


_INSIDE_TLS = {Protocol.HTTPS: Protocol.HTTP, Protocol.TLS: Protocol.TCP}
"""What a port carries once its TLS has ended."""


@attrs.frozen(cache_hash=True)
class _Way:
    """A way in: what its chains have in common."""

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
    """The connection's destination; 0: any."""
    cidrs: tuple[str, ...] = ()
    config: ConfigKey | None = None


@derived
def port_chains(view: View, side: InboundSettings, port: InboundPort) -> tuple[Chain, ...]:
    """The chains of one port.

    TLS of an ingress listener's own is used where the mesh's is off: one port can't end both.
    """
    own_tls = _ingress_tls(view, port.ingress) if port.ingress else None
    if side.modes.at(port.number) is not PeerMode.DISABLE:
        own_tls = None
    way = _Way(
        cluster=inbound(port.number),
        protocol=_INSIDE_TLS.get(port.protocol, port.protocol) if own_tls else port.protocol,
        mode=side.modes.at(port.number),
        http_name=port.name,
        tcp_name=port.name,
        http_stats=f"inbound_{port.name}",  # Istio applies inboundClusterStatName to TCP only
        tcp_stats=port.stat_name or inbound(port.number),
        host=port.host,
        service_port=port.service_port,
        port=port.number,
        config=port.config,
    )
    if own_tls is None:
        return _chains(view, side, way)
    http = _inside(way.protocol) is Inside.HTTP
    return (
        chain(
            Match(port=port.number, transport=TLS),
            _filters(view, side, way, http),
            name=port.name,
            transport_socket=downstream_tls(view, own_tls),
            host=port.host,
            configs=(port.config,) if port.config else (),
        ),
    )


@derived
def passthrough_chains(view: View, side: InboundSettings, others: tuple[int, ...]) -> tuple[Chain, ...]:
    """The chains for what comes to ports that nobody declares.

    ``others`` are such ports that have an mTLS mode of their own.
    """
    found: list[Chain] = []
    families = ((side.ipv4, INBOUND_PASSTHROUGH_V4, "0.0.0.0/0"), (side.ipv6, INBOUND_PASSTHROUGH_V6, "::/0"))
    for there, cluster, cidr in families:
        for port in (0, *others) if there else ():
            way = _Way(
                cluster=cluster,
                protocol=Protocol.AUTO,
                mode=side.modes.at(port) if port else side.modes.default,
                http_name=f"{VIRTUAL_INBOUND}-catchall-http",
                tcp_name=VIRTUAL_INBOUND,
                http_stats=cluster,
                tcp_stats=cluster,
                host="",
                service_port=0,
                port=port,
                cidrs=(cidr,),
            )
            found += _chains(view, side, way)
    return tuple(found)


def black_hole_chain(view: View, port: int) -> Chain:
    """The chain for connections to the listener's own port, which nobody may use."""
    return chain(Match(port=port), [tcp_proxy(view, None, to_cluster(BLACK_HOLE))], name=f"{VIRTUAL_INBOUND}-blackhole")


def _chains(view: View, side: InboundSettings, way: _Way) -> tuple[Chain, ...]:
    takes = _TAKES[_inside(way.protocol), way.mode]
    return tuple(
        chain(
            Match(cidrs=way.cidrs, port=way.port, protocols=take.protocols, transport=take.transport),
            _filters(view, side, way, take.http),
            name=way.http_name if take.http else way.tcp_name,
            transport_socket=mesh_server_socket(view, side.identity) if take.mesh_tls else None,
            host=way.host,
            configs=(way.config,) if way.config else (),
        )
        for take in takes
    )


@derived
def _ingress_tls(view: View, ingress: tuple[ConfigKey, int]) -> api.ServerTlsSettings | None:
    key, index = ingress
    config = view.config(key)
    listeners: list[api.IstioIngressListener] = config.spec.ingress if config else []
    return listeners[index].tls if index < len(listeners) else None


def _inside(protocol: Protocol) -> Inside:
    if protocol.is_http:
        return Inside.HTTP
    return Inside.BYTES if protocol.is_tcp else Inside.EITHER


def _filters(view: View, side: InboundSettings, way: _Way, http: bool) -> list[Filter]:
    if not http:
        target = TcpTarget(way.tcp_stats, ((way.cluster, 1),), idle_timeout=side.idle_timeout)
        return tcp_filters(view, side.context, target, way.protocol)
    manager = HttpManager(
        side.context,
        way.http_stats,
        routes=inbound_routes(way.cluster, way.host, way.service_port),
        protocol=way.protocol if way.protocol.is_http else Protocol.HTTP,
    )
    return [http_manager(view, manager)]
