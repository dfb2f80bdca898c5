"""The choices of ``why`` for connections are those of real Envoys; the API, the commands and ``describe`` at work."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, routes, service, subsets, version
from tests.support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy

SERVER_NAMES = (
    *("a.example.com", "A.example.com", "c.example.com", "x.a.example.com", "x.b.example.com", "b.example.com"),
    *("x.y.b.example.com", "example.com", "a.example.org"),
)
NAMES = ("exact", "wild", "deeper", "one", "two")


async def test_connections_go_where_why_says_and_each_line_names_its_yaml(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, tls_port, shared, own = free_ports(4)
    async with fleet(tmp_path) as mesh:
        backends = {name: await mesh.tcp_backend(name) for name in NAMES}
        web = await mesh.backend("web")
        config = ""
        for name in ("exact", "wild", "deeper"):
            config += service(f"{name}.up.test", port, at(backends[name]), protocol="TCP")
        for name, address in (("one", "127.0.0.20"), ("two", "127.0.0.21")):
            config += service(f"{name}.vip.test", shared, at(backends[name]), protocol="TCP", addresses=[address])
        config += manifest(
            "Sidecar",
            "web",
            """
            workloadSelector: {labels: {app: web}}
            egress:
            - {bind: 127.0.0.20, port: {number: $port, name: one, protocol: TCP}, hosts: [./one.vip.test]}
            - {bind: 127.0.0.21, port: {number: $port, name: two, protocol: TCP}, hosts: [./two.vip.test]}
            - {hosts: ["*/*"]}
            """,
            port=shared,
        )
        config += manifest(
            "Gateway",
            "edge",
            """
            selector: {istio: edge}
            servers:
            - port: {number: $port, name: tls, protocol: TLS}
              tls: {mode: PASSTHROUGH}
              hosts: ["*.example.com"]
            """,
            port=tls_port,
        )
        config += manifest(
            "VirtualService",
            "edge",
            """
            hosts: ["*.example.com"]
            gateways: [edge]
            tls:
            - match: [{sniHosts: [a.example.com]}]
              route: [{destination: {host: exact.up.test, port: {number: $port}}}]
            - match: [{sniHosts: ["*.b.example.com"]}]
              route: [{destination: {host: deeper.up.test, port: {number: $port}}}]
            - match: [{sniHosts: ["*.example.com"]}]
              route: [{destination: {host: wild.up.test, port: {number: $port}}}]
            """,
            port=port,
        )
        config += service("web.test", port, version("v1", web), name="web") + subsets("web.test", "v1")
        config += service("own.test", port, {"address": "127.0.0.2", "ports": {"main": own}}, name="own")
        config += manifest(
            "AuthorizationPolicy",
            "own",
            """
            selector: {matchLabels: {app: web}}
            rules:
            - to: [{operation: {paths: ["/ok*"]}}]
            """,
        )
        config += routes(
            "web.test",
            """
            - match: [{uri: {prefix: /gone}}]
              route: [{destination: {host: web.test, subset: v9}}]
            - match: [{headers: {x-user: {exact: jason}}}]
              route: [{destination: {host: web.test, subset: v1}}]
            - directResponse: {status: 204}
            """,
            name="web",
        )
        await mesh.apply(config)
        await mesh.envoy(CLIENT)
        await mesh.envoy(EDGE)
        await mesh.assert_all_taken()

        await _server_names(mesh, tls_port)
        await _addresses(mesh, shared)
        await _places(mesh, port)
        await _descriptions(mesh, port)
        await _commands(mesh, port)


async def _server_names(mesh: Fleet, port: int) -> None:
    for name in SERVER_NAMES:
        seen = await greeting("127.0.0.3", port, name)
        answer = await why(mesh, f"tls://{name}:{port}", "edge.shop")
        assert _backend(answer) == seen, (name, answer)
        if seen:
            (chain,) = (step for step in answer["steps"] if step["step"] == "filter chain")
            rule = {"exact": 0, "deeper": 1, "wild": 2}[seen]
            assert chain["decided_by"][0]["field"] == f"spec.tls[{rule}].match[0]"


async def _addresses(mesh: Fleet, port: int) -> None:
    for name, address in (("one", "127.0.0.20"), ("two", "127.0.0.21")):
        assert await greeting(address, port, "") == name
        assert _backend(await why(mesh, f"tcp://{name}.vip.test:{port}", "web.shop")) == name
        assert _backend(await why(mesh, f"tcp://{address}:{port}", "web.shop")) == name
    nowhere = await why(mesh, f"tcp://127.0.0.22:{port}", "web.shop")
    assert nowhere["result"]["kind"] == "closed"


async def _places(mesh: Fleet, port: int) -> None:
    """Each place is the very line that says so."""
    answer = await why(mesh, f"web.test:{port}/x", "web", header="x-user=jason")
    file = mesh.folder / "config" / "config.yaml"
    lines = file.read_text().splitlines()

    def decided_by(step: str, number: int = 0, of: str = "steps") -> str:
        found = next(each for each in answer[of] if each["step"] == step)["decided_by"][number]
        path, _, line = found["place"].rpartition(":")
        assert path == str(file)
        return f"{found['object']} {found['field']}: {lines[int(line) - 1].strip()}"

    assert decided_by("route") == (
        "VirtualService/shop/web spec.http[1].match[0]: - match: [{headers: {x-user: {exact: jason}}}]"
    )
    assert decided_by("cluster").startswith("DestinationRule/shop/web-test spec.subsets[0]: ")
    assert decided_by("listener") == 'Sidecar/shop/web spec.egress[2]: - {hosts: ["*/*"]}'
    assert decided_by("listener", 1).startswith("ServiceEntry/shop/web : ")
    assert decided_by("route", of="nearly") == (
        "VirtualService/shop/web spec.http[0].match[0]: - match: [{uri: {prefix: /gone}}]"
    )
    refused = await why(mesh, f"own.test:{port}/x", "web")
    (there,) = refused["destinations"]
    assert (refused["result"]["kind"], there["proxy"], there["result"]["status"]) == ("cluster", "web.shop", 403)
    policy = next(step for step in there["steps"] if step["step"] == "policy")
    reason = 'the path is "/x"; rule 0 of AuthorizationPolicy/shop/own wants that the path begins with "/ok"'
    assert policy["text"] == f"DENIED: {reason}"
    assert refused["outcome"] == f"answered with 403 by web.shop: {reason}"
    assert policy["decided_by"][0]["object"] == "AuthorizationPolicy/shop/own"
    admitted = await why(mesh, f"own.test:{port}/ok", "web")
    assert admitted["destinations"][0]["result"]["kind"] == "cluster"
    assert (admitted["outcome"], [each["fails"] for each in admitted["outcomes"]]) == (
        f"forwarded to own.test:{port}",
        [False],
    )
    gone = await why(mesh, f"web.test:{port}/gone", "web")
    assert "no DestinationRule" in str(gone["steps"])
    assert gone["outcome"] == f"answered with 503: the proxy has no cluster for web.test:{port} subset v9"
    assert (await why(mesh, f"web.test:{port}/", "web"))["result"] == {"kind": "response", "status": 204}

    unknown = await api(mesh, "/why", status=404, to="web.test", proxy="nobody")
    assert unknown == {"error": "no connected proxy 'nobody'; connected: edge.shop, web.shop"}
    assert "needs a port" in (await api(mesh, "/why", status=400, to="tcp://web.test", proxy="web"))["error"]


async def _descriptions(mesh: Fleet, port: int) -> None:
    service = await api(mesh, "/describe/service/web.test")
    text = json.dumps(service)
    assert service["facts"]["virtual_services"] == ["VirtualService/shop/web"]
    assert "subset v1 (version=v1): 1 endpoint" in text
    assert "everybody: no AuthorizationPolicy applies" in text
    assert any("declares subset v9" in warning["text"] for warning in service["warnings"])
    assert any(warning["code"].startswith("IST") for warning in service["warnings"])
    assert await api(mesh, "/describe/service/web", status=404) == {"error": "no service web; there is web.test"}
    edge = await api(mesh, "/describe/proxy/edge")
    assert "PASSTHROUGH for *.example.com" in json.dumps(edge)
    rule = await api(mesh, "/describe/object/virtualservice/shop/web")
    assert "http[2]: every request, answered 204" in json.dumps(rule)
    assert {each["name"] for each in rule["facts"]["produces"]} == {str(port)}


async def _commands(mesh: Fleet, port: int) -> None:
    asked = ["why", f"web.test:{port}/x", "--header", "x-user=jason"]
    by_plane = await command(mesh, *asked, "--from", "web.shop")
    assert "VirtualService/shop/web spec.http[1].match[0]" in by_plane
    by_envoy = await command(mesh, *asked, "--admin", mesh.envoys[0].admin)
    assert f"forwarded to web.test:{port} subset v1" in by_envoy
    by_both = await command(mesh, *asked, "--admin", mesh.envoys[0].admin, "--from", "web")
    assert "VirtualService/shop/web spec.http[1].match[0]" in by_both
    dump = mesh.folder / "dump.json"
    dump.write_text(json.dumps({"configs": await mesh.envoys[0].config_dump(endpoints=True)}))
    assert await command(mesh, *asked, "--file", str(dump)) == by_envoy
    assert "answers 503" in await command(mesh, "why", f"web.test:{port}/gone", "--from", "web", code=1)
    assert "Warnings" in await command(mesh, "describe", "service", "web.test")
    assert "Warnings" in await command(mesh, "describe", "svc", "web", "-n", "shop")
    assert "kind: object" in await command(mesh, "describe", "Gateway/shop/edge", "-o", "yaml")


async def greeting(address: str, port: int, name: str) -> str:
    """The name of the backend that a connection reaches; empty if it is closed. With a name, it begins as TLS does."""
    try:
        stream = await trio.open_tcp_stream(address, port)
    except OSError:
        return ""
    async with stream:
        if name:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            hello = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
            with pytest.raises(ssl.SSLWantReadError):
                hello.do_handshake()
            await stream.send_all(outgoing.read())
        try:
            return (await stream.receive_some()).partition(b"\n")[0].decode()
        except trio.BrokenResourceError:
            return ""


def _backend(answer: Any) -> str:
    """The backend whose cluster an answer names; empty if the connection is closed."""
    if answer["result"]["kind"] == "closed":
        return ""
    (cluster,) = answer["result"]["clusters"]
    return str(cluster["name"].split("|")[3].partition(".")[0])


async def why(mesh: Fleet, to: str, proxy: str, **query: str) -> Any:
    return await api(mesh, "/why", to=to, proxy=proxy, **query)


async def api(mesh: Fleet, path: str, *, status: int = 200, **query: str) -> Any:
    reply = await mesh.client.get(f"http://{mesh.plane.addresses.http}/api/v1{path}", params=query)
    assert reply.status_code == status, reply.text
    return reply.json()


async def command(mesh: Fleet, *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    pilot = (
        ()
        if {"--admin", "--file"} & set(arguments) and "--from" not in arguments
        else ("--pilot", str(mesh.plane.addresses.http))
    )
    ran = await trio.run_process(
        [sys.executable, "-m", "mesh_pilot.cli", *arguments, *pilot],
        capture_stdout=True, capture_stderr=True, check=False,
    )  # fmt: skip
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return (ran.stdout + ran.stderr).decode()
