"""A real Envoy takes every listener that we make: those of the golden scenarios, and odd ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.model.proxy import NodeType
from tests.support import golden
from tests.support.envoy_check import complaints
from tests.support.listeners import resources
from tests.support.worlds import sidecar, world_of

pytestmark = pytest.mark.envoy

ODD = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: many, namespace: shop}
spec:
  hosts: [many.example]
  addresses: [10.9.0.1, 10.9.1.0/24, "2001:db8::1"]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8080}
  - {number: 81, name: grpc-web, protocol: GRPC-WEB}
  - {number: 82, name: any}
  - {number: 443, name: tls, protocol: TLS}
  - {number: 5432, name: tcp, protocol: TCP}
  - {number: 27017, name: mongo, protocol: Mongo}
  endpoints: [{address: 10.1.1.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wild, namespace: shop}
spec:
  hosts: ["*.many.example"]
  location: MESH_EXTERNAL
  resolution: NONE
  ports: [{number: 443, name: tls, protocol: TLS}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: shop}
spec:
  hosts: [collector.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC}, {number: 443, name: tls, protocol: TLS}]
  endpoints: [{address: 10.1.2.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: many, namespace: shop}
spec:
  hosts: [many.example, "*.many.example", collector.example]
  tls:
  - match: [{sniHosts: [many.example, "*.many.example"], destinationSubnets: [10.9.2.0/24]}]
    route: [{destination: {host: many.example, subset: v1}}]
  - match: [{sniHosts: [many.example, collector.example]}]
    route: [{destination: {host: many.example}, weight: 1}, {destination: {host: collector.example}, weight: 2}]
  tcp:
  - match: [{destinationSubnets: [10.9.3.0/24], sourceSubnet: 10.0.0.0/8}]
    route: [{destination: {host: collector.example, port: {number: 443}}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: many, namespace: shop}
spec:
  host: many.example
  trafficPolicy:
    loadBalancer: {consistentHash: {useSourceIp: true}}
    connectionPool: {tcp: {idleTimeout: 20s}}
    tunnel: {targetHost: far.example, targetPort: 99}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: DISABLE}, 99: {}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: unix, namespace: shop}
spec:
  workloadSelector: {labels: {app: unix}}
  ingress: [{port: {number: 9080, name: http, protocol: GRPC}, defaultEndpoint: "unix:///tmp/app.sock"}]
  egress:
  - {port: {number: 0, name: http, protocol: HTTP}, bind: "unix:///tmp/a.sock", captureMode: NONE, hosts: ["./*"]}
  - {port: {number: 3128, name: proxy, protocol: HTTP_PROXY}, bind: 127.0.0.1, captureMode: NONE, hosts: ["./*"]}
  - {hosts: ["*/*"]}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: all, namespace: shop}
spec:
  accessLogging:
  - providers: [{name: text}, {name: labels}, {name: http}, {name: tcp}, {name: otel}]
    filter: {expression: "response.code >= 400"}
  tracing:
  - providers: [{name: TRACER}]
    customTags: {a: {header: {name: x-a}}, b: {formatter: {value: "%PROTOCOL%"}}}
    useRequestIdForTraceSampling: false
    disableContextPropagation: true
    enableIstioTags: true
"""

MESH = """
proxyHttpPort: 15080
accessLogFile: /dev/stdout
accessLogEncoding: JSON
protocolDetectionTimeout: 100ms
meshMTLS: {minProtocolVersion: TLSV1_3, cipherSuites: [ECDHE-RSA-AES256-GCM-SHA384]}
extensionProviders:
- {name: text, envoyFileAccessLog: {path: /dev/null, logFormat: {text: "%PROTOCOL%"}, omitEmptyValues: true}}
- {name: labels, envoyFileAccessLog: {path: /dev/null, logFormat: {labels: {a: "%PROTOCOL%"}}}}
- {name: http, envoyHttpAls: {service: collector.example, port: 4317, additionalRequestHeadersToLog: [x-a]}}
- {name: tcp, envoyTcpAls: {service: collector.example, port: 4317, filterStateObjectsToLog: [a]}}
- {name: otel, envoyOtelAls: {service: collector.example, port: 4317, logFormat: {labels: {a: "%PROTOCOL%"}}}}
- {name: zipkin, zipkin: {service: collector.example, port: 4317}}
- {name: zipkin-more, zipkin: {service: collector.example, port: 4317, timeout: 2s, headers: [{name: a, value: b}]}}
- {name: opentelemetry, opentelemetry: {service: collector.example, port: 4317, grpc: {timeout: 3s}}}
- {name: otlp, opentelemetry: {service: collector.example, port: 443, http: {path: /v1, headers: [{name: a}]}}}
- {name: zipkin-odd, zipkin: {service: collector.example, port: 4317, timeout: -1s, headers: [{name: "", value: b}]}}
- name: otlp-odd
  opentelemetry:
    service: collector.example
    port: 443
    http: {path: /v1, timeout: -1s, headers: [HEADERS]}
- name: opentelemetry-odd
  opentelemetry:
    service: collector.example
    port: 4317
    grpc: {timeout: -1s, initialMetadata: [HEADERS]}
- {name: datadog, datadog: {service: collector.example, port: 4317}}
- {name: skywalking, skywalking: {service: collector.example, port: 4317, accessToken: t}}
""".replace(
    "HEADERS", r'{name: "a b", value: c}, {name: "", value: c}, {name: a, value: "b\nc"}, {name: b, value: "1%"}'
)

TRACERS = ("zipkin", "zipkin-more", "opentelemetry", "otlp", "datadog", "skywalking")
ODD_TRACERS = ("zipkin-odd", "otlp-odd", "opentelemetry-odd")
"""With settings that are left out, because Envoy would refuse the listener."""

BALANCED = {"INBOUND_LISTENER_EXACT_BALANCE": "true", "OUTBOUND_LISTENER_EXACT_BALANCE": "true"}
FILES = {"TLS_SERVER_CERT_CHAIN": "/c.pem", "TLS_SERVER_KEY": "/k.pem", "TLS_SERVER_ROOT_CERT": "/r.pem"}


def golden_listeners() -> Iterator[bytes]:
    for scenario in golden.scenarios():
        world = golden.load(scenario)
        for entry in golden.proxies(scenario):
            proxy = golden.proxy_of(entry)
            if proxy.type is NodeType.SIDECAR and not proxy.is_grpc:
                yield from (r.body for r in resources(world, proxy).values())


@pytest.mark.smoke
def test_envoy_takes_the_listeners_of_all_golden_scenarios(tmp_path: Path) -> None:
    zipkin = Cluster(name="outbound|9411||zipkin.tools.svc.cluster.local", type=Cluster.STATIC)
    # A file of a scenario, which may be another user's: a path of the same length is the same in an encoded message.
    listeners = [body.replace(b"/tmp/tail.log", b"/////dev/null") for body in golden_listeners()]
    assert complaints(tmp_path, listeners, [zipkin.SerializeToString()]) == ""


@pytest.mark.parametrize(
    "tracer", ["zipkin", "zipkin-more", "opentelemetry", "otlp", "datadog", "skywalking", *ODD_TRACERS]
)
def test_envoy_takes_odd_listeners(tracer: str, tmp_path: Path) -> None:
    world = world_of(ODD.replace("TRACER", tracer), mesh=MESH)
    proxies = [
        sidecar("10.1.1.1", namespace="shop", labels={"app": "web"}, HTTP10="1", IDLE_TIMEOUT="1h", **FILES),
        sidecar("10.1.1.1", namespace="shop", labels={"app": "web"}, INTERCEPTION_MODE="TPROXY"),
        sidecar("10.1.1.1", namespace="shop", labels={"app": "web"}, INTERCEPTION_MODE="NONE"),
        sidecar("10.1.1.1", namespace="shop", labels={"app": "web"}, **BALANCED),
        sidecar("10.1.1.1", namespace="shop", labels={"app": "unix"}),
        sidecar("2001:db8::9", namespace="shop"),
        sidecar("10.1.1.1", namespace="shop", INSTANCE_IPS="10.1.1.1,2001:db8::9"),
    ]
    found = [r.body for proxy in proxies for r in resources(world, proxy).values()]
    assert complaints(tmp_path, found, collector_clusters()) == ""


def collector_clusters() -> Iterator[bytes]:
    """The clusters that tracers name: Envoy asks for them when it reads a listener."""
    for port in (4317, 443):
        yield Cluster(name=f"outbound|{port}||collector.example", type=Cluster.STATIC).SerializeToString()
