"""What comes in to a sidecar: the ports that its application serves, and how each is reached.

Without ingress listeners in a Sidecar these are the ports of the services that the workload is an endpoint of; with
them, just those. Rules: Istio's Sidecar reference.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import timedelta

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.conflicts import Conflict, ConflictKind
from mesh_pilot.mesh.names import file_certificate, file_roots, listener_name
from mesh_pilot.mesh.peer_authentication import PeerModes, peer_modes
from mesh_pilot.mesh.policies import PolicyContext, inbound_context
from mesh_pilot.mesh.proxy.instances import instances
from mesh_pilot.mesh.proxy.scope import OutboundScope, Workload
from mesh_pilot.mesh.stat_names import inbound_stat_name
from mesh_pilot.mesh.virtual_services.l4 import idle_timeout
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

ANY_IPV4 = "0.0.0.0"
PRIVILEGED = 1024


@attrs.frozen(cache_hash=True)
class InboundPort:
    """A port that an application serves."""

    number: int
    """The port that connections are for: the endpoint's, or the ingress listener's."""
    protocol: Protocol
    host: str
    """The service's host; for an ingress listener the Sidecar's ``name.namespace``."""
    service_port: int
    """The service's number for it, by which clients know it."""
    bind: str = ANY_IPV4
    """Part of the names of its chains and listener."""
    listen: str = ""
    """Where it has a listener of its own, because nothing is captured; empty: it is part of virtualInbound."""
    ingress: tuple[ConfigKey, int] | None = None
    """The Sidecar and the index of its ingress listener."""
    stat_name: str = ""
    """What it is counted under, where the mesh config gives a pattern."""
    config: ConfigKey | None = None
    """Where it is declared."""

    @property
    def name(self) -> str:
        return listener_name(self.bind, self.number)


@attrs.frozen(cache_hash=True)
class MeshIdentity:
    """The names of the secrets with a sidecar's certificate and the roots that it trusts."""

    certificate: str = IDENTITY_SECRET
    roots: str = TRUST_SECRET

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
    )


@attrs.frozen(cache_hash=True)
class InboundSettings:
    """Everything that inbound filter chains depend on except the ports. Replicas of a workload share it."""

    context: PolicyContext
    modes: PeerModes
    identity: MeshIdentity
    interception: Interception
    ipv4: bool
    ipv6: bool
    idle_timeout: timedelta | None = None
    """For TCP connections."""

    @property
    def wildcard(self) -> str:
        return "0.0.0.0" if self.ipv4 else "::"


@attrs.frozen
class InboundPlan:
    ports: tuple[InboundPort, ...]
    conflicts: tuple[Conflict, ...]


@derived
def inbound_ports(view: View, workload: Workload) -> tuple[InboundPort, ...]:
    """The ports of a workload, in the order of their services' age."""
    return inbound_plan(view, workload).ports


@derived
def inbound_plan(view: View, workload: Workload) -> InboundPlan:
    """The ports of a workload, and the services that lost theirs to an older one."""
    scope = workload.scope
    config = view.config(scope.sidecar) if scope.sidecar else None
    found = _ingress(config, workload) if config and config.spec.ingress else _instances(view, workload)
    held: dict[int, InboundPort] = {}
    conflicts: list[Conflict] = []
    for port in found:
        other = held.setdefault(port.number, port)
        if other is not port and other.host != port.host:
            reason = f"both serve port {port.number} of the workload; {other.protocol} of the older counts"
            conflicts.append(Conflict(port.name, other.host, port.host, reason, ConflictKind.INBOUND))
    return InboundPlan(tuple(held.values()), tuple(conflicts))


@derived
def inbound_settings(view: View, workload: Workload) -> InboundSettings:
    """The settings of a workload's inbound filter chains."""
    scope = workload.scope
    modes = peer_modes(view, scope.namespace, workload.labels)
    identity = server_identity(scope)
    return InboundSettings(
        context=inbound_context(view, workload),
        modes=modes if scope.certified or identity.in_files else modes.uncertified(),
        identity=identity,
        interception=scope.interception,
        ipv4=scope.ipv4,
        ipv6=scope.ipv6,
        idle_timeout=idle_timeout(scope),
    )


def _instances(view: View, workload: Workload) -> Iterator[InboundPort]:
    scope = workload.scope
    pattern = _stat_pattern(view)
    uncaptured = scope.interception is Interception.NONE
    for instance in instances(view, workload):
        endpoint, port = instance.endpoint, instance.port
        # Behind NAT it is registered at an address that nobody can listen at.
        address = endpoint.address if endpoint.address in workload.ip_addresses else workload.ip_addresses[0]
        if port.protocol is Protocol.UDP or (uncaptured and not _may_listen(scope, address, endpoint.port)):
            continue
        yield InboundPort(
            number=endpoint.port,
            protocol=port.protocol,
            host=instance.service.host,
            service_port=port.number,
            listen=address if uncaptured else "",
            stat_name=inbound_stat_name(pattern, instance.service, port),
            config=instance.service.config,
        )


@derived
def _stat_pattern(view: View) -> str:
    return view.mesh().inbound_cluster_stat_name


def _ingress(config: Config, workload: Workload) -> Iterator[InboundPort]:
    spec: api.Sidecar = config.spec
    scope = workload.scope
    for index, listener in enumerate(spec.ingress):
        port = listener.port
        if port is None:
            continue
        bind = listener.bind or _own_address(workload)
        own = listener.capture_mode == api.CaptureMode.NONE or scope.interception is Interception.NONE
        if own and _is_privileged(scope, port.number):
            continue
        yield InboundPort(
            number=port.number,
            protocol=Protocol.parse(port.protocol),
            host=f"{config.name}.{config.namespace}",
            service_port=port.number,
            bind=bind,
            listen=bind if own else "",
            ingress=(config.key, index),
            config=config.key,
        )


def _own_address(workload: Workload) -> str:
    """An address of the workload that others reach; the wildcard if it has none."""
    for text in workload.ip_addresses:
        ip = ipaddress.ip_address(text)
        if not (ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified):
            return text
    return workload.scope.wildcard


def _may_listen(scope: OutboundScope, address: str, port: int) -> bool:
    """Whether a proxy can listen at its workload's address while the application listens on the loopback address.

    Where both are the same there is no room for a proxy: clients reach the application directly.
    """
    return address != scope.loopback and not _is_privileged(scope, port)


def _is_privileged(scope: OutboundScope, port: int) -> bool:
    return scope.is_on("UNPRIVILEGED_POD") and port < PRIVILEGED
