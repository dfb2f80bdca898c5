"""GlobalRateLimits at work in real Envoys: what a server is told, who is let in, and what it costs to get no answer."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import attrs
import pytest

from tests.support.edge import to
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.guarded import HOST, Guarded, deny, guarded, policy
from tests.support.limiter import limiter, limits
from tests.support.manifests import at, manifest, service
from tests.support.shop import EDGE
from tests.support.tokens import Issuer
from tests.support.tutorial import environment, in_own_ports, put_tools, steps, terminal

pytestmark = pytest.mark.envoy

ROOT = Path(__file__).parents[2]
Ports = Callable[[int], list[int]]

LOGIN = Issuer("https://login.example.com")
PRINCIPAL = "cluster.local/ns/shop/sa/web"
SERVER = "ratelimit.infra.test"
"""Outside of what the Sidecar of the guarded workload imports."""


def server(port: int, at: int, protocol: str = "GRPC") -> str:
    """The service of a rate limit server that listens on a port of the loopback."""
    spec = f"""
    hosts: [{SERVER}]
    location: MESH_EXTERNAL
    resolution: STATIC
    ports: [{{number: {port}, name: main, protocol: {protocol}}}]
    endpoints: [{{address: 127.0.0.1, ports: {{main: {at}}}}}]
    """
    return manifest("ServiceEntry", "ratelimit", spec, namespace="infra")


def limit(name: str, port: int, spec: str, **more: str) -> str:
    """A GlobalRateLimit that asks the server; generous with time, as machines that run tests are busy."""
    what = dedent(spec).strip()
    timeout = "" if "timeout:" in what else "timeout: 5s\n"
    text = f"service: {{host: {more.pop('host', SERVER)}, port: {port}}}\ndomain: shop\n{timeout}{what}"
    return policy("GlobalRateLimit", name, text, **more)


async def statuses(guard: Guarded, count: int, path: str = "/", **more: object) -> list[int]:
    return [await guard.ask(path, **more) for _ in range(count)]  # type: ignore[arg-type]


def bearer(**claims: object) -> dict[str, str]:
    return {"authorization": f"Bearer {LOGIN.token(**claims)}"}  # type: ignore[arg-type]


BY_ALL = """
- {key: x-user, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: sub, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: tenant, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: "realm[id]", rate_limit: {unit: day, requests_per_unit: 1}}
- {key: source_principal, value: cluster.local/ns/shop/sa/web, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: path, value: /path, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: call, value: order, descriptors: [{key: x-user, rate_limit: {unit: day, requests_per_unit: 1}}]}
- {key: remote_address, rate_limit: {unit: day, requests_per_unit: 1}}
"""


async def test_a_server_counts_by_what_a_request_has(tmp_path: Path, free_ports: Ports) -> None:
    *ports, number, listening = free_ports(6)
    tokens = policy("RequestAuthentication", "tokens", f"jwtRules: [{{issuer: '{LOGIN.name}', jwks: '{LOGIN.jwks}'}}]")

    def one(entries: str, more: str = "") -> str:
        return limit("one", number, f"descriptors: [{{{more}entries: [{entries}]}}]")

    with limiter(listening, limits("shop", BY_ALL)) as counting:
        async with guarded(tmp_path, ports, more=server(number, listening)) as guard:
            told = """
            descriptors: [{entries: [{header: x-user}]}]
            status: 422
            responseHeaders: {x-limited: "by front"}
            rateLimitHeaders: true
            """
            secret = deny("secret", "[{to: [{operation: {paths: [/secret]}}]}]")
            await guard.apply(limit("one", number, told), secret)
            ann = {"x-user": "ann"}
            assert await statuses(guard, 4) == [200] * 4, "they lack the header"
            assert await statuses(guard, 3, "/secret", headers=ann) == [403] * 3, "who may not come in uses nothing up"
            assert counting.told == []
            first = await guard.reply(headers=ann)
            assert (first.status_code, first.headers["x-ratelimit-limit"].split(",")[0]) == (200, "2")
            assert first.headers["x-ratelimit-remaining"] == "1"
            assert await guard.ask(headers=ann, plain=True) == 200, "another kind of connection, and the same count"
            over = await guard.reply(headers=ann)
            assert (over.status_code, over.headers["x-limited"]) == (422, "by front")
            assert await statuses(guard, 3, headers={"x-user": "bob"}) == [200, 200, 422]
            assert counting.told == [[("x-user", "ann")]] * 3 + [[("x-user", "bob")]] * 3
            assert await guard.envoy.counted(r"\.ratelimit\.shop\.one\.over_limit$") == 2

            counting.forget()
            await guard.apply(one("{claim: sub}"), tokens)
            found = [await guard.ask(headers=bearer(subject=who)) for who in ("ann", "ann", "bob")]
            assert found == [200, 429, 200]
            assert await statuses(guard, 2) == [200] * 2, "they have no token"
            await guard.apply(one("{claim: tenant}"), tokens)
            found = [
                await guard.ask(headers=bearer(tenant=who)) for who in (7, 7, 8, ["a"], ["a"], {"a": "b"}, {"a": "b"})
            ]
            assert found == [200, 429, 200, 200, 200, 200, 200], "numbers count, and what has parts does not"
            await guard.apply(one('{claim: "realm[id]"}'), tokens)
            found = [await guard.ask(headers=bearer(realm={"id": who})) for who in ("a", "a", "b")]
            assert found == [200, 429, 200]
            names = {entry for (entry,) in counting.told}
            assert names == {
                ("sub", "ann"), ("sub", "bob"), ("tenant", "7"), ("tenant", "8"),
                ("realm[id]", "a"), ("realm[id]", "b"),
            }  # fmt: skip

            counting.forget()
            await guard.apply(one("{sourcePrincipal: true}"))
            assert await statuses(guard, 3, plain=True) == [200] * 3
            assert counting.told == [], "nobody is known in plaintext"
            assert await statuses(guard, 4) == [200, 200, 200, 429]
            assert counting.told == [[("source_principal", PRINCIPAL)]] * 4

            counting.forget()
            await guard.apply(one("{path: true}"))
            assert [await guard.ask(path) for path in ("/path", "/path?query", "/other", "/other")] == [
                200,
                429,
                200,
                200,
            ]
            assert counting.told[1] == [("path", "/path")]

            counting.forget()
            await guard.apply(
                one(
                    "{key: call, value: order}, {header: x-user}",
                    "match: {uri: {prefix: /orders}, method: {exact: POST}}, ",
                )
            )
            asked = [
                ("POST", "/orders/1", ann),
                ("POST", "/orders/1?q", ann),
                ("GET", "/orders/1", ann),
                ("POST", "/o", ann),
            ]
            found = [await guard.ask(path, method=method, headers=headers) for method, path, headers in asked]
            assert found == [200, 429, 200, 200]
            assert await guard.ask("/orders/1", method="POST", headers={"x-user": "bob"}) == 200
            assert counting.told[:2] == [[("call", "order"), ("x-user", "ann")]] * 2 and len(counting.told) == 3

            counting.forget()
            await guard.apply(one("{remoteAddress: true}"))
            assert await statuses(guard, 2, plain=True) == [200, 429]
            assert [key for ((key, _),) in counting.told] == ["remote_address"] * 2

            counting.forget()
            each = "descriptors: [{entries: [{header: x-user}]}, {port: 1, entries: [{path: true}]}]"
            own = "http: {limits: [{rate: {count: 1, interval: 1h}}]}"
            await guard.apply(limit("own", number, each), policy("LocalRateLimit", "own", own))
            assert await statuses(guard, 3, headers=ann) == [200, 429, 429]
            assert counting.told == [[("x-user", "ann")]], "what the proxy refuses itself it does not ask about"


async def test_requests_without_an_answer_are_let_in_or_refused(tmp_path: Path, free_ports: Ports) -> None:
    *ports, number, listening = free_ports(6)
    ann, descriptors = {"x-user": "ann"}, "descriptors: [{entries: [{header: x-user}]}]"
    deny_all = f"{descriptors}\nfailureModeDeny: true"
    some = limits("shop", "[{key: x-user, rate_limit: {unit: day, requests_per_unit: 1}}]")
    async with guarded(tmp_path, ports, more=server(number, listening)) as guard:
        await guard.apply(limit("one", number, descriptors))
        assert await statuses(guard, 3, headers=ann) == [200] * 3, "the server is away"
        assert await guard.envoy.counted(r"\.ratelimit\.shop\.one\.failure_mode_allowed$") == 3
        await guard.apply(limit("one", number, deny_all))
        assert await statuses(guard, 2, headers=ann) == [500] * 2
        assert await guard.ask() == 200, "it is about none of its descriptors"
        with limiter(listening, some):

            async def answered() -> bool:
                return await guard.ask(headers={"x-user": "bob"}) != 500

            await eventually(answered, what="the server is back")
            assert await statuses(guard, 2, headers=ann) == [200, 429]
            tried = f"{deny_all}\nenforcedPercent: 0"
            await guard.apply(limit("tried", number, tried))
            assert await statuses(guard, 2, headers=ann) == [200] * 2
            assert await guard.envoy.counted(r"\.ratelimit\.shop\.tried\.over_limit$") == 2
        assert await statuses(guard, 2, headers=ann) == [200] * 2, "nor refuses it without an answer"

        # A server that the mesh does not know is one that does not answer.
        for host, port in (("nowhere.infra.test", number), (SERVER, 1)):
            await guard.apply(limit("one", port, descriptors, host=host))
            assert await statuses(guard, 2, headers=ann) == [200] * 2
            await guard.apply(limit("one", port, deny_all, host=host))
            assert await statuses(guard, 2, headers=ann) == [500] * 2
        with limiter(listening, some):
            await guard.apply(limit("one", number, deny_all))
            await eventually(answered, what="the right server is asked")


@pytest.mark.smoke
async def test_gateways_share_a_count(tmp_path: Path, free_ports: Ports) -> None:
    first, second, inner, number, listening = free_ports(5)
    servers = "[{port: {number: %d, name: http, protocol: HTTP}, hosts: [shop.test]}]"
    some = limits("shop", "[{key: x-user, rate_limit: {unit: day, requests_per_unit: 3}}]")
    spec = "domain: shop\ntimeout: 5s\ndescriptors: [{entries: [{header: x-user}]}]"
    with limiter(listening, some) as counting:
        async with fleet(tmp_path) as mesh:
            app = await mesh.backend("app")
            config = service(HOST, inner, at(app)) + server(number, listening) + to("shop.test", HOST, "a", "b")
            for name, port in (("a", first), ("b", second)):
                config += manifest("Gateway", name, f"{{selector: {{istio: {name}}}, servers: {servers % port}}}")
            config += manifest("GlobalRateLimit", "all", f"service: {{host: {SERVER}, port: {number}}}\n{spec}")
            await mesh.apply(config)
            for name, address in (("a", "127.0.0.3"), ("b", "127.0.0.5")):
                await mesh.envoy(attrs.evolve(EDGE, name=name, ip=address, labels={"istio": name}))

            async def ask(port: int, user: str) -> int:
                url, headers = f"http://127.0.0.1:{port}/", {"x-user": user}
                return (await mesh.get(url, host="shop.test", headers=headers)).status_code

            for port in (first, second):

                async def counted(port: int = port) -> bool:
                    return await ask(port, f"warm-{port}") == 429

                await eventually(counted, what="the server is asked")
            found = [await ask(port, "ann") for port in (first, second, first, second, first)]
            assert Counter(found) == {200: 3, 429: 2} and found[3:] == [429, 429]
            assert [("x-user", "ann")] in counting.told
            await mesh.assert_all_taken()


@pytest.mark.slow
async def test_the_sample_is_as_it_says(tmp_path: Path, free_ports: Ports) -> None:
    """With the real server where the variable RATELIMIT names a folder with it and with redis-server."""
    shutil.copytree(ROOT / "samples" / "rate-limits", tmp_path / "samples" / "rate-limits")
    tools = tmp_path / "bin"
    put_tools(tools)
    real = os.environ.get("RATELIMIT")
    python = f"PYTHONPATH={shlex.quote(str(ROOT))}:$PYTHONPATH exec {shlex.quote(sys.executable)}"
    ours = {"service_cmd": f"{python} -m tests.support.limiter", "redis-server": "exec sleep 600"}
    for name, command in ours.items() if real is None else ():
        (tools / name).write_text(f"#!/bin/sh\n{command}\n")
        (tools / name).chmod(0o755)
    ports = ("6070", "6379", "8081", "8085", "9000", "9101")
    text = (ROOT / "samples" / "rate-limits" / "README.md").read_text(encoding="utf-8")
    walked = list(steps(in_own_ports(tmp_path / "samples", text, ports, free_ports)))
    assert sum(bool(step.output) for step in walked) == 6
    found = environment(tools) if real is None else environment(tools, PATH=f"{tools}:{real}:{os.environ['PATH']}")
    async with terminal(tmp_path, found) as shell:
        await shell.walk(walked)
