"""Inbound traffic of a sidecar: the ports that its application serves, and how each is reached.

These are the ingress listeners of its Sidecar, if there are any. Otherwise they are the ports of the services that the
workload is an endpoint of. Rules: Istio's Sidecar reference.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import timedelta

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.clusters.destination_rules import may_upgrade
from mesh_pilot.mesh.legacy.authentication import ServedPort
from mesh_pilot.mesh.legacy.ports import LegacyPolicies, any_legacy, legacy_policies
from mesh_pilot.mesh.listeners.conflicts import Conflict, ConflictKind
from mesh_pilot.mesh.listeners.outbound import listener_shards, shard_listeners
from mesh_pilot.mesh.names.resources import (
    bound_listener_name,
    file_certificate,
    file_roots,
    inbound_stat_name,
    listener_name,
)
from mesh_pilot.mesh.policies.context import PolicyContext, inbound_context
from mesh_pilot.mesh.policies.peer_authentication import PeerModes, peer_modes
from mesh_pilot.mesh.policies.rate_limits import limited_ports, rate_limit_servers
from mesh_pilot.mesh.proxy.registration import registered
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.mesh.routing.l4 import idle_timeout
from mesh_pilot.mesh.settings.mesh_defaults import capture_ports, cluster_defaults
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.net import plain_address
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.model.service import CONNECT_TLS_MODE, Instance, Protocol, ServiceKey
from mesh_pilot.world.view import View

FIRST_UNPRIVILEGED_PORT = 1024


@attrs.frozen(cache_hash=True)
class InboundPort:
    """A port that an application serves."""

    number: int
    """The destination port of connections: the endpoint's, or the ingress listener's."""
    protocol: Protocol
    host: str
    """The service's host; for an ingress listener the Sidecar's ``name.namespace``."""
    service_port: int
    """The service port, by which clients know it."""
    bind: str
    """The address in the names of its filter chains and listener."""
    listen: tuple[str, ...] = ()
    """The addresses of a separate listener; empty where virtualInbound takes its connections."""
    ingress: tuple[ConfigKey, int] | None = None
    """The Sidecar and the index of its ingress listener."""
    stat_name: str = ""
    """The stat name, if the mesh config has a pattern."""
    config: ConfigKey | None = None
    """The object that declares it."""
    service: ServiceKey | None = None
    """The service that it belongs to, if any."""

    connect_id: str = ""
    """See ``Service.connect_id``."""
    beside_captured: bool = False
    """True if it has its own listener on the wildcard address, where listeners of captured connections may be."""
    upgraded: bool = False
    """True if clients may use HTTP/2 for a port of HTTP/1.1: WebSockets then arrive as extended CONNECT (RFC 8441)."""

    @property
    def name(self) -> str:
        return listener_name(self.bind, self.number)

    @property
    def listener_name(self) -> str:
        """The name of a separate listener (see ``OutboundListener.name``)."""
        return bound_listener_name(self.bind, self.number) if self.beside_captured else self.name


@attrs.frozen(cache_hash=True)
class MeshIdentity:
    """The names of the secrets with a sidecar's certificate and the roots that it trusts."""

    certificate: str = IDENTITY_SECRET
    roots: str = TRUST_SECRET
    by_agent: bool = False
    """True if the agent of the sidecar has them (``OutboundScope.agent_secrets``)."""

    @property
    def in_files(self) -> bool:
        """True if the certificate and the roots are files of the proxy: it does not wait for secrets then."""
        return self.certificate != IDENTITY_SECRET and self.roots != TRUST_SECRET


def server_identity(scope: OutboundScope) -> MeshIdentity:
    """The secrets of the mesh identity, or those for the files that the node's metadata names."""
    chain, key, roots = (scope.meta(f"TLS_SERVER_{part}") for part in ("CERT_CHAIN", "KEY", "ROOT_CERT"))
    return MeshIdentity(
        certificate=file_certificate(chain, key) if chain and key else IDENTITY_SECRET,
        roots=file_roots(roots) if roots else TRUST_SECRET,
        by_agent=scope.agent_secrets,
    )


@attrs.frozen(cache_hash=True)
class InboundSettings:
    """Everything that inbound filter chains depend on except the ports. Replicas of a workload share it."""

    context: PolicyContext
    modes: PeerModes
    identity: MeshIdentity
    interception: Interception
    wildcards: tuple[str, ...]
    """See ``OutboundScope.wildcards``."""
    idle_timeout: timedelta | None = None
    """The idle timeout of TCP connections."""
    legacy: tuple[tuple[int, LegacyPolicies], ...] = ()
    """Legacy policies by workload port, where they are not those of ``context``."""
    limited: tuple[int, ...] = ()
    """The workload ports that have their own rate limits."""
    limiting: tuple[int, ...] = ()
    """The workload ports of rate limit servers. To ask about requests there would be such a request again."""

    def context_at(self, port: int) -> PolicyContext:
        """The context of a workload port; 0: of those that no service declares."""
        context, legacy = self.context, dict(self.legacy).get(port)
        if legacy is not None:
            context = attrs.evolve(context, legacy=legacy)
        if port in self.limited:
            context = attrs.evolve(context, limits=attrs.evolve(context.limits, port=port))
        if port in self.limiting:
            context = attrs.evolve(context, limits=context.limits.local())
        return context


@attrs.frozen
class InboundPorts:
    """The inbound ports of a workload."""

    ports: tuple[InboundPort, ...]
    conflicts: tuple[Conflict, ...]


@derived
def workload_instances(view: View, workload: Workload) -> tuple[Instance, ...]:
    """The service ports with an endpoint at a workload, oldest service first, in the order of the service's ports."""
    found: list[Instance] = []
    for key, endpoints in registered(view, workload.claim):
        service = view.service(key)
        if service is None:
            continue
        for port in service.ports:
            at_port = (e for e in endpoints if e.service_port == port.name)
            # What listens at an endpoint of Consul's own mesh is a proxy of that, not this one.
            found += (Instance(service, port, e) for e in at_port if e.tls_mode != CONNECT_TLS_MODE)
    return tuple(found)


@derived
def served_ports(view: View, workload: Workload) -> tuple[ServedPort, ...]:
    """The ports of services that a workload serves; none while no legacy policy could name them.

    An ingress listener of its Sidecar serves what has its port.
    """
    if not any_legacy(view):
        return ()
    sidecar = view.config(workload.scope.sidecar) if workload.scope.sidecar else None
    ingress = {listener.port.number for listener in sidecar.spec.ingress if listener.port} if sidecar else set()
    found: dict[ServedPort, None] = {}
    for instance in workload_instances(view, workload):
        key, port = instance.service.key, instance.port
        for at in (instance.endpoint.port, *({port.number} & ingress)):
            found[ServedPort(at, key, port.number, port.name)] = None
    return tuple(found)


@derived
def inbound_ports(view: View, workload: Workload) -> tuple[InboundPort, ...]:
    """The inbound ports of a workload, oldest service first."""
    return merged_inbound_ports(view, workload).ports


@derived
def merged_inbound_ports(view: View, workload: Workload) -> InboundPorts:
    """The inbound ports of a workload, and conflicts of services about a port: the oldest service wins."""
    scope = workload.scope
    config = view.config(scope.sidecar) if scope.sidecar else None
    declared = _ingress(view, config, workload) if config and config.spec.ingress else _service_ports(view, workload)
    ports: dict[int, InboundPort] = {}
    conflicts: list[Conflict] = []
    for port in declared:
        if port.listen and (taken := _taken_by(view, scope, port.name)):
            conflicts.append(Conflict(port.name, "", port.host, taken, ConflictKind.INBOUND))
            continue
        other = ports.setdefault(port.number, port)
        if other is not port and other.host != port.host:
            reason = f"both serve port {port.number} of the workload; {other.protocol} of the older counts"
            conflicts.append(Conflict(port.name, other.host, port.host, reason, ConflictKind.INBOUND))
    upgraded = _upgraded_ports(view, workload, ingress=bool(config and config.spec.ingress))
    merged = (attrs.evolve(port, upgraded=True) if port.number in upgraded else port for port in ports.values())
    return InboundPorts(tuple(merged), tuple(conflicts))


def _upgraded_ports(view: View, workload: Workload, *, ingress: bool) -> set[int]:
    """The workload ports for which clients may upgrade to HTTP/2."""
    whole_mesh = cluster_defaults(view).h2_upgrade
    found: set[int] = set()
    for instance in workload_instances(view, workload):
        protocol, number = instance.port.protocol, instance.port.number
        if protocol.is_http2:
            continue
        if (whole_mesh and protocol.is_http) or may_upgrade(view, instance.service.host, number):
            found.add(instance.endpoint.port)
            if ingress:
                found.add(number)
    return found


@derived
def inbound_settings(view: View, workload: Workload) -> InboundSettings:
    """The settings of a workload's inbound filter chains."""
    scope = workload.scope
    served = served_ports(view, workload)
    modes = peer_modes(view, scope.namespace, workload.labels, served)
    identity = server_identity(scope)
    context = inbound_context(view, workload)
    return InboundSettings(
        context=context,
        modes=modes if scope.has_certificate or identity.in_files else modes.uncertified(),
        identity=identity,
        interception=scope.interception,
        wildcards=scope.wildcards,
        idle_timeout=idle_timeout(scope),
        legacy=tuple(_legacy_by_port(view, served, context)),
        limited=limited_ports(view, context.limits),
        limiting=_limiting_ports(view, workload) if context.limits.by_server else (),
    )


def _limiting_ports(view: View, workload: Workload) -> tuple[int, ...]:
    """The workload ports of rate limit servers."""
    servers = rate_limit_servers(view)
    sidecar = view.config(workload.scope.sidecar) if workload.scope.sidecar else None
    found: set[int] = set()
    for instance in workload_instances(view, workload):
        if instance.port.number in servers.get(instance.service.host, ()):
            found.add(instance.endpoint.port)
            if sidecar is not None and sidecar.spec.ingress:  # its listeners have the service's port
                found.add(instance.port.number)
    return tuple(sorted(found))


def _legacy_by_port(
    view: View, served: tuple[ServedPort, ...], context: PolicyContext
) -> Iterator[tuple[int, LegacyPolicies]]:
    for number in sorted({port.at for port in served}):
        found = legacy_policies(view, context.namespace, tuple(port for port in served if port.at == number))
        if found != context.legacy:
            yield number, found


def _taken_by(view: View, scope: OutboundScope, name: str) -> str:
    """The reason why a sidecar can't have an inbound listener of this name; empty if it can."""
    captures = scope.interception is not Interception.NONE
    if captures and name in {listener_name(each, port) for each in scope.wildcards for port in capture_ports(view)}:
        return "the sidecar itself listens there, for captured connections"
    outbound = any(name in shard_listeners(view, shard).listeners for shard in listener_shards(view, scope))
    return "an outbound listener has the same address and port" if outbound else ""


def _service_ports(view: View, workload: Workload) -> Iterator[InboundPort]:
    scope = workload.scope
    pattern = inbound_stat_pattern(view)
    uncaptured = scope.interception is Interception.NONE
    for instance in workload_instances(view, workload):
        endpoint, port = instance.endpoint, instance.port
        # Behind NAT an endpoint is registered at an address that the workload does not have.
        own = tuple(each for each in endpoint.addresses if each in workload.ip_addresses) or workload.ip_addresses[:1]
        listen = tuple(each for each in own if _may_listen(scope, each, endpoint.port)) if uncaptured else ()
        if port.protocol is Protocol.UDP or (uncaptured and not listen):
            continue
        yield InboundPort(
            number=endpoint.port,
            protocol=port.protocol,
            host=instance.service.host,
            service_port=port.number,
            bind=scope.wildcard,
            listen=listen,
            stat_name=inbound_stat_name(pattern, instance.service, port),
            config=instance.service.config,
            service=instance.service.key,
            connect_id=instance.service.connect_id,
        )


@derived
def inbound_stat_pattern(view: View) -> str:
    """``inboundClusterStatName``; it is for TCP only, as in Istio."""
    return view.mesh().inbound_cluster_stat_name


def _ingress(view: View, config: Config, workload: Workload) -> Iterator[InboundPort]:
    spec: api.Sidecar = config.spec
    scope = workload.scope
    instances = workload_instances(view, workload)
    served = instances if workload.spans.metrics is not None else ()  # nothing else asks
    connected = [i for i in instances if i.service.connect_id]
    for index, listener in enumerate(spec.ingress):
        port = listener.port
        if port is None:
            continue
        bind = plain_address(listener.bind) or _own_address(workload)
        uncaptured = listener.capture_mode == api.CaptureMode.NONE or scope.interception is Interception.NONE
        if uncaptured and _is_privileged(scope, port.number):
            continue
        yield InboundPort(
            number=port.number,
            protocol=Protocol.parse(port.protocol),
            host=f"{config.name}.{scope.namespace}",  # the spans' name, as in Istio
            service_port=port.number,
            bind=bind,
            listen=(bind,) if uncaptured else (),
            beside_captured=uncaptured and bind == scope.wildcard and scope.interception is not Interception.NONE,
            ingress=(config.key, index),
            config=config.key,
            service=next((i.service.key for i in served if port.number in (i.endpoint.port, i.port.number)), None),
            connect_id=next((i.service.connect_id for i in connected if port.number == i.endpoint.port), ""),
        )


def _own_address(workload: Workload) -> str:
    """The first address of the workload that other hosts can reach; the wildcard address if it has none."""
    for text in workload.ip_addresses:
        ip = ipaddress.ip_address(text)
        if not (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified):
            return text
    return workload.scope.wildcard


def _may_listen(scope: OutboundScope, address: str, port: int) -> bool:
    """True if a proxy can listen at its workload's address while the application listens on the loopback address.

    If both are the same, the proxy can't listen: clients reach the application directly.
    """
    return address not in scope.loopbacks and not _is_privileged(scope, port)


def _is_privileged(scope: OutboundScope, port: int) -> bool:
    return scope.is_on("UNPRIVILEGED_POD") and port < FIRST_UNPRIVILEGED_PORT
