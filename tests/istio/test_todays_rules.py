"""What a current Istio refuses, or takes, where Istio 1.14 did not say."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.model.config import ConfigError, Origin, Problem, Severity
from tests.support.rules import Rule, holds, problems_of, warns

TO = {"destination": {"host": "reviews"}}
CLAIM = "@request.auth.claims.group"
BY_CLAIM = [{"headers": {CLAIM: {"exact": "admin"}}}]
SNI = "outbound_.15010_._.istiod.istio-system.svc.cluster.local"


def route(**fields: Any) -> dict[str, Any]:
    return {"hosts": ["a.b"], "gateways": ["edge"], "http": [{"route": [TO], **fields}]}


def by_sni(host: str, **fields: Any) -> dict[str, Any]:
    return {"hosts": [host], "tls": [{"match": [{"sniHosts": [host]}], "route": [TO]}], **fields}


ROUTES = [
    Rule(
        "",
        route(match=BY_CLAIM),
        {**route(match=BY_CLAIM), "gateways": ["mesh"]},
        "at gateways only",
        f"http[0].match[0].headers[{CLAIM}]",
    ),
    Rule(
        "",
        route(),
        {**route(match=[{"withoutHeaders": {CLAIM: {"exact": "admin"}}}]), "gateways": []},
        "at gateways only",
        f"http[0].match[0].withoutHeaders[{CLAIM}]",
    ),
    Rule(
        "http[0]",
        {"match": [{"uri": {"prefix": "/a"}}, {}], "redirect": {"prefixRewrite": "/b"}},
        {"match": [{"uri": {"exact": "/a"}}], "redirect": {"prefixRewrite": "/b"}},
        "by a prefix of the uri",
        "http[0].redirect.prefixRewrite",
    ),
    Rule("", by_sni(SNI, gateways=["edge"]), by_sni(SNI), "not a DNS label", "hosts[0]"),
    Rule("", by_sni(SNI, gateways=["edge"]), route() | {"hosts": [SNI]}, "not a DNS label", "hosts[0]"),
    warns("", by_sni("a.b"), by_sni("1.1.1.1"), "don't send as SNI", "tls[0].match[0].sniHosts[0]"),
]

OTHERS = [
    (
        "DestinationRule",
        {"host": "a"},
        Rule(
            "trafficPolicy.loadBalancer.consistentHash.httpCookie",
            {"name": "a", "attributes": [{"name": "b"}, {"name": "c"}]},
            {"name": "a", "attributes": [{"name": "b"}, {"name": "b"}]},
            "given twice",
            "trafficPolicy.loadBalancer.consistentHash.httpCookie.attributes[1].name",
        ),
    ),
    (
        "WorkloadGroup",
        {"template": {}},
        Rule(
            "probe.httpGet",
            {"port": 80, "httpHeaders": [{"name": "x-a"}]},
            {"port": 80, "httpHeaders": [{"name": "**"}]},
            "not a header name",
            "probe.httpGet.httpHeaders[0].name",
        ),
    ),
    ("WasmPlugin", {}, Rule("url", "https://a.b/%20c", "#%blah$#@", "is not a URL")),
    (
        "AuthorizationPolicy",
        {},
        Rule(
            "rules[0].when[0]",
            {"key": "source.trustDomain", "values": ["*", "a.b", "a*", "*.b"]},
            {"key": "source.trustDomain", "values": ["a/b"]},
            "not a trust domain",
            "rules[0].when[0].values[0]",
        ),
    ),
    ("TrafficExtension", {}, Rule("", {"lua": {"inlineCode": "x = 1"}}, {"phase": "AUTHN"}, "needs wasm or lua")),
    ("TrafficExtension", {}, Rule("", {"wasm": {"url": "oci://a"}}, {"wasm": {}}, "is missing", "wasm.url")),
    ("TrafficExtension", {}, Rule("lua.inlineCode", "x = 1", "", "is missing")),
    ("TrafficExtension", {}, Rule("lua.inlineCode", "goto b ::b::", "x = 1\nv1", "is not Lua: line 2: '=' expected")),
    ("TrafficExtension", {}, Rule("lua.inlineCode", "x = '\\0'", "x = '\0'", "NUL")),
    ("TrafficExtension", {}, Rule("lua.inlineCode", "-- \x1bLJ", "\x1bLJ\x02", "compiled Lua")),
    (
        "EnvoyFilter",
        {"configPatches": [{"applyTo": "CLUSTER", "patch": {"operation": "REMOVE"}}]},
        Rule("configPatches[0].match.proxy.proxyVersion", r"^1\.(8|9).*", "(1+)+(", "RE2 takes: missing )"),
    ),
]


@pytest.mark.parametrize("rule", ROUTES, ids=str)
def test_a_rule_of_virtual_services_is_kept_or_named(rule: Rule) -> None:
    holds("VirtualService", {}, rule)


@pytest.mark.parametrize(("kind", "base", "rule"), OTHERS, ids=str)
def test_a_rule_of_another_kind_is_kept_or_named(kind: str, base: dict[str, Any], rule: Rule) -> None:
    holds(kind, base, rule)


def test_claims_are_matched_at_gateways_and_must_be_named() -> None:
    assert problems_of("VirtualService", route(match=BY_CLAIM)) == []
    for name in ("@request.auth.claims", "@request.auth.claims[]", "@request.auth.claims.", "@request.auth.claimsx"):
        (problem,) = problems_of("VirtualService", route(match=[{"headers": {name: {"exact": "a"}}}]))
        assert problem.severity is Severity.ERROR and "names no claim" in problem.reason


def annotated(kind: str, spec: object, value: str) -> list[Problem]:
    metadata = {"name": "x", "namespace": "shop", "annotations": {"istio.io/dry-run": value}}
    document = {"apiVersion": KINDS[kind].api_versions[-1], "kind": kind, "metadata": metadata, "spec": spec}
    try:
        return list(decode(document, origin=Origin("test")).warnings)
    except ConfigError as error:
        return list(error.problems)


@pytest.mark.parametrize(
    ("kind", "spec", "value", "said"),
    [
        ("AuthorizationPolicy", {"rules": [{}]}, "true", ""),
        ("AuthorizationPolicy", {"rules": [{}], "action": "DENY"}, "0", ""),
        ("AuthorizationPolicy", {"rules": [{}]}, "foo", "neither true nor false"),
        ("AuthorizationPolicy", {"rules": [{}], "action": "AUDIT"}, "true", "ALLOW and DENY only"),
        ("RequestAuthentication", {}, "true", "for AuthorizationPolicy only"),
    ],
)
def test_only_an_authorization_policy_can_be_tried_out(kind: str, spec: object, value: str, said: str) -> None:
    found = annotated(kind, spec, value)
    assert [p.path for p in found] == (["metadata.annotations[istio.io/dry-run]"] if said else [])
    assert all(said in p.reason and p.severity is Severity.ERROR for p in found)


def test_the_label_of_a_revision_is_said_to_have_no_effect() -> None:
    metadata = {"name": "x", "labels": {"istio.io/rev": "canary"}}
    document = {"apiVersion": "security.istio.io/v1", "kind": "PeerAuthentication", "metadata": metadata, "spec": {}}
    (problem,) = decode(document, origin=Origin("test")).warnings
    assert (problem.path, problem.severity) == ("metadata.labels[istio.io/rev]", Severity.WARNING)
