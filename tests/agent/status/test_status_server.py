"""The agent's port: readiness, merged metrics, rewritten probes; and what is not for strangers."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import pytest
import structlog
import trio
import trio.testing

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.relay.subscriptions import NameRow
from mesh_pilot.agent.settings import AgentError, Ports
from mesh_pilot.agent.status.agent_metrics import agent_metrics
from mesh_pilot.agent.status.scraping import MergedMetrics, ScrapeError, application_targets, scrape_seconds
from mesh_pilot.agent.status.server import StatusServer
from mesh_pilot.model.proxy import NodeType
from tests.support.agents import agent_settings
from tests.support.small_http import Said, small_http
from tests.support.troubles import is_quoted

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROMETHEUS = {"accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"}
ENVOY_PAGE = Said(b"# TYPE envoy_up gauge\nenvoy_up{} 1\n\n", TEXT)


@attrs.define
class Status:
    """A port that is served, and what a test turns on it."""

    server: StatusServer
    ready: Observable[bool]
    quit: trio.Event
    client: httpx.AsyncClient
    port: int

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return await self.client.get(path, headers=dict(headers or {}))


@asynccontextmanager
async def status(
    *, admin: int = 1, parts: Mapping[str, Callable[[], object]] | None = None, **settings: Any
) -> AsyncIterator[Status]:
    """A status server in the block, on any free port."""
    names = Observable[dict[str, NameRow] | None](
        {"reviews.shop": NameRow(("240.240.0.1",), "External", "reviews", "shop")}
    )
    ready, quit = Observable(True), trio.Event()
    node = settings.pop("node", None)
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    ports = Ports(admin=admin, status=port)
    server = StatusServer(
        agent_settings(node, ports=ports, **settings), parts or {}, ready=ready, name_table=names, quit=quit.set
    )
    listeners = await server.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, listeners)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            yield Status(server, ready, quit, client, port)
        nursery.cancel_scope.cancel()


async def test_readiness_is_envoys_until_the_drain() -> None:
    async with status() as agent:
        assert (await agent.get("/healthz/ready")).status_code == 200
        agent.ready.set(False)
        reply = await agent.get("/healthz/ready")
        assert (reply.status_code, reply.text) == (503, "Envoy is not ready\n")
        agent.ready.set(True)
        agent.server.is_draining = True
        reply = await agent.get("/healthz/ready")
        assert (reply.status_code, reply.text) == (503, "draining\n")


async def test_metrics_of_envoy_the_application_and_the_agent_are_one_page() -> None:
    async with (
        small_http({"/stats/prometheus": ENVOY_PAGE}) as envoy,
        small_http({"/m": Said(b"requests_total 7\n", TEXT)}) as application,
        status(admin=envoy.port, scrape={"scrape": "true", "port": str(application.port), "path": "m"}) as agent,
    ):
        for path in ("/metrics", "/stats/prometheus?usedonly"):
            reply = await agent.get(path, {"user-agent": "Prometheus/3"})
            assert reply.headers["content-type"] == TEXT
            assert reply.text.startswith(
                "# TYPE envoy_up gauge\nenvoy_up{} 1\n\nrequests_total 7\n# TYPE mesh_pilot_agent_"
            )
            assert 'mesh_pilot_agent_metrics_scrape_failures_total{key="application"} 0\n' in reply.text
        assert envoy.requests[-1]["query_string"] == b"usedonly"
        assert application.headers()["user-agent"] == "Prometheus/3"


async def test_the_page_is_openmetrics_if_the_application_answers_so_and_the_client_takes_it() -> None:
    page = Said(b"# TYPE requests counter\nrequests_total 7\n# EOF\n", "application/openmetrics-text; version=1.0.0")
    async with (
        small_http({"/stats/prometheus": ENVOY_PAGE}) as envoy,
        small_http({"/metrics": page}) as application,
        status(admin=envoy.port, scrape={"port": application.port}) as agent,
    ):
        reply = await agent.get("/metrics", PROMETHEUS)
        assert reply.headers["content-type"] == OPEN
        assert reply.text.endswith("\n# EOF\n")
        assert "openmetrics" in application.headers()["accept"]
        assert "openmetrics" not in envoy.headers()["accept"]
        reply = await agent.get("/metrics", {"accept": "text/plain"})
        assert reply.headers["content-type"] == TEXT
        assert "EOF" not in reply.text
        assert "openmetrics" not in application.headers()["accept"]


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (None, 0),
        (Said(b"no", status=500), 0),
        (Said(b"<html></html>", "text/html"), 0),
        (Said(b"half 1\nhal", TEXT, hangs=True), 1),
    ],
)
async def test_an_application_that_is_away_or_broken_hides_nothing_of_the_others(
    answer: Said | None, left: int
) -> None:
    answers = {"/metrics": answer} if answer else {}
    async with (
        small_http({"/stats/prometheus": ENVOY_PAGE}) as envoy,
        small_http(answers) as application,
        status(admin=envoy.port, scrape={"port": application.port if answer else 1}) as agent,
    ):
        with structlog.testing.capture_logs() as logs:
            for round in (1, 2):
                reply = await agent.get("/metrics", {"x-prometheus-scrape-timeout-seconds": "0.6"})
                assert reply.status_code == 200
                assert "envoy_up{} 1\n" in reply.text
                assert reply.text.count("half 1\n") == left
                assert f'scrape_failures_total{{key="application"}} {round}\n' in reply.text
        assert [line["event"] for line in logs] == ["metrics missing"]


async def test_without_envoy_the_applications_metrics_are_there() -> None:
    async with (
        small_http({"/metrics": Said(b"up 1\n", TEXT)}) as application,
        status(scrape={"port": application.port}) as agent,
    ):
        text = (await agent.get("/metrics")).text
        assert text.startswith("up 1\n")
        assert 'scrape_failures_total{key="envoy"} 1\n' in text


async def test_a_router_shows_no_application() -> None:
    async with small_http({"/metrics": Said(b"up 1\n", TEXT)}) as application:
        node = EnvoyNode("edge", type=NodeType.ROUTER)
        async with status(node=node, scrape={"port": application.port}) as agent:
            assert "up 1\n" not in (await agent.get("/metrics")).text
        assert application.requests == []


async def test_a_large_page_is_passed_on_as_it_comes() -> None:
    piece = b"".join(b'envoy_x{a="%d"} 1\n' % number for number in range(2000))
    pieces = 400
    async with (
        small_http({"/stats/prometheus": Said([piece] * pieces, TEXT)}) as envoy,
        status(admin=envoy.port) as agent,
        agent.client.stream("GET", "/metrics") as reply,
    ):
        size, waiting = 0, 0
        async for part in reply.aiter_raw():
            size, waiting = size + len(part), max(waiting, len(part))
        assert size > len(piece) * pieces
        assert waiting < 1_000_000


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"scrape": "false", "port": "80"}, []),
        ({"scrape": "true"}, ["http://localhost:80/metrics"]),
        ({"port": 9102, "path": "prom"}, ["http://localhost:9102/prom"]),
        (
            {"targets": [{"port": "1"}, {"port": "2", "path": "/x"}]},
            ["http://localhost:1/metrics", "http://localhost:2/x"],
        ),
    ],
)
def test_the_applications_pages_are_those_of_the_annotations(settings: Mapping[str, Any], expected: list[str]) -> None:
    assert [target.url for target in application_targets(settings, Ports())] == expected


@pytest.mark.parametrize("port", ["15020", "015020", "15000", "15090", "0", "web", "70000"])
def test_a_port_that_is_ours_or_none_is_refused(port: str) -> None:
    with pytest.raises(ScrapeError, match="port"):
        application_targets({"port": port}, Ports())


def test_the_time_for_a_scrape_is_a_little_less_than_prometheus_has() -> None:
    assert scrape_seconds("5") == 4.5
    assert scrape_seconds("") == scrape_seconds("soon") == scrape_seconds("nan") == 9.0
    assert scrape_seconds("1e9") == 60.0


def test_statistics_are_metrics_and_a_part_that_fails_hides_no_other() -> None:
    @attrs.frozen
    class Statistics:
        answers_total: int
        is_fresh: bool
        by_kind: Mapping[str, int]
        name: str
        nothing: int | None = None

    def broken() -> object:
        raise RuntimeError("no")

    text = agent_metrics({"bad": broken, "dns": lambda: Statistics(3, True, {'a"b': 2}, "x")}).decode()
    assert "mesh_pilot_agent_dns_answers_total 3\n" in text
    assert "mesh_pilot_agent_dns_is_fresh 1\n" in text
    assert 'mesh_pilot_agent_dns_by_kind{key="a\\"b"} 2\n' in text
    assert "mesh_pilot_agent_missing_parts 1\n" in text
    assert "nothing" not in text
    assert "mesh_pilot_agent_process_resident_memory_bytes" in text


APP_PROBERS = "/app-health/web/"


async def test_probes_of_the_application_go_to_it_by_http_tcp_and_with_its_own_name() -> None:
    answers = {"/ok": Said(b"fine", status=201), "/bad": Said(b"sorry", status=503)}
    async with small_http(answers) as application:
        port = application.port
        probers = {
            f"{APP_PROBERS}livez": {
                "httpGet": {"path": "ok", "port": port, "httpHeaders": [{"name": "X-A", "value": "b"}]}
            },
            f"{APP_PROBERS}readyz": {"httpGet": {"path": "/bad", "port": port}},
            f"{APP_PROBERS}startupz": {"tcpSocket": {"port": port}},
            "/app-health/db/livez": {"tcpSocket": {"port": 1}},
        }
        async with status(app_probers=probers) as agent:
            reply = await agent.get(f"{APP_PROBERS}livez", {"user-agent": "kube-probe/1.30", "X-a": "c"})
            assert (reply.status_code, reply.text) == (201, "fine")
            headers = application.headers()
            assert (headers["user-agent"], headers["x-a"]) == ("kube-probe/1.30", "b")
            assert headers["host"] == f"127.0.0.1:{port}"
            assert application.requests[-1]["client"][0] == "127.0.0.6"
            reply = await agent.get(f"{APP_PROBERS}readyz")
            assert (reply.status_code, reply.text) == (503, "sorry")
            assert (await agent.get(f"{APP_PROBERS}startupz")).status_code == 200
            assert (await agent.get("/app-health/db/livez")).status_code == 500
            reply = await agent.get("/app-health/db/readyz")
            assert reply.status_code == 404
            assert "no probe of this path" in reply.text


async def test_a_probe_that_hangs_fails_in_its_time_and_bad_ones_cost_no_other() -> None:
    async with small_http(
        {"/": Said(hangs=True), "/away": Said(status=302, headers={"location": "http://a.b/"})}
    ) as server:
        probers = {
            "web/livez": {"httpGet": {"port": server.port}, "timeoutSeconds": 1},
            "web/readyz": {"httpGet": {"port": server.port, "path": "/away"}},
            "web/startupz": {"exec": {"command": ["true"]}},
            "web/otherz": {"tcpSocket": {"port": 1}},
            "db/livez": {"tcpSocket": {"port": "pg"}},
        }
        with structlog.testing.capture_logs() as logs:
            async with status(app_probers=probers) as agent:
                reply = await agent.get("/app-health/web/livez")
                assert (reply.status_code, reply.text) == (
                    500,
                    f"HTTP GET / on port {server.port}: nothing within 1 s\n",
                )
                assert (await agent.get("/app-health/web/readyz")).status_code == 200
                assert (await agent.get("/app-health/web/startupz")).status_code == 404
        assert [line["reason"].split()[0] for line in logs if line["event"] == "bad probe"] == [
            "web/startupz",
            "web/otherz",
            "db/livez.tcpSocket.port",
        ]


async def test_what_ends_the_agent_or_tells_more_is_for_this_machine_only() -> None:
    parts = {"envoy": lambda: {"epoch": 2}}
    async with status(parts=parts) as agent:
        assert "epoch: 2" in (await agent.get("/debug/state")).text
        assert (await agent.get("/debug/statistics")).json()["envoy"] == {"epoch": 2}
        row = (await agent.get("/debug/ndsz")).json()["table"]["reviews.shop"]
        assert row == {"ips": ["240.240.0.1"], "registry": "External", "shortname": "reviews", "namespace": "shop"}
        assert (await agent.get("/quitquitquit")).status_code == 405
        assert (await agent.client.post("/quitquitquit", headers={"origin": "http://a.b"})).status_code == 403
        for host, expected in (("a.b:1", 403), ("localhost:1", 200), ("[::1]:1", 200), ("::1", 403), ("", 403)):
            assert (await agent.get("/debug/state", {"host": host})).status_code == expected, host
        assert not agent.quit.is_set()
        # Envoy forwards strangers' requests from 127.0.0.6.
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.6")
        async with httpx.AsyncClient(
            transport=transport, base_url=f"http://127.0.0.1:{agent.port}", timeout=60
        ) as stranger:
            for path in ("/debug", "/debug/state", "/debug/statistics", "/debug/ndsz"):
                assert (await stranger.get(path)).status_code == 403
            assert (await stranger.post("/quitquitquit")).status_code == 403
            assert (await stranger.get("/metrics")).status_code == 200
            assert (await stranger.get("/healthz/ready")).status_code == 200
        assert not agent.quit.is_set()
        assert (await agent.client.post("/quitquitquit")).text == "OK"
        await agent.quit.wait()
        for path in ("/", "/stats", "/healthz", "/debug/pprof/"):
            assert (await agent.get(path)).status_code == 404


async def test_a_port_that_is_taken_is_one_line() -> None:
    async with status() as agent:
        with pytest.raises(AgentError, match=f"cannot listen on :{agent.port}") as taken:
            await agent.server.open()
    assert is_quoted(f"mesh-pilot: {taken.value}")


async def test_the_loopback_of_ipv6_is_this_machine_and_another_address_of_it_is_not() -> None:
    async with status() as agent, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        if socket.has_dualstack_ipv6():
            assert (await client.get(f"http://[::1]:{agent.port}/debug/state")).status_code == 200
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # sends nothing
            except OSError:
                pytest.skip("no address besides the loopback")
            own = probe.getsockname()[0]
        assert (await client.get(f"http://{own}:{agent.port}/debug/state")).status_code == 403
        assert (await client.get(f"http://{own}:{agent.port}/healthz/ready")).status_code == 200


async def test_scrapes_wait_for_a_client_that_does_not_read_no_longer_than_it_may(
    autojump_clock: trio.testing.MockClock,
) -> None:
    never = trio.Event()
    metrics = MergedMetrics("", (), {})

    async def start(content_type: str) -> None:
        assert content_type == TEXT

    async def stuck(data: bytes) -> None:
        await never.wait()

    async def taken(data: bytes) -> None:
        pass

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(metrics.write, {}, "", start, stuck)
        await trio.testing.wait_all_tasks_blocked()
        before = trio.current_time()
        assert await metrics.write({}, "", start, taken)
        assert trio.current_time() == before + 60
