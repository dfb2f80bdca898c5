"""Every kind of tracer and of access log at a real Envoy: it takes each, and the collector gets what it should."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.explain.analysis.object_problems import reference_lines
from mesh_pilot.model.proxy import Interception
from tests.support.collector import Collector, collector
from tests.support.echo import Backend, http_backend
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, fleet
from tests.support.guarded import Guarded, guarded
from tests.support.manifests import at, service
from tests.support.telemetry import telemetry

pytestmark = pytest.mark.envoy

Ports = Callable[[int], list[int]]

WEB = EnvoyNode("web-1", "shop", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)
_EACH_SPAN = {"flush_interval_ms": 50, "min_flush_spans": 1}
_RUNTIME = {"tracing": {"zipkin": _EACH_SPAN, "opentelemetry": _EACH_SPAN}}
SOON = (
    "--file-flush-interval-msec",
    "20",
    "--config-yaml",
    json.dumps({"layered_runtime": {"layers": [{"name": "soon", "static_layer": _RUNTIME}]}}),
)
"""Flags of an Envoy that keeps nothing back for long."""
ALS = "AccessLogService/StreamAccessLogs"
GRPC, HTTP = "service: grpc.test, port: $GRPC", "service: http.test, port: $HTTP"
KEY = "[{name: x-key, value: k}]"


@attrs.frozen
class Tracer:
    """A provider of traces, and how its spans are known at the collector."""

    settings: str
    """Of an entry of ``extensionProviders``."""
    to: str
    """The path of the HTTP calls, or the end of the gRPC method."""
    headers: tuple[tuple[str, str], ...] = ()
    """Some of the headers, or of the metadata."""
    body: tuple[str, ...] = ()
    """Words in the reports."""


EXPORT = "TraceService/Export"
TRACERS = {
    "zipkin": Tracer(f"zipkin: {{{HTTP}}}", "/api/v2/spans", body=("web.shop",)),
    "zipkin-all": Tracer(
        f"zipkin: {{{HTTP}, path: /zipkin, timeout: 2s, headers: {KEY}, maxTagLength: 64, enable64bitTraceId: true,"
        " traceContextOption: USE_B3_WITH_W3C_PROPAGATION}",
        "/zipkin",
        (("x-key", "k"), ("host", "http.test")),
        ("web.shop",),
    ),
    "otel-http": Tracer(
        f"opentelemetry: {{{HTTP}, http: {{path: /otlp, timeout: 2s, headers: {KEY}}}}}",
        "/otlp",
        (("x-key", "k"), ("content-type", "application/x-protobuf")),
        ("web.shop",),
    ),
    "otel-detectors": Tracer(
        f"opentelemetry: {{{HTTP}, http: {{path: /detected}},"
        " resourceDetectors: {environment: {}, dynatrace: {}}, serviceAttributeEnrichment: OTEL_SEMANTIC_CONVENTIONS}",
        "/detected",
        body=("rack", "r17"),
    ),
    "otel-dynatrace": Tracer(
        f"opentelemetry: {{{HTTP}, http: {{path: /dynatrace}}, dynatraceSampler: {{tenant: abc, clusterId: 7}}}}",
        "/dynatrace",
        body=("web.shop",),
    ),
    "otel-grpc": Tracer(
        f"opentelemetry: {{{GRPC}, grpc: {{timeout: 3s, initialMetadata: {KEY}}}}}",
        EXPORT,
        (("x-key", "k"),),
        ("web.shop",),
    ),
    "datadog": Tracer(f"datadog: {{{HTTP}, maxTagLength: 64}}", "/v0.4/traces", body=("web.shop",)),
    "skywalking": Tracer(
        f"skywalking: {{{GRPC}, accessToken: t}}",
        "TraceSegmentReportService/collect",
        (("authentication", "t"),),
        ("web.shop",),
    ),
}
LOGS = {
    "text": 'envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: "TEXT %REQ(X-MARK)% %RESPONSE_CODE%"}}',
    "json": 'envoyFileAccessLog: {path: /dev/stdout, logFormat: {labels: {it: JSON, mark: "%REQ(X-MARK)%"}}}',
    "empty": 'envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: "EMPTY<%REQ(NO)%>"}, omitEmptyValues: true}',
    "http-als": f"envoyHttpAls: {{{GRPC}, logName: requests, additionalRequestHeadersToLog: [x-mark]}}",
    "tcp-als": f"envoyTcpAls: {{{GRPC}}}",
    "otel-als": f'envoyOtelAls: {{{GRPC}, logFormat: {{text: "OTEL %REQ(X-MARK)%", labels: {{a: "%PROTOCOL%"}}}}}}',
}


def providers(settings: dict[str, str], http: int, grpc: int) -> str:
    """The mesh config that declares them."""
    lines = "\n".join(f"- {{name: {name}, {of}}}" for name, of in settings.items())
    return f"extensionProviders:\n{lines}\n".replace("$HTTP", str(http)).replace("$GRPC", str(grpc))


@attrs.frozen
class Reported:
    """A proxy that calls a service, and the collectors of its reports."""

    mesh: Fleet
    envoy: RealEnvoy
    http: Backend
    grpc: Collector
    port: int
    tcp: int
    services: str

    async def apply(self, spec: str) -> None:
        await self.mesh.apply(self.services + telemetry("it", "shop", spec))

    async def ask(self, mark: str) -> None:
        headers = {"x-mark": mark, "connection": "close"}  # one that is kept stays with the listener before
        reply = await self.mesh.get(f"http://127.0.0.1:{self.port}/", host="web.test", headers=headers)
        assert reply.json()["name"] == "web"

    async def until(self, there: Callable[[], bool], mark: str) -> None:
        """Ask until something came: the first connections may still be of the listener before."""

        async def asked() -> bool:
            await self.ask(mark)
            return there()

        await eventually(asked, what=mark)

    def taken(self, tracer: Tracer) -> bool:
        """True if a collector got a report of this tracer."""
        by_http = ((r["headers"], r["body"]) for r in self.http.seen if r["path"] == tracer.to)
        by_grpc = ((r.metadata, r.message.decode(errors="replace")) for r in self.grpc.of(tracer.to))
        return any(
            all(headers.get(name) == value for name, value in tracer.headers) and all(w in body for w in tracer.body)
            for headers, body in (*by_http, *by_grpc)
        )

    def logged(self) -> Iterator[StreamAccessLogsMessage]:
        for report in self.grpc.of(ALS):
            yield StreamAccessLogsMessage.FromString(report.message)


@asynccontextmanager
async def reported(folder: Path, ports: list[int], settings: dict[str, str], *, delta: bool) -> AsyncIterator[Reported]:
    port, tcp, http, grpc = ports
    with collector() as calls:
        async with fleet(folder, mesh=providers(settings, http, grpc)) as mesh:
            web, data, spans = await mesh.backend("web"), await mesh.tcp_backend("data"), await mesh.backend("spans")
            services = (
                service("web.test", port, at(web))
                + service("data.test", tcp, at(data), protocol="TCP")
                + service("http.test", http, at(spans))
                + service("grpc.test", grpc, {"address": "127.0.0.1", "ports": {"main": calls.port}}, protocol="GRPC")
            )
            await mesh.apply(services)
            envoy = await mesh.envoy(WEB, delta=delta, flags=SOON)
            yield Reported(mesh, envoy, spans, calls, port, tcp, services)
            await mesh.assert_all_taken()
            assert list(reference_lines(mesh.plane.state.world)) == []


async def test_every_tracer_is_taken_and_its_collector_gets_spans(
    tmp_path: Path, free_ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "rack=r17")
    settings = {name: tracer.settings for name, tracer in TRACERS.items()}
    async with reported(tmp_path, free_ports(4), settings, delta=True) as it:
        for name, tracer in TRACERS.items():
            await it.apply(f"tracing: [{{randomSamplingPercentage: 100, providers: [{{name: {name}}}]}}]")
            await it.until(lambda of=tracer: it.taken(of), name)  # type: ignore[misc]


async def test_every_access_log_is_taken_and_written(tmp_path: Path, free_ports: Ports) -> None:
    async with reported(tmp_path, free_ports(4), LOGS, delta=False) as it:

        async def log_to(*names: str) -> None:
            chosen = ", ".join(f"{{name: {name}}}" for name in names)
            await it.apply(f"accessLogging: [{{providers: [{chosen}]}}]")

        def lines() -> list[str]:
            return it.envoy.log.read_text().splitlines()

        await log_to("envoy")
        await it.until(lambda: any('"GET / HTTP/1.1" 200' in line for line in lines()), "Istio's format")

        await log_to("text", "json", "empty")
        await it.until(lambda: {"TEXT files 200", "EMPTY<>"} <= set(lines()), "files")
        objects = [json.loads(line) for line in lines() if line.startswith("{")]
        assert {"it": "JSON", "mark": "files"} in objects

        await log_to("http-als", "otel-als")
        marked = {"x-mark": "calls"}
        await it.until(
            lambda: any(e.request.request_headers == marked for m in it.logged() for e in m.http_logs.log_entry),
            "calls",
        )
        assert "requests" in {message.identifier.log_name for message in it.logged()}
        await it.until(
            lambda: any(
                b"OTEL calls" in r.message and b"HTTP/1.1" in r.message for r in it.grpc.of("LogsService/Export")
            ),
            "calls",
        )

        await log_to("tcp-als")

        async def connected() -> bool:
            async with await trio.open_tcp_stream("127.0.0.1", it.tcp) as stream:
                await stream.send_all(b"hello\n")
                await stream.receive_some()
            return any(message.tcp_logs.log_entry for message in it.logged())

        await eventually(connected, what="a connection is logged")


MODES = {
    "zipkin": f"zipkin: {{{HTTP}}}",
    "log": 'envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: "LOG %REQ(:PATH)%"}}',
    "whole": 'envoyFileAccessLog: {path: /dev/stdout, logFormat: {text: "WHOLE %REQ(:PATH)%"}}',
}
TRACED = "{randomSamplingPercentage: 100, providers: [{name: zipkin}]}"
LOGGED = "{providers: [{name: log}, {name: whole}]}"


async def told(it: Guarded, **more: bool) -> dict[str, str]:
    """The headers of a request as the application sees them."""
    headers: dict[str, str] = (await it.reply("/", **more)).json()["headers"]
    return headers


@pytest.mark.smoke
async def test_sampling_and_modes_have_their_effect_and_an_unknown_provider_costs_nothing(
    tmp_path: Path, free_ports: Ports
) -> None:
    *ports, http = free_ports(5)
    mesh = providers(MODES, http, 1)
    async with (
        http_backend("spans") as spans,
        guarded(tmp_path, ports, mesh=mesh, more=service("http.test", http, at(spans)), flags=SOON) as it,
    ):
        server = it.envoy

        async def apply(spec: str) -> None:
            await it.apply(telemetry("it", "shop", spec))

        async def until(told_so: Callable[[dict[str, str]], bool], what: str, **more: bool) -> None:
            async def so() -> bool:
                return told_so(await told(it, **more))

            await eventually(so, what=what)

        # Of all requests, of none; by their ids or not.
        await apply(f"tracing: [{TRACED}]")
        await until(lambda h: h.get("x-b3-sampled") == "1" and h["x-request-id"][14] == "9", "all are sampled")
        # The server's Sidecar imports no collector.
        await eventually(
            lambda: any("front.shop" in report["body"] for report in spans.seen), what="spans of the server"
        )
        await apply("tracing: [{randomSamplingPercentage: 0, providers: [{name: zipkin}]}]")
        await until(lambda h: h.get("x-b3-sampled") == "0" and h["x-request-id"][14] == "4", "none is sampled")
        await apply(f"tracing: [{{useRequestIdForTraceSampling: false, {TRACED[1:]}]")
        await until(lambda h: h.get("x-b3-sampled") == "1" and h["x-request-id"][14] == "4", "not by the id")

        # In plaintext, past the client's Envoy, only the server's traces.
        off = "{match: {mode: $MODE}, disableSpanReporting: true}"
        await apply(f"tracing: [{TRACED}, {off.replace('$MODE', 'SERVER')}]")
        await until(lambda h: "x-b3-traceid" not in h, "the server does not trace", plain=True)
        await until(lambda h: "x-b3-traceid" in h, "the client does")
        await apply(f"tracing: [{TRACED}, {off.replace('$MODE', 'CLIENT')}]")
        await until(lambda h: "x-b3-traceid" in h, "the server traces", plain=True)
        await until(lambda h: "x-b3-traceid" in h and "x-b3-parentspanid" not in h, "the client does not")

        # Both logs are one file, so a line of the second comes after that of the first.
        await apply(
            f"accessLogging: [{LOGGED}, {{match: {{mode: SERVER}}, providers: [{{name: log}}], disabled: true}}]"
        )
        await it.ask("/served")
        await eventually(lambda: "WHOLE /served" in server.log.read_text(), what="the server's log")
        assert "LOG /served" not in server.log.read_text()

        await apply("tracing: [{providers: [{name: typo}]}], accessLogging: [{providers: [{name: typo}]}]")
        assert await it.ask() == 200
        assert {line["field"]: line["reason"] for line in reference_lines(it.mesh.plane.state.world)} == {
            "spec.tracing[0].providers[0].name": (
                "the mesh config has no extension provider typo; there is zipkin: nothing is traced"
            ),
            "spec.accessLogging[0].providers[0].name": (
                "the mesh config has no extension provider typo; there are envoy, log, whole: nothing is logged to it"
            ),
        }
