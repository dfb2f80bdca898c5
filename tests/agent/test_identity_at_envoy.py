"""Real Envoys with certificates from their agents: renewals under load, and a restart without a control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from cryptography.hazmat.primitives.serialization import Encoding

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.relay.planes import Planes
from mesh_pilot.agent.relay.subscriptions import Subscriptions
from mesh_pilot.agent.settings import AgentFolders, CredentialSettings, PlaneSettings
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.model.service import NOWHERE
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import open_listeners, serve
from tests.agent.test_external_secrets import sds_agent
from tests.support.envoy import eventually
from tests.support.fleet import Fleet
from tests.support.mutual import REVIEWS, WEB, mutual, own_chain, trusted_by
from tests.traffic.test_certificate_rotation import ca, roots, rotate

pytestmark = pytest.mark.envoy


@attrs.frozen
class Sidecars:
    """The agents' identities of the client and the server, which are made when the fleet runs."""

    nursery: trio.Nursery
    folder: Path
    lifetime: float
    uses: int = 1
    made: list[WorkloadIdentity] = attrs.field(factory=list)

    async def start(self, mesh: Fleet) -> tuple[Path, Path]:
        return await self.agent(mesh, "web"), await self.agent(mesh, "reviews")

    async def agent(self, mesh: Fleet, account: str) -> Path:
        folder = self.folder / f"{account}-agent"
        folder.mkdir()
        tokens = JoinTokens(self.folder / "ca" / "join-tokens")
        token = tokens.create(Identity("cluster.local", "shop", account), timedelta(hours=1), max_uses=self.uses)
        (folder / "token").write_text(token.text)
        own = WorkloadIdentity(
            CredentialSettings(token_file=folder / "token", lifetime=self.lifetime),
            PlaneSettings((Pilot.parse(mesh.plane.addresses.secure_grpc),), ca=self.folder / "ca" / "root-cert.pem"),
            AgentFolders(folder, folder),
        )
        self.made.append(own)
        await self.nursery.start(own.run)
        await serving(self.nursery, own, folder / "xds.sock")
        self.nursery.start_soon(self._follow_roots, own, mesh, account)
        return folder / "xds.sock"

    async def _follow_roots(self, own: WorkloadIdentity, mesh: Fleet, account: str) -> None:
        """Hand on what the control plane says of whom to trust, as the whole agent does."""
        await own.settled.wait_for(bool)
        pilots = PlaneSettings((Pilot.parse(mesh.plane.addresses.secure_grpc),), ca=None)
        planes = Planes(pilots, NOWHERE, own.tls, own.call_metadata, hello=())
        node = attrs.evolve(WEB if account == "web" else REVIEWS, metadata={"SERVICE_ACCOUNT": account})
        subscriptions = Subscriptions(node, planes, names=False)
        self.nursery.start_soon(planes.run)
        self.nursery.start_soon(subscriptions.run)
        async for body in subscriptions.root_secret.changes():
            if body is not None:
                own.set_root_secret(body)


async def serving(nursery: trio.Nursery, identity: WorkloadIdentity, socket: Path) -> None:
    listeners = await open_listeners(f"unix://{socket}")
    await nursery.start(partial(serve, [identity.secret_service()], listeners))


@asynccontextmanager
async def sidecars(folder: Path, lifetime: float) -> AsyncIterator[Sidecars]:
    async with trio.open_nursery() as nursery:
        yield Sidecars(nursery, folder, lifetime)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("delta", [False, True])
async def test_short_certificates_are_renewed_without_a_failed_connection(
    tmp_path: Path, free_ports: Callable[[int], list[int]], delta: bool
) -> None:
    """Strict mutual TLS, a connection for each request, leaves of ten seconds."""
    async with (
        sidecars(tmp_path, 10.0) as agents,
        mutual(tmp_path, free_ports, delta=delta, ca_dir=tmp_path / "ca", agents=agents.start) as running,
    ):
        await running.until_renewed(2)
        for own in agents.made:
            found = own.statistics()
            assert found.renewals >= 3 and found.failures == 0
            assert found.secrets_refused == 0 and found.secrets_accepted >= found.renewals


@pytest.mark.slow
async def test_the_root_of_the_ca_is_replaced_under_load(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    """Each step waits for the agents: for both roots, and for the end of certificates of the old one."""
    folder = tmp_path / "ca"
    async with (
        sidecars(tmp_path, 10.0) as agents,
        mutual(tmp_path, free_ports, ca_dir=folder, agents=agents.start) as running,
    ):
        (old,) = roots(folder)
        await running.until_trusted(old)
        await ca(folder, "rotate", "begin")
        (new,) = set(roots(folder)) - {old}
        await rotate(running, folder, "switch")
        await running.until_trusted(old, new)
        await running.until_signed_by(new)
        await rotate(running, folder, "finish")
        await running.until_trusted(new)
        await running.until_renewed(1)
        assert [own.statistics().last_failure for own in agents.made] == ["", ""]


@pytest.mark.smoke
async def test_an_envoy_that_starts_while_the_control_plane_is_away_has_its_certificates(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    """They come from the agent's disk, over its socket; here those of an agent that starts again, too."""
    async with (
        sidecars(tmp_path, 3600.0) as agents,
        mutual(tmp_path, free_ports, ca_dir=tmp_path / "ca", agents=agents.start) as running,
    ):
        folder = tmp_path / "web-agent"
        (folder / "token").unlink()
        await eventually(lambda: (folder / "identity" / "cert-chain.pem").exists())
        again = WorkloadIdentity(
            CredentialSettings(token_file=folder / "token"),
            PlaneSettings((Pilot.parse("127.0.0.1:1"),), ca=tmp_path / "ca" / "root-cert.pem"),
            AgentFolders(folder, folder),
        )
        await agents.nursery.start(again.run)
        await serving(agents.nursery, again, folder / "again.sock")
        node = attrs.evolve(WEB, name="web-again", ip="127.0.0.3", metadata={**WEB.metadata, "AGENT_SECRETS": "true"})
        envoy = await running.mesh.envoy(node, sds=folder / "again.sock")
        assert len(await trusted_by(envoy)) == 1
        assert again.material.value == agents.made[0].material.value


async def test_an_envoy_gets_its_certificate_from_another_sds_server(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    """SPIRE's agent, for example, in place of ours."""
    async with (
        sidecars(tmp_path, 3600.0) as agents,
        mutual(tmp_path, free_ports, ca_dir=tmp_path / "ca", agents=agents.start) as running,
    ):
        held = agents.made[0].material.value
        assert held is not None
        async with sds_agent(tmp_path / "spire.sock", held):
            metadata = {**WEB.metadata, "AGENT_SECRETS": "true"}
            node = attrs.evolve(WEB, name="web-spire", ip="127.0.0.3", metadata=metadata)
            envoy = await running.mesh.envoy(node, sds=tmp_path / "spire.sock")
            (leaf,) = await own_chain(envoy)
            assert leaf.public_bytes(Encoding.PEM) == held.chain
