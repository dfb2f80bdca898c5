"""Mesh mTLS as PeerAuthentication says it: what a workload's ports accept, and what clients may count on.

Rules: Istio's PeerAuthentication reference. A policy with a selector is for its workloads, one without is for its
namespace, one without in the root namespace is for the mesh; UNSET means what the wider policy says, and PERMISSIVE
where none says anything. Of several of a kind the oldest counts. Clients only look at namespace and mesh: they
cannot know which workload will answer.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import Labels
from mesh_pilot.model.service import MESH_TLS_MODE, ServiceKey
from mesh_pilot.world.view import View

Mode = api.PeerAuthenticationMutualTlsMode


class PeerMode(StrEnum):
    """What a port does with mesh mTLS."""

    DISABLE = "DISABLE"
    """Plaintext only."""
    PERMISSIVE = "PERMISSIVE"
    """Both."""
    STRICT = "STRICT"
    """mTLS only."""


@attrs.frozen(cache_hash=True)
class PeerModes:
    """The modes of one workload: one for its ports, and those ports that have another."""

    default: PeerMode = PeerMode.PERMISSIVE
    ports: tuple[tuple[int, PeerMode], ...] = ()
    """By the port that the workload listens on, lowest first."""

    def at(self, port: int) -> PeerMode:
        return dict(self.ports).get(port, self.default)

    def uncertified(self) -> PeerModes:
        """These modes for a proxy without a certificate: what may be plaintext is, and what must not be stays."""
        return PeerModes(_uncertified(self.default), tuple((port, _uncertified(mode)) for port, mode in self.ports))


@derived
def peer_modes(view: View, namespace: str, labels: Labels) -> PeerModes:
    """What a workload's ports accept."""
    mode = namespace_mode(view, namespace)
    policy = _workload_policy(view, namespace, labels)
    if policy is None:
        return PeerModes(mode)
    mode = _said(policy.mtls) or mode
    ports = ((port, _said(mtls) or mode) for port, mtls in policy.port_level_mtls.items())
    return PeerModes(mode, tuple(sorted(ports)))


@derived
def peer_mode(view: View, namespace: str, labels: Labels, port: int) -> PeerMode:
    """What one port of a workload accepts."""
    return peer_modes(view, namespace, labels).at(port)


@derived
def namespace_mode(view: View, namespace: str) -> PeerMode:
    """What holds in a namespace where no policy for a workload says otherwise."""
    root = view.root_namespace
    own = None if namespace == root else _namespace_policy(view, namespace)
    return own or _namespace_policy(view, root) or PeerMode.PERMISSIVE


def client_mtls(view: View, service: ServiceKey, port: str, passthrough: bool) -> PeerMode | None:
    """What a client should expect of a service's port (by name); None for a service outside the mesh.

    ``passthrough``: the client goes to the address that its application chose (no load balancing), so that mTLS is
    only for a service of which every endpoint is known, and known to have it.
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
    for config in view.configs("PeerAuthentication", namespace):
        spec: api.PeerAuthentication = config.spec
        if spec.selector and spec.selector.match_labels and spec.selector.match_labels.items() <= labels:
            return spec
    return None


@derived
def _namespace_policy(view: View, namespace: str) -> PeerMode | None:
    """The mode of the oldest policy without a selector; None if it leaves it open."""
    for config in view.configs("PeerAuthentication", namespace):
        spec: api.PeerAuthentication = config.spec
        if spec.selector is None or not spec.selector.match_labels:
            return _said(spec.mtls)
    return None


def _uncertified(mode: PeerMode) -> PeerMode:
    return PeerMode.DISABLE if mode is PeerMode.PERMISSIVE else mode


def _said(mtls: api.PeerAuthenticationMutualTls | None) -> PeerMode | None:
    match mtls.mode if mtls else Mode.UNSET:
        case Mode.DISABLE:
            return PeerMode.DISABLE
        case Mode.PERMISSIVE:
            return PeerMode.PERMISSIVE
        case Mode.STRICT:
            return PeerMode.STRICT
        case _:
            return None
