"""Requests to hosts that nobody declared go where DNS says, with ALLOW_ANY_DYNAMIC_DNS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from mesh_pilot.model.proxy import Interception
from tests.support.certificates import write_certificates
from tests.support.containers import network
from tests.support.echo import server_context
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, manifest, service
from tests.support.shop import CLIENT

pytestmark = pytest.mark.envoy

POLICY = "outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS"


async def test_a_request_is_sent_to_its_own_host_with_the_meshs_tls(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (proxy,) = free_ports(1)
    asked: list[str] = []
    files = write_certificates(tmp_path, "server", dns=("a.localhost",))

    async def answer(url: str) -> str:
        async with httpx.AsyncClient(proxy=f"http://127.0.0.1:{proxy}", timeout=60) as client:
            try:
                reply = await client.get(url)
            except httpx.ConnectError:
                return "no listener"
        return str(reply.json()["name"]) if reply.status_code == 200 else str(reply.status_code)

    async def until(wanted: str, url: str) -> None:
        async def is_so() -> bool:
            return await answer(url) == wanted

        await eventually(is_so, what=f"{url} is answered by {wanted}")

    async with fleet(tmp_path, mesh=f"{POLICY}}}\nproxyHttpPort: {proxy}") as mesh:
        plain = await mesh.backend("plain")
        secure = await mesh.backend("secure", tls=server_context(files, asked, mutual=False))
        await mesh.envoy(CLIENT)
        plain_url = f"http://a.localhost:{plain.port}/"
        await until("plain", plain_url)
        closed = manifest(
            "Sidecar", "default", "egress: [{hosts: ['*/*']}]\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}"
        )
        await mesh.apply(closed)
        await until("502", plain_url)
        await mesh.apply(manifest("Sidecar", "default", "egress: [{hosts: ['*/*']}]"))
        await until("plain", plain_url)
        tls = f", tls: {{mode: SIMPLE, caCertificates: {files.ca}}}}}"
        (mesh.folder / "mesh.yaml").write_text(f"{POLICY}{tls}\nproxyHttpPort: {proxy}")
        await until("secure", f"http://a.localhost:{secure.port}/")
        assert asked[-1] == "a.localhost"
        assert await answer(f"http://b.localhost:{secure.port}/") == "503", "the certificate has another name"
        await mesh.assert_all_taken()


async def test_redirected_requests_are_resolved_and_other_connections_pass(tmp_path: Path) -> None:
    """A server that nobody declared may still be the first to send."""
    application, server = "10.45.0.7", "10.45.0.1"
    with network(application, server) as net, net.joined():
        net.run(
            *("iptables", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-s", application, "-d", server),
            *("-j", "REDIRECT", "--to-ports", "15001"),
        )
        async with fleet(tmp_path, mesh=POLICY + "}") as mesh:
            resolved = await mesh.backend("resolved")
            raw, declared = [await mesh.tcp_backend(name, host=server) for name in ("raw", "declared")]
            await mesh.apply(service("declared.test", declared.port, at(declared), protocol="TCP", addresses=[server]))
            envoy = await mesh.envoy(attrs.evolve(CLIENT, interception=Interception.REDIRECT))
            transport = httpx.AsyncHTTPTransport(local_address=application)
            async with httpx.AsyncClient(transport=transport, timeout=60) as client:
                reply = await client.get(f"http://{server}:81/", headers={"host": f"a.localhost:{resolved.port}"})
                assert reply.json()["name"] == "resolved"
            for backend in (raw, declared):
                async with await trio.open_tcp_stream(server, backend.port, local_address=application) as stream:
                    with trio.fail_after(30):
                        assert await stream.receive_some() == backend.name.encode() + b"\n"
            waited = "listener.0.0.0.0_15001.downstream_pre_cx_timeout"
            assert await envoy.counted(waited) == 1, "a declared server need not wait for its client"
            await mesh.assert_all_taken()
