"""A control plane whose certificates another CA signs, with agents: names in requests, roots and pages."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import trio
from cryptography import x509

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.settings import AgentFolders, CredentialSettings, PlaneSettings
from mesh_pilot.cli.proxy.bundle import read
from mesh_pilot.identity.authenticators.settings import JoinTokenSettings
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
from mesh_pilot.model.spiffe import parse_identity
from mesh_pilot.safety.state.settings import StateSettings
from tests.agent.identities import running
from tests.identity.test_jwt import BARE_RULE, EC, key_set
from tests.identity.test_token_callers import WEB, now
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.est import est_server, root_pem
from tests.support.planes import running_plane
from tests.support.step_ca import step_ca


@pytest.mark.process
async def test_an_agent_that_does_not_know_its_name_is_told_and_names_it_in_its_request(tmp_path: Path) -> None:
    """The EST server takes the name of the request. A JWT does not have it, and a join token for one use does."""
    (tmp_path / "config").mkdir()
    tokens = JoinTokens(tmp_path / "tokens")
    (tmp_path / "rules.json").write_text(f"[{json.dumps({**BARE_RULE, 'jwks': key_set(EC)})}]")
    async with (
        est_server(tmp_path) as server,
        running_plane(
            tmp_path / "config",
            ca_signer=server.signer_file(),
            foreign_tokens=ForeignTokenSettings(jwt_rules=tmp_path / "rules.json"),
            join_tokens=JoinTokenSettings(tmp_path / "tokens"),
        ) as plane,
    ):
        root = tmp_path / "root.pem"
        root.write_bytes(root_pem(server))
        identity = parse_identity(WEB)
        assert identity is not None
        for name, text in (("jwt", now()), ("join", tokens.create(identity, timedelta(hours=1), max_uses=1).text)):
            file = tmp_path / f"{name}-token"
            file.write_text(text)
            own = WorkloadIdentity(
                CredentialSettings(token_file=file),
                PlaneSettings((Pilot.parse(plane.addresses.secure_grpc),), ca=root),
                AgentFolders(tmp_path / name, tmp_path),
            )
            async with running(own):
                with trio.fail_after(60):
                    held = await own.material.wait_for(lambda value: value is not None)
            assert held is not None and held.identity == WEB
            assert held.roots.strip() == root_pem(server).strip()


@pytest.mark.process
async def test_pages_and_metrics_tell_of_a_step_ca(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    async with (
        step_ca(tmp_path) as ca,
        running_plane(tmp_path / "config", ca_signer=ca.signer_file()) as plane,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        web = f"http://{plane.addresses.http}"
        page = (await client.get(f"{web}/debug/ca")).json()
        assert page["place"] == f"step-ca at {ca.address} (provisioner mesh)"
        assert [x509.load_pem_x509_certificate(each["pem"].encode()) for each in page["roots"]] == [
            each.certificate for each in ca.roots
        ]
        metrics = (await client.get(f"{web}/metrics")).text
        assert "mesh_pilot_signer_signed 1" in metrics, "the server's own"
        assert "signer:" not in (await client.get(f"{web}/ready")).text


@pytest.mark.process
async def test_a_bundle_for_a_machine_has_the_roots_that_the_running_plane_trusts(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    state, bundle = tmp_path / "state", tmp_path / "web.join"
    words = ("token", "create", "web", "--state-dir", str(state), "--pilot", "plane:15012", "--bundle", str(bundle))
    async with (
        est_server(tmp_path) as server,
        running_plane(tmp_path / "config", ca_signer=server.signer_file(), state=StateSettings(folder=state)),
    ):
        await eventually((state / "admin.sock").exists, what="the plane takes orders")
        made = await trio.to_thread.run_sync(lambda: mesh_pilot(*words))
        assert made.code == 0, made.err
        assert read(bundle).files["tls-ca"].strip() == root_pem(server).decode().strip()
        wrong = await trio.to_thread.run_sync(lambda: mesh_pilot(*words, "--ca-dir", str(tmp_path / "typo")))
        assert wrong.code, "a folder that is named and missing"
        assert "typo" in wrong.err
