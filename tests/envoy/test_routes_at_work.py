"""What routes do to real requests, through a real Envoy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx
import pytest
import trio

from mesh_pilot.envoy.gateway.listeners import gateway_route
from mesh_pilot.model.resource import Resource
from tests.support.routed import routed
from tests.support.routing import config, resource, router, service, target, virtual_service
from tests.support.worlds import sidecar, world_of

pytestmark = pytest.mark.envoy

WEB, CANARY = (f"outbound|80||{name}.shop.svc.cluster.local" for name in ("web", "canary"))
TO_WEB, TO_CANARY = (f"route: [{{destination: {{host: {name}}}}}]" for name in ("web", "canary"))


def table(*rules: str, more: str = "") -> Resource | None:
    """The table of a world in which ``web`` is routed by these rules."""
    vs = virtual_service("web", f"{{hosts: [web], http: [{', '.join(rules)}]}}")
    return resource(world_of(service("web") + service("canary") + vs + more), "80", sidecar(namespace="shop"))


async def test_requests_go_where_their_attributes_say(tmp_path: Path) -> None:
    def canary(match: str) -> str:
        return f"{{match: [{match}], {TO_CANARY}}}"

    rules = [
        canary("{uri: {exact: /exact}}"),
        canary("{uri: {prefix: /prefix/}}"),
        canary("{uri: {regex: '/v[0-9]+'}}"),
        canary("{uri: {prefix: /Case}, ignoreUriCase: true}"),
        canary("{method: {exact: PUT}}"),
        canary("{authority: {prefix: 'web.shop'}}"),
        canary("{headers: {x-a: {exact: '1'}, x-b: {}}}"),
        canary("{uri: {prefix: /without}, withoutHeaders: {x-old: {exact: '1'}, x-any: {}}}"),
        canary("{uri: {exact: /query}, queryParams: {a: {prefix: b}}}"),
        canary("{uri: {exact: /query}, queryParams: {flag: {}}}"),
        f"{{{TO_WEB}}}",
    ]
    async with routed(table(*rules), tmp_path) as ask:

        async def went(path: str, host: str = "web", method: str = "GET", **headers: str) -> str:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await ask(f"http://{host}{path}", method, headers=given)).cluster

        assert await went("/exact") == await went("/prefix/x") == await went("/v12") == await went("/cAsE") == CANARY
        assert await went("/exact/") == await went("/prefix") == await went("/v12x") == await went("/") == WEB
        assert await went("/", method="PUT") == await went("/", "web.shop") == await went("/", "web.shop:80") == CANARY
        assert await went("/", x_a="1", x_b="") == CANARY
        assert await went("/", x_a="2", x_b="1") == await went("/", x_a="1") == WEB
        assert await went("/without") == await went("/without", x_old="2") == CANARY
        assert await went("/without", x_old="1") == await went("/without", x_any="1") == WEB
        assert await went("/query?a=bc") == await went("/query?x=1&flag") == CANARY
        assert await went("/query?a=cb") == await went("/query") == WEB
        assert await went("/", "canary.shop.svc.cluster.local") == CANARY
        assert await went("/", "unknown.example.com") == "PassthroughCluster"


async def test_requests_are_split_by_weight_and_none_goes_to_weight_zero(tmp_path: Path) -> None:
    split = (
        "{route: [{destination: {host: web}, weight: 80}, {destination: {host: canary}, weight: 20, headers: "
        "{request: {set: {x-lane: canary}}}}, {destination: {host: never}, weight: 0}]}"
    )
    async with routed(table(split), tmp_path) as ask:
        answers = [await ask("http://web/") for _ in range(200)]
        share = Counter(a.cluster for a in answers)
        assert share.keys() == {WEB, CANARY} and 10 < share[CANARY] < 80
        assert {a.seen.get("x-lane") for a in answers if a.cluster == CANARY} == {"canary"}
        assert {a.seen.get("x-lane") for a in answers if a.cluster == WEB} == {None}


async def test_requests_are_rewritten_redirected_and_answered(tmp_path: Path) -> None:
    rules = [
        f"{{match: [{{uri: {{prefix: /short/}}}}], rewrite: {{uri: /long/, authority: inner.com}}, {TO_WEB}}}",
        "{match: [{uri: {prefix: /re/}}], rewrite: {uriRegexRewrite: {match: '^/re/([^/]+)/(.*)$', "
        f"rewrite: '/\\2/\\1'}}}}, {TO_WEB}}}",
        "{match: [{uri: {exact: /old}}], redirect: {uri: /new, authority: x.com, redirectCode: 308}}",
        "{match: [{uri: {prefix: /secure}}], redirect: {scheme: https, port: 8443}}",
        "{match: [{uri: {prefix: /was/}}], redirect: {prefixRewrite: /is/}}",
        "{match: [{uri: {exact: /tea}}], directResponse: {status: 418, body: {string: short and stout}}}",
        "{headers: {request: {set: {x-set: s}, add: {x-add: a}, remove: [x-gone]}, "
        f"response: {{set: {{x-back: b}}, remove: [x-backend]}}}}, {TO_WEB}}}",
    ]
    async with routed(table(*rules), tmp_path) as ask:
        rewritten = await ask("http://web/short/a?b=c")
        assert (rewritten.path, rewritten.seen["host"]) == ("/long/a?b=c", "inner.com")
        assert (await ask("http://web/re/one/two")).path == "/two/one"
        old = await ask("http://web/old")
        assert (old.status, old.headers["location"]) == (308, "http://x.com/new")
        assert (await ask("http://web/secure/a")).headers["location"] == "https://web:8443/secure/a"
        assert (await ask("http://web/was/a")).headers["location"] == "http://web/is/a"
        tea = await ask("http://web/tea")
        assert (tea.status, tea.text) == (418, "short and stout")
        changed = await ask("http://web/", headers={"x-set": "old", "x-add": "old", "x-gone": "old"})
        assert changed.headers["x-back"] == "b" and "x-backend" not in changed.headers
        seen = httpx.Response(200, text=changed.text).json()["seen"]
        assert seen["x-set"] == "s" and "x-gone" not in seen and seen["x-add"] in ("a", "old,a")


async def test_requests_are_retried_and_given_up(tmp_path: Path) -> None:
    rules = [
        f"{{match: [{{uri: {{prefix: /never}}}}], retries: {{attempts: 0}}, {TO_WEB}}}",
        f"{{match: [{{uri: {{prefix: /429}}}}], retries: {{attempts: 3, retryOn: '429', backoff: 1ms}}, {TO_WEB}}}",
        f"{{match: [{{uri: {{prefix: /hurry}}}}], timeout: 50ms, {TO_WEB}}}",
        "{match: [{uri: {prefix: /try}}], retries: {attempts: 2, perTryTimeout: 50ms, retryOn: reset, backoff: 1ms}, "
        f"{TO_WEB}}}",
        f"{{{TO_WEB}}}",
    ]
    async with routed(table(*rules), tmp_path) as ask:
        calls = ask.backends[WEB].calls
        # An answer of the application is its answer: a payment is made once.
        assert (await ask("http://web/default", headers={"x-answer": "503,503,200"})).status == 503
        assert (await ask("http://web/never", headers={"x-answer": "503"})).status == 503
        assert (await ask("http://web/429", headers={"x-answer": "429"})).status == 429
        assert (await ask("http://web/hurry", headers={"x-hang": "1"})).status == 504
        assert (await ask("http://web/try", headers={"x-hang": "1"})).status == 504
        assert calls == {"/default": 1, "/never": 1, "/429": 4, "/hurry": 1, "/try": 3}


async def test_faults_are_injected_and_copies_are_sent(tmp_path: Path) -> None:
    def faulty(path: str, fault: str, more: str = "") -> str:
        return f"{{match: [{{uri: {{prefix: {path}}}}}], {more} fault: {{{fault}}}, {TO_WEB}}}"

    always = "percentage: {value: 100}"
    rules = [
        faulty("/abort", f"abort: {{httpStatus: 418, {always}}}"),
        faulty("/grpc", f"abort: {{grpcStatus: UNAVAILABLE, {always}}}"),
        faulty("/delay", f"delay: {{fixedDelay: 60ms, {always}}}", "timeout: 20ms,"),
        faulty("/none", "abort: {httpStatus: 418}"),
        f"{{match: [{{uri: {{prefix: /copy}}}}], mirrors: [{{destination: {{host: canary}}}}], {TO_WEB}}}",
    ]
    async with routed(table(*rules), tmp_path) as ask:
        assert (await ask("http://web/abort")).status == 418
        grpc = await ask("http://web/grpc", headers={"content-type": "application/grpc"})
        assert (grpc.status, grpc.headers["grpc-status"]) == (200, "14")
        started = trio.current_time()
        assert (await ask("http://web/delay")).status == 200
        assert trio.current_time() - started >= 0.06
        assert (await ask("http://web/none")).status == 200
        canary = ask.backends[CANARY]
        assert not canary.calls
        assert (await ask("http://web/copy")).cluster == WEB
        with trio.fail_after(60):
            await canary.called.wait()
        assert canary.calls == {"/copy": 1}


async def test_browsers_of_other_origins_are_told_what_they_may(tmp_path: Path) -> None:
    policy = (
        "corsPolicy: {allowOrigins: [{exact: 'https://a.com'}, {regex: 'https://.*[.]dev'}], allowMethods: [GET, PUT], "
        "allowHeaders: [x-one], maxAge: 90s, allowCredentials: true}"
    )
    async with routed(table(f"{{{policy}, {TO_WEB}}}"), tmp_path) as ask:

        async def preflight(origin: str) -> httpx.Headers:
            asked = {"origin": origin, "access-control-request-method": "PUT"}
            return (await ask("http://web/", "OPTIONS", headers=asked)).headers

        allowed = await preflight("https://x.dev")
        assert allowed["access-control-allow-origin"] == "https://x.dev"
        assert allowed["access-control-allow-methods"] == "GET,PUT"
        assert allowed["access-control-max-age"] == "90"
        assert "access-control-allow-origin" not in await preflight("https://b.com")
        plain = await ask("http://web/", headers={"origin": "https://a.com"})
        assert plain.headers["access-control-allow-origin"] == "https://a.com"
        assert plain.headers["access-control-allow-credentials"] == "true"


async def test_a_gateway_routes_by_host_on_whatever_port_and_redirects_to_https(tmp_path: Path) -> None:
    servers = (
        "{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*.com']}, "
        "{port: {number: 80, name: safe, protocol: HTTP}, hosts: [safe.org], tls: {httpsRedirect: true}}"
    )
    text = config("Gateway", "gw", f"{{selector: {{istio: edge}}, servers: [{servers}]}}", namespace="edge")
    text += virtual_service("a", f"{{hosts: [a.com], gateways: [edge/gw], http: [{{{TO_WEB}}}]}}")
    rule = f"{{match: [{{uri: {{prefix: /b}}}}], {TO_CANARY}}}"
    text += virtual_service("b", f"{{hosts: [a.com], gateways: [edge/gw], http: [{rule}]}}", age=1)
    world = world_of(service("web") + service("canary") + text)
    table = gateway_route(world.view, target(world, router()).workload, "http.80")
    async with routed(table, tmp_path) as ask:
        assert (await ask("http://a.com/")).cluster == (await ask("http://a.com:8080/")).cluster == WEB
        assert (await ask("http://a.com/b")).cluster == CANARY
        assert (await ask("http://b.com/")).status == 404
        moved = await ask("http://safe.org/x")
        assert (moved.status, moved.headers["location"]) == (301, "https://safe.org/x")
