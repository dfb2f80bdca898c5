"""Servers of Gateways, merged: which listeners a router has, and which servers share a route table.

Rules are Pilot's. On one port and address, plaintext HTTP servers share a listener and a table. Servers with TLS share
a listener, which tells them apart by server name; each HTTPS server has its own table. All other combinations are
conflicts, which the older Gateway wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.istio.gateway_api.values import SEMANTICS, SERVICES
from mesh_pilot.mesh.listeners.inbound import workload_instances
from mesh_pilot.mesh.names.resources import datagram_listener_name, listener_name
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.net import plain_address
from mesh_pilot.model.service import Protocol
from mesh_pilot.world import View
from mesh_pilot.world.names import PUBLIC

TlsMode = api.ServerTlsSettingsTlSmode

FIRST_UNPRIVILEGED_PORT = 1024
"""Lower ports need rights that an unprivileged router lacks."""


class ServerKind(StrEnum):
    """How a server handles connections."""

    HTTP = "HTTP"
    HTTPS = "HTTPS"
    """Terminates TLS and routes requests."""
    TCP = "TCP"
    TLS = "TLS"
    """Terminates TLS and forwards bytes."""
    PASSTHROUGH = "PASSTHROUGH"
    """Forwards TLS by server name."""
    AUTO_PASSTHROUGH = "AUTO_PASSTHROUGH"
    """Forwards TLS to the cluster that the server name encodes."""
    UDP = "UDP"
    """Forwards datagrams: a server of the Gateway API, as Istio has none."""

    @property
    def is_plain(self) -> bool:
        return self in (ServerKind.HTTP, ServerKind.TCP, ServerKind.UDP)


UNTRANSLATED_LABEL = "experimental.istio.io/disable-gateway-port-translation"
"""On a service, whatever its value: Gateways name the ports of its workloads."""


class TargetPort(NamedTuple):
    """A port of a service that a router is an endpoint of."""

    host: str
    """The service's."""
    port: int
    bound: int
    """The port that the router listens on."""
    is_translated: bool
    """True if Istio's Gateways name ``port``, not ``bound``."""


TargetPorts = tuple[TargetPort, ...]
"""The ports of a router's services, those that count first."""

ServerPorts = tuple[tuple[int, int], ...]
"""The ports of servers, as their Gateways declare them and as a router listens on them."""


@attrs.frozen(cache_hash=True)
class GatewayServer:
    """The fields of a Gateway's server that decide about listeners and routes."""

    gateway: ConfigKey
    index: int
    """The index in the Gateway."""
    kind: ServerKind
    protocol: Protocol
    port: int
    """The port that the Gateway declares, to which matches of VirtualServices refer."""
    bound: int
    """The port that the router listens on."""
    bind: str
    """The address to listen on."""
    any_address: bool
    """True if the Gateway names none: it is the wildcard address, of each family that the router has."""
    hosts: tuple[str, ...]
    """``host`` or ``namespace/host``, in lower case; the namespace may be ``*``."""
    route_name: str
    """The route table of the server; empty if it routes no requests."""
    redirects: bool
    """Plaintext requests are redirected to HTTPS."""
    stat_prefix: str = ""
    """The server's name. As in Istio only for HTTPS servers, because plaintext servers of a port share a listener."""
    elsewhere: tuple[str, ...] = ()
    """The hosts of the other HTTPS servers of its listener, for one of the Gateway API."""

    @property
    def gateway_name(self) -> str:
        return f"{self.gateway.namespace}/{self.gateway.name}"

    @property
    def server_names(self) -> tuple[str, ...]:
        """The hosts without namespaces."""
        return tuple(sorted({host.rpartition("/")[2] for host in self.hosts}))

    def hosts_for(self, namespace: str) -> tuple[str, ...]:
        """The hosts that VirtualServices of a namespace may use."""
        split = (host.rpartition("/") for host in self.hosts)
        return tuple(host for scope, _, host in split if scope in ("", PUBLIC, namespace))


@attrs.frozen(cache_hash=True)
class GatewayListener:
    """A listener of a router, and the servers that share it."""

    bind: str
    port: int
    servers: tuple[GatewayServer, ...]
    also: tuple[str, ...] = ()
    """Further addresses that it listens at."""

    @property
    def is_udp(self) -> bool:
        return self.servers[0].kind is ServerKind.UDP

    @property
    def name(self) -> str:
        """The listener's name in Envoy."""
        return (datagram_listener_name if self.is_udp else listener_name)(self.bind, self.port)


@attrs.frozen
class SkippedServer:
    """A server that is left out, with the reason."""

    server: GatewayServer
    reason: str


@attrs.frozen
class MergedServers:
    """The merged servers of a router."""

    listeners: tuple[GatewayListener, ...]
    tables: Mapping[str, tuple[GatewayServer, ...]]
    """Servers by route table."""
    skipped: tuple[SkippedServer, ...]


@derived
def target_ports(view: View, workload: Workload) -> TargetPorts:
    """The ports of the services that a router is an endpoint of."""
    found: dict[tuple[str, int], TargetPort] = {}
    # Of a TCP and a UDP port of one number, the former says where both are.
    for instance in sorted(workload_instances(view, workload), key=lambda each: each.port.protocol is Protocol.UDP):
        service, port = instance.service, instance.port.number
        is_translated = UNTRANSLATED_LABEL not in service.labels
        found.setdefault((service.host, port), TargetPort(service.host, port, instance.endpoint.port, is_translated))
    return tuple(found.values())


@derived
def server_ports(view: View, workload: Workload) -> ServerPorts:
    """The ports of a router's servers that route requests."""
    tables = merged_servers(view, workload.scope, target_ports(view, workload)).tables
    return tuple(sorted({(server.port, server.bound) for servers in tables.values() for server in servers}))


@derived
def merged_servers(view: View, scope: OutboundScope, ports: TargetPorts) -> MergedServers:
    """The merged servers of the Gateways that select a router, oldest first."""
    merger = _ServerMerger(scope.wildcards, unprivileged=scope.is_on("UNPRIVILEGED_POD"))
    for key in scope.gateways:
        config = view.config(key)
        if config is None:
            continue
        for index, server in enumerate(config.spec.servers):
            if server.port is None:
                continue
            for bound in _bound(config, server.port.number, ports):
                bind = plain_address(server.bind)
                made = config is not None and bool(config.made_from)
                one = _server(key, index, server, server.port, bound, bind, scope.wildcard, made=made)
                merger.add(one, detects=_is_of_gateway_api(config))
    return merger.result()


def _bound(config: Config, port: int, ports: TargetPorts) -> list[int]:
    """The ports that a router listens on for a Gateway's port."""
    # A Gateway of the Gateway API names its services. A router may also be an endpoint of others, whose ports lead to
    # listeners for other clients.
    if _is_of_gateway_api(config):
        hosts = config.annotations[SERVICES].split(",")
        if own := {each.bound for each in ports if each.port == port and each.host in hosts}:
            return sorted(own)
    return [next((each.bound for each in ports if each.port == port and each.is_translated), port)]


def _is_of_gateway_api(config: Config) -> bool:
    return bool(config.made_from) and SEMANTICS in config.annotations


@attrs.define
class _ListenerServers:
    """The servers merged into one listener."""

    servers: list[GatewayServer] = attrs.field(factory=list)
    names: dict[str, GatewayServer] = attrs.field(factory=dict)
    """TLS servers by host."""
    tables: dict[str, GatewayServer] = attrs.field(factory=dict)
    """HTTPS servers by route table."""
    detecting: set[str] = attrs.field(factory=set)
    """The route tables of those that answer requests for hosts of others."""

    def add(self, server: GatewayServer, *, detects: bool) -> None:
        self.servers.append(server)
        if detects and server.kind is ServerKind.HTTPS:
            self.detecting.add(server.route_name)
        if not server.kind.is_plain:
            self.names.update(dict.fromkeys(server.server_names, server))
        if server.kind is ServerKind.HTTPS:
            self.tables[server.route_name] = server

    def merged(self) -> Iterator[GatewayServer]:
        """The servers, each with the hosts that it has to know of the others."""
        for server in self.servers:
            if server.route_name in self.detecting:
                others = (each for each in self.tables.values() if each is not server)
                names = sorted({name for each in others for name in each.server_names}.difference(server.server_names))
                server = attrs.evolve(server, elsewhere=tuple(names))
            yield server

    def conflict(self, server: GatewayServer) -> str:
        """The reason why a server can't share the listener; empty if it can."""
        if not self.servers:
            return ""
        first = self.servers[0]
        if server.kind.is_plain != first.kind.is_plain:
            return f"{_named(first)} is {'plaintext' if first.kind.is_plain else 'TLS'}, and both can't be on one port"
        if server.kind.is_plain:
            if server.kind is first.kind is ServerKind.HTTP:
                return ""
            return f"{_named(first)} is {first.protocol}: on one port only HTTP servers can be told apart"
        taken = [name for name in server.server_names if name in self.names]
        if taken:
            other = self.names[taken[0]]
            shared = [name for name in taken if self.names[name] is other]
            return f"{_named(other)} has the same hosts: {', '.join(shared)}"
        if server.kind is ServerKind.HTTPS and server.route_name in self.tables:
            return f"{_named(self.tables[server.route_name])} has a server with the same port name"
        return ""


class _ServerMerger:
    def __init__(self, wildcards: tuple[str, ...], *, unprivileged: bool) -> None:
        self._wildcards = wildcards
        self._unprivileged = unprivileged
        self._listeners: dict[tuple[str, int, bool], _ListenerServers] = {}
        """Listeners by address, port, and whether they are UDP."""
        self._skipped: list[SkippedServer] = []

    def add(self, server: GatewayServer, *, detects: bool) -> None:
        at = (server.bind, server.bound, server.kind is ServerKind.UDP)
        listener = self._listeners.get(at) or _ListenerServers()
        reason = listener.conflict(server)
        if self._unprivileged and server.bound < FIRST_UNPRIVILEGED_PORT:
            reason = f"an unprivileged router can't listen on port {server.bound}"
        if reason:
            self._skipped.append(SkippedServer(server, reason))
            return
        listener.add(server, detects=detects)
        self._listeners[at] = listener

    def result(self) -> MergedServers:
        listeners = tuple(
            GatewayListener(bind, port, tuple(found.merged()), tuple(self._also(port, found, udp=udp)))
            for (bind, port, udp), found in self._listeners.items()
        )
        tables: dict[str, tuple[GatewayServer, ...]] = {}
        for server in (server for listener in listeners for server in listener.servers if server.route_name):
            tables[server.route_name] = (*tables.get(server.route_name, ()), server)
        return MergedServers(listeners, tables, tuple(self._skipped))

    def _also(self, port: int, found: _ListenerServers, *, udp: bool) -> Iterator[str]:
        """The further addresses of a listener: Envoy takes none that another listener has."""
        if any(server.any_address for server in found.servers):
            yield from (each for each in self._wildcards[1:] if (each, port, udp) not in self._listeners)


def _named(server: GatewayServer) -> str:
    return f"port {server.bound} of Gateway {server.gateway_name}"


def _server(
    key: ConfigKey, index: int, spec: api.Server, port: api.Port, bound: int, bind: str, wildcard: str, *, made: bool
) -> GatewayServer:
    """``made``: of the Gateway API."""
    protocol = Protocol.parse(port.protocol)
    kind = ServerKind.UDP if made and protocol is Protocol.UDP else server_kind(protocol, spec.tls)
    return GatewayServer(
        gateway=key,
        index=index,
        kind=kind,
        protocol=protocol,
        port=port.number,
        bound=bound,
        bind=bind or wildcard,
        any_address=not bind,
        hosts=tuple(dict.fromkeys(_host(host, key.namespace) for host in spec.hosts)),
        route_name=_route_name(kind, key, port, bound, bind),
        stat_prefix=spec.name if kind is ServerKind.HTTPS else "",
        redirects=kind is ServerKind.HTTP and spec.tls is not None and spec.tls.https_redirect,
    )


def server_kind(protocol: Protocol, tls: api.ServerTlsSettings | None) -> ServerKind:
    if protocol.is_http:
        return ServerKind.HTTP
    if tls is None:
        return ServerKind.TCP
    if tls.mode is TlsMode.AUTO_PASSTHROUGH:
        return ServerKind.AUTO_PASSTHROUGH
    if tls.mode is TlsMode.PASSTHROUGH:
        return ServerKind.PASSTHROUGH
    return ServerKind.HTTPS if protocol is Protocol.HTTPS else ServerKind.TLS


def _route_name(kind: ServerKind, key: ConfigKey, port: api.Port, bound: int, bind: str) -> str:
    suffix = f".{bind}" if bind else ""
    if kind is ServerKind.HTTP:
        return f"http.{bound}{suffix}"
    if kind is ServerKind.HTTPS:
        return f"https.{port.number}.{port.name}.{key.name}.{key.namespace}{suffix}"
    return ""


def _host(host: str, namespace: str) -> str:
    host = host.lower()
    return f"{namespace}/{host[2:]}" if host.startswith("./") else host
