"""The identity of the workload: obtained once, kept on disk, renewed before it ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs
import trio

from mesh_pilot.agent.observable import Observable
from mesh_pilot.agent.settings import AgentFolders, CredentialSettings, PlaneSettings
from mesh_pilot.rpc import Servable, TlsSource


@attrs.frozen
class IdentityMaterial:
    """A certificate in force with its key, as PEM."""

    identity: str
    """Its SPIFFE id."""
    key: bytes = attrs.field(repr=False)
    chain: bytes
    """Leaf first, without the root."""
    roots: bytes
    begins: datetime
    ends: datetime


class WorkloadIdentity:
    """Keeps ``material`` in force. ``run`` needs no control plane to be up while a certificate on disk is in force."""

    def __init__(self, credentials: CredentialSettings, planes: PlaneSettings, folders: AgentFolders) -> None:
        self.material: Observable[IdentityMaterial | None] = Observable(None)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Obtain and renew, for ever; started once what is on disk was read."""
        raise NotImplementedError

    def tls(self) -> TlsSource | None:
        """TLS towards the control plane, with our certificate once there is one; None for plaintext."""
        raise NotImplementedError

    def call_metadata(self) -> Mapping[str, str]:
        """gRPC metadata that prove who calls while there is no certificate: a token."""
        raise NotImplementedError

    def secret_service(self) -> Servable:
        """Envoy's SecretDiscoveryService (SotW and Delta) with ``default`` and ``ROOTCA``."""
        raise NotImplementedError

    def set_trust_bundle(self, roots: tuple[str, ...]) -> None:
        """Add the roots that the control plane distributes (PCDS), each in PEM."""
        raise NotImplementedError
