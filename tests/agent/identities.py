"""A workload's machine with its own identity, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import attrs
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.settings import AgentFolders, CredentialSettings, PlaneSettings
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.model.spiffe import Identity
from tests.support.planes import running_plane

WEB = Identity("cluster.local", "shop", "web")


@attrs.frozen
class Machine:
    """What a workload's machine has: folders, a token, and the root that the control plane is known by."""

    folder: Path

    @property
    def folders(self) -> AgentFolders:
        return AgentFolders(self.folder / "state", self.folder / "run")

    @property
    def kept(self) -> Path:
        return self.folder / "state" / "identity"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def root(self) -> Path:
        return self.folder / "ca" / "root-cert.pem"

    @property
    def tokens(self) -> JoinTokens:
        return JoinTokens(self.folder / "ca" / "join-tokens")

    def new_token(self, uses: int = 0, identity: Identity = WEB) -> str:
        text = self.tokens.create(identity, timedelta(hours=1), max_uses=uses).text
        self.token_file.write_text(f"{text}\n")
        return text

    def uses(self) -> list[int]:
        """How often each token was used."""
        return [record.uses for record in self.tokens.records()]

    def identity(self, *addresses: str, **credentials: object) -> WorkloadIdentity:
        given = {"token_file": self.token_file, **credentials}
        return WorkloadIdentity(
            CredentialSettings(**given),  # type: ignore[arg-type]  # whatever a test sets
            PlaneSettings(tuple(map(Pilot.parse, addresses)), ca=self.root if self.root.exists() else None),
            self.folders,
        )


@asynccontextmanager
async def plane_of(machine: Machine, **more: object) -> AsyncIterator[ControlPlane]:
    (machine.folder / "config").mkdir(exist_ok=True)
    async with running_plane(machine.folder / "config", ca_dir=machine.folder / "ca", **more) as plane:
        yield plane


@asynccontextmanager
async def running(identity: WorkloadIdentity) -> AsyncIterator[WorkloadIdentity]:
    """The identity at work, for the length of the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(identity.run)
        yield identity
        nursery.cancel_scope.cancel()
