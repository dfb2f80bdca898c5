"""Ways to an agent: ACL tokens, TLS, a Unix socket, several datacenters."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh_pilot.consul.client.settings import ConsulAddressError, ConsulTiming, Tls
from mesh_pilot.consul.source import Agent, ConsulError, ConsulSettings, ConsulSource, check_files
from tests.sources.conformance import running
from tests.support.certificates import write_certificates
from tests.support.consul import Consul, real_consul
from tests.support.envoy import eventually

TIMING = ConsulTiming(retry_seconds=0.05, retry_limit_seconds=0.2, hold_seconds=0.3, pace_seconds=0.05)
ROOT = "b1gs33cr3t-0000-0000-0000-000000000000"

Ports = Callable[[int], list[int]]


def source_of(agent: Agent, **settings: Any) -> ConsulSource:
    return ConsulSource("consul", ConsulSettings(agent=agent, timing=TIMING, **settings))


async def hosts_from(agent: Agent, **settings: Any) -> set[str]:
    """What a source finds."""
    async with running(source_of(agent, **settings)) as follower:
        await follower.until_synced()
        return {key[1] for key in follower.picture.items if key[0] == "service"}


def acl(path: Path) -> dict[str, Any]:
    """Configuration of an agent that lets nobody do anything without a token."""
    return {
        "acl": {"enabled": True, "default_policy": "deny", "tokens": {"master": str(path), "agent": str(path)}},
        "primary_datacenter": "dc1",
    }


async def as_root(consul: Consul) -> None:
    """Ask with the root token from now on; wait until it counts."""
    consul.client.headers["X-Consul-Token"] = ROOT

    async def counts() -> bool:
        reply = await consul.client.get("/v1/acl/token/self")
        return reply.status_code == 200

    await eventually(counts, what="the root token counts")


async def reading_token(consul: Consul) -> str:
    rules = 'service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }'
    await consul.ask("PUT", "/v1/acl/policy", json={"Name": "read", "Rules": rules})
    reply = await consul.ask("PUT", "/v1/acl/token", json={"Policies": [{"Name": "read"}]})
    return str(reply.json()["SecretID"])


@pytest.mark.process
@pytest.mark.usefixtures("each_consul")
async def test_a_token_of_a_file_is_used_and_read_again_when_it_changes(tmp_path: Path, free_ports: Ports) -> None:
    config = acl(Path(ROOT))
    async with real_consul(tmp_path, free_ports(4), config=config, led=False) as consul:
        await eventually(lambda: _answers(consul), what="it answers")
        await as_root(consul)
        await consul.register("web")
        file = tmp_path / "token"
        file.write_text("00000000-0000-0000-0000-00000000bad0\n")
        source = source_of(Agent(consul.address, token_file=file))
        async with running(source) as follower:
            await eventually(
                lambda: "403" in source.statistics().waiting_for or "ACL" in source.statistics().waiting_for
            )
            file.write_text(await reading_token(consul) + "\n")
            await follower.until_synced()
            assert {key[1] for key in follower.picture.items} == {"web.service.consul"}
        assert await hosts_from(Agent(consul.address, token=ROOT)) == {"web.service.consul"}


async def _answers(consul: Consul) -> bool:
    try:
        return (await consul.client.get("/v1/status/leader")).text not in ("", '""')
    except httpx.TransportError:
        return False


@pytest.mark.process
@pytest.mark.usefixtures("each_consul")
async def test_tls_with_a_client_certificate(tmp_path: Path, free_ports: Ports) -> None:
    server = write_certificates(tmp_path, "server", dns=("localhost", "server.dc1.consul"))
    client = write_certificates(tmp_path, "client")
    *ports, https = free_ports(5)
    config = {
        "ports": {"http": ports[0], "https": https, "dns": -1, "grpc": -1, "server": ports[1], "serf_lan": ports[2]},
        "ca_file": str(server.ca),
        "cert_file": str(server.certificate),
        "key_file": str(server.key),
        "verify_incoming_https": True,
    }
    config["ports"]["serf_wan"] = ports[3]  # type: ignore[index]
    async with real_consul(tmp_path, ports, config=config) as consul:
        await consul.register("web")
        tls = Tls(ca_file=server.ca, certificate=client.certificate, key=client.key)
        assert await hosts_from(Agent(f"https://127.0.0.1:{https}", tls=tls)) == {"web.service.consul"}
        named = Tls(ca_file=server.ca, certificate=client.certificate, key=client.key, server_name="server.dc1.consul")
        assert await hosts_from(Agent(f"127.0.0.1:{https}", tls=named, use_tls=True)) == {"web.service.consul"}
        unknown = source_of(
            Agent(f"https://127.0.0.1:{https}", tls=Tls(certificate=client.certificate, key=client.key))
        )
        async with running(unknown):
            await eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in unknown.statistics().waiting_for, what="the reason")


@pytest.mark.process
@pytest.mark.usefixtures("each_consul")
async def test_a_unix_socket(tmp_path: Path, free_ports: Ports) -> None:
    path = tmp_path / "http.sock"
    ports = free_ports(4)
    config = {"addresses": {"http": f"127.0.0.1 unix://{path}"}}
    async with real_consul(tmp_path, ports, config=config) as consul:
        await consul.register("web")
        assert await hosts_from(Agent(f"unix://{path}")) == {"web.service.consul"}


@pytest.mark.process
@pytest.mark.usefixtures("each_consul")
async def test_a_remote_datacenter_has_hosts_of_its_own(tmp_path: Path, free_ports: Ports) -> None:
    here, there = free_ports(4), free_ports(4)
    async with (
        real_consul(tmp_path, here, name="one") as one,
        real_consul(tmp_path, there, name="two", config={"datacenter": "dc2"}) as two,
    ):
        await one.register("web")
        await two.register("web")
        await one.ask("PUT", f"/v1/agent/join/127.0.0.1:{there[3]}", params={"wan": "1"})
        assert await hosts_from(Agent(two.address), remote=True) == {"web.service.dc2.consul"}
        through = Agent(one.address)
        assert await hosts_from(through, remote=True, datacenter="dc2") == {"web.service.dc2.consul"}
        assert await hosts_from(through) == {"web.service.consul"}


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://10.0.0.1:8500", "http://10.0.0.1:8500"),
        ("https://consul.example.com", "https://consul.example.com:8501"),
        ("10.0.0.1:80", "http://10.0.0.1:80"),
        ("http://[::1]:8500/consul/", "http://[::1]:8500/consul"),
    ],
)
def test_addresses_are_read_as_consul_reads_them(address: str, url: str) -> None:
    assert Agent(address).base_url == url


@pytest.mark.parametrize("address", ["ftp://x:1", "http://:8500", "http://x:port", ""])
def test_a_bad_address_is_said(address: str) -> None:
    with pytest.raises(ConsulAddressError, match="is not an address of a Consul agent"):
        _ = Agent(address).base_url


def test_files_that_can_not_be_used_are_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConsulError, match=r"cannot use the TLS files .*absent.pem"):
        check_files(Agent("https://127.0.0.1:1", tls=Tls(ca_file=tmp_path / "absent.pem")))
    with pytest.raises(ConsulError, match=r"cannot read the token file .*absent"):
        check_files(Agent(token_file=tmp_path / "absent"))


def test_the_environment_does_not_overrule_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CONSUL_HTTP_ADDR", "nonsense")
    assert Agent("http://10.0.0.1:8500").base_url == "http://10.0.0.1:8500"
