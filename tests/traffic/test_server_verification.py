"""Servers outside the mesh prove who they are to real Envoys, whatever the rule leaves unsaid."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.mesh.proxy.scope import SYSTEM_ROOTS
from mesh_pilot.model.proxy import Interception, NodeType
from tests.support.certificates import CertificateFiles, serving, write_certificates
from tests.support.edge import gateway, to
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, rule, service

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

IMPOSTORS = ("stranger", "namesake", "expired")
"""A certificate of another CA, of the right CA for another name, and one of yesterday."""


@attrs.frozen
class Servers:
    """``honest`` has a certificate for ``honest.test``, which it shows to those who ask for that name."""

    mesh: Fleet
    roots: Path
    asked: list[str]
    services: str

    def node(self, kind: NodeType, **metadata: str) -> EnvoyNode:
        roots = {SYSTEM_ROOTS: str(self.roots), **metadata}
        labels = {"istio": "edge"} if kind is NodeType.ROUTER else {"app": "web"}
        return EnvoyNode(
            kind.value, "shop", "127.0.0.2", kind, labels=labels, interception=Interception.NONE, metadata=roots
        )

    async def https(self, name: str, files: CertificateFiles) -> dict[str, object]:
        return at(await self.mesh.backend(name, tls=serving(files)))


@asynccontextmanager
async def servers(tmp_path: Path, ports: dict[str, int], mesh: str = "") -> AsyncIterator[Servers]:
    """Services ``NAME.test`` for HTTP at ``ports["http"]`` and ``NAME-tcp.test`` for TCP at ``ports[NAME]``."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.mkdir()
    wrong.mkdir()
    honest = write_certificates(right, "honest", dns=("honest.test", "honest-tcp.test"))
    default = serving(write_certificates(right, "default", dns=("default.test",)))
    chosen, asked = serving(honest), list[str]()

    def choose(socket: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        asked.append(name or "")
        if name in ("honest.test", "honest-tcp.test"):
            socket.context = chosen

    default.sni_callback = choose
    async with fleet(tmp_path, mesh=mesh) as plane:
        backends = {
            "honest": await plane.backend("honest", tls=default),
            "stranger": await plane.backend("stranger", tls=serving(write_certificates(
                wrong, "stranger", dns=("stranger.test", "stranger-tcp.test")))),
            "namesake": await plane.backend("namesake", tls=serving(write_certificates(
                right, "namesake", dns=("else.test",)))),
            "expired": await plane.backend("expired", tls=serving(write_certificates(
                right, "expired", dns=("expired.test", "expired-tcp.test"), expired=True))),
        }  # fmt: skip
        text = ""
        for name, backend in backends.items():
            text += service(f"{name}.test", ports["http"], at(backend), location="MESH_EXTERNAL")
            text += service(f"{name}-tcp.test", ports[name], at(backend), location="MESH_EXTERNAL", protocol="TCP")
        yield Servers(plane, right / "ca.pem", asked, text)
        await plane.assert_all_taken()


async def answered(mesh: Fleet, port: int, host: str) -> str:
    """Who answers over HTTP or through a TCP proxy; the status of an answer that is not 200; "closed"."""
    try:
        reply = await mesh.get(f"http://127.0.0.1:{port}/", host=host, headers={"connection": "close"})
    except httpx.TransportError:
        return "closed"
    return str(reply.json()["name"]) if reply.status_code == 200 else str(reply.status_code)


def all_rules(policy: str) -> str:
    names = ("honest", *IMPOSTORS)
    return "".join(rule(f"{name}{suffix}.test", policy) for name in names for suffix in ("", "-tcp"))


async def assert_only_the_honest_is_believed(found: Servers, ports: dict[str, int]) -> None:
    mesh = found.mesh

    async def is_reached() -> bool:
        return await answered(mesh, ports["http"], "honest.test") == "honest"

    await eventually(is_reached, what="the honest server is reached")
    assert await answered(mesh, ports["honest"], "honest-tcp.test") == "honest"
    assert set(found.asked) == {"honest.test", "honest-tcp.test"}, "it is asked for by its name"
    for name in IMPOSTORS:
        assert await answered(mesh, ports["http"], f"{name}.test") == "503", name
        assert await answered(mesh, ports[name], f"{name}-tcp.test") == "closed", name


RULES = {
    "simple": "tls: {mode: SIMPLE}",
    "with-roots": "tls: {mode: SIMPLE, caCertificates: $roots}",
}


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
@pytest.mark.parametrize("policy", RULES)
async def test_a_sidecar_believes_nobody_unproven(tmp_path: Path, free_ports: Ports, policy: str, delta: bool) -> None:
    names = ("http", "honest", *IMPOSTORS)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    async with servers(tmp_path, ports) as found:
        await found.mesh.apply(found.services + all_rules(RULES[policy].replace("$roots", str(found.roots))))
        own = {SYSTEM_ROOTS: "/nowhere"} if policy == "with-roots" else {}
        await found.mesh.envoy(found.node(NodeType.SIDECAR, **own), delta=delta)
        await assert_only_the_honest_is_believed(found, ports)


async def test_a_gateway_believes_nobody_unproven(tmp_path: Path, free_ports: Ports) -> None:
    names = ("http", "honest", *IMPOSTORS)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    async with servers(tmp_path, ports) as found:
        served = f'- {{port: {{number: {ports["http"]}, name: http, protocol: HTTP}}, hosts: ["*"]}}\n'
        routed = ""
        for name in names[1:]:
            served += f'- {{port: {{number: {ports[name]}, name: {name}, protocol: TCP}}, hosts: ["*"]}}\n'
            routed += to(f"{name}.test", f"{name}.test", "edge")
            match = f"match: [{{port: {ports[name]}}}], route: [{{destination: {{host: {name}-tcp.test}}}}]"
            routed += manifest("VirtualService", f"{name}-tcp", f"hosts: ['*']\ngateways: [edge]\ntcp: [{{{match}}}]")
        raw = dict(zip(names[1:], free_ports(len(names) - 1), strict=True))
        for name, port in raw.items():
            served += f'- {{port: {{number: {port}, name: raw-{name}, protocol: TCP}}, hosts: ["*"]}}\n'
            match = f"match: [{{port: {port}}}], route: [{{destination: {{host: {name}.test}}}}]"
            routed += manifest("VirtualService", f"{name}-raw", f"hosts: ['*']\ngateways: [edge]\ntcp: [{{{match}}}]")
        await found.mesh.apply(found.services + all_rules(RULES["simple"]) + gateway("edge", served) + routed)
        await found.mesh.envoy(found.node(NodeType.ROUTER))
        await assert_only_the_honest_is_believed(found, ports)
        for name, port in raw.items():  # connections to a port of HTTP, which have no Host
            assert await answered(found.mesh, port, "any.test") == ("honest" if name == "honest" else "closed")


async def test_a_machine_without_roots_trusts_nobody_and_the_plane_says_why(tmp_path: Path, free_ports: Ports) -> None:
    names = ("http", "honest", *IMPOSTORS)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    async with servers(tmp_path, ports) as found:
        mesh = found.mesh
        plain = service("plain.test", ports["http"], at(await mesh.backend("plain")))
        await mesh.apply(found.services + all_rules(RULES["simple"]) + plain)
        await mesh.envoy(found.node(NodeType.SIDECAR, **{SYSTEM_ROOTS: ""}))
        assert await answered(mesh, ports["http"], "plain.test") == "plain"
        assert await answered(mesh, ports["http"], "honest.test") == "503"
        assert await answered(mesh, ports["honest"], "honest-tcp.test") == "closed"
        assert not found.asked
        report = (await mesh.get(f"http://{mesh.plane.addresses.http}/debug/rejections")).json()
        (withheld,) = report["credentials"]
        assert withheld["credential"] == "file-root:system"
        assert withheld["reason"].startswith("the proxy's machine has no CA certificates")
