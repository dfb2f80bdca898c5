"""Session persistence at a real Envoy: a cookie or a header keeps a client at its endpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, service
from tests.traffic.test_gateway_api_features import EDGE, gateway, route, to

pytestmark = pytest.mark.envoy


def rules(session: str, red: int = 1, blue: int = 1) -> str:
    refs = f"{to('red.test', 80, f', weight: {red}')}, {to('blue.test', 80, f', weight: {blue}')}"
    return f"  - {{sessionPersistence: {{{session}}}, backendRefs: [{refs}]}}\n"


async def test_a_session_keeps_its_endpoint_across_weights_and_endpoints_that_come(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        made = {name: await mesh.backend(name) for name in ("red1", "red2", "blue1", "blue2", "blue3")}

        def config(session: str, *blue: str, weights: tuple[int, int] = (1, 1)) -> str:
            return (
                service("red.test", 80, at(made["red1"]), at(made["red2"]))
                + service("blue.test", 80, *(at(made[name]) for name in blue))
                + gateway(http=("HTTP", port))
                + route("HTTPRoute", rules(session, *weights), "http")
            )

        named = "sessionName: shop"
        await mesh.apply(config(named, "blue1", "blue2"))
        await mesh.envoy(EDGE)
        clients = [httpx.AsyncClient(trust_env=False) for _ in range(8)]

        async def ask(client: httpx.AsyncClient) -> str:
            reply = await client.get(f"http://127.0.0.1:{port}/")
            assert reply.status_code == 200
            return str(reply.json()["name"])

        first = [await ask(client) for client in clients]
        for client in clients:
            assert [name for name in client.cookies if name.startswith("shop-")]
        for _ in range(5):
            assert [await ask(client) for client in clients] == first

        # New clients follow other weights, and old ones stay, also when endpoints come.
        await mesh.apply(config(named, "blue1", "blue2", "blue3", weights=(1, 1000)))

        async def weights_count() -> bool:
            async with httpx.AsyncClient(trust_env=False) as fresh:
                return await ask(fresh) == "blue3"

        await eventually(weights_count, what="new clients reach the new endpoint")
        assert [await ask(client) for client in clients] == first

        # Who was at an endpoint that is gone is given another one, and stays there.
        await mesh.apply(config(named, "blue3", weights=(1, 1000)))

        async def moved() -> bool:
            return not {"blue1", "blue2"} & {await ask(client) for client in clients}

        await eventually(moved, what="nobody is at an endpoint that is gone")
        second = [await ask(client) for client in clients]
        assert [a for a, b in zip(first, second, strict=True) if a.startswith("red")] == [
            b for a, b in zip(first, second, strict=True) if a.startswith("red")
        ]
        for client in clients:
            client.cookies.set(next(name for name in client.cookies if name.startswith("shop-")), "garbage")
            assert await ask(client) in made
            await client.aclose()
        await mesh.assert_all_taken()


async def test_a_header_and_a_lasting_cookie_of_one_backend_and_the_policy_of_a_service(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    header, cookie, policy = free_ports(3)
    one = "  - {sessionPersistence: {%s}, backendRefs: [" + to("red.test", 80) + "]}\n"
    lasting = "sessionName: shop, absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}"
    traffic = """---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackendTrafficPolicy
metadata: {name: blue, namespace: shop}
spec:
  targetRefs: [{group: "", kind: Service, name: blue}]
  sessionPersistence: {sessionName: blue}
"""
    async with fleet(tmp_path) as mesh:
        red = [await mesh.backend(f"red{n}") for n in range(3)]
        blue = [await mesh.backend(f"blue{n}") for n in range(3)]
        plain = f"  - backendRefs: [{to('blue.shop.svc.cluster.local', 80)}]\n"
        await mesh.apply(
            service("red.test", 80, *map(at, red))
            + service("blue.shop.svc.cluster.local", 80, *map(at, blue), name="blue")
            + gateway(header=("HTTP", header), cookie=("HTTP", cookie), policy=("HTTP", policy))
            + route("HTTPRoute", one % "type: Header, sessionName: x-session", "header")
            + route("HTTPRoute", one % lasting, "cookie")
            + route("HTTPRoute", plain, "policy")
            + traffic
        )
        await mesh.envoy(EDGE)
        reply = await mesh.get(f"http://127.0.0.1:{header}/")
        session = {"x-session": reply.headers["x-session"]}
        names = {(await mesh.get(f"http://127.0.0.1:{header}/", headers=session)).json()["name"] for _ in range(8)}
        assert names == {reply.json()["name"]}
        for port, name in ((cookie, "shop"), (policy, "blue")):
            reply = await mesh.get(f"http://127.0.0.1:{port}/")
            given = reply.headers["set-cookie"]
            assert given.startswith(f"{name}=") and ("Max-Age=3600" in given) == (port == cookie), given
            session = {"cookie": f"other=1; {given.partition(';')[0]}"}
            names = {(await mesh.get(f"http://127.0.0.1:{port}/", headers=session)).json()["name"] for _ in range(8)}
            assert names == {reply.json()["name"]}
        await mesh.assert_all_taken()
