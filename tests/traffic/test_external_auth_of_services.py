"""The Gateway API's filter ExternalAuth on routes of services: the client's sidecar asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import httpx
import pytest

from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.judge import judge
from tests.support.manifests import at, manifest, nobody, service
from tests.support.shop import CLIENT
from tests.traffic.test_external_auth import asks, to, verdict

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]


def route(name: str, *rules: str) -> str:
    """An HTTPRoute for the service ``NAME.test``."""
    parent = f"{{group: networking.istio.io, kind: ServiceEntry, name: {name}-test}}"
    spec = f"{{parentRefs: [{parent}], rules: [{', '.join(rules)}]}}"
    head = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n"
    return f"{head}metadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n"


def rule(path: str, name: str, port: int, *filters: str) -> str:
    match = f"[{{path: {{value: {path}}}}}]"
    return f"{{matches: {match}, filters: [{', '.join(filters)}], backendRefs: [{to(f'{name}.test', port)}]}}"


NARROW = "protocol: HTTP, http: {path: check/, allowedHeaders: [x-trace], allowedResponseHeaders: [x-user]}"
GRPC = "protocol: GRPC, grpc: {}"


@pytest.mark.parametrize("how", ["whole", "imported", "on-demand"])
async def test_a_sidecar_asks_about_the_rules_of_the_hosts_that_name_a_server(
    tmp_path: Path, free_ports: Ports, how: str
) -> None:
    port, asked, by_grpc, closed = free_ports(4)
    async with fleet(tmp_path) as mesh:
        app, auth = await mesh.backend("app"), await mesh.backend("auth")
        auth.answer = verdict
        hosts = ("one", "two", "free")
        sidecar = manifest("Sidecar", "default", {"egress": [{"hosts": [f"./{host}.test" for host in hosts]}]})
        with judge(by_grpc) as judged:
            await mesh.apply(
                "".join(service(f"{host}.test", port, at(app)) for host in hosts)
                + service("auth.test", asked, at(auth))
                + service("grpc.test", asked, nobody(by_grpc), protocol="GRPC")
                + service("away.test", asked, nobody(closed), protocol="GRPC")
                + route(
                    "one",
                    rule("/open", "one", port),
                    rule("/asked", "one", port, asks(to("auth.test", asked))),
                    rule("/narrow", "one", port, asks(to("auth.test", asked), NARROW)),
                    rule("/both", "one", port, asks(to("auth.test", asked)), asks(to("grpc.test", asked), GRPC)),
                    rule("/away", "one", port, asks(to("away.test", asked), GRPC)),
                    rule("/nowhere", "one", port, asks(to("nowhere.test", 80))),
                )
                + route("two", rule("/", "two", port, asks(to("grpc.test", asked), GRPC)))
                + (sidecar if how == "imported" else "")
            )
            metadata = {**CLIENT.metadata, "CLUSTERS": "on-demand"} if how == "on-demand" else CLIENT.metadata
            await mesh.envoy(attrs.evolve(CLIENT, metadata=metadata), delta=how == "on-demand")

            async def ask(path: str, host: str = "one.test", **headers: str) -> httpx.Response:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return await mesh.get(f"http://127.0.0.1:{port}{path}", host=host, headers=named)

            for host, path in (("one.test", "/open"), ("free.test", "/"), ("free.test", "/asked")):
                assert ((await ask(path, host)).status_code, auth.seen, judged.asked) == (200, [], [])

            refused = await ask("/asked/x", x_trace="1")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Basic")
            assert (app.asked("/asked/x"), auth.seen[-1]["path"]) == (0, "/asked/x")
            assert auth.seen[-1]["headers"]["host"] == "one.test"
            seen = (await ask("/asked", authorization="friend", x_user="forged")).json()["headers"]
            assert (seen["host"], seen["x-user"], seen["x-team"]) == ("one.test", "ann", "a")

            seen = (await ask("/narrow/x", authorization="friend", x_trace="1")).json()["headers"]
            assert (auth.seen[-1]["path"], auth.seen[-1]["headers"]["x-trace"]) == ("/check/narrow/x", "1")
            assert (seen["x-user"], "x-team" in seen) == ("ann", False)

            assert (await ask("/", "two.test", authorization="friend")).status_code == 403
            assert (await ask("/", "two.test", x_user="friend")).status_code == 200
            assert (await ask("/both", authorization="friend")).status_code == 403
            judged.everybody = True
            assert (await ask("/both", authorization="friend")).status_code == 200

            assert (await ask("/away", authorization="friend", x_user="friend")).status_code == 503
            assert (await ask("/nowhere", authorization="friend")).status_code == 500
            await mesh.assert_all_taken()


@pytest.mark.parametrize("how", ["whole", "delta", "split"])
async def test_a_change_lets_no_request_of_a_sidecar_pass_unasked(tmp_path: Path, free_ports: Ports, how: str) -> None:
    """Connections outlive the filters that they began with."""
    port, asked = free_ports(2)
    async with fleet(tmp_path) as mesh:
        app, auth = await mesh.backend("app"), await mesh.backend("auth")
        auth.answer = verdict
        services = service("one.test", port, at(app)) + service("auth.test", asked, at(auth))
        services += service("free.test", port, at(app))
        guarded = [
            route(
                "one",
                rule("/asked", "one", port, asks(to("auth.test", asked), f"protocol: HTTP, http: {{path: /{n}}}")),
            )
            for n in range(4)
        ]
        await mesh.apply(services + route("one", rule("/open", "one", port)))
        metadata = {**CLIENT.metadata, "VIRTUAL_HOSTS": "split"} if how == "split" else CLIENT.metadata
        await mesh.envoy(attrs.evolve(CLIENT, metadata=metadata), delta=how != "whole")
        url = f"http://127.0.0.1:{port}/asked"
        async with httpx.AsyncClient(timeout=60, trust_env=False, http2=True, http1=False) as client:
            for number, config in enumerate(guarded):
                await mesh.apply(services + config)

                async def is_asked(number: int = number) -> bool:
                    reply = await client.get(url, headers={"host": "one.test"})
                    fresh = await mesh.get(url, host="one.test")
                    assert {reply.status_code, fresh.status_code} <= {401, 404}
                    free = [await client.get(url, headers={"host": "free.test"}), await mesh.get(url, host="free.test")]
                    assert [each.status_code for each in free] == [200, 200]
                    return fresh.status_code == 401 and auth.seen[-1]["path"] == f"/{number}/asked"

                await eventually(is_asked, what=f"the server is asked at /{number}")
        assert {seen["headers"]["host"] for seen in app.seen} == {"free.test"}
        await mesh.assert_all_taken()
