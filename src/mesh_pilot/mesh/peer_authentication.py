"""PeerAuthentication: the mTLS modes that a workload's ports accept, and the mode that clients expect.

Rules: Istio's PeerAuthentication reference. UNSET inherits from the wider level, and is PERMISSIVE at the widest. Of
several policies of one level the oldest counts. Clients only look at the levels of namespace and mesh, because they
cannot know which workload will answer.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.selection import Labels, oldest_general, oldest_selecting
from mesh_pilot.model.service import MESH_TLS_MODE, ServiceKey
from mesh_pilot.world.view import View

Mode = api.PeerAuthenticationMutualTlsMode


class PeerMode(StrEnum):
    """Which connections a port accepts."""

    DISABLE = "DISABLE"
    """Plaintext only."""
    PERMISSIVE = "PERMISSIVE"
    """Both."""
    STRICT = "STRICT"
    """mTLS only."""


@attrs.frozen(cache_hash=True)
class PeerModes:
    """The modes of one workload: a default, and ports with another mode."""

    default: PeerMode = PeerMode.PERMISSIVE
    ports: tuple[tuple[int, PeerMode], ...] = ()
    """By workload port, lowest first."""

    def at(self, port: int) -> PeerMode:
        return dict(self.ports).get(port, self.default)

    def uncertified(self) -> PeerModes:
        """The modes for a proxy without a certificate: PERMISSIVE becomes DISABLE, STRICT stays."""
        return PeerModes(_uncertified(self.default), tuple((port, _uncertified(mode)) for port, mode in self.ports))


@derived
def peer_modes(view: View, namespace: str, labels: Labels) -> PeerModes:
    """The modes of a workload's ports."""
    mode = namespace_mode(view, namespace)
    policy = _workload_policy(view, namespace, labels)
    if policy is None:
        return PeerModes(mode)
    mode = _declared_mode(policy.mtls) or mode
    ports = ((port, _declared_mode(mtls) or mode) for port, mtls in policy.port_level_mtls.items())
    return PeerModes(mode, tuple(sorted(ports)))


@derived
def peer_mode(view: View, namespace: str, labels: Labels, port: int) -> PeerMode:
    """The mode of one port of a workload."""
    return peer_modes(view, namespace, labels).at(port)


@derived
def namespace_mode(view: View, namespace: str) -> PeerMode:
    """The mode of a namespace's workloads without a policy of their own."""
    root = view.root_namespace
    mode = None if namespace == root else _general_mode(view, namespace)
    return mode or _general_mode(view, root) or PeerMode.PERMISSIVE


def client_mtls(view: View, service: ServiceKey, port: str, passthrough: bool) -> PeerMode | None:
    """The mode that a client expects of a service's port (by name); None for a service outside the mesh.

    ``passthrough``: there is no load balancing, the client connects to the address that its application chose. It then
    uses mTLS only if all endpoints of the service are known to accept it.
    """
    found = view.service(service)
    if found is None or found.external:
        return None
    if passthrough and _any_without_mtls(view, service, port):
        return PeerMode.DISABLE
    return namespace_mode(view, service.namespace)


@derived
def _any_without_mtls(view: View, service: ServiceKey, port: str) -> bool:
    endpoints = [e for e in view.endpoints(service) if e.service_port == port]
    return not endpoints or any(e.tls_mode != MESH_TLS_MODE for e in endpoints)


@derived
def _workload_policy(view: View, namespace: str, labels: Labels) -> api.PeerAuthentication | None:
    if namespace == view.root_namespace:
        return None
    config = oldest_selecting(view, "PeerAuthentication", namespace, labels)
    return config.spec if config is not None else None


@derived
def _general_mode(view: View, namespace: str) -> PeerMode | None:
    """The mode of a namespace's policy without a selector; None if it is UNSET, or there is no policy."""
    config = oldest_general(view, "PeerAuthentication", namespace)
    return _declared_mode(config.spec.mtls) if config is not None else None


def _uncertified(mode: PeerMode) -> PeerMode:
    return PeerMode.DISABLE if mode is PeerMode.PERMISSIVE else mode


def _declared_mode(mtls: api.PeerAuthenticationMutualTls | None) -> PeerMode | None:
    match mtls.mode if mtls else Mode.UNSET:
        case Mode.DISABLE:
            return PeerMode.DISABLE
        case Mode.PERMISSIVE:
            return PeerMode.PERMISSIVE
        case Mode.STRICT:
            return PeerMode.STRICT
        case _:
            return None
