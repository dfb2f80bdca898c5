"""PeerAuthentication: the mTLS modes that a workload's ports accept, and the mode that clients expect.

Rules: Istio's PeerAuthentication reference. UNSET inherits from the wider level, and is PERMISSIVE at the widest. Of
several policies of one level the oldest counts. Clients only look at the levels of namespace and mesh, because they
cannot know which workload will answer.

The Policies of Istio 1.1 (``legacy.authentication``) have the same levels: port, service (where PeerAuthentication has
workloads), namespace, mesh. A narrower level counts before a wider one, and on one level PeerAuthentication does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from enum import StrEnum

import attrs

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.engine import derived
from mesh_pilot.istio.meaning import legacy_policies
from mesh_pilot.mesh.legacy.authentication import (
    ServedPort,
    mesh_policy,
    namespace_policy,
    port_policy,
    service_policy,
)
from mesh_pilot.mesh.selection.workloads import Labels, oldest_general, oldest_selecting
from mesh_pilot.model.config import ConfigKey
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


_STRICTNESS = (PeerMode.DISABLE, PeerMode.PERMISSIVE, PeerMode.STRICT)


@attrs.frozen(cache_hash=True)
class PeerModes:
    """The modes of one workload: a default, and ports with another mode."""

    default: PeerMode = PeerMode.PERMISSIVE
    ports: tuple[tuple[int, PeerMode], ...] = ()
    """Modes by workload port, lowest first."""

    def at(self, port: int) -> PeerMode:
        return dict(self.ports).get(port, self.default)

    def uncertified(self) -> PeerModes:
        """The modes for a proxy without a certificate: PERMISSIVE becomes DISABLE, STRICT stays."""
        return PeerModes(_uncertified(self.default), tuple((port, _uncertified(mode)) for port, mode in self.ports))


@derived
def peer_modes(view: View, namespace: str, labels: Labels, served: tuple[ServedPort, ...] = ()) -> PeerModes:
    """The modes of a workload's ports; ``served`` are the ports of services that Policies may name."""
    policy = _workload_policy(view, namespace, labels)
    declared = _declared_mode(policy.mtls) if policy is not None else None
    mode = declared or namespace_mode(view, namespace)
    ports = dict(_legacy_modes(view, served, declared, mode))
    for port, mtls in policy.port_level_mtls.items() if policy is not None else ():
        ports[port] = _declared_mode(mtls) or ports.get(port, mode)
    return PeerModes(mode, tuple(sorted(ports.items())))


@derived
def peer_mode(view: View, namespace: str, labels: Labels, port: int, served: tuple[ServedPort, ...] = ()) -> PeerMode:
    """The mode of one port of a workload."""
    return peer_modes(view, namespace, labels, served).at(port)


def _legacy_modes(
    view: View, served: tuple[ServedPort, ...], declared: PeerMode | None, mode: PeerMode
) -> Mapping[int, PeerMode]:
    """The modes of the ports for which a Policy has another one than ``mode``, by workload port.

    ``declared`` is the mode that a PeerAuthentication of the workload has. Of several services at a port the strictest
    counts.
    """
    found: dict[int, set[PeerMode]] = defaultdict(set)
    for port in served:
        own = _policy_mode(view, port_policy(view, port))
        found[port.at].add(own or declared or _policy_mode(view, service_policy(view, port.service)) or mode)
    strictest = {port: max(modes, key=_STRICTNESS.index) for port, modes in found.items()}
    return {port: strict for port, strict in strictest.items() if strict is not mode}


@derived
def namespace_mode(view: View, namespace: str) -> PeerMode:
    """The mode of a namespace's workloads without their own policy."""
    root = view.root_namespace
    mode = None if namespace == root else _general_mode(view, namespace)
    mode = mode or _policy_mode(view, namespace_policy(view, namespace))
    return mode or _general_mode(view, root) or _policy_mode(view, mesh_policy(view)) or PeerMode.PERMISSIVE


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
    number = next((p.number for p in found.ports if p.name == port), 0)
    policy = port_policy(view, ServedPort(0, service, number, port)) or service_policy(view, service)
    return _policy_mode(view, policy) or namespace_mode(view, service.namespace)


@derived
def any_policy_disables(view: View) -> bool:
    """True if any Policy turns mTLS off."""
    policies = (config.spec for kind in ("Policy", "MeshPolicy") for config in view.all_configs(kind))
    return any(legacy_policies.peer_mode(policy) == Mode.DISABLE for policy in policies)


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


@derived
def _policy_mode(view: View, key: ConfigKey | None) -> PeerMode | None:
    """The mode of a Policy or MeshPolicy; None without one."""
    config = view.config(key) if key is not None else None
    return PeerMode(legacy_policies.peer_mode(config.spec).name) if config is not None else None


def _uncertified(mode: PeerMode) -> PeerMode:
    return PeerMode.DISABLE if mode is PeerMode.PERMISSIVE else mode


def _declared_mode(mtls: api.PeerAuthenticationMutualTls | None) -> PeerMode | None:
    return None if mtls is None or mtls.mode is Mode.UNSET else PeerMode(mtls.mode.name)
