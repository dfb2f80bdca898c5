"""First certificates by tokens that others have issued: JSON Web Tokens, and those of a Consul login."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.identity.credentials import named_in
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.settings import AgentFolders, CredentialSettings, PlaneSettings
from mesh_pilot.consul.identity.authenticator import ConsulTokenSettings
from mesh_pilot.consul.source import Agent, ConsulSettings
from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings
from tests.agent.identities import Machine, plane_of, running
from tests.identity.test_consul_tokens import ROOT, guarded_consul, made, services
from tests.identity.test_jwt import BARE_RULE, EC, key_set
from tests.identity.test_token_callers import WEB, now, plane_with_rules
from tests.support.troubles import is_quoted


@pytest.mark.plane
async def test_an_expired_jwt_is_told_and_the_next_one_opens_streams_and_gets_a_certificate(tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with plane_with_rules(tmp_path, {**BARE_RULE, "jwks": key_set(EC)}) as (plane, ca):
        file.write_text(now(exp=time.time() - 60))
        own = WorkloadIdentity(
            CredentialSettings(token_file=file),
            PlaneSettings((Pilot.parse(plane.addresses.secure_grpc),), ca=ca),
            AgentFolders(tmp_path, tmp_path),
        )
        with capture_logs() as logs:
            async with running(own):
                with trio.fail_after(30):
                    await own.settled.wait_for(bool)
                    (line,) = [line for line in logs if line["event"] == "no certificate"]
                    assert is_quoted(line)
                    assert "expired" in line["reason"] and str(file) in line["advice"]
                    text = now()
                    file.write_text(text)
                    assert own.call_metadata() == {"authorization": f"Bearer {text}"}
                    held = await own.material.wait_for(lambda value: value is not None)
                assert held is not None and held.identity == WEB
                assert own.call_metadata() == {}, "the certificate says it from now on"
        assert text not in str(logs)


async def test_a_join_token_is_shown_for_certificates_only(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.token_file.write_text("mpjt_a.b.c")
    assert machine.identity("127.0.0.1:1").call_metadata() == {}


def test_a_join_token_names_its_workload_and_no_token_does_harm() -> None:
    def named(token: str) -> str:
        return named_in({"authorization": f"Bearer {token}"})

    def encoded(payload: bytes) -> str:
        return base64.urlsafe_b64encode(payload).decode().rstrip("=")

    for payload, name in (
        (b'{"sub": "spiffe://cluster.local/ns/shop/sa/web"}', "spiffe://cluster.local/ns/shop/sa/web"),
        (b'{"sub": "web"}', ""),
        (b'{"sub": 5}', ""),
        (b"[]", ""),
        (b"{", ""),
        (b"\xff", ""),
    ):
        assert named(f"mpjt_a.{encoded(payload)}.c") == name
    assert named("mpjt_") == named("mpjt_a.%%%.c") == named_in({}) == ""
    assert named(f"a.{encoded(b'{}')}.c") == "", "only a join token is sure to name us as the control plane does"


@pytest.mark.process
async def test_a_token_of_consul_gets_the_certificate_of_its_service(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "consul").mkdir()
    async with guarded_consul(tmp_path / "consul", free_ports(4)) as consul:
        settings = ConsulTokenSettings(datacenter=ConsulSettings(agent=Agent(consul.address, token=ROOT)))
        async with plane_of(machine, foreign_tokens=ForeignTokenSettings(consul=settings)) as plane:
            file = tmp_path / "consul-token"
            file.write_text(await made(consul, ServiceIdentities=services("web", "cart")))
            for service, account in (("web", "web"), ("cart", "cart")):
                own = WorkloadIdentity(
                    CredentialSettings(consul_token_file=file, consul_service=service),
                    PlaneSettings((Pilot.parse(plane.addresses.secure_grpc),), ca=machine.root),
                    AgentFolders(tmp_path / service, tmp_path),
                )
                assert own.call_metadata()["x-consul-service"] == service
                async with running(own):
                    with trio.fail_after(30):
                        held = await own.material.wait_for(lambda value: value is not None)
                assert held is not None and held.identity.endswith(f"/sa/{account}")
