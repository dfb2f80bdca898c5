"""The API of a whole control plane in-process: its routes, its lists in pieces, its errors, its description."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.requests import Request

from mesh_pilot.model.json import as_json
from mesh_pilot.ops.access.gate import Gate, Need
from mesh_pilot.ops.api.app import BASE, api_routes
from mesh_pilot.ops.api.paging import Paging
from mesh_pilot.ops.api.visitors import Role, Scope, Visitor
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.command import Done, mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane
from tools import gen_api_docs

pytestmark = pytest.mark.plane

BROKEN = SERVICE.replace("name: reviews", "name: ratings").replace("9080", "many")
ROUTE = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec: {hosts: [reviews.test], http: [{route: [{destination: {host: reviews.test}}]}]}
"""


class Api:
    """A control plane, and a client of its API."""

    def __init__(self, plane: Any, client: httpx.AsyncClient) -> None:
        self.plane = plane
        self.client = client

    async def get(self, path: str, status: int = 200, **query: Any) -> Any:
        reply = await self.client.get(f"http://{self.plane.addresses.http}{BASE}{path}", params=query or None)
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "application/json"
        return reply.json()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    config = tmp_path / "config"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    (config / "b.yaml").write_text(BROKEN)
    (config / "c.yaml").write_text(ROUTE)
    state = StateSettings(folder=tmp_path / "state")
    async with running_plane(config, state=state) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        yield Api(plane, client)


async def test_each_route_answers_and_each_mistake_is_one_line(api: Api) -> None:
    status = await api.get("/status")
    assert status["ready"] is True
    assert (status["counts"]["services"], status["counts"]["rejected"]) == (1, 1)

    objects = await api.get("/objects", kind="virtualservice")
    assert [each["name"] for each in objects["items"]] == ["reviews"]
    assert objects["items"][0]["origin"].endswith("/c.yaml:1")
    assert (await api.get("/objects", q="nothing of it"))["items"] == []
    one = await api.get("/objects/VirtualService/shop/reviews")
    assert (one["object"]["spec"]["hosts"], one["problems"], one["produces"]) == (["reviews.test"], [], [])
    refused = await api.get("/objects/ServiceEntry/shop/ratings")
    assert refused["object"] is None
    assert "whole number" in refused["problems"][0]["reason"]

    (service,) = (await api.get("/services", namespace="shop"))["items"]
    assert (service["host"], service["health"]) == ("reviews.test", {"HEALTHY": 1})
    full = await api.get("/services/shop/reviews.test")
    assert [each["address"] for each in full["endpoints"]] == ["10.0.0.1"]
    assert (await api.get("/endpoints", health="unhealthy"))["items"] == []
    (endpoint,) = (await api.get("/endpoints", address="10.0.0.1"))["items"]
    assert (endpoint["service"], endpoint["port"]) == ("reviews.test", 9080)

    sources = {each["name"]: each for each in await api.get("/sources")}
    assert (sources["files"]["state"], sources["files"]["items"] > 0) == ("synced", True)
    assert (await api.get("/rejections"))["configs"][0]["object"] == "ServiceEntry/shop/ratings"
    assert await api.get("/proxies") == []
    assert await api.get("/proxies", limit=10) == {"items": [], "total": 0, "offset": 0, "counts": {}}

    for path, status, reason in (
        ("/nothing", 404, "no /api/v1/nothing in this API; see /api/v1/openapi.json"),
        ("/objects?kint=x", 400, "GET /api/v1/objects has no parameter 'kint'; there are kind, namespace"),
        ("/objects?limit=0", 400, "limit=0: must be a number from 1 to 1000"),
        ("/services?limit=many", 400, "limit=many: must be a number from 1 to 1000"),
        ("/objects/VirtualService/shop/nobody", 404, "no object VirtualService/shop/nobody"),
        ("/services/shop/nobody.test", 404, "no service nobody.test in namespace shop"),
        ("/proxies/nobody.shop/config_dump", 404, "no connected proxy 'nobody.shop'"),
        ("/history?since=yesterday", 400, "since=yesterday: write it as 2026-11-22T10:00:00Z"),
        ("/history/999", 404, "revision 999 is not kept"),
        ("/history/x", 404, "no revision 'x': it must be a number of at most 18 digits"),
        (f"/history/{'9' * 30}", 404, "it must be a number of at most 18 digits"),
        (f"/history/{'9' * 5000}/diff", 404, "it must be a number of at most 18 digits"),
    ):
        assert reason in (await api.get(path, status))["error"]


async def test_answers_and_files_of_the_page_are_compressed_for_clients_that_take_it(api: Api) -> None:
    base = f"http://{api.plane.addresses.http}"
    for path in (f"{BASE}/openapi.json", "/page/app.js"):
        packed = await api.client.get(base + path, headers={"accept-encoding": "gzip"})
        plain = await api.client.get(base + path, headers={"accept-encoding": "identity"})
        assert packed.headers.get("content-encoding") == "gzip" and "content-encoding" not in plain.headers, path
        assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
        assert packed.content == plain.content
    assert "content-encoding" not in (await api.client.get(f"{base}{BASE}/whoami")).headers, "it is small"


async def test_who_asks_is_told_the_name_and_the_role(api: Api) -> None:
    assert await api.get("/whoami") == {
        "name": "anybody on this machine",
        "role": "view",
        "how": "loopback",
        "may_log_out": False,
        "roles": {"*": "view"},
        "subject": "",
        "groups": [],
    }


async def test_methods_that_a_path_does_not_take_are_named(api: Api) -> None:
    url = f"http://{api.plane.addresses.http}{BASE}"
    reply = await api.client.put(f"{url}/services", headers={"x-mesh-pilot": "1"})
    assert reply.status_code == 403, "a change needs the role operate, whatever it is"
    socket = httpx.AsyncHTTPTransport(uds=str(api.plane.state.recorder.store.settings.folder / "admin.sock"))
    async with httpx.AsyncClient(transport=socket, timeout=60) as operator:
        reply = await operator.put(f"http://admin{BASE}/services")
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD")
        assert reply.json()["error"] == "/api/v1/services takes GET, HEAD, not PUT"
        reply = await operator.post(f"http://admin{BASE}/logs", content=b"[" * 10_000)
        assert (reply.status_code, "is not JSON" in reply.json()["error"]) == (400, True)
        reply = await operator.post(f"http://admin{BASE}/logs", json={"level": "x", "reset": True})
        assert reply.status_code == 400


async def test_the_history_is_that_of_the_state_folder(api: Api) -> None:
    async def is_written() -> bool:
        return bool((await api.get("/history"))["items"])

    await eventually(is_written)
    found = await api.get("/history", limit=1)
    assert found["items"][0]["revision"] == found["latest"]
    one = await api.get(f"/history/{found['latest']}")
    assert {each["object"] for each in one["changes"]} >= {"VirtualService/shop/reviews"}
    (folder,) = api.plane.settings.config_dirs
    (folder / "c.yaml").write_text(ROUTE.replace("reviews.test]", "other.test]"))

    async def is_newer() -> bool:
        return bool((await api.get("/history"))["latest"] > found["latest"])

    await eventually(is_newer)

    async def command(*words: str) -> Done:
        address = str(api.plane.addresses.http)
        return await trio.to_thread.run_sync(partial(mesh_pilot, "history", "--pilot", address, *words))

    latest = (await api.get("/history"))["latest"]
    listed = await command("-n", "1", "-o", "json")
    assert [each["revision"] for each in json.loads(listed.out)] == [latest]
    shown = await command("show", str(latest))
    assert "VirtualService/shop/reviews" in shown.out, shown
    differs = await command("diff", str(found["latest"]), str(latest))
    assert (differs.code, "+  - other.test" in differs.out) == (1, True)
    same = await command("diff", str(latest))
    assert (same.code, same.err) == (0, "")
    missing = await command("show", "999")
    assert (missing.code, "revision 999 is not kept" in missing.err) == (1, True)
    (changed,) = (await api.get(f"/history/{found['latest']}/diff"))["items"]
    assert (changed["name"], changed["action"]) == ("VirtualService/shop/reviews", "update")
    assert "+  - other.test" in changed["diff"]


async def test_the_description_is_valid_and_has_every_route(api: Api) -> None:
    described = await api.get("/openapi.json")
    OpenAPIV31SpecValidator(described).validate()
    has = {
        (method.upper(), path.removeprefix(BASE)) for path, methods in described["paths"].items() for method in methods
    }
    routes = api_routes(api.plane.state)
    assert has == {(route.method, re.sub(r":\w+}", "}", route.path)) for route in routes}
    assert [route.path for route in routes if route.path.count("{") > len(route.parameters)] == []


async def test_answers_are_as_they_are_described(api: Api) -> None:
    described = await api.get("/openapi.json")
    of_plane = described["components"]["schemas"]["PlaneStatus"]
    assert of_plane["description"] == "A control plane as a whole."
    assert of_plane["properties"]["not_ready"]["description"] == "The reasons, by source."
    one = {"namespace": "shop", "host": "reviews.test", "kind": "VirtualService", "name": "reviews"}
    seen = 0
    for path, methods in described["paths"].items():
        asked = re.sub(r"\{(\w+)\}", lambda match: one.get(match[1], "-"), path.removeprefix(BASE))
        if "get" in methods and asked not in ("/events", "/openapi.json"):
            reply = await api.client.get(f"http://{api.plane.addresses.http}{BASE}{asked}")
            if reply.status_code == 200:
                schema = methods["get"]["responses"]["200"]["content"]["application/json"]["schema"]
                Draft202012Validator({**schema, "components": described["components"]}).validate(reply.json())
                seen += 1
    assert seen > 15


async def test_the_gate_asks_for_the_role_of_each_route(api: Api) -> None:
    routes = api_routes(api.plane.state)
    gate = Gate(api.client, routes, local=True)  # type: ignore[arg-type]  # nothing is let through here
    for route in routes:
        path = BASE + re.sub(r"\{\w+(:\w+)?\}", "7", route.path)
        scope = {"type": "http", "method": route.method, "path": path, "headers": [], "query_string": b""}
        need = gate.need_of(Request(scope))
        assert (need.role, need.scope) == (route.role, route.scope), path
    for method, path, role, where in (
        ("GET", "/", Role.VIEW, Scope.ANY),
        ("GET", "/page/app.js", Role.VIEW, Scope.ANY),
        ("GET", "/debug/nothing", Role.VIEW, Scope.ALL),
        ("GET", "/page/../debug/configz", Role.VIEW, Scope.ANY),
        ("POST", "/api/v1/nothing", Role.OPERATE, Scope.ALL),
        ("PUT", "/scopez", Role.OPERATE, Scope.ALL),
        ("DELETE", "/", Role.OPERATE, Scope.ALL),
    ):
        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        need = gate.need_of(Request(scope))
        assert (need.role, need.scope) == (role, where), path


async def test_no_route_is_without_a_role_and_a_place_where_it_counts(api: Api) -> None:
    described = await api.get("/openapi.json")
    operations = [each for methods in described["paths"].values() for each in methods.values()]
    assert all(each["x-role"] in [*Role] and each["x-scope"] in [*Scope] for each in operations)
    routes = api_routes(api.plane.state)
    assert len(operations) == len(routes)
    for route in routes:
        need = Need(route.role, route.scope, "shop" if "{namespace}" in route.path else "")
        assert need.is_met_by(Visitor("all", {"*": route.role}, "token"))
        is_for_all = route.scope is Scope.NONE
        assert is_for_all == (route.path == "/login"), f"{route.path} is for everybody"
        assert (route.scope is Scope.NAMESPACE) == ("{namespace}" in route.path), route.path
        assert route.scope is not Scope.PROXY or any(each.is_proxy for each in route.parameters), route.path
        assert is_for_all or not need.is_met_by(Visitor("without a role", {}, "token")), route.path
        elsewhere = Visitor("of another namespace", {"bank": Role.OPERATE}, "token")
        assert need.is_met_by(elsewhere) is (route.scope in (Scope.NONE, Scope.ANY, Scope.PROXY)), route.path
        if route.role is not Role.VIEW:
            assert not need.is_met_by(Visitor("a viewer", {"*": Role.VIEW}, "token")), route.path


async def test_the_documentation_has_every_route_and_no_other(api: Api) -> None:
    assert gen_api_docs.LIST.findall(gen_api_docs.PAGE.read_text()) == [gen_api_docs.items(api_routes(api.plane.state))]


async def test_a_list_comes_in_pieces_without_gaps_or_repetitions() -> None:
    entries = [(f"{number:03}", number) for number in range(248)] + [("9\udcfe", 248), ("9\udcff", 249)]
    for limit in (1, 7, 250, 300):
        seen: list[Any] = []
        after = ""
        while True:
            piece: Any = as_json(Paging(limit, after).piece(reversed(entries), lambda entry: entry))
            assert len(piece["items"]) <= limit
            assert piece["total"] == 250
            seen += piece["items"]
            if "continue" not in piece:
                break
            after = piece["continue"]
        assert seen == list(range(250))
