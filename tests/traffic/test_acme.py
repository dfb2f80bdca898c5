"""Credentials that are ordered by ACME: a real issuer (Pebble), proven at a real gateway, served by it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from mesh_pilot.consul.client.settings import Agent
from mesh_pilot.consul.election.lock import ConsulElectionSettings
from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings
from mesh_pilot.sources.acme import source, stored
from tests.support.consul import real_consul
from tests.support.edge import gateway, to
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, service
from tests.support.pebble import Pebble, pebble
from tests.support.shop import EDGE
from tests.support.source import REPOSITORY

pytestmark = [pytest.mark.envoy, pytest.mark.process]

Ports = Callable[[int], list[int]]

SERVERS = """
- port: {number: $plain, name: http, protocol: HTTP}
  hosts: [a.test, b.test]
  tls: {httpsRedirect: true}
- port: {number: $port, name: https, protocol: HTTPS}
  hosts: [a.test, b.test]
  tls: {mode: SIMPLE, credentialName: edge}
"""

NOBODY = """
action: DENY
rules: [{to: [{operation: {paths: ["/.well-known/*"]}}]}]
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(stored, "FIRST_RETRY", timedelta(seconds=1))


@asynccontextmanager
async def edge(
    folder: Path, issuer: Pebble, plain: int, port: int, *, has_gateway: bool = True, **more: Any
) -> AsyncIterator[Fleet]:
    """A gateway for a.test and b.test whose credential is ordered, and a service behind it."""
    settings = {"mesh": issuer.mesh("shop/edge"), **({} if "ca_store" in more else {"ca_dir": folder / "ca"}), **more}
    async with fleet(folder, **settings) as mesh:
        app = await mesh.backend("app")
        mesh.write(gateway("edge", SERVERS, plain=plain, port=port), "gateway.yaml")
        mesh.write(
            service("app.test", 80, at(app))
            + "".join(to(f"{name}.test", "app.test", "edge") for name in "abc")
            + manifest("AuthorizationPolicy", "nobody", NOBODY, namespace="shop")
        )
        if has_gateway:
            await mesh.envoy(EDGE, delta=True)
        yield mesh


async def served(mesh: Fleet, port: int, host: str, ca: Path) -> bool:
    """True if a host is served over TLS."""
    try:
        return (await mesh.https(port, host, ca=ca)).status_code == 200
    except httpx.TransportError:
        return False


def told(mesh: Fleet) -> str:
    """What is wrong, as it is told."""
    return "; ".join(str(problem) for each in mesh.plane.state.world.rejections() for problem in each.problems)


def order_of(mesh: Fleet) -> dict[str, Any]:
    """What is kept of the last order."""
    found: dict[str, Any] = json.loads((mesh.folder / "ca" / "acme" / "shop" / "edge" / "order.json").read_text())
    return found


async def test_a_gateway_gets_its_first_certificate_past_redirects_and_policies(
    tmp_path: Path, free_ports: Ports
) -> None:
    port, plain = free_ports(2)
    async with pebble(tmp_path, http_port=plain) as issuer, edge(tmp_path, issuer, plain, port) as mesh:
        root = await issuer.root()
        for host in ("a.test", "b.test"):
            await eventually(partial(served, mesh, port, host, root), what=issuer.log)
        moved = await mesh.get(f"http://127.0.0.1:{plain}/path", host="a.test")
        assert (moved.status_code, moved.headers["location"]) == (301, "https://a.test/path")
        await eventually(lambda: mesh.plane.state.world.challenges.peek(()) == (), what="the challenges go")
        assert issuer.signed() == 1
        folder = mesh.folder / "ca" / "acme"
        for key in (folder / "account" / "account.key", folder / "shop" / "edge" / "tls.key"):
            assert key.stat().st_mode & 0o077 == 0
        await mesh.assert_all_taken()
        described = await mesh.get(f"http://{mesh.plane.addresses.http}/api/v1/describe/object/Gateway/shop/edge")
        assert "shop/edge is ordered by ACME: the certificate ends at " in described.text
        figures = await mesh.get(f"http://{mesh.plane.addresses.http}/metrics")
        assert 'mesh_pilot_acme_orders{result="success"} 1.0' in figures.text
        assert 'mesh_pilot_acme_certificate_expiry_timestamp{credential="shop/edge"}' in figures.text


@pytest.mark.slow
async def test_a_certificate_is_renewed_under_load_without_a_failed_request(tmp_path: Path, free_ports: Ports) -> None:
    """Certificates of 20 seconds, and an issuer that refuses every fifth nonce."""
    port, plain = free_ports(2)
    async with (
        pebble(tmp_path, http_port=plain, seconds=20, bad_nonces=20) as issuer,
        edge(tmp_path, issuer, plain, port) as mesh,
    ):
        root = await issuer.root()
        await eventually(partial(served, mesh, port, "a.test", root), what=issuer.log)
        failures: list[str] = []
        asked = 0

        async def load() -> None:
            nonlocal asked
            while True:
                try:
                    reply = await mesh.https(port, "a.test", ca=root)
                    failures.extend([reply.text] if reply.status_code != 200 else [])
                except httpx.TransportError as error:
                    failures.append(repr(error))
                asked += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            nursery.start_soon(load)
            await eventually(lambda: issuer.signed() >= 3, what=issuer.log)
            before = asked
            await eventually(lambda: asked > before + 20, what="requests go on")
            nursery.cancel_scope.cancel()
        assert failures == []
        await mesh.assert_all_taken()


async def test_a_host_that_is_not_proven_fails_the_order_and_is_told(tmp_path: Path, free_ports: Ports) -> None:
    """The issuer asks another port than the gateway's: it hears nothing."""
    port, plain, elsewhere = free_ports(3)
    async with pebble(tmp_path, http_port=elsewhere) as issuer, edge(tmp_path, issuer, plain, port) as mesh:
        await eventually(lambda: "is not proven: " in told(mesh), what=issuer.log)
        assert "the next order is made after" in told(mesh)
        assert mesh.plane.state.world.challenges.peek(()) == ()
        await eventually(lambda: order_of(mesh)["failures"] >= 2, what="another order, later")
        assert issuer.signed() == 0


async def test_while_the_issuer_is_away_nothing_is_lost(tmp_path: Path, free_ports: Ports) -> None:
    """Neither before the first order, nor after it; an issuer that has forgotten the account gets it again."""
    port, plain = free_ports(2)
    async with pebble(tmp_path, http_port=plain, starts=False) as issuer, edge(tmp_path, issuer, plain, port) as mesh:
        await eventually(lambda: "it does not answer: " in told(mesh), what=told(mesh))
        await issuer.start()
        first = await issuer.root()
        await eventually(partial(served, mesh, port, "a.test", first), what=issuer.log)
        await eventually(lambda: told(mesh) == "", what=told(mesh))
        await issuer.stop()
        more = SERVERS.replace("a.test, b.test", "a.test, b.test, c.test")
        mesh.write(gateway("edge", more, plain=plain, port=port), "gateway.yaml")
        await eventually(lambda: "it does not answer: " in told(mesh), what=told(mesh))
        assert await served(mesh, port, "a.test", first)
        await issuer.start()
        second = await issuer.root()
        await eventually(partial(served, mesh, port, "c.test", second), what=issuer.log)
        await eventually(lambda: told(mesh) == "", what=told(mesh))


async def test_a_restart_serves_what_was_issued(tmp_path: Path, free_ports: Ports) -> None:
    port, plain = free_ports(2)
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    async with pebble(tmp_path, http_port=plain) as issuer:
        async with edge(one, issuer, plain, port) as mesh:
            root = await issuer.root()
            await eventually(partial(served, mesh, port, "a.test", root), what=issuer.log)
        await issuer.stop()
        async with edge(two, issuer, plain, port, ca_dir=one / "ca") as mesh:
            await eventually(partial(served, mesh, port, "a.test", root), what="the one of the first run")
            assert told(mesh) == ""
        assert issuer.signed() == 1


async def test_of_two_planes_with_one_store_the_leader_orders_and_the_other_answers(
    tmp_path: Path, free_ports: Ports
) -> None:
    """The gateway is connected to the follower; both have their CA and their election in Consul."""
    port, plain, *for_consul = free_ports(6)
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    key = tmp_path / "encryption"
    key.write_text("ab" * 32)
    key.chmod(0o600)
    async with real_consul(tmp_path, for_consul) as consul, pebble(tmp_path, http_port=plain) as issuer:
        agent = Agent(consul.address)
        shared = {
            "ca_store": ConsulStoreSettings(key="mesh-pilot/ca", agent=agent, encryption_file=key),
            "election": ConsulElectionSettings(agent=agent, ttl_seconds=10.0),
        }
        async with edge(one, issuer, plain, port, has_gateway=False, **{**shared, "mesh": "{}"}) as leader:
            await eventually(lambda: leader.plane.state.election.statistics().leads, what="the first plane leads")
            async with edge(two, issuer, plain, port, **shared) as follower:
                whole = one / "whole.yaml"
                whole.write_text(issuer.mesh("shop/edge"))
                whole.rename(one / "mesh.yaml")
                root = await issuer.root()
                await eventually(partial(served, follower, port, "a.test", root), what=issuer.log)
                assert not follower.plane.state.election.statistics().leads
                await eventually(lambda: told(leader) == told(follower) == "", what=told(leader))
                assert issuer.signed() == 1
                stored_there = await consul.ask("GET", "/v1/kv/mesh-pilot/ca/acme/shop/edge", params={"raw": "true"})
                assert "PRIVATE KEY" not in stored_there.text


async def test_the_sample_serves_what_it_promises(tmp_path: Path, free_ports: Ports) -> None:
    port, plain = free_ports(2)
    sample = REPOSITORY / "samples" / "acme"
    async with pebble(tmp_path, http_port=plain) as issuer:
        mesh_config = (sample / "mesh.yaml").read_text()
        directory = "https://acme-v02.api.letsencrypt.org/directory"
        mesh_config = mesh_config.replace(directory, f"{issuer.directory}\n  caCertificates: {issuer.files.ca}")
        config = (sample / "config" / "edge.yaml").read_text()
        config = config.replace("number: 80,", f"number: {plain},").replace("number: 443,", f"number: {port},")
        async with fleet(tmp_path, mesh=mesh_config, ca_dir=tmp_path / "ca") as mesh:
            app = await mesh.backend("app")
            place = f"ports: {{http: {app.port}}}"
            mesh.write(
                config.replace("endpoints: [{address: 127.0.0.1}]", f"endpoints: [{{address: 127.0.0.1, {place}}}]")
            )
            await mesh.envoy(EDGE, delta=True)
            root = await issuer.root()
            for host in ("shop.example.com", "www.shop.example.com"):
                await eventually(partial(served, mesh, port, host, root), what=issuer.log)
            await mesh.assert_all_taken()
