"""The Gateway API at a real Envoy: retries and time limits of HTTPRoutes, h2c backends, GRPCRoutes and TCPRoutes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Any

import h11
import httpx
import pytest
import trio

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from tests.support.certificates import serving, write_certificates
from tests.support.echo import Backend, greeting
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, service
from tests.support.proxyless import grpc_peers

pytestmark = pytest.mark.envoy

EDGE = EnvoyNode(
    "edge-1", "shop", "127.0.0.3", type="router", labels={"gateway.networking.k8s.io/gateway-name": "edge"}
)
_HEAD = "---\napiVersion: gateway.networking.k8s.io/v1\n"
GATEWAY = (
    _HEAD
    + """kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  listeners:
"""
)
ROUTE = _HEAD + "kind: $kind\nmetadata: {name: $name, namespace: shop}\nspec:\n  parentRefs: [{name: edge}]\n"


def gateway(**listeners: tuple[str, int]) -> str:
    lines = (f"  - {{name: {name}, protocol: {one[0]}, port: {one[1]}}}\n" for name, one in listeners.items())
    return GATEWAY + "".join(lines)


def route(kind: str, rules: str, section: str) -> str:
    head = (
        Template(ROUTE)
        .substitute(kind=kind, name=section)
        .replace("{name: edge}", f"{{name: edge, sectionName: {section}}}")
    )
    return f"{head}  rules:\n{rules}"


def to(host: str, port: int, more: str = "") -> str:
    return f"{{group: networking.istio.io, kind: Hostname, name: {host}, port: {port}{more}}}"


RULES = f"""
  - matches: [{{path: {{value: /codes}}}}]
    retry: {{codes: [500], attempts: 2, backoff: 1ms}}
    backendRefs: [{to("app.test", 80)}]
  - matches: [{{path: {{value: /broken}}}}]
    retry: {{attempts: 2, backoff: 1ms}}
    backendRefs: [{to("app.test", 80)}]
  - matches: [{{path: {{value: /tries}}}}]
    retry: {{attempts: 2, backoff: 1ms}}
    timeouts: {{backendRequest: 100ms}}
    backendRefs: [{to("app.test", 80)}]
  - matches: [{{path: {{value: /limited}}}}]
    timeouts: {{backendRequest: 100ms}}
    backendRefs: [{to("app.test", 80)}]
"""


def failing(
    backend: Backend, times: int, status: int
) -> Callable[[h11.Request, bytes], tuple[int, dict[str, str]] | None]:
    """Fail that many requests of each path, then answer. Status 0 breaks the connection."""

    def answer(request: h11.Request, body: bytes) -> tuple[int, dict[str, str]] | None:
        if backend.asked(request.target.decode()) > times:
            return None
        if not status:
            raise trio.BrokenResourceError
        return status, {}

    return answer


async def test_http_routes_try_again_and_give_up_in_time(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(
            service("app.test", 80, at(app)) + gateway(http=("HTTP", port)) + route("HTTPRoute", RULES, "http")
        )
        envoy = await mesh.envoy(EDGE)

        async def status(path: str) -> int:
            return (await mesh.get(f"http://127.0.0.1:{port}{path}")).status_code

        for path, times, fails_with, expected in (
            ("/codes/a", 2, 500, 200),
            ("/codes/b", 3, 500, 500),
            ("/codes/c", 1, 501, 501),
            ("/broken/a", 2, 0, 200),
            ("/broken/b", 3, 0, 503),
        ):
            app.answer = failing(app, times, fails_with)
            assert (path, await status(path)) == (path, expected)
            assert app.asked(path) == (1 if fails_with == 501 else 3)
        app.answer, app.gate = None, trio.Event()
        assert await status("/tries") == 504
        # Envoy's own count: this process may have been too busy to see a try before it was given up.
        assert await envoy.counted("app.test.*upstream_rq_per_try_timeout$") == 3
        assert await status("/limited") == 504
        assert await envoy.counted("app.test.*upstream_rq_timeout$") == 1
        app.gate.set()
        assert await status("/limited") == 200
        await mesh.assert_all_taken()


CALLS = f"""
  - matches: [{{method: {{service: test.Echo, method: Say}}, headers: [{{name: to, value: two}}]}}]
    backendRefs: [{to("two.test", 90)}]
  - matches: [{{method: {{service: test.Echo, method: Say}}}}]
    filters: [{{type: RequestHeaderModifier, requestHeaderModifier: {{set: [{{name: seen, value: edge}}]}}}}]
    backendRefs: [{to("one.test", 90)}]
  - matches: [{{method: {{type: RegularExpression, service: "test[.][A-Z].*"}}}}]
    backendRefs: [{to("one.test", 90, ", weight: 0")}, {to("two.test", 90)}]
"""
H2C = f"""
  - matches: [{{path: {{value: /test.Echo}}, method: POST}}]
    backendRefs: [{to("two.test", 90)}]
"""
BYTES = f"""
  - backendRefs: [{to("red.test", 70)}, {to("blue.test", 70)}, {to("unused.test", 70, ", weight: 0")}]
"""
NOWHERE = f"""
  - backendRefs: [{to("red.test", 70, ", weight: 0")}]
"""


async def test_calls_and_connections_go_where_grpc_routes_and_tcp_routes_say(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    calls, h2c, stream, nowhere = free_ports(4)
    async with grpc_peers("127.0.0.1:1", tmp_path) as peers, fleet(tmp_path) as mesh:
        peer = await peers.start("peer")
        colours = {name: await mesh.tcp_backend(name) for name in ("red", "blue", "unused")}
        named = {name: {"address": "127.0.0.1", "ports": {"main": await peer.serve(name)}} for name in ("one", "two")}
        await mesh.apply(
            service("one.test", 90, named["one"], protocol="GRPC")
            + service("two.test", 90, named["two"], protocol="HTTP2")
            + "".join(service(f"{name}.test", 70, at(each), protocol="TCP") for name, each in colours.items())
            + gateway(calls=("HTTP", calls), h2c=("HTTP", h2c), stream=("TCP", stream), nowhere=("TCP", nowhere))
            + route("GRPCRoute", CALLS, "calls")
            + route("HTTPRoute", H2C, "h2c")
            + route("TCPRoute", BYTES, "stream")
            + route("TCPRoute", NOWHERE, "nowhere")
        )
        await mesh.envoy(EDGE)
        edge = f"127.0.0.1:{calls}"
        said = await peer.call(edge)
        assert said["answers"] == {"one": 1} and '"seen": "edge"' in said["last"]
        assert await peer.answers(edge, 2, metadata={"to": "two"}) == {"two": 2}
        assert await peer.answers(edge, 2, method="/test.Echo/Other") == {"two": 2}
        assert await peer.answers(edge, 1, method="/other.Echo/Say") == {"UNIMPLEMENTED": 1}
        assert await peer.answers(f"127.0.0.1:{h2c}", 2) == {"two": 2}

        seen: set[str] = set()

        async def both() -> bool:
            seen.add(await greeting("127.0.0.1", stream))
            return {"red", "blue"} <= seen

        await eventually(both, what="connections are spread over both services")
        assert seen == {"red", "blue"}
        assert await greeting("127.0.0.1", nowhere) == ""
        await mesh.assert_all_taken()


PATHS: tuple[tuple[str, str, str, str, dict[str, str]], ...] = (
    ("/foo", "urlRewrite", "ReplacePrefixMatch", "/bar/", {"/foo": "/bar", "/foo/x?q=1": "/bar/x?q=1"}),
    ("/foo/", "urlRewrite", "ReplacePrefixMatch", "/", {"/foo": "/", "/foo/x": "/x"}),
    ("/", "urlRewrite", "ReplacePrefixMatch", "/bar", {"/": "/bar/", "/x": "/bar/x"}),
    ("/", "urlRewrite", "ReplaceFullPath", "", {"/x?q=1": "/?q=1"}),
    ("/", "urlRewrite", "ReplaceFullPath", "/\\\\1", {"/x": "/\\1"}),
    ("/foo/", "requestRedirect", "ReplacePrefixMatch", "/bar/", {"/foo": "/bar", "/foo/": "/bar/", "/foo/x": "/bar/x"}),
    ("/foo", "requestRedirect", "ReplacePrefixMatch", "", {"/foo": "/", "/foo/": "/", "/foo/x?q=1": "/x?q=1"}),
    ("/", "requestRedirect", "ReplacePrefixMatch", "/bar", {"/": "/bar/", "/x": "/bar/x"}),
    ("/", "requestRedirect", "ReplaceFullPath", "", {"/x": "/"}),
)
"""The prefix that a rule matches, its filter, and the paths that become of others."""
FILTERS = {"urlRewrite": "URLRewrite", "requestRedirect": "RequestRedirect"}


async def test_paths_are_replaced_by_whole_elements(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    written = ""
    for index, (prefix, kind, type, replacement, _) in enumerate(PATHS):
        path = f'{{type: {type}, r{type[1:]}: "{replacement}"}}'
        filters = f"[{{type: {FILTERS[kind]}, {kind}: {{path: {path}}}}}]"
        backends = f", backendRefs: [{to('app.test', 80)}]" if kind == "urlRewrite" else ""
        rules = f"  - {{matches: [{{path: {{value: {prefix}}}}}], filters: {filters}{backends}}}\n"
        routed = route("HTTPRoute", rules, "http").replace("{name: http,", f"{{name: path-{index},")
        written += f"{routed}  hostnames: [path-{index}.test]\n"
    async with fleet(tmp_path) as mesh:
        app = await mesh.backend("app")
        await mesh.apply(service("app.test", 80, at(app)) + gateway(http=("HTTP", port)) + written)
        await mesh.envoy(EDGE)
        wrong = []
        for index, (*_, paths) in enumerate(PATHS):
            for asked, expected in paths.items():
                reply = await mesh.get(f"http://127.0.0.1:{port}{asked}", host=f"path-{index}.test")
                place = reply.headers.get("location")
                found = place.removeprefix(f"http://path-{index}.test:{port}") if place else reply.json()["path"]
                if found != expected:
                    wrong.append((PATHS[index][:4], asked, found))
        assert wrong == []
        await mesh.assert_all_taken()


APP, OTHER, SAFE, BANK = "{name: app, port: 80}", "{name: other, port: 80}", "{name: safe, port: 80}", "namespace: bank"
MIRROR = "{type: RequestMirror, requestMirror: {backendRef: {name: other, port: 80}%s}}"
REDIRECT = "{type: RequestRedirect, requestRedirect: {%s}}"
AWAY = REDIRECT % "hostname: b.test"
REWRITE = "{type: URLRewrite, urlRewrite: {hostname: b.test}}"
SET = "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: seen, value: backend}]}}"
MORE = "\n".join(
    f"  - {line}"
    for line in (
        f"{{matches: [{{path: {{value: /query}}, queryParams: [{{name: a, value: b}}]}}], backendRefs: [{OTHER}]}}",
        f"{{matches: [{{path: {{value: /query}}}}], backendRefs: [{APP}]}}",
        f"{{matches: [{{path: {{value: /port}}}}], filters: [{REDIRECT % 'port: 8443, hostname: a.test'}]}}",
        *(
            f"{{matches: [{{path: {{value: /{code}}}}}], filters: [{REDIRECT % f'statusCode: {code}'}]}}"
            for code in (303, 307, 308)
        ),
        f"{{matches: [{{path: {{value: /seen}}}}], backendRefs: [{APP[:-1]}, filters: [{SET}]}}]}}",
        f"{{matches: [{{path: {{value: /away}}}}], backendRefs: [{APP[:-1]}, filters: [{AWAY}]}}]}}",
        f"{{matches: [{{path: {{value: /host}}}}], backendRefs: [{APP[:-1]}, filters: [{REWRITE}]}}]}}",
        f"{{matches: [{{path: {{value: /mirrors}}}}], filters: [{MIRROR % ''}, {MIRROR % ', percent: 100'}], "
        f"backendRefs: [{APP}]}}",
        f"{{matches: [{{path: {{value: /unseen}}}}], filters: [{MIRROR % ', percent: 0'}], backendRefs: [{APP}]}}",
        "{matches: [{path: {value: /cors}}], filters: [{type: CORS, cors: {allowOrigins: ['https://a.test'], "
        f"allowMethods: [PUT], maxAge: 7}}}}], backendRefs: [{APP}]}}",
        f"{{matches: [{{path: {{value: /granted}}}}], backendRefs: [{{name: vault, {BANK}, port: 80}}]}}",
        f"{{matches: [{{path: {{value: /refused}}}}], backendRefs: [{{name: till, {BANK}, port: 80}}]}}",
        f"{{matches: [{{path: {{value: /safe}}}}], backendRefs: [{SAFE}]}}",
    )
)
OBJECTS = """---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: vault, namespace: bank}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: "", kind: Service, name: vault}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: safe, namespace: shop}
spec:
  targetRefs: [{group: "", kind: Service, name: safe}]
  validation: {hostname: $hostname, caCertificateRefs: [{group: "", kind: ConfigMap, name: roots}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: roots, namespace: shop}
data: {ca.crt: $roots}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more, namespace: shop}
spec:
  parentRef: {name: edge}
  listeners: [{name: more, port: $more, protocol: HTTP}, {name: unused, port: $unused, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: more, namespace: shop}
spec:
  parentRefs: [{name: more, kind: ListenerSet, group: gateway.networking.k8s.io, port: $more}]
  rules: [{backendRefs: [{name: other, port: 80}]}]
"""


async def test_other_features_of_http_routes(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    port, more, unused = free_ports(3)
    files = write_certificates(tmp_path, "safe", dns=("safe.test",))
    async with fleet(tmp_path) as mesh:
        app, other, safe = [
            await mesh.backend(n, tls=serving(files) if n == "safe" else None) for n in ("app", "other", "safe")
        ]
        places = (
            ("app", "shop", app),
            ("other", "shop", other),
            ("safe", "shop", safe),
            ("vault", "bank", app),
            ("till", "bank", app),
        )
        written = "".join(
            service(f"{name}.{place}.svc.cluster.local", 80, at(backend), namespace=place)
            for name, place, backend in places
        ) + gateway(http=("HTTP", port)).replace(
            "  listeners:", "  allowedListeners: {namespaces: {from: Same}}\n  listeners:"
        )
        written += route("HTTPRoute", MORE + "\n", "http")

        def objects(hostname: str, roots: str = files.ca.read_text()) -> str:
            given = {"hostname": hostname, "roots": json.dumps(roots), "more": more, "unused": unused}
            return written + Template(OBJECTS).substitute(given)

        await mesh.apply(objects("safe.test"))
        await mesh.envoy(EDGE)

        async def ask(path: str, at_port: int = port, **options: Any) -> httpx.Response:
            return await mesh.get(f"http://127.0.0.1:{at_port}{path}", host="x.test", **options)

        answers = {
            path: await ask(path) for path in ("/query?a=b", "/query?a=c", "/seen", "/granted", "/safe", "/unseen")
        }
        assert [(r.status_code, r.json()["name"]) for r in answers.values()] == [
            (200, name) for name in ("other", "app", "app", "app", "safe", "app")
        ]
        assert answers["/seen"].json()["headers"]["seen"] == "backend"
        assert (await ask("/refused")).status_code == 500
        assert (await ask("/", more)).json()["name"] == "other"
        assert (await ask("/", unused)).status_code == 404
        assert (await ask("/host")).json()["headers"]["host"] == "b.test"
        for path, status, location in (
            ("/port", 302, "http://a.test:8443/port"),
            ("/303", 303, f"http://x.test:{port}/303"),
            ("/307", 307, f"http://x.test:{port}/307"),
            ("/308", 308, f"http://x.test:{port}/308"),
            ("/away", 302, f"http://b.test:{port}/away"),
        ):
            reply = await ask(path)
            assert (reply.status_code, reply.headers["location"]) == (status, location)
        preflight = {"origin": "https://a.test", "access-control-request-method": "PUT"}
        allowed = (await ask("/cors", method="OPTIONS", headers=preflight)).headers
        assert (allowed["access-control-allow-origin"], allowed["access-control-max-age"]) == ("https://a.test", "7")
        refused = await ask("/cors", method="OPTIONS", headers={**preflight, "origin": "https://b.test"})
        assert "access-control-allow-origin" not in refused.headers
        assert (await ask("/mirrors")).json()["name"] == "app"
        await eventually(lambda: other.asked("/mirrors") == 2, what="both mirrors are asked")
        assert other.asked("/unseen") == 0
        await mesh.apply(objects("elsewhere.test"))

        async def refuses() -> bool:
            return (await ask("/safe")).status_code == 503

        async def trusts() -> bool:
            return (await ask("/safe")).status_code == 200

        await eventually(refuses, what="a certificate of another name is not trusted")
        await mesh.apply(objects("safe.test"))
        await eventually(trusts, what="the backend is trusted")
        for roots in ("", "not a certificate"):
            mesh.write(objects("safe.test", roots))
            await eventually(refuses, what="without valid CA certificates nobody is trusted")
            await mesh.apply(objects("safe.test"))
            await eventually(trusts, what="the backend is trusted")
        await mesh.assert_all_taken()
