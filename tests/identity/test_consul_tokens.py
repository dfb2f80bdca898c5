"""ACL tokens of a real Consul: which service they are, and each way in which they are nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from mesh_pilot.consul.identity import authenticator as authenticators_consul
from mesh_pilot.consul.identity.authenticator import ConsulToken, ConsulTokenSettings
from mesh_pilot.consul.source import Agent, ConsulSettings
from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable, Credentials, TrustDomains
from mesh_pilot.model.spiffe import Identity
from tests.support.consul import Consul, cable, real_consul
from tests.support.envoy import eventually

Ports = Callable[[int], list[int]]
ROOT = "b1a2c3d4-0000-0000-0000-000000000001"
WEB = Identity("cluster.local", "default", "web")

CONFIG = {
    "acl": {
        "enabled": True,
        "default_policy": "deny",
        "tokens": {"master": ROOT, "agent": ROOT, "default": ROOT},
    },
    "primary_datacenter": "dc1",
}
"""The agent's own token may do everything: whoever shows none must not be taken for the agent."""


@asynccontextmanager
async def guarded_consul(folder: Path, ports: list[int]) -> AsyncIterator[Consul]:
    """A Consul with ACLs, asked as root."""
    async with real_consul(folder, ports, config=CONFIG, led=False) as consul:
        consul.client.headers["X-Consul-Token"] = ROOT

        async def counts() -> bool:
            try:
                return (await consul.client.get("/v1/acl/token/self")).status_code == 200
            except OSError:
                return False
            except Exception as error:
                if type(error).__module__.startswith("http"):
                    return False
                raise

        await eventually(counts, what="the root token counts")
        yield consul


async def made(consul: Consul, **fields: Any) -> str:
    """The secret of a new token."""
    return str((await consul.ask("PUT", "/v1/acl/token", json=fields)).json()["SecretID"])


def services(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"ServiceName": name, **more} for name in names]


def authenticator(address: str, token: str = ROOT, *, trust: bool = False, **settings: Any) -> ConsulToken:
    datacenter = ConsulSettings(agent=Agent(address, token=token), **settings)
    return ConsulToken(
        ConsulTokenSettings(datacenter=datacenter, trust_namespaces=trust), lambda: TrustDomains("cluster.local")
    )


def showing(*tokens: str, service: str = "") -> Credentials:
    metadata = {"x-consul-token": tokens, **({"x-consul-service": [service]} if service else {})}
    return Credentials("192.0.2.7:4000", True, metadata=metadata)


async def reason(judge: ConsulToken, *tokens: str, service: str = "") -> str:
    with pytest.raises(AuthenticationError) as refused:
        await judge.authenticate(showing(*tokens, service=service))
    assert not any(len(token) > 10 and token in str(refused.value) for token in tokens)
    return refused.value.reason


@pytest.mark.process
async def test_a_token_is_the_service_of_its_identity(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded_consul(tmp_path, free_ports(4)) as consul:
        judge = authenticator(consul.address)
        web = await made(consul, ServiceIdentities=services("web"), ExpirationTTL="10m")
        assert await judge.authenticate(showing(web)) == WEB
        assert await judge.authenticate(showing(web, service="web")) == WEB
        assert await reason(judge, web, service="cart") == "service"

        role = (
            await consul.ask("PUT", "/v1/acl/role", json={"Name": "r", "ServiceIdentities": services("cart")})
        ).json()
        by_role = await made(consul, Roles=[{"ID": role["ID"]}])
        assert await judge.authenticate(showing(by_role)) == Identity("cluster.local", "default", "cart")
        weak = authenticator(consul.address, await made(consul, ServiceIdentities=services("mesh-pilot")))
        with pytest.raises(AuthenticationError, match="acl:read"):
            await weak.authenticate(showing(by_role))

        several = await made(consul, ServiceIdentities=services("web", "admin"))
        assert await reason(judge, several) == "ambiguous"
        assert await judge.authenticate(showing(several, service="web")) == WEB
        assert await reason(judge, several, service="cart") == "service"

        here = await made(consul, ServiceIdentities=services("web", Datacenters=["dc1", "dc9"]))
        assert await judge.authenticate(showing(here)) == WEB
        elsewhere = await made(consul, ServiceIdentities=services("web", Datacenters=["dc9"]))
        assert await reason(judge, elsewhere) == "datacenter"
        assert await reason(authenticator(consul.address, datacenter="dc1"), elsewhere) == "datacenter"


@pytest.mark.process
async def test_tokens_that_are_nobodys(tmp_path: Path, free_ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded_consul(tmp_path, free_ports(4)) as consul:
        judge = authenticator(consul.address)
        assert await judge.authenticate(Credentials("192.0.2.7:4000", True)) is None
        for wrong in ("", " ", "anonymous", ROOT + "\n", "' OR 1", "a" * 100_000, "ä"):
            assert await reason(judge, wrong) == "token_form"
        assert await reason(judge, ROOT, ROOT) == "token_form"
        assert judge.questions == 0
        assert await reason(judge, ROOT) == "management"
        assert await reason(judge, ROOT, service="web") == "service"
        assert await reason(judge, "00000000-0000-0000-0000-00000000bad0") == "unknown_token"
        await consul.ask(
            "PUT", "/v1/acl/policy", json={"Name": "read", "Rules": 'service_prefix "" { policy = "read" }'}
        )
        assert await reason(judge, await made(consul, Policies=[{"Name": "read"}])) == "no_service"
        assert await reason(judge, await made(consul, ServiceIdentities=services("web_1"))) == "claim_form"
        both = await made(consul, Policies=[{"Name": "global-management"}], ServiceIdentities=services("web"))
        assert await reason(judge, both) == "ambiguous"
        assert await judge.authenticate(showing(both, service="web")) == WEB

        assert judge._questions is not None
        monkeypatch.setattr(judge._questions._recent, "_seconds", 0.0)
        deleted = await made(consul, ServiceIdentities=services("web"))
        assert await judge.authenticate(showing(deleted)) == WEB
        accessor = (await consul.client.get("/v1/acl/token/self", headers={"X-Consul-Token": deleted})).json()[
            "AccessorID"
        ]
        await consul.ask("DELETE", f"/v1/acl/token/{accessor}")
        assert await reason(judge, deleted) == "unknown_token"


@pytest.mark.process
async def test_the_namespace_of_metadata_counts_only_where_that_is_permitted(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded_consul(tmp_path, free_ports(4)) as consul:
        await consul.register("web", meta={"namespace": "shop"})
        web = await made(consul, ServiceIdentities=services("web"))
        cart = await made(consul, ServiceIdentities=services("cart"))
        assert await authenticator(consul.address).authenticate(showing(web)) == WEB
        trusting = authenticator(consul.address, trust=True, namespace="mesh")
        assert await trusting.authenticate(showing(web)) == Identity("cluster.local", "shop", "web")
        assert await trusting.authenticate(showing(cart)) == Identity("cluster.local", "mesh", "cart")


@pytest.mark.process
async def test_answers_are_remembered_for_seconds_and_an_outage_is_said(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded_consul(tmp_path, free_ports(4)) as consul, cable(consul.port) as line:
        judge = authenticator(line.address)
        web = await made(consul, ServiceIdentities=services("web"))
        for _ in range(5):
            assert await judge.authenticate(showing(web)) == WEB
            assert await reason(judge, "00000000-0000-0000-0000-00000000bad0") == "unknown_token"
        assert judge.questions == 2
        line.cut()
        assert await judge.authenticate(showing(web)) == WEB, "it was asked just now"
        other = await made(consul, ServiceIdentities=services("web"))
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(AuthenticatorUnavailable):
                    await judge.authenticate(showing(other))
        assert len(lines) == 1 and other not in str(lines)
        line.fix()
        assert await judge.authenticate(showing(other)) == WEB


@pytest.mark.process
async def test_a_consul_without_acls_vouches_for_nobody(tmp_path: Path, free_ports: Ports) -> None:
    async with real_consul(tmp_path, free_ports(4)) as consul:
        with pytest.raises(AuthenticatorUnavailable):
            await authenticator(consul.address, "").authenticate(showing(ROOT))


async def test_a_plane_that_takes_no_tokens_of_consul_says_so() -> None:
    judge = ConsulToken(None, lambda: TrustDomains("cluster.local"))
    assert await judge.authenticate(Credentials("192.0.2.7:4000", True)) is None
    assert await reason(judge, ROOT) == "disabled"


@pytest.mark.parametrize(("said", "settings", "is_ours"), [
    ({}, {}, True),
    ({"Namespace": "default", "Partition": "default"}, {}, True),
    ({"Namespace": "shop"}, {}, False),
    ({"Partition": "shop"}, {}, False),
    ({"Namespace": "shop"}, {"consul_namespace": "shop"}, True),
    ({}, {"consul_namespace": "shop"}, False),
    ({"Namespace": ["default"]}, {}, False),
])  # fmt: skip
def test_only_tokens_of_our_own_part_of_consul_enterprise_count(
    said: dict[str, Any], settings: dict[str, Any], is_ours: bool
) -> None:
    datacenter = ConsulSettings(**settings)
    if is_ours:
        authenticators_consul.check_place(said, datacenter)
        return
    with pytest.raises(AuthenticationError, match="of another"):
        authenticators_consul.check_place(said, datacenter)


def test_an_expiry_that_cannot_be_read_is_past() -> None:
    assert authenticators_consul._is_past("soon")
    assert authenticators_consul._is_past("2020-11-23T02:12:08.392204267Z")
    assert not authenticators_consul._is_past("2999-11-23T02:12:08.392204267Z")
    assert not authenticators_consul._is_past(None)
