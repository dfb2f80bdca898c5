"""The Gateway API's filter ExternalAuth at a real Envoy: servers are asked about the rules that name them only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import h11
import httpx
import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.config import ConfigKey
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.judge import judge
from tests.support.manifests import at, nobody, service

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

EDGE = EnvoyNode(
    "edge-1", "shop", "127.0.0.3", type="router", labels={"gateway.networking.k8s.io/gateway-name": "edge"}
)
_HEAD = "---\napiVersion: gateway.networking.k8s.io/v1\n"


def gateway(port: int) -> str:
    listener = f"{{name: http, port: {port}, protocol: HTTP}}"
    spec = f"{{gatewayClassName: istio, listeners: [{listener}]}}"
    return f"{_HEAD}kind: Gateway\nmetadata: {{name: edge, namespace: shop}}\nspec: {spec}\n"


def route(name: str, *rules: str) -> str:
    """An HTTPRoute for the host of its name."""
    spec = f"{{parentRefs: [{{name: edge}}], hostnames: [{name}.test], rules: [{', '.join(rules)}]}}"
    return f"{_HEAD}kind: HTTPRoute\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n"


def to(host: str, port: int) -> str:
    return f"{{group: networking.istio.io, kind: Hostname, name: {host}, port: {port}}}"


def asks(backend: str, settings: str = "protocol: HTTP, http: {}") -> str:
    """The filter."""
    return f"{{type: ExternalAuth, externalAuth: {{backendRef: {backend}, {settings}}}}}"


def rule(path: str, *filters: str) -> str:
    match = f"[{{path: {{value: {path}}}}}]"
    return f"{{matches: {match}, filters: [{', '.join(filters)}], backendRefs: [{to('app.test', 80)}]}}"


def verdict(request: h11.Request, body: bytes) -> tuple[int, dict[str, str]]:
    headers = dict(request.headers)
    may = headers.get(b"authorization") == b"friend" or body == b"friend"
    return (200 if may else 401), {"x-user": "ann", "x-team": "a", "www-authenticate": "Basic", "content-type": "a/b"}


async def test_each_server_is_asked_about_the_rules_that_name_it(tmp_path: Path, free_ports: Ports) -> None:
    port, by_grpc = free_ports(2)
    async with fleet(tmp_path) as mesh:
        app, auth = await mesh.backend("app"), await mesh.backend("auth")
        auth.answer = verdict
        cors = "{type: CORS, cors: {allowOrigins: [http://page.test]}}"
        narrow = "protocol: HTTP, http: {path: check/, allowedHeaders: [X-Trace], allowedResponseHeaders: [X-User]}"
        body = "protocol: HTTP, http: {}, forwardBody: {maxSize: 10}"
        grpc = "protocol: GRPC, grpc: {allowedHeaders: [x-user]}"
        with judge(by_grpc) as judged:
            await mesh.apply(
                service("app.test", 80, at(app))
                + service("auth.test", 80, at(auth))
                + service("grpc.test", 80, nobody(by_grpc), protocol="GRPC")
                + gateway(port)
                + route(
                    "one",
                    rule("/open"),
                    rule("/asked", asks(to("auth.test", 80)), cors),
                    rule("/narrow", asks(to("auth.test", 80), narrow)),
                    rule("/body", asks(to("auth.test", 80), body)),
                    rule("/both", asks(to("auth.test", 80)), asks(to("grpc.test", 80), grpc)),
                )
                + route("two", rule("/", asks(to("grpc.test", 80), grpc)))
            )
            await mesh.envoy(EDGE)

            async def ask(
                path: str, host: str = "one.test", method: str = "GET", content: str | None = None, **headers: str
            ) -> httpx.Response:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                url = f"http://127.0.0.1:{port}{path}"
                return await mesh.get(url, host=host, method=method, headers=named, content=content)

            assert ((await ask("/open")).status_code, auth.seen, judged.asked) == (200, [], [])

            refused = await ask("/asked/x", x_trace="1")
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Basic")
            assert (app.asked("/asked/x"), auth.seen[-1]["path"]) == (0, "/asked/x")
            assert auth.seen[-1]["headers"]["host"] == "one.test"
            assert "x-trace" not in auth.seen[-1]["headers"]
            passed = await ask("/asked", authorization="friend", x_user="forged", content_type="own/type")
            seen = passed.json()["headers"]
            assert (passed.status_code, seen["x-user"], seen["x-team"]) == (200, "ann", "a")
            assert (seen["host"], seen["content-type"]) == ("one.test", "own/type")
            preflight = {"origin": "http://page.test", "access_control_request_method": "GET"}
            assert (await ask("/asked", method="OPTIONS", **preflight)).status_code == 200

            seen = (await ask("/narrow/x", authorization="friend", x_trace="1")).json()["headers"]
            assert (auth.seen[-1]["path"], auth.seen[-1]["headers"]["x-trace"]) == ("/check/narrow/x", "1")
            assert (seen["x-user"], "x-team" in seen) == ("ann", False)

            for content, status in (("friend", 200), ("enemy", 401), ("much too long", 413)):
                assert (content, (await ask("/body", method="POST", content=content)).status_code) == (content, status)
            assert (await ask("/asked", method="POST", content="friend")).status_code == 401

            assert (await ask("/", "two.test", authorization="friend")).status_code == 403
            assert (await ask("/", "two.test", x_user="friend", x_other="y")).status_code == 200
            told = judged.asked[-1].attributes.request.http
            assert (told.path, told.headers.get("x-user"), "x-other" in told.headers) == ("/", "friend", False)

            assert (await ask("/both", authorization="friend")).status_code == 403
            # The first server's answer replaces the header, and the second one hears of that.
            assert (await ask("/both", x_user="friend")).status_code == 401
            judged.everybody = True
            assert (await ask("/both", authorization="friend")).status_code == 200
            await mesh.assert_all_taken()


async def test_without_an_answer_nothing_passes(tmp_path: Path, free_ports: Ports) -> None:
    port, closed = free_ports(2)
    cases = {
        "away": (asks(to("away.test", 80)), 503),
        "calls": (asks(to("calls.test", 80), "protocol: GRPC, grpc: {}"), 503),
        "nowhere": (asks(to("nowhere.test", 80)), 500),
        "other-port": (asks(to("app.test", 81)), 500),
        "plain": (asks(to("app.test", 80), "protocol: GRPC, grpc: {}"), 500),
        "foreign": (asks("{name: auth, namespace: bank, port: 80}"), 500),
    }
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(
            service("app.test", 80, at(app))
            + service("away.test", 80, nobody(closed))
            + service("calls.test", 80, nobody(closed), protocol="GRPC")
            + gateway(port)
            + "".join(route(name, rule("/asked", auth), rule("/open")) for name, (auth, _) in cases.items())
        )
        await mesh.envoy(EDGE)
        found = {}
        for name in cases:
            assert (await mesh.get(f"http://127.0.0.1:{port}/open", host=f"{name}.test")).status_code == 200
            found[name] = (await mesh.get(f"http://127.0.0.1:{port}/asked", host=f"{name}.test")).status_code
        assert found == {name: status for name, (_, status) in cases.items()}
        reasons = {}
        for name in cases:
            status = mesh.plane.state.world.object_status(ConfigKey("HTTPRoute", "shop", name))
            assert status is not None
            reasons[name] = status["parents"][0]["conditions"][1]["reason"]
        assert reasons == {
            "away": "ResolvedRefs",
            "calls": "ResolvedRefs",
            "nowhere": "BackendNotFound",
            "other-port": "BackendNotFound",
            "plain": "UnsupportedProtocol",
            "foreign": "RefNotPermitted",
        }
        assert {seen["path"] for seen in app.seen} == {"/open"}
        await mesh.assert_all_taken()


@pytest.mark.parametrize("how", ["whole", "delta", "split"])
async def test_a_change_lets_no_request_pass_unasked(tmp_path: Path, free_ports: Ports, how: str) -> None:
    """Connections outlive the filters that they began with."""
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        app, auth = await mesh.backend("app"), await mesh.backend("auth")
        auth.answer = verdict
        services = service("app.test", 80, at(app)) + service("auth.test", 80, at(auth)) + gateway(port)
        guarded = [
            route("one", rule("/asked", asks(to("auth.test", 80), f"protocol: HTTP, http: {{path: /{number}}}")))
            for number in range(4)
        ]
        await mesh.apply(services + route("one", rule("/open")))
        split = {"VIRTUAL_HOSTS": "split"} if how == "split" else {}
        await mesh.envoy(attrs.evolve(EDGE, metadata={**EDGE.metadata, **split}), delta=how != "whole")
        url = f"http://127.0.0.1:{port}/asked"
        async with httpx.AsyncClient(timeout=60, trust_env=False, http2=True, http1=False) as client:
            for config in guarded:
                await mesh.apply(services + config)
                wanted = str(guarded.index(config))

                async def is_asked(wanted: str = wanted) -> bool:
                    reply = await client.get(url, headers={"host": "one.test"})
                    fresh = await mesh.get(url, host="one.test")
                    assert {reply.status_code, fresh.status_code} <= {401, 404}
                    return fresh.status_code == 401 and auth.seen[-1]["path"] == f"/{wanted}/asked"

                await eventually(is_asked, what=f"the server is asked at /{wanted}")
        assert app.seen == []
        await mesh.assert_all_taken()
