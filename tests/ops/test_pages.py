"""The HTTP endpoints of a whole control plane in-process, with a client on an ADS stream."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from google.rpc.status_pb2 import Status
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from mesh_pilot import __version__
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import CLUSTER, ENDPOINT
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.app import debug_app
from mesh_pilot.ops.page.files import page_files
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

BROKEN = SERVICE.replace("name: reviews", "name: ratings").replace("9080", "many")
DOCS = Path(__file__).parents[2] / "docs"
ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
NODE = EnvoyNode("web-1", "shop", "10.9.9.9", interception=Interception.NONE)


class Web:
    """A control plane with one good and one broken service, and a client for its pages."""

    def __init__(self, plane: ControlPlane, client: httpx.AsyncClient) -> None:
        self.plane = plane
        self.client = client

    async def text(self, path: str) -> str:
        reply = await self.client.get(f"http://{self.plane.addresses.http}{path}")
        assert reply.status_code == 200, reply.text
        return reply.text

    async def json(self, path: str) -> Any:
        return json.loads(await self.text(path))

    async def metrics(self) -> dict[tuple[str, ...], float]:
        """Every sample of ``/metrics``: by its name and the values of its labels."""
        reply = await self.client.get(f"http://{self.plane.addresses.monitoring}/metrics")
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(reply.text)
            for sample in family.samples
        }


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    (tmp_path / "a.yaml").write_text(SERVICE)
    (tmp_path / "b.yaml").write_text(BROKEN)
    async with (
        running_plane(tmp_path, quarantine=None) as plane,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        yield Web(plane, client)


class Client:
    """A proxy that asks for clusters and endpoints, accepts the clusters and refuses the endpoints."""

    def __init__(self, web: Web) -> None:
        self._address = web.plane.addresses.grpc
        self.done = trio.Event()

    async def run(self) -> None:
        kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
        async with open_channel(self._address) as channel, channel.request(ADS, *kinds) as call:
            node = ParseDict(NODE.to_dict(), Node())
            await call.send_message(DiscoveryRequest(node=node, type_url=CLUSTER))
            clusters = await call.recv_message()
            assert clusters is not None
            await call.send_message(DiscoveryRequest(type_url=CLUSTER, response_nonce=clusters.nonce))
            name = "outbound|9080||reviews.test"
            await call.send_message(DiscoveryRequest(type_url=ENDPOINT, resource_names=[name]))
            endpoints = await call.recv_message()
            assert endpoints is not None
            no = Status(code=13, message=f"no, not {name}")
            refusal = DiscoveryRequest(
                type_url=ENDPOINT, resource_names=[name], response_nonce=endpoints.nonce, error_detail=no
            )
            await call.send_message(refusal)
            self.done.set()
            await trio.sleep_forever()


@pytest.fixture
async def connected(web: Web, nursery: trio.Nursery) -> Web:
    """The same, with a proxy that has refused something."""
    client = Client(web)
    nursery.start_soon(client.run)
    await client.done.wait()
    await eventually(lambda: len(web.plane.state.xds.status.recent_nacks()) > 0)
    return web


async def test_ready_health_and_version_are_on_both_servers(web: Web) -> None:
    for address in (web.plane.addresses.http, web.plane.addresses.monitoring):
        for path, text in (("ready", "ready\n"), ("healthz", "ok\n")):
            assert (await web.client.get(f"http://{address}/{path}")).text == text
        assert (await web.client.get(f"http://{address}/version")).json() == {"version": __version__}


async def test_the_monitoring_server_tells_nothing_of_the_mesh(web: Web) -> None:
    for path in ("/", "/debug/configz", "/debug/config_dump"):
        assert (await web.client.get(f"http://{web.plane.addresses.monitoring}{path}")).status_code == 404


async def test_a_refused_object_is_listed_with_its_place_field_and_reason(web: Web) -> None:
    (refused,) = (await web.json("/debug/rejections"))["configs"]
    assert refused["where"].endswith("/b.yaml:7")
    assert refused["object"] == "ServiceEntry/shop/ratings"
    assert refused["field"] == "spec.ports[0].number"
    assert "whole number" in refused["reason"]


async def test_kinds_that_one_may_expect_to_be_read_are_listed_as_warnings(web: Web) -> None:
    (folder,) = web.plane.settings.config_dirs
    route = "apiVersion: gateway.networking.x-k8s.io/v1alpha1\nkind: XListenerSet\nmetadata: {name: web}\n"
    (folder / "odd.yaml").write_text(route)
    found: list[dict[str, str]] = []

    async def is_told() -> bool:
        found[:] = (await web.json("/debug/rejections"))["warnings"]
        return bool(found)

    await eventually(is_told)
    (told,) = found
    assert told["where"].endswith("/odd.yaml:1")
    assert told["object"] == "gateway.networking.x-k8s.io/v1alpha1 XListenerSet"
    assert told["reason"].startswith("1 object of this kind ignored: it became ListenerSet")
    assert (await web.json("/debug/statistics"))["sources"][0]["source"]["being_written"] == 0


async def test_objects_services_and_endpoints_in_force_are_shown(web: Web) -> None:
    (config,) = await web.json("/debug/configz?kind=ServiceEntry&namespace=shop")
    assert config["spec"]["hosts"] == ["reviews.test"]
    assert config["origin"].endswith("/a.yaml:1")
    assert await web.json("/debug/configz?kind=Gateway") == []
    (service,) = await web.json("/debug/registryz")
    assert service["ports"] == [{"number": 9080, "name": "http", "protocol": "HTTP"}]
    (endpoints,) = await web.json("/debug/endpointz")
    assert [(e["address"], e["port"]) for e in endpoints["endpoints"]] == [("10.0.0.1", 9080)]


async def test_syncz_says_what_a_proxy_accepted_and_refused_by_istios_names(connected: Web) -> None:
    (entry,) = await connected.json("/debug/syncz")
    assert (entry["proxy"], entry["proxy_type"], entry["xds"]) == ("web-1.shop", "sidecar", "sotw")
    assert entry["status"]["CDS"] == "SYNCED"
    assert entry["status"]["EDS"] == "NACK"
    assert [(nack["type"], nack["reason"]) for nack in entry["refused"]] == [
        ("EDS", "no, not outbound|9080||reviews.test")
    ]
    assert entry["cluster_sent"] == entry["cluster_acked"] != ""
    assert entry["endpoint_sent"] != "" == entry["endpoint_acked"]


async def test_a_refusal_is_shown_with_its_reason_and_what_it_was_made_from(connected: Web) -> None:
    (nack,) = (await connected.json("/debug/rejections"))["proxies"]
    assert nack["type"] == "EDS"
    assert nack["resources"] == ["outbound|9080||reviews.test"]
    assert nack["reason"] == "no, not outbound|9080||reviews.test"
    assert nack["configs"] == ["ServiceEntry/shop/reviews"]
    (stream,) = await connected.json("/debug/adsz")
    assert stream["node"]["id"] == NODE.id
    assert stream["types"]["CDS"]["held"] > 2
    assert len(stream["refused"]) == 1


async def test_proxies_say_which_revision_they_are_at(connected: Web) -> None:
    (entry,) = await connected.json("/debug/syncz")
    assert entry["revision"] <= (await connected.json("/api/v1/status"))["revision"]


async def test_a_config_dump_has_the_shape_of_envoys(connected: Web) -> None:
    for proxy_id in (NODE.id, "web-1.shop"):
        dump = await connected.json(f"/debug/config_dump?proxyID={proxy_id}")
        clusters = dump["configs"][0]
        assert clusters["@type"] == "type.googleapis.com/envoy.admin.v3.ClustersConfigDump"
        named = {entry["cluster"]["name"]: entry for entry in clusters["dynamic_active_clusters"]}
        mine = named["outbound|9080||reviews.test"]
        assert mine["cluster"]["type"] == "EDS"
        assert mine["made_from"] == ["ServiceEntry/shop/reviews"]


async def test_asking_for_an_unknown_proxy_names_those_that_are_connected(connected: Web) -> None:
    reply = await connected.client.get(f"http://{connected.plane.addresses.http}/debug/config_dump?proxyID=nobody")
    assert reply.status_code == 404
    assert "nobody" in reply.text
    assert "web-1.shop" in reply.text


async def test_metrics_have_istios_names(connected: Web) -> None:
    found = await connected.metrics()
    assert found["pilot_services",] == 1
    assert found["pilot_xds", "unknown"] == 1
    assert found["pilot_xds_pushes", "cds"] == 1
    assert found["pilot_total_xds_rejects", "eds"] == 1
    assert found["pilot_total_xds_rejects", "lds"] == 0
    assert found["pilot_xds_eds_reject", NODE.id] == 1
    assert found["pilot_k8s_cfg_events", "add", "ServiceEntry"] == 1
    assert found["pilot_debounce_time_count",] >= 1
    assert found["pilot_proxy_convergence_time_bucket", "+Inf"] == 0
    assert found["mesh_pilot_rejected_objects",] == 1
    assert found["mesh_pilot_source_synced", "files"] == 1
    assert found["process_open_fds",] > 0


async def test_statistics_of_every_part_can_be_read(connected: Web) -> None:
    statistics = await connected.json("/debug/statistics")
    assert set(statistics) == {
        "world",
        "reducer",
        "memo",
        "catalog",
        "xds",
        "changes",
        "election",
        "sources",
        "mcp",
        "traffic",
        "grpc",
        "http",
    }
    assert statistics["grpc"][0]["connections_open"] == 1
    assert statistics["sources"][0]["state"] == "synced"


async def test_the_memo_table_is_explained(connected: Web) -> None:
    functions = await connected.json("/debug/derived")
    assert functions["assignment"]["held"] >= 1 <= functions["assignment"]["calls"]
    explained = await connected.json("/debug/derived?name=assignment&containing=reviews&limit=1")
    assert len(explained) == 1 and "reviews" in explained[0]["query"]
    assert explained[0]["state"] == "fresh" and explained[0]["reads"] and explained[0]["cause"]
    assert await connected.json("/debug/derived?name=nothing") == []


async def test_the_page_is_a_file_whose_one_sentence_without_scripts_says_where_else_to_ask(web: Web) -> None:
    page = await web.text("/")
    scripts = ['<script src="/page/theme.js">', '<script type="module" src="/page/app.js">']
    assert re.findall("<script[^>]*>[^<]*", page) == scripts, "none within"
    (told,) = re.findall("<noscript>(.*)</noscript>", page)
    assert "/api/v1" in told and told.count(".") == 1


async def test_the_browser_is_told_to_run_only_files_of_the_page(web: Web) -> None:
    """Nothing that a name contains is run, and nothing is loaded from elsewhere."""
    for path in ("/", *(f"/page/{name}" for name in page_files())):
        reply = await web.client.get(f"http://{web.plane.addresses.http}{path}")
        policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["frame-ancestors"] == "'none'"
        assert {value for name, value in policy.items() if name.endswith("-src")} == {"'none'", "'self'"}
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"(src|href|from|import)\W+https?://", reply.text)
        if "/vendor/" not in path:  # Preact can, if told to
            assert "style=" not in reply.text and "innerhtml" not in reply.text.lower()


async def test_files_of_the_page_are_sent_again_only_when_they_have_changed(web: Web) -> None:
    address = f"http://{web.plane.addresses.http}/page/app.js"
    first = await web.client.get(address)
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    again = await web.client.get(address, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for other in ("../files.py", "%2e%2e%2ffiles.py", "none.js"):
        assert (await web.client.get(f"http://{web.plane.addresses.http}/page/{other}")).status_code == 404


async def test_every_page_is_in_the_index_or_istiods_and_in_the_manual(web: Web) -> None:
    manual = "".join((DOCS / name).read_text() for name in ("operating.md", "api.md"))
    routes = [route for route in debug_app(web.plane.state).routes if isinstance(route, Route)]
    paths = {route.path for route in routes if not route.path.startswith(("/api/", "/page/", "/debug/{"))}
    of_istiod = {f"/debug/{name}" for name in await web.json("/debug/list")}
    for index in ("/debug", "/debug/"):
        listed = {line.split()[0] for line in (await web.text(index)).splitlines()}
        assert paths - of_istiod == listed - {"/debug/list", "/api/v1/openapi.json"} | {"/", "/debug", "/healthz"}
    assert [path for path in paths - of_istiod if f"`{path}" not in manual] == []


async def test_json_is_indented_unless_asked_otherwise_and_kinds_may_be_in_lower_case(web: Web) -> None:
    text = await web.text("/debug/configz?kind=serviceentry")
    assert text.endswith("]\n")
    assert '\n    "kind": "ServiceEntry",\n' in text
    (config,) = json.loads(text)
    assert config["metadata"]["name"] == "reviews"
    compact = await web.text("/debug/configz?kind=SERVICEENTRY&pretty=false")
    assert compact.count("\n") == 3
    assert json.loads(compact) == [config]


async def test_http_connections_are_counted(web: Web) -> None:
    await web.text("/ready")
    assert (await web.client.get(f"http://{web.plane.addresses.http}/nothing")).status_code == 404
    found = await web.metrics()
    assert found["mesh_pilot_http_connections", "web"] == 1
    assert found["mesh_pilot_http_requests", "web", "200"] == 1
    assert found["mesh_pilot_http_requests", "web", "404"] == 1
    assert found["mesh_pilot_http_failures", "web"] == 0
    assert found["mesh_pilot_http_closed", "metrics", "http2"] == 0
