"""What breaks at three in the morning, with real Envoys: one or two commands say the cause, and none misleads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from mesh_pilot.consul.client.settings import ConsulTiming
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from tests.cli.test_night_tools import mesh_pilot
from tests.state.test_consul_returns import CATALOG, entry
from tests.support.certificates import write_certificates
from tests.support.consul_stub import consul_stub
from tests.support.credentials import write_credential
from tests.support.edge import gateway, to
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import at, manifest, routes, service, subsets, version
from tests.support.mistakes import BROKEN_LUA
from tests.support.patching import HCM, envoy_filter, in_filter, patch
from tests.support.shop import CLIENT, EDGE

pytestmark = pytest.mark.envoy


async def said(mesh: Fleet, *words: str, code: int | None) -> str:
    """The output of a command that asks the control plane; ``code`` is its exit code, None for any."""
    done = await trio.to_thread.run_sync(partial(mesh_pilot, *words, "--pilot", mesh.plane.addresses.http or ""))
    assert code in (None, done.code), (words, done.out, done.err)
    return done.out + done.err


async def verdict(mesh: Fleet, request: str, proxy: str, *, code: int = 1) -> str:
    """The first line of ``why``."""
    return (await said(mesh, "why", request, "--from", proxy, code=code)).partition("\n")[0]


async def test_a_command_or_two_say_the_cause(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    port, own, far, plain, tls = free_ports(5)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    write_credential(secrets / "shop", "cert", write_certificates(tmp_path, "old", dns=("a.test",), expired=True))
    timing = ConsulTiming(retry_seconds=0.02, retry_limit_seconds=0.1, hold_seconds=0.1, pace_seconds=0.02)
    dead = entry("dead", "10.0.0.2")
    dead["Checks"] = [{"CheckID": "c", "Name": "HTTP", "Status": "critical", "Output": "connection refused"}]
    async with consul_stub() as stub:
        stub.answer(CATALOG, {"consul": [], "dead": []}, index=5)
        stub.answer("/v1/health/service/dead", [dead], index=5)
        consul = ConsulRegistry((ConsulSettings(agent=Agent(stub.address), timing=timing),))
        async with fleet(tmp_path, secrets=secrets, registries=(consul,)) as mesh:
            web = await mesh.backend("web")
            config = service("web.test", port, version("v1", web), name="web") + subsets("web.test", "v1")
            config += service("far.test", far, at(web), name="far", namespace="far")
            labels = {"security.istio.io/tlsMode": "istio", "app": "web"}
            config += service(
                "own.test", own, {"address": "127.0.0.2", "ports": {"main": own}, "labels": labels}, name="own"
            )
            await mesh.apply(config + BROKEN + gateways(plain, tls))
            await mesh.envoy(CLIENT)
            await mesh.envoy(EDGE)

            missing = await verdict(mesh, f"web.test:{port}/", "web")
            assert "90 % answered with 503: the proxy has no cluster for web.test" in missing
            assert "subset v3; 10 % forwarded to" in missing
            wrong = await verdict(mesh, f"own.test:{own}/", "web")
            assert "answered with 403 by web.shop: the caller is spiffe://cluster.local/ns/shop/sa/default; " in wrong
            assert "AuthorizationPolicy/shop/own wants spiffe://cluster.local/ns/shop/sa/defualt" in wrong
            gone = await verdict(mesh, "dead.service.consul/", "web")
            assert "answered with 503: dead.service.consul:80 has no endpoints; left out: dead-10.0.0.2 on n" in gone
            assert "critical: HTTP: connection refused" in gone
            assert "critical: HTTP" in await said(mesh, "describe", "service", "dead.service.consul", code=0)
            near = await said(mesh, "describe", "service", "daed.service.consul", code=1)
            assert "dead.service.consul" in near
            narrow = await verdict(mesh, f"far.test:{far}/", "web")
            assert "ServiceEntry/far/far has the host, and Sidecar/shop/web does not import it" in narrow
            unbound = await verdict(mesh, f"b.test:{plain}/", "edge")
            assert "answered with 404: no virtual host is for" in unbound
            assert "VirtualService/shop/b has the host for Gateway/shop/missing, which does not exist" in unbound
            elsewhere = await verdict(mesh, f"c.test:{plain}/", "edge")
            assert f"Gateway/shop/one, whose server at port {plain} has other hosts: a.test" in elsewhere

            guessed = await said(mesh, "why", "web.test/", "--from", "web", code=1)
            assert f"GET http://web.test:{port}/: 90 % answered" in guessed
            assert f"note: no port given: web.test has {port}" in guessed
            refused = await said(mesh, "why", "https://web.test/", "--from", "web", code=1)
            assert refused == f"mesh-pilot: no port given: web.test has {port}\n"
            found = await said(mesh, "analyze", code=1)
            assert "Conflict with gateways shop/two" in found
            assert "Renew cert: its certificate expired at " in found
            assert "has the identity cluster.local/ns/shop/sa/defualt; did you mean shop/default? [MP0032]" in found

            await mesh.apply(SCRIPT, "script.yaml")

            async def is_told() -> bool:
                told = await said(mesh, "proxy-status", code=None)
                return "EnvoyFilter/shop/script" in told and "script load error" in told

            await eventually(is_told, what="the refusal is told, and its reason")

            async def is_withheld() -> bool:
                return "withheld" in await said(mesh, "get", "envoyfilter", "script", "-n", "shop", code=0)

            await eventually(is_withheld, what="it is withheld, and get says so")
            status = await said(mesh, "proxy-status", code=1)
            assert "EnvoyFilter/shop/script is withheld from edge.shop, web.shop" in status


def test_a_plane_that_is_down_is_one_line() -> None:
    done = mesh_pilot("why", "web.test/", "--from", "web", "--pilot", "127.0.0.1:1")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "127.0.0.1:1" in done.err


ROUTES = """
- route:
  - {destination: {host: web.test, subset: v1}, weight: 10}
  - {destination: {host: web.test, subset: v3}, weight: 90}
"""
WRONG = {"principals": ["cluster.local/ns/shop/sa/defualt"]}
BROKEN = (
    routes("web.test", ROUTES, name="web")
    + manifest(
        "AuthorizationPolicy",
        "own",
        {"selector": {"matchLabels": {"app": "web"}}, "rules": [{"from": [{"source": WRONG}]}]},
    )
    + manifest(
        "Sidecar",
        "web",
        {"workloadSelector": {"labels": {"app": "web"}}, "egress": [{"hosts": ["./*", "default/*"]}]},
    )
)
SCRIPT = envoy_filter(
    patch("HTTP_FILTER", "INSERT_BEFORE", {"name": "bad", "typed_config": BROKEN_LUA}, listener=in_filter(HCM)),
    name="script",
)


def gateways(plain: int, tls: int) -> str:
    """Two Gateways with one host and an old certificate, and VirtualServices: for one, for none, for another host."""
    servers = """
    - port: {number: $plain, name: http, protocol: HTTP}
      hosts: [a.test]
    - port: {number: $tls, name: https, protocol: HTTPS}
      hosts: [a.test]
      tls: {mode: SIMPLE, credentialName: cert}
    """
    found = "".join(gateway(name, servers, plain=plain, tls=tls) for name in ("one", "two"))
    bound = (("a.test", "one"), ("b.test", "missing"), ("c.test", "one"))
    return found + "".join(to(host, "web.test", name, name=host[0]) for host, name in bound)
