"""Generated objects of the Gateway API, with Ingresses, for the family of ``pool``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Pick = Callable[..., Any]

_HEAD = """
apiVersion: {api}
kind: {kind}
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-03-0{day}T00:00:00Z"}}
spec:
"""
_API = "gateway.networking.k8s.io/v1"
_MODES = (
    "Terminate, certificateRefs: [{name: edge}]",
    "Passthrough",
    "Terminate, certificateRefs: [{name: edge, namespace: other}]",
)


def _head(pick: Pick, kind: str, *names: str, api: str = _API, namespace: str = "") -> str:
    return _HEAD.format(
        api=api,
        kind=kind,
        name=pick(*names),
        namespace=namespace or pick("shop", "other"),
        day=pick(1, 2, 3),
    )


def gateway_class(pick: Pick) -> str:
    controller = pick("istio.io/gateway-controller", "example.com/other", "istio.io/unmanaged-gateway")
    return f"""
apiVersion: {_API}
kind: GatewayClass
metadata: {{name: istio}}
spec: {{controllerName: {controller}}}
"""


def gateway(pick: Pick) -> str:
    first = pick("HTTP", "TCP")
    hostname = pick("", ', hostname: "*.example.com"', ", hostname: a.example.com") if first == "HTTP" else ""
    spaces = pick("Same", "All", "Selector, selector: {matchLabels: {team: a}}")
    allowed = f"allowedRoutes: {{namespaces: {{from: {spaces}}}}}"
    mode = pick(*_MODES)
    protocol = "TLS" if mode == "Passthrough" else "HTTPS"
    address = pick("", "  addresses: [{type: Hostname, value: a.shop.svc.cluster.local}]\n")
    return (
        _head(pick, "Gateway", "web", "more", namespace="shop")
        + f"""  gatewayClassName: {pick("istio", "istio", "other")}
  allowedListeners: {{namespaces: {{from: {pick("All", "Same", "None")}}}}}
  listeners:
  - {{name: http, port: {pick(80, 81)}, protocol: {first}{hostname}, {allowed}}}
  - {{name: udp, port: {pick(80, 53)}, protocol: UDP}}
  - {{name: tls, port: 443, protocol: {protocol}, tls: {{mode: {mode}}}}}
"""
        + address
    )


def listener_set(pick: Pick) -> str:
    return (
        _head(pick, "ListenerSet", "more")
        + f"""  parentRef: {{name: web, namespace: shop}}
  listeners: [{{name: http, port: {pick(80, 82)}, protocol: HTTP, hostname: {pick("a.example.com", "b.example.com")}}}]
"""
    )


def _parents(pick: Pick) -> str:
    parent = pick(
        "{name: web, namespace: shop}",
        "{name: web, namespace: shop, sectionName: http}",
        f"{{kind: ListenerSet, group: {_API[:-3]}, name: more}}",
        '{kind: Service, group: "", name: a, namespace: shop}',
        f"{{kind: ServiceEntry, group: networking.istio.io, name: {pick('x', 'y')}, namespace: shop}}",
    )
    return f"  parentRefs: [{parent}]\n"


def _backends(pick: Pick) -> str:
    weight = pick(1, 0)
    name, namespace = pick(("a", "shop"), ("b", "shop"), ("c", "other"))
    return f"backendRefs: [{{name: {name}, namespace: {namespace}, port: {pick(80, 81)}, weight: {weight}}}]"


def _session(pick: Pick) -> str:
    return pick("", "sessionPersistence: {sessionName: one}, ", "sessionPersistence: {type: Header}, ")


def _asking(pick: Pick) -> str:
    host = pick("b.shop.svc.cluster.local", "c.example.com")
    backend = f"backendRef: {{group: networking.istio.io, kind: Hostname, name: {host}, port: 80}}"
    asked = f"type: ExternalAuth, externalAuth: {{protocol: HTTP, {backend}, http: {{path: {pick('/x', '/y')}}}}}"
    return pick("", f"filters: [{{{asked}}}], ")


def http_route(pick: Pick) -> str:
    hostnames = pick("", "  hostnames: [a.example.com]\n", "  hostnames: [a.example.com, b.example.com]\n")
    match = pick("", "matches: [{path: {value: /a}}], ", "matches: [{headers: [{name: x, value: y}]}], ")
    return (
        _head(pick, "HTTPRoute", "one", "two")
        + _parents(pick)
        + hostnames
        + f"  rules: [{{{match}{_asking(pick)}{_session(pick)}{_backends(pick)}}}]\n"
    )


def grpc_route(pick: Pick) -> str:
    return _head(pick, "GRPCRoute", "calls") + _parents(pick) + f"  rules: [{{{_backends(pick)}}}]\n"


def tls_route(pick: Pick) -> str:
    return (
        _head(pick, "TLSRoute", "tls")
        + _parents(pick)
        + f"  hostnames: [{pick('a.example.com', 'b.example.com')}]\n  rules: [{{{_backends(pick)}}}]\n"
    )


def tcp_route(pick: Pick) -> str:
    return _head(pick, "TCPRoute", "bytes") + _parents(pick) + f"  rules: [{{{_backends(pick)}}}]\n"


def udp_route(pick: Pick) -> str:
    return _head(pick, "UDPRoute", "packets") + _parents(pick) + f"  rules: [{{{_backends(pick)}}}]\n"


def reference_grant(pick: Pick) -> str:
    kind, target = pick(("HTTPRoute", "Service"), ("UDPRoute", "Service"), ("Gateway", "Secret"))
    return (
        _head(pick, "ReferenceGrant", "permits")
        + f"""  from: [{{group: {_API[:-3]}, kind: {kind}, namespace: {pick("shop", "other")}}}]
  to: [{{group: "", kind: {target}}}]
"""
    )


def backend_tls_policy(pick: Pick) -> str:
    section = pick("", ", sectionName: http")
    return (
        _head(pick, "BackendTLSPolicy", "one", "two", namespace="shop")
        + f"""  targetRefs: [{{group: "", kind: Service, name: {pick("a", "b")}{section}}}]
  validation: {{hostname: {pick("a.test", "b.test")}, wellKnownCACertificates: System}}
"""
    )


def backend_traffic_policy(pick: Pick) -> str:
    return (
        _head(pick, "XBackendTrafficPolicy", "one", api="gateway.networking.x-k8s.io/v1alpha1", namespace="shop")
        + f"""  targetRefs: [{{group: "", kind: Service, name: {pick("a", "b")}}}]
  retryConstraint: {{budget: {{percent: {pick(20, 30)}, interval: 10s}}, minRetryRate: {{count: 10, interval: 1s}}}}
  {pick("", "sessionPersistence: {}")}
"""
    )


def namespace(pick: Pick) -> str:
    return f"""
apiVersion: v1
kind: Namespace
metadata: {{name: {pick("shop", "other")}, labels: {{team: {pick("a", "b")}}}}}
"""


def ingress_class(pick: Pick) -> str:
    controller = pick("istio.io/ingress-controller", "example.com/other")
    return f"""
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {{name: edge}}
spec: {{controller: {controller}}}
"""


def ingress(pick: Pick) -> str:
    return (
        _head(pick, "Ingress", "one", "two", api="networking.k8s.io/v1")
        + f"""  ingressClassName: {pick("istio", "edge", "other")}
  rules:
  - host: {pick("a.example.com", "b.example.com")}
    http:
      paths: [{{path: {pick("/", "/a")}, pathType: Prefix, backend: {{service: {{name: a, port: {{number: 80}}}}}}}}]
"""
    )


KINDS: dict[str, Callable[[Pick], str]] = {
    "class of Gateways": gateway_class,
    "Gateway": gateway,
    "ListenerSet": listener_set,
    "HTTPRoute": http_route,
    "GRPCRoute": grpc_route,
    "TLSRoute": tls_route,
    "TCPRoute": tcp_route,
    "UDPRoute": udp_route,
    "grant": reference_grant,
    "TLS policy": backend_tls_policy,
    "traffic policy": backend_traffic_policy,
    "namespace": namespace,
    "class of Ingresses": ingress_class,
    "Ingress": ingress,
}
