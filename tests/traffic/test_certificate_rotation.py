"""Certificates, roots and intermediates are replaced under load, and no request fails: real Envoys, mutual TLS."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import trio
from cryptography import x509

from mesh_pilot.identity.authenticators.settings import JoinTokenSettings
from mesh_pilot.identity.authority.settings import AuthoritySettings
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.model.spiffe import Identity
from tests.support.agent import Agent
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.fleet import Fleet
from tests.support.forgery import Forger, Signer, key_pem
from tests.support.mutual import Mutual, mutual

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

Ports = Callable[[int], list[int]]

LIFETIME = timedelta(seconds=10)
SHORT = AuthoritySettings(workload_cert_ttl=LIFETIME)
VARIANTS = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


async def ca(folder: Path, *arguments: str) -> None:
    """Run ``mesh-pilot ca`` on a folder."""
    done = await trio.to_thread.run_sync(lambda: mesh_pilot("ca", *arguments, "--ca-dir", str(folder)))
    assert done.code == 0, done.err


async def rotate(running: Mutual, folder: Path, step: str) -> None:
    """Carry out a step as soon as the command does not refuse it because proxies have not followed yet."""
    pilot = running.mesh.plane.addresses.http
    arguments = ("ca", "rotate", step, "--ca-dir", str(folder), "--pilot", pilot)

    async def done() -> bool:
        outcome = await trio.to_thread.run_sync(lambda: mesh_pilot(*arguments))
        assert outcome.code == 0 or "not yet" in outcome.err, outcome.err
        said.append(outcome.err)
        return outcome.code == 0

    said: list[str] = []
    await eventually(done, what=f"step {step} is done: {said}")


def roots(folder: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates((folder / "root-cert.pem").read_bytes())


@VARIANTS
async def test_certificates_of_a_few_seconds_are_renewed(tmp_path: Path, free_ports: Ports, delta: bool) -> None:
    async with mutual(tmp_path, free_ports, delta=delta, authority=SHORT) as running:
        await running.until_renewed(3)


@VARIANTS
async def test_the_root_is_replaced_step_by_step(tmp_path: Path, free_ports: Ports, delta: bool) -> None:
    """The last step waits until the last certificate of the old root ended."""
    folder = tmp_path / "ca"
    async with mutual(tmp_path, free_ports, delta=delta, ca_dir=folder, authority=SHORT) as running:
        (old,) = roots(folder)
        await running.until_trusted(old)
        await ca(folder, "rotate", "begin")
        (new,) = set(roots(folder)) - {old}
        await rotate(running, folder, "switch")
        await running.until_trusted(old, new)
        await running.until_signed_by(new)
        await rotate(running, folder, "finish")
        await running.until_trusted(new)
        await running.until_signed_by(new)


def write_intermediate(folder: Path, root: Signer, name: str) -> x509.Certificate:
    """Put an intermediate and its key into a CA's folder, a file after the other, as an operator does."""
    made = root.intermediate(name)
    files = {
        "root-cert.pem": root.pem,
        "cert-chain.pem": made.pem,
        "ca-cert.pem": made.pem,
        "ca-key.pem": key_pem(made.key),
    }
    folder.mkdir(exist_ok=True)
    for file, content in files.items():
        new = folder / f".{file}"
        new.write_bytes(content)
        new.chmod(0o600)
        new.rename(folder / file)
    return made.certificate


async def test_an_intermediate_is_replaced(tmp_path: Path, free_ports: Ports) -> None:
    folder, root = tmp_path / "ca", Signer.root("outside")
    first = write_intermediate(folder, root, "first")
    async with mutual(tmp_path, free_ports, ca_dir=folder) as running:
        await running.until_signed_by(first)
        second = write_intermediate(folder, root, "second")
        await running.until_signed_by(second)
        await running.until_trusted(root.certificate)


async def test_keys_that_their_workloads_make_are_renewed(tmp_path: Path, free_ports: Ports) -> None:
    """Each begins with a join token, and continues with the certificate that it has; Envoy reads them from files."""
    tokens, folder = tmp_path / "tokens", tmp_path / "ca"
    agents: list[Agent] = []

    async def keys(mesh: Fleet) -> tuple[dict[str, str], dict[str, str]]:
        for account in ("web", "reviews"):
            identity = Identity("cluster.local", "shop", account)
            agent = Agent(tmp_path / account, identity, folder / "root-cert.pem")
            token = JoinTokens(tokens).create(identity, timedelta(hours=1), max_uses=1).text
            await agent.renew(mesh.plane.addresses.secure_grpc, LIFETIME, token=token)
            agents.append(agent)
        client, server = agents
        return client.metadata("CLIENT"), server.metadata("SERVER")

    joining = JoinTokenSettings(tokens)
    async with (
        mutual(tmp_path, free_ports, keys=keys, ca_dir=folder, join_tokens=joining) as running,
        trio.open_nursery() as nursery,
    ):
        for agent in agents:
            nursery.start_soon(agent.keep, running.mesh.plane.addresses.secure_grpc, LIFETIME)
        await running.until_renewed(4)
        nursery.cancel_scope.cancel()


async def test_a_revoked_certificate_is_refused_and_no_other(tmp_path: Path, free_ports: Ports) -> None:
    folder = tmp_path / "ca"
    async with mutual(tmp_path, free_ports, ca_dir=folder) as running:
        forger = Forger(tmp_path / "stolen", own=Signer.load(folder / "ca-cert.pem", folder / "ca-key.pem"))
        stolen, other = (forger.leaf(f"spiffe://cluster.local/ns/shop/sa/{name}") for name in ("stolen", "other"))
        for files in (stolen, other):
            await running.ask_as(files)
        await ca(folder, "revoke", str(stolen.certificate))

        async def refused() -> bool:
            try:
                await running.ask_as(stolen)
            except httpx.TransportError:
                return True
            return False

        await eventually(refused, what="the certificate is refused")
        await running.ask_as(other)
        assert await running.server.counted("ssl.fail_verify_error") > 0
