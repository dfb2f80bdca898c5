"""Telemetry for tests: a web service, a trace collector, providers of every kind, and Telemetry configs."""

from __future__ import annotations

from typing import Any

from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.world import World
from tests.support.listeners import listeners, manager
from tests.support.worlds import sidecar

WEB = frozenset({("app", "web")})

SERVICES = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.1.1.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: tools}
spec:
  hosts: [collector.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC}, {number: 9411, name: http, protocol: HTTP}]
  endpoints: [{address: 10.1.2.1}]
"""

PROVIDERS = """
extensionProviders:
- {name: file, envoyFileAccessLog: {path: /tmp/a.log, logFormat: {text: "%PROTOCOL%"}, omitEmptyValues: true}}
- {name: http-als, envoyHttpAls: {service: collector.example, port: 4317, additionalRequestHeadersToLog: [x-a]}}
- {name: tcp-als, envoyTcpAls: {service: collector.example, port: 4317}}
- {name: otel-als, envoyOtelAls: {service: tools/collector.example, port: 4317, logFormat: {labels: {a: "%PROTOCOL%"}}}}
- {name: lost-als, envoyHttpAls: {service: nowhere.example, port: 4317}}
- {name: zipkin, zipkin: {service: collector.example, port: 9411, maxTagLength: 7}}
- {name: zipkin-more, zipkin: {service: collector.example, port: 9411, timeout: 2s, path: /spans,
   headers: [{name: x-key, value: k}, {name: x-env, envName: E}], traceContextOption: USE_B3_WITH_W3C_PROPAGATION}}
- {name: otel, opentelemetry: {service: collector.example, port: 4317}}
- {name: otel-more, opentelemetry: {service: collector.example, port: 4317,
   grpc: {timeout: 3s, initialMetadata: [{name: x-key, value: k}]}}}
- {name: otel-http, opentelemetry: {service: collector.example, port: 9411, http: {path: /v1/traces, timeout: 1s}}}
- {name: otel-all, opentelemetry: {service: collector.example, port: 9411, http: {path: /v1/traces},
   resourceDetectors: {environment: {}, dynatrace: {}}, serviceAttributeEnrichment: OTEL_SEMANTIC_CONVENTIONS}}
- {name: dynatrace, opentelemetry: {service: collector.example, port: 9411,
   http: {path: /otlp, timeout: 1s, headers: [{name: x-key, value: k}]},
   dynatraceSampler: {tenant: abc, clusterId: 7, rootSpansPerMinute: 50}}}
- {name: dynatrace-api, opentelemetry: {service: collector.example, port: 4317, dynatraceSampler: {tenant: abc,
   httpService: {service: collector.example, port: 9411, http: {path: /api, timeout: 2s}}}}}
- {name: dynatrace-lost, opentelemetry: {service: collector.example, port: 4317, dynatraceSampler: {tenant: abc}}}
- {name: datadog, datadog: {service: collector.example, port: 9411}}
- {name: skywalking, skywalking: {service: collector.example, port: 4317, accessToken: t}}
- {name: lost, zipkin: {service: collector.example, port: 1}}
"""


def telemetry(name: str, namespace: str, spec: str, selector: str = "") -> str:
    chosen = f"selector: {{matchLabels: {selector}}}, " if selector else ""
    return (
        "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\n"
        f"metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{chosen}{spec}}}\n"
    )


def context(side: TrafficSide = TrafficSide.OUTBOUND) -> PolicyContext:
    return PolicyContext(side, "shop", WEB)


def http_chain(world: World) -> Any:
    """The HTTP connection manager of a sidecar of namespace shop for ``web.example``."""
    found = listeners(world, sidecar("10.9.9.9", namespace="shop", labels={"app": "web"}))
    return manager(found["0.0.0.0_80"].filter_chains[0])
