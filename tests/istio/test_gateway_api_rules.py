"""Rules for the Gateway API: those of its CRDs, for files and Consul, which have no API server in front."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, holds, problems_of, warns

TO = {"name": "reviews", "port": 9080}
ROUTE: dict[str, Any] = {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [TO]}]}
LISTENER = {"name": "http", "port": 80, "protocol": "HTTP"}
SECURE = {"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "cert"}]}}
GATEWAY: dict[str, Any] = {"gatewayClassName": "istio", "listeners": [LISTENER]}
GRANT: dict[str, Any] = {
    "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "shop"}],
    "to": [{"group": "", "kind": "Service"}],
}
TLS_POLICY: dict[str, Any] = {
    "targetRefs": [{"group": "", "kind": "Service", "name": "reviews"}],
    "validation": {"hostname": "reviews.test", "wellKnownCACertificates": "System"},
}
INGRESS_PATH = {
    "path": "/",
    "pathType": "Prefix",
    "backend": {"service": {"name": "reviews", "port": {"number": 80}}},
}
INGRESS: dict[str, Any] = {"rules": [{"http": {"paths": [INGRESS_PATH]}}]}

R = "rules[0]"
S = f"{R}.sessionPersistence"
IN_HEADER = {"type": "Header"}
F = f"{R}.filters[0]"
P = "rules[0].http.paths[0]"


def asked(**settings: object) -> list[dict[str, object]]:
    """An ExternalAuth with these settings."""
    return filtered("ExternalAuth", "externalAuth", {"protocol": "HTTP", "backendRef": TO, **settings})


def filtered(type: str, field: str, settings: object) -> list[dict[str, object]]:
    return [{"type": type, field: settings}]


def rewritten(match: object) -> dict[str, Any]:
    path = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
    rule = {"matches": [match], "filters": filtered("URLRewrite", "urlRewrite", {"path": path})}
    return {"rules": [{**rule, "backendRefs": [TO]}]}


HTTP = [
    Rule("parentRefs[0].name", "edge", "", "is missing"),
    Rule("parentRefs[0].kind", "ListenerSet", "Gate way", "is not a kind"),
    Rule("parentRefs[0].port", 80, 0, "is not a port"),
    Rule(
        "parentRefs",
        [{"name": "edge", "sectionName": "a"}, {"name": "edge", "sectionName": "b"}],
        [{"name": "edge"}, {"name": "edge", "group": "gateway.networking.k8s.io"}],
        "has the same parent",
        "parentRefs[1]",
    ),
    Rule(
        "parentRefs",
        [{"name": "edge", "port": 80}, {"name": "edge", "port": 81}],
        [{"name": "edge"}, {"name": "edge", "port": 81}],
        "both need sectionName or port",
        "parentRefs[1]",
    ),
    Rule("hostnames[0]", "*.shop.test", "shop.*.test", "is not a host name"),
    Rule("hostnames[0]", "shop.test", "10.0.0.1", "is an IP address"),
    Rule(f"{R}.name", "first", "First", "is not a name"),
    Rule("rules", [{"name": "a"}, {"name": "b"}], [{"name": "a"}, {"name": "a"}], "has the same name", "rules[1]"),
    Rule("rules", [{"matches": [{}] * 64}] * 2, [{"matches": [{}] * 64}] * 3, "at most 128"),
    Rule(f"{R}.matches[0].path.value", "/a", "a", "must be an absolute path"),
    Rule(f"{R}.matches[0].path.value", "/a/b", "/a//b", 'must not contain "//"'),
    Rule(f"{R}.matches[0].path.value", "/a", "/a/..", "must not end"),
    Rule(f"{R}.matches[0].path.value", "/%20", "/ ", "%XX"),
    Rule(f"{R}.matches[0].path.type", "Exact", "Prefix", "allowed: Exact, PathPrefix"),
    Rule(
        f"{R}.matches[0].path",
        {"type": "RegularExpression", "value": "/a.*"},
        {"type": "RegularExpression", "value": "/a("},
        "",
        f"{R}.matches[0].path.value",
    ),
    Rule(f"{R}.matches[0].method", "GET", "get", "allowed: GET"),
    Rule(
        f"{R}.matches[0].headers",
        [{"name": "a", "value": "1"}, {"name": "b", "value": "1"}],
        [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}],
        "has the same name",
        f"{R}.matches[0].headers[1]",
    ),
    Rule(f"{R}.matches[0].headers[0]", {"name": "a", "value": "1"}, {"name": "a"}, "is missing",
         f"{R}.matches[0].headers[0].value"),
    Rule(f"{R}.filters", filtered("CORS", "cors", {}), [{"type": "CORS"}], "type CORS needs it", f"{F}.cors"),
    Rule(f"{R}.filters", filtered("CORS", "cors", {}), filtered("CORS", "urlRewrite", {}), "it is for URLRewrite",
         f"{F}.urlRewrite"),
    Rule(f"{R}.filters", filtered("CORS", "cors", {}), filtered("CORS", "cors", {}) * 2, "has the same type",
         f"{R}.filters[1]"),
    Rule(f"{R}.filters", filtered("CORS", "cors", {}), [{"type": "Cors"}], "allowed: ", f"{F}.type"),
    Rule(f"{R}.filters", filtered("CORS", "cors", {"allowOrigins": ["*"]}),
         filtered("CORS", "cors", {"allowOrigins": ["*", "http://a.test"]}), "can't be combined",
         f"{F}.cors.allowOrigins"),
    *(Rule(f"{R}.filters", asked(**good), asked(**bad), said, f"{F}.externalAuth.{at}") for good, bad, said, at in (
        ({"http": {}}, {}, "protocol HTTP needs it", "http"),
        ({"http": {}}, {"http": {}, "grpc": {}}, "can't be set with protocol HTTP", "grpc"),
        ({"http": {"path": "/a%20b"}}, {"http": {"path": "/a b"}}, "is not a path", "http.path"),
        ({"http": {"allowedHeaders": ["a"]}}, {"http": {"allowedHeaders": ["a b"]}}, "is not a name",
         "http.allowedHeaders[0]"),
        ({"http": {}}, {"http": {"allowedResponseHeaders": ["a", "A"]}}, "is the same as",
         "http.allowedResponseHeaders[1]"),
        ({"protocol": "GRPC", "grpc": {}}, {"protocol": "GRPC", "grpc": {"allowedHeaders": [""]}}, "is missing",
         "grpc.allowedHeaders[0]"),
        ({"http": {}, "forwardBody": {"maxSize": 65535}}, {"http": {}, "forwardBody": {"maxSize": 65536}},
         "is more than 65535 bytes", "forwardBody.maxSize"),
        ({"http": {}}, {"http": {}, "backendRef": {"name": "a"}}, "a Service needs it", "backendRef.port"),
    )),
    Rule(f"{R}.filters", filtered("RequestMirror", "requestMirror", {"backendRef": TO, "percent": 5}),
         filtered("RequestMirror", "requestMirror", {"backendRef": TO, "percent": 5, "fraction": {"numerator": 1}}),
         "only one of percent and fraction", f"{F}.requestMirror"),
    Rule(f"{R}.filters", filtered("RequestHeaderModifier", "requestHeaderModifier", {"remove": ["a"]}),
         filtered("RequestHeaderModifier", "requestHeaderModifier", {"remove": ["a b"]}), "is not a name",
         f"{F}.requestHeaderModifier.remove[0]"),
    Rule(R, {"filters": filtered("RequestRedirect", "requestRedirect", {"port": 81})},
         {"filters": filtered("RequestRedirect", "requestRedirect", {"port": 81}), "backendRefs": [TO]},
         "can't be set with a filter RequestRedirect", f"{R}.backendRefs"),
    Rule(R, {"filters": filtered("RequestRedirect", "requestRedirect", {"statusCode": 303})},
         {"filters": filtered("RequestRedirect", "requestRedirect", {"statusCode": 304})}, "is not allowed",
         f"{F}.requestRedirect.statusCode"),
    Rule("", rewritten({"path": {"value": "/a"}}), rewritten({"path": {"type": "Exact", "value": "/a"}}),
         "exactly one match", f"{F}.urlRewrite.path"),
    Rule(f"{R}.backendRefs[0].port", 9080, ABSENT, "a Service needs it"),
    Rule(f"{R}.backendRefs[0].weight", 0, 1_000_001, "is out of range"),
    Rule(f"{R}.timeouts.request", "1h30m", "1.5s", "is not a duration of the Gateway API"),
    Rule(f"{R}.timeouts", {"request": "1s", "backendRequest": "1s"}, {"request": "1s", "backendRequest": "2s"},
         "is longer than request", f"{R}.timeouts.backendRequest"),
    Rule(f"{R}.retry.codes", [500, 503], [500, 500], "is the same", f"{R}.retry.codes[1]"),
    warns("useDefaultGateways", ABSENT, "All", "has no effect"),
    warns(f"{S}.absoluteTimeout", ABSENT, "1h", "has no effect"),
    warns(f"{S}.idleTimeout", ABSENT, "1h", "has no effect"),
    Rule(f"{S}.sessionName", "shop", "a b", "is not a name"),
    Rule(f"{S}.cookie.path", "/a", "/a;b", "is not a path"),
    Rule(S, IN_HEADER | {"sessionName": "x"}, IN_HEADER | {"sessionName": "Host"}, "meaning", f"{S}.sessionName"),
]  # fmt: skip

OTHERS = [
    ("KubernetesGateway", GATEWAY, Rule("listeners", [LISTENER], [], "is missing")),
    ("KubernetesGateway", GATEWAY, Rule("listeners", [LISTENER], [LISTENER] * 2, "has the same name", "listeners[1]")),
    ("KubernetesGateway", GATEWAY,
     Rule("listeners[1]", SECURE, {**LISTENER, "name": "b"}, "has the same port, protocol and hostname")),
    ("KubernetesGateway", GATEWAY, Rule("listeners[0].tls", ABSENT, SECURE["tls"], "can't be set with protocol HTTP")),
    ("KubernetesGateway", {**GATEWAY, "listeners": [SECURE]},
     Rule("listeners[0].tls.mode", "Terminate", "Passthrough", "use protocol TLS")),
    ("KubernetesGateway", GATEWAY, Rule("gatewayClassName", "istio", ABSENT, "is missing")),
    ("KubernetesGateway", GATEWAY,
     Rule("listeners[0].allowedRoutes.namespaces.from", "All", "None", "allowed: All, Selector, Same")),
    ("KubernetesGateway", {**GATEWAY, "listeners": [SECURE]},
     warns("listeners[0].tls.frontendValidation", ABSENT,
           {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]}, "has no effect")),
    ("ListenerSet", {"parentRef": {"name": "edge"}, "listeners": [LISTENER]},
     Rule("parentRef", {"name": "edge"}, ABSENT, "is missing")),
    ("ListenerSet", {"parentRef": {"name": "edge"}, "listeners": [LISTENER]},
     Rule("parentRef.kind", "Gateway", "Service", "can only be Gateway")),
    ("GatewayClass", {"controllerName": "istio.io/gateway-controller"},
     Rule("controllerName", "a.test/b", "istio", "is not of the form")),
    ("GRPCRoute", ROUTE,
     Rule(f"{R}.matches[0].method", {"service": "a.B"}, {"type": "Exact"}, "needs service or method")),
    ("GRPCRoute", ROUTE,
     Rule(f"{R}.filters", [], filtered("CORS", "requestMirror", {"backendRef": TO}), "allowed: ", f"{F}.type")),
    ("TLSRoute", {**ROUTE, "hostnames": ["a.test"]}, Rule("hostnames[0]", "a.test", "a_b", "is not a host name")),
    ("TCPRoute", ROUTE, Rule(f"{R}.backendRefs", [TO], [], "is missing")),
    ("ReferenceGrant", GRANT, Rule("from[0].namespace", "shop", "", "is missing")),
    ("ReferenceGrant", GRANT, Rule("to[0].group", "", ABSENT, "is missing")),
    ("BackendTLSPolicy", TLS_POLICY,
     Rule("validation.wellKnownCACertificates", "System", ABSENT, "needs", "validation")),
    ("BackendTLSPolicy", TLS_POLICY, Rule("validation.hostname", "a.test", "*.test", "is not a host name")),
    ("Ingress", INGRESS, Rule("", INGRESS, {}, "needs rules")),
    ("Ingress", INGRESS, Rule(f"{P}.backend.service.port", {"name": "http"}, {}, "either name or number")),
    ("Ingress", INGRESS, Rule(f"{P}.path", "/a", "a", "absolute path")),
    ("IngressClass", {"controller": "istio.io/ingress-controller"}, Rule("controller", "a.test/b", "a b", "is not a")),
]  # fmt: skip


@pytest.mark.parametrize("rule", HTTP, ids=str)
def test_a_rule_of_an_http_route_is_kept_or_named(rule: Rule) -> None:
    holds("HTTPRoute", ROUTE, rule)


@pytest.mark.parametrize(("kind", "base", "rule"), OTHERS, ids=str)
def test_a_rule_of_another_kind_is_kept_or_named(kind: str, base: dict[str, Any], rule: Rule) -> None:
    holds(kind, base, rule)


def test_an_unknown_field_is_an_error_with_its_path() -> None:
    (problem,) = problems_of("HTTPRoute", {**ROUTE, "rules": [{"backendRef": [TO]}]})
    assert (problem.path, problem.reason) == (
        "spec.rules[0].backendRef",
        'unknown field "backendRef"; did you mean backendRefs?',
    )
