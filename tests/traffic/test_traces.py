"""Traces of a real Envoy: what a collector gets, and what upstreams are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception
from tests.support.echo import Backend
from tests.support.edge import gateway, to
from tests.support.envoy import eventually
from tests.support.fleet import Fleet, fleet
from tests.support.shop import EDGE

pytestmark = pytest.mark.envoy

CLIENT = EnvoyNode("web-1", "shop", "127.0.0.2", labels={"app": "web"}, interception=Interception.NONE)

PROVIDERS = """
extensionProviders:
- name: zipkin
  zipkin: {service: collector.test, port: COLLECTOR, path: /spans, timeout: 5s, headers: [{name: x-key, value: k}]}
- {name: otel, opentelemetry: {service: collector.test, port: COLLECTOR, http: {path: /v1/traces}}}
"""


def service(name: str, port: int, backend: Backend) -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: main, protocol: HTTP}}]
  endpoints: [{{address: {backend.host}, ports: {{main: {backend.port}}}}}]
---"""


def telemetry(entry: str) -> str:
    return f"""
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {{name: all, namespace: shop}}
spec: {{tracing: [{{randomSamplingPercentage: 100, {entry}}}]}}
---"""


async def upstream_sees(mesh: Fleet, port: int, *, header: str, there: bool) -> None:
    """Ask until the service behind is told of the trace, or is no more."""

    async def so() -> bool:
        answer: dict[str, Any] = (await mesh.get(f"http://127.0.0.1:{port}/", host="web.test")).json()
        return answer["name"] == "web" and (header in answer["headers"]) == there

    await eventually(so, what=f"{header} is {'sent' if there else 'not sent'} to the upstream")


async def test_collectors_get_spans_and_upstreams_the_context_unless_that_is_disabled(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, collector_port = free_ports(2)
    async with fleet(tmp_path, mesh=PROVIDERS.replace("COLLECTOR", str(collector_port))) as mesh:
        web, collector = await mesh.backend("web"), await mesh.backend("collector")
        services = service("web", port, web) + service("collector", collector_port, collector)
        await mesh.apply(services + telemetry("providers: [{name: zipkin}]"))
        await mesh.envoy(CLIENT)
        await upstream_sees(mesh, port, header="x-b3-traceid", there=True)

        async def reported(path: str, *words: str) -> bool:
            return any(r["path"] == path and all(word in r["body"] for word in words) for r in collector.seen)

        await eventually(lambda: reported("/spans", '"serviceName":"web.shop"'), what="spans for Zipkin")
        spans = [r for r in collector.seen if r["path"] == "/spans"]
        assert {(r["headers"]["x-key"], r["headers"]["host"]) for r in spans} == {("k", "collector.test")}
        assert not await reported("/spans", "istio.canonical_service")

        entry = "providers: [{name: zipkin}], disableContextPropagation: true, enableIstioTags: true"
        await mesh.apply(services + telemetry(entry))
        await upstream_sees(mesh, port, header="x-b3-traceid", there=False)
        await eventually(
            lambda: reported("/spans", '"istio.canonical_service":"web"', '"istio.namespace":"shop"'),
            what="spans with Istio's tags",
        )

        await mesh.apply(services + telemetry("providers: [{name: otel}]"))
        await upstream_sees(mesh, port, header="traceparent", there=True)
        await eventually(lambda: reported("/v1/traces", "service.name", "web.shop"), what="spans for OpenTelemetry")
        await mesh.assert_all_taken()


async def test_a_gateway_reports_a_span_of_its_own_for_the_request_to_the_upstream(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    port, edge, collector_port = free_ports(3)
    async with fleet(tmp_path, mesh=PROVIDERS.replace("COLLECTOR", str(collector_port))) as mesh:
        web, collector = await mesh.backend("web"), await mesh.backend("collector")
        servers = "- {port: {number: $port, name: http, protocol: HTTP}, hosts: [web.test]}"
        await mesh.apply(
            service("web", port, web)
            + service("collector", collector_port, collector)
            + telemetry("providers: [{name: zipkin}]")
            + "\n"
            + gateway("edge", servers, port=edge)
            + to("web.test", "web.test", "edge")
        )
        await mesh.envoy(EDGE)
        await mesh.until_answered_by({"web"}, f"http://127.0.0.1:{edge}/", host="web.test")

        def kinds() -> set[str]:
            bodies = [json.loads(r["body"]) for r in collector.seen if r["path"] == "/spans"]
            return {span["kind"] for spans in bodies for span in spans}

        await eventually(lambda: kinds() == {"SERVER", "CLIENT"}, seconds=20, what="spans of both sides")
        await mesh.assert_all_taken()
