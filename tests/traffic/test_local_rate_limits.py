"""LocalRateLimits at work in real Envoys: who is let in, and what the others are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
import trio

from tests.support.edge import gateway, to
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.guarded import HOST, Guarded, deny, guarded, policy
from tests.support.manifests import at, manifest, service
from tests.support.shop import EDGE

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]


def limit(name: str, spec: str, **more: str) -> str:
    return policy("LocalRateLimit", name, dedent(spec).strip(), **more)


HOUR = "interval: 1h"
"""So long that a test sees no second interval."""


async def statuses(guard: Guarded, count: int, path: str = "/", **more: object) -> list[int]:
    return [await guard.ask(path, **more) for _ in range(count)]  # type: ignore[arg-type]


async def test_requests_beyond_a_limit_are_refused(tmp_path: Path, free_ports: Ports) -> None:
    ports = free_ports(4)
    *_, own_http, own_tcp = ports
    async with guarded(tmp_path, ports) as guard:
        told = f"""
        http:
          limits: [{{rate: {{count: 3, {HOUR}}}}}]
          rateLimitHeaders: true
          responseHeaders: {{x-limited: "by front"}}
          status: 422
        """
        await guard.apply(limit("all", told), deny("secret", "[{to: [{operation: {paths: [/secret]}}]}]"))
        assert await statuses(guard, 5, "/secret") == [403] * 5, "who may not come in uses nothing up"
        first = await guard.reply()
        names = ("x-ratelimit-limit", "x-ratelimit-remaining")
        assert (first.status_code, *(first.headers[name] for name in names)) == (200, "3", "2")
        assert await statuses(guard, 3) == [200, 200, 422]
        over = await guard.reply()
        assert (over.status_code, over.headers["x-limited"], over.headers["x-ratelimit-remaining"]) == (
            422, "by front", "0",
        )  # fmt: skip
        assert await statuses(guard, 4, plain=True) == [200, 200, 200, 422], "another kind of connection"
        assert await guard.envoy.counted(r"^shop\.all\.http_local_rate_limit\.enforced$") == 3

        matched = f"""
        http:
          limits:
          - {{match: {{uri: {{exact: /one}}, method: {{exact: GET}}}}, rate: {{count: 1, {HOUR}}}}}
          - {{match: {{uri: {{prefix: /pre}}}}, rate: {{count: 1, {HOUR}}}}}
          - {{match: {{uri: {{regex: "/r[0-9]+"}}}}, rate: {{count: 1, {HOUR}}}}}
          - {{match: {{headers: {{x-plan: {{exact: free}}}}}}, rate: {{count: 2, {HOUR}}}}}
          - {{match: {{authority: {{exact: other.test}}}}, rate: {{count: 1, {HOUR}}}}}
          - {{port: {own_http}, match: {{withoutHeaders: {{x-user: {{}}}}, uri: {{exact: /anon}}}}, rate: {{count: 1, {HOUR}}}}}
          - {{port: {own_tcp}, rate: {{count: 1, {HOUR}}}}}
        """  # noqa: E501
        await guard.apply(limit("some", matched))
        assert await statuses(guard, 5) == [200] * 5, "no limit is for these"
        assert [await guard.ask(p) for p in ("/one", "/one?query", "/one/x", "/ones")] == [200, 429, 200, 200]
        assert await guard.ask("/one", method="POST") == 200
        assert [await guard.ask(p) for p in ("/pre", "/prefix", "/p")] == [200, 429, 200]
        assert [await guard.ask(p) for p in ("/r1", "/r22?x=1", "/r")] == [200, 429, 200]
        plans = [await guard.ask(headers={"x-plan": plan}) for plan in ("free", "paid", "free", "free", "paid")]
        assert plans == [200, 200, 200, 429, 200]
        assert await statuses(guard, 2, plain=True, host="other.test") == [200, 429]
        users = [await guard.ask("/anon", headers=who) for who in ({}, {}, {"x-user": "me"})]
        assert users == [200, 429, 200]

        tried = f"http: {{limits: [{{rate: {{count: 1, {HOUR}}}}}], enforcedPercent: 0}}"
        await guard.apply(limit("tried", tried))
        assert await statuses(guard, 4) == [200] * 4
        assert await guard.envoy.counted(r"^shop\.tried\.http_local_rate_limit\.rate_limited$") == 3
        assert await guard.envoy.counted(r"^shop\.tried\.http_local_rate_limit\.enforced$") == 0

        of_mesh = f"http: {{limits: [{{rate: {{count: 2, {HOUR}}}}}], status: 422}}"
        own = f"http: {{limits: [{{rate: {{count: 4, {HOUR}}}}}]}}"
        await guard.apply(limit("mesh", of_mesh, namespace="istio-system"), limit("own", own))
        assert await statuses(guard, 4) == [200, 200, 422, 422], "both apply"

        each = f"http: {{limits: [{{rate: {{count: 2, {HOUR}}}}}], perConnection: true}}"
        await guard.apply(limit("each", each))
        assert await statuses(guard, 6) == [200] * 6, "each comes by its own connection"

        await guard.apply(limit("elsewhere", of_mesh, namespace="other"))
        assert await statuses(guard, 4) == [200] * 4


async def test_a_bucket_is_filled_again_up_to_the_burst(tmp_path: Path, free_ports: Ports) -> None:
    async with guarded(tmp_path, free_ports(4)) as guard:
        await guard.apply(limit("often", "http: {limits: [{rate: {count: 1, interval: 0.2s, burst: 3}}]}"))
        assert Counter(await statuses(guard, 3)) == {200: 3}

        async def again() -> bool:
            return await guard.ask() == 200

        await eventually(again, what="the bucket has a token again")


async def test_connections_beyond_a_limit_are_closed(tmp_path: Path, free_ports: Ports) -> None:
    ports = free_ports(4)
    *_, own_tcp = ports
    async with guarded(tmp_path, ports) as guard:
        await guard.apply(limit("tcp", f"connections: [{{port: {own_tcp}, rate: {{count: 2, {HOUR}}}}}]"))
        found = [await guard.connect(), await guard.connect(plain=True), await guard.connect(), await guard.connect()]
        assert found == ["data", "data", "", ""], "connections of any kind have one bucket"
        assert await statuses(guard, 4) == [200] * 4
        assert await guard.envoy.counted(r"^local_rate_limit\.shop\.tcp\.rate_limited$") >= 2
        await guard.apply()
        assert await guard.connect() == "data"


@pytest.mark.smoke
async def test_a_gateway_has_limits_of_its_own(tmp_path: Path, free_ports: Ports) -> None:
    first, second, inner = free_ports(3)
    servers = """
    - {port: {number: $first, name: http-a, protocol: HTTP}, hosts: [shop.test]}
    - {port: {number: $second, name: http-b, protocol: HTTP}, hosts: [shop.test]}
    """
    spec = f"""
    selector: {{matchLabels: {{istio: edge}}}}
    http: {{limits: [{{port: {first}, rate: {{count: 2, {HOUR}}}}}]}}
    """
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        config = service(HOST, inner, at(app)) + gateway("edge", servers, first=first, second=second)
        config += to("shop.test", HOST, "edge") + manifest("LocalRateLimit", "edge", spec)
        await mesh.apply(config)
        await mesh.envoy(EDGE)

        async def ask(port: int) -> list[int]:
            return [(await mesh.get(f"http://127.0.0.1:{port}/", host="shop.test")).status_code for _ in range(4)]

        with trio.fail_after(30):
            assert [await ask(first), await ask(second)] == [[200, 200, 429, 429], [200] * 4]
        await mesh.assert_all_taken()
