"""Receivers of OTLP for tests: our own strict one, and OpenTelemetry's collector.

async with receiver() as its:
    ...  # something pushes to its.url
    (metrics,) = its.metrics
async with collector(tmp_path) as its:
    await its.has("Name: pilot_services")
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio
import yaml
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics

from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc.tls import TlsSource
from tests.support.binaries import require_binary
from tests.support.certificates import CertificateFiles
from tests.support.envoy import eventually
from tests.support.ports import free_ports


def parsed(body: bytes) -> ExportMetricsServiceRequest:
    """A request, by OpenTelemetry's own messages; unknown fields are errors.

    The messages that are installed, with Envoy's, are of a release before two fields had their names of now.
    """
    whole = json.loads(body, parse_constant=_no_json)
    for resource in whole["resourceMetrics"]:
        for scope in resource["scopeMetrics"]:
            scope["instrumentationLibrary"] = scope.pop("scope")
        resource["instrumentationLibraryMetrics"] = resource.pop("scopeMetrics")
    return ParseDict(whole, ExportMetricsServiceRequest())


def _no_json(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def scopes_of(resource: ResourceMetrics) -> list[Any]:
    """The scopes of a resource, each with its metrics."""
    return list(resource.instrumentation_library_metrics)


def metrics_of(*requests: ExportMetricsServiceRequest) -> dict[str, Metric]:
    """The metrics of requests by name; the data points of one name are together."""
    found: dict[str, Metric] = {}
    for request in requests:
        for resource in request.resource_metrics:
            for scope in scopes_of(resource):
                for metric in scope.metrics:
                    if metric.name in found:
                        found[metric.name].MergeFrom(metric)
                    else:
                        found[metric.name] = metric
    return found


def attributes_of(found: Any) -> dict[str, str]:
    """The attributes of a resource or data point."""
    return {each.key: each.value.string_value for each in found.attributes}


@attrs.define(eq=False)
class OtelReceiver:
    """Takes requests. Its answer may be changed while it runs."""

    port: int = 0
    scheme: str = "http"
    status: int = 200
    headers: dict[str, str] = attrs.field(factory=dict)
    body: bytes = b"{}"
    requests: list[ExportMetricsServiceRequest] = attrs.field(factory=list)
    """Those that were answered with success."""
    asked: int = 0
    names: list[tuple[str, ...]] = attrs.field(factory=list)
    """The names in the certificates of clients."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    @property
    def metrics(self) -> dict[str, Metric]:
        """Those of the last push of one request."""
        return metrics_of(self.requests[-1])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        self.asked += 1
        if self.status == 200:
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            assert scope["path"] == "/v1/metrics"
            assert headers["content-type"] == "application/json"
            self.names.append(scope["extensions"].get("mesh_pilot.peer_names", ()))
            self.requests.append(parsed(gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body))
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


@asynccontextmanager
async def receiver(tls: TlsSource | None = None) -> AsyncIterator[OtelReceiver]:
    """A receiver on a free port for the length of the block."""
    found = OtelReceiver(scheme="https" if tls is not None else "http")
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    found.port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(HttpServer(found, tls=tls).serve, listeners, trio.Event(), grace_seconds=0))
        yield found
        nursery.cancel_scope.cancel()


@attrs.frozen
class OtelCollector:
    """The collector, which writes to its log what it takes."""

    url: str
    file: Path

    @property
    def log(self) -> str:
        return self.file.read_text(encoding="utf-8")

    async def has(self, *texts: str) -> None:
        """Wait until all of these are in the log."""
        await eventually(lambda: all(text in self.log for text in texts), what=f"{texts} in the collector's log")


@asynccontextmanager
async def collector(folder: Path, tls: CertificateFiles | None = None) -> AsyncIterator[OtelCollector]:
    """A collector for the length of the block; with ``tls`` it wants a client's certificate of the same CA."""
    binary = require_binary("otelcol", built="otelcol/otelcol")
    (port,) = free_ports(1)
    http: dict[str, Any] = {"endpoint": f"127.0.0.1:{port}"}
    if tls is not None:
        files = {"cert_file": tls.certificate, "key_file": tls.key, "client_ca_file": tls.ca}
        http["tls"] = {name: str(file) for name, file in files.items()}
    pipeline = {"receivers": ["otlp"], "exporters": ["debug"]}
    config = {
        "receivers": {"otlp": {"protocols": {"http": http}}},
        "exporters": {"debug": {"verbosity": "detailed"}},
        "service": {
            "pipelines": {"metrics": pipeline, "traces": pipeline},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    (folder / "otelcol.yaml").write_text(yaml.safe_dump(config))
    with (folder / "otelcol.log").open("w") as log:
        command = [str(binary), "--config", str(folder / "otelcol.yaml")]
        process = await trio.lowlevel.open_process(command, stdout=log, stderr=log)
    found = OtelCollector(f"{'https' if tls else 'http'}://localhost:{port}", folder / "otelcol.log")
    try:

        def ready() -> bool:
            assert process.poll() is None, found.log
            return "Everything is ready" in found.log

        await eventually(ready, what="the collector is ready")
        yield found
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
