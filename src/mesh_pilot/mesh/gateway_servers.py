"""Servers of Gateways, merged: which listeners a router has, and which servers share a route table.

Rules as in Pilot: on a port and address, plaintext HTTP servers share one listener and one table; servers with TLS
share one listener and are told apart by server name, each HTTPS server with a table of its own; anything else that
meets is a conflict, which the older Gateway wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.instances import instances
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import Protocol
from mesh_pilot.world import View

TlsMode = api.ServerTlsSettingsTlSmode

PRIVILEGED = 1024
"""Ports below it need rights that an unprivileged router has not."""


class ServerKind(StrEnum):
    """What a server does with connections."""

    HTTP = "HTTP"
    HTTPS = "HTTPS"
    """TLS ends here, requests are routed."""
    TCP = "TCP"
    TLS = "TLS"
    """TLS ends here, bytes are passed on."""
    PASSTHROUGH = "PASSTHROUGH"
    """Passed on as they are, by server name."""
    AUTO_PASSTHROUGH = "AUTO_PASSTHROUGH"
    """As they are, to the cluster that the server name names."""

    @property
    def is_plain(self) -> bool:
        return self in (ServerKind.HTTP, ServerKind.TCP)


TargetPorts = tuple[tuple[int, int], ...]
"""Service ports of a router with the ports that it listens on for them."""


@attrs.frozen(cache_hash=True)
class GatewayServer:
    """One server of a Gateway, as far as it decides about listeners and routes."""

    gateway: ConfigKey
    index: int
    """Its place in the Gateway."""
    kind: ServerKind
    protocol: Protocol
    port: int
    """As the Gateway says it: what matches of VirtualServices mean."""
    bound: int
    """What the router listens on."""
    bind: str
    """Address to listen on."""
    hosts: tuple[str, ...]
    """``host`` or ``namespace/host``; the namespace may be ``*``."""
    route_name: str
    """Its route table; empty where there are no requests to route."""
    redirects: bool
    """Plaintext requests are redirected to HTTPS."""
    stat_prefix: str = ""
    """The prefix of its statistics: its name, if it has one. As in Istio only for HTTPS servers: plaintext servers of a
    port share their listener."""

    @property
    def gateway_name(self) -> str:
        return f"{self.gateway.namespace}/{self.gateway.name}"

    @property
    def server_names(self) -> tuple[str, ...]:
        """Its hosts without namespaces."""
        return tuple(sorted({host.rpartition("/")[2] for host in self.hosts}))

    def hosts_for(self, namespace: str) -> tuple[str, ...]:
        """The hosts that VirtualServices of a namespace may be for."""
        parted = (host.rpartition("/") for host in self.hosts)
        return tuple(host for where, _, host in parted if where in ("", "*", namespace))


@attrs.frozen(cache_hash=True)
class GatewayListener:
    """What a router listens on, and who shares it."""

    bind: str
    port: int
    servers: tuple[GatewayServer, ...]


@attrs.frozen
class SkippedServer:
    """A server that has no place, and why."""

    server: GatewayServer
    reason: str


@attrs.frozen
class MergedServers:
    """All servers of a router."""

    listeners: tuple[GatewayListener, ...]
    tables: Mapping[str, tuple[GatewayServer, ...]]
    """Servers by route table."""
    skipped: tuple[SkippedServer, ...]


@derived
def target_ports(view: View, workload: Workload) -> TargetPorts:
    """What a router that is an endpoint of services listens on for their ports."""
    found: dict[int, int] = {}
    for instance in instances(view, workload):
        found.setdefault(instance.port.number, instance.endpoint.port)
    return tuple(sorted(found.items()))


@derived
def merged_servers(view: View, scope: OutboundScope, ports: TargetPorts) -> MergedServers:
    """The servers of the Gateways (oldest first) that select a router."""
    merger = _Merger(unprivileged=scope.is_on("UNPRIVILEGED_POD"))
    for key in scope.gateways:
        config = view.config(key)
        for index, server in enumerate(config.spec.servers if config is not None else ()):
            if server.port is not None:
                bound = dict(ports).get(server.port.number, server.port.number)
                merger.add(_server(key, index, server, server.port, bound, server.bind or scope.wildcard))
    return merger.result()


@attrs.define
class _Shared:
    """What the servers of one listener have taken."""

    servers: list[GatewayServer] = attrs.field(factory=list)
    names: dict[str, GatewayServer] = attrs.field(factory=dict)
    """By host, the TLS server that it goes to."""
    tables: dict[str, GatewayServer] = attrs.field(factory=dict)
    """By route table, the HTTPS server that it is for."""

    def add(self, server: GatewayServer) -> None:
        self.servers.append(server)
        if not server.kind.is_plain:
            self.names.update(dict.fromkeys(server.server_names, server))
        if server.kind is ServerKind.HTTPS:
            self.tables[server.route_name] = server

    def conflict(self, server: GatewayServer) -> str:
        """Why a server can't share the listener; empty if it can."""
        if not self.servers:
            return ""
        first = self.servers[0]
        if server.kind.is_plain != first.kind.is_plain:
            return f"{_where(first)} is {'plaintext' if first.kind.is_plain else 'TLS'}, and both can't be on one port"
        if server.kind.is_plain:
            if server.kind is first.kind is ServerKind.HTTP:
                return ""
            return f"{_where(first)} is {first.protocol}: on one port only HTTP servers can be told apart"
        taken = [name for name in server.server_names if name in self.names]
        if taken:
            other = self.names[taken[0]]
            shared = [name for name in taken if self.names[name] is other]
            return f"{_where(other)} has the same hosts: {', '.join(shared)}"
        if server.kind is ServerKind.HTTPS and server.route_name in self.tables:
            return f"{_where(self.tables[server.route_name])} has a server with the same port name"
        return ""


class _Merger:
    def __init__(self, *, unprivileged: bool) -> None:
        self._unprivileged = unprivileged
        self._listeners: dict[tuple[str, int], _Shared] = {}
        self._tables: dict[str, list[GatewayServer]] = {}
        self._skipped: list[SkippedServer] = []

    def add(self, server: GatewayServer) -> None:
        held = self._listeners.get((server.bind, server.bound)) or _Shared()
        reason = held.conflict(server)
        if self._unprivileged and server.bound < PRIVILEGED:
            reason = f"an unprivileged router can't listen on port {server.bound}"
        if reason:
            self._skipped.append(SkippedServer(server, reason))
            return
        held.add(server)
        self._listeners[(server.bind, server.bound)] = held
        if server.route_name:
            self._tables.setdefault(server.route_name, []).append(server)

    def result(self) -> MergedServers:
        return MergedServers(
            listeners=tuple(GatewayListener(*where, tuple(held.servers)) for where, held in self._listeners.items()),
            tables={name: tuple(servers) for name, servers in self._tables.items()},
            skipped=tuple(self._skipped),
        )


def _where(server: GatewayServer) -> str:
    return f"port {server.bound} of Gateway {server.gateway_name}"


def _server(key: ConfigKey, index: int, spec: api.Server, port: api.Port, bound: int, bind: str) -> GatewayServer:
    protocol = Protocol.parse(port.protocol)
    kind = _kind(protocol, spec.tls)
    return GatewayServer(
        gateway=key,
        index=index,
        kind=kind,
        protocol=protocol,
        port=port.number,
        bound=bound,
        bind=bind,
        hosts=tuple(dict.fromkeys(_host(host, key.namespace) for host in spec.hosts)),
        route_name=_route_name(kind, key, spec, port, bound),
        stat_prefix=spec.name if kind is ServerKind.HTTPS else "",
        redirects=kind is ServerKind.HTTP and spec.tls is not None and spec.tls.https_redirect,
    )


def _kind(protocol: Protocol, tls: api.ServerTlsSettings | None) -> ServerKind:
    if protocol.is_http:
        return ServerKind.HTTP
    if tls is None:
        return ServerKind.TCP
    if tls.mode is TlsMode.AUTO_PASSTHROUGH:
        return ServerKind.AUTO_PASSTHROUGH
    if tls.mode is TlsMode.PASSTHROUGH:
        return ServerKind.PASSTHROUGH
    return ServerKind.HTTPS if protocol is Protocol.HTTPS else ServerKind.TLS


def _route_name(kind: ServerKind, key: ConfigKey, spec: api.Server, port: api.Port, bound: int) -> str:
    bind = f".{spec.bind}" if spec.bind else ""
    if kind is ServerKind.HTTP:
        return f"http.{bound}{bind}"
    if kind is ServerKind.HTTPS:
        return f"https.{port.number}.{port.name}.{key.name}.{key.namespace}{bind}"
    return ""


def _host(host: str, namespace: str) -> str:
    return f"{namespace}/{host[2:]}" if host.startswith("./") else host
