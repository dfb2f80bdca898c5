"""Istio's rules for the security kinds: for each, a good and a bad object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, holds, warns

SELECTOR = {"matchLabels": {"app": "a"}}
PEER: dict[str, Any] = {"selector": SELECTOR, "mtls": {"mode": "STRICT"}}
REQUEST: dict[str, Any] = {"jwtRules": [{"issuer": "me"}]}
POLICY: dict[str, Any] = {"rules": [{"from": [{"source": {"namespaces": ["a"]}}]}]}
CUSTOM: dict[str, Any] = {"action": "CUSTOM", "provider": {"name": "opa"}, "rules": [{}]}
SOURCE = "rules[0].from[0].source"
OPERATION = "rules[0].to[0].operation"
KEYS = '{"keys": [{"kty": "oct", "k": "YWJj"}]}'
WHEN = "rules[0].when[0]"
TARGET = {"kind": "Service", "name": "a"}

PEERS = [
    Rule("", PEER, {"portLevelMtls": {"80": {"mode": "STRICT"}}}, "needs a selector", "portLevelMtls"),
    Rule("portLevelMtls", {"80": {"mode": "DISABLE"}}, {"0": {}}, "not a port", "portLevelMtls[0]"),
    Rule("portLevelMtls", {"80": {"mode": "DISABLE"}}, {}, "must not be empty"),
    Rule("portLevelMtls", {"80": {"mode": "DISABLE"}}, {"http": {}}, "expected a whole number", "portLevelMtls[http]"),
    Rule("selector.matchLabels", {"app": "a"}, {"app": "a*"}, "wildcards", "selector.matchLabels[app]"),
    warns("selector", SELECTOR, {}, "every workload", "selector.matchLabels"),
    Rule("mtls.mode", "PERMISSIVE", "ON", "allowed: UNSET"),
]

REQUESTS = [
    Rule("jwtRules[0].issuer", "me", ABSENT, "is missing"),
    Rule("jwtRules[0]", {"jwksUri": "https://a.b/keys"}, {"jwks": KEYS}, "is missing", "jwtRules[0].issuer"),
    Rule("jwtRules[0].spaceDelimitedClaims", ["a"], [""], "must not be empty", "jwtRules[0].spaceDelimitedClaims[0]"),
    Rule(
        "targetRefs",
        [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "a"}],
        [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "a", "namespace": "shop"}],
        "can't be set",
        "targetRefs[0].namespace",
    ),
    Rule("jwtRules[0].audiences", ["a"], [""], "must not be empty", "jwtRules[0].audiences[0]"),
    Rule("jwtRules[0].fromParams", ["a"], [""], "must not be empty", "jwtRules[0].fromParams[0]"),
    Rule("jwtRules[0].fromCookies", ["a"], [""], "must not be empty", "jwtRules[0].fromCookies[0]"),
    Rule(
        "jwtRules[0].fromHeaders", [{"name": "a"}], [{"prefix": "a"}], "is missing", "jwtRules[0].fromHeaders[0].name"
    ),
    Rule("jwtRules[0].jwksUri", "https://a.b/keys", "ftp://a.b", "not an http or https URL"),
    Rule("jwtRules[0].jwksUri", "http://a:8080", "https://", "not an http or https URL"),
    Rule("jwtRules[0].jwks", KEYS, "{", "is not JSON"),
    Rule("jwtRules[0].jwks", KEYS, '{"kty": "oct"}', "not a JSON Web Key Set"),
    Rule("jwtRules[0].jwks", KEYS.replace("[", '[{"kty": "new"}, '), '{"keys": [{"kty": "new"}]}', "has no key that"),
    *(
        Rule(f"jwtRules[0].{field}", value("x-a"), value(bad), "must not have line breaks", f"jwtRules[0].{at}")
        for bad in ("a\rb", "\n", "\0")
        for field, value, at in (
            ("fromHeaders", lambda name: [{"name": name}], "fromHeaders[0].name"),
            ("fromHeaders", lambda start: [{"name": "a", "prefix": start}], "fromHeaders[0].prefix"),
            ("outputPayloadToHeader", str, "outputPayloadToHeader"),
        )
    ),
    warns(
        "jwtRules[0]",
        {"issuer": "a", "jwks": KEYS},
        {"issuer": "a", "jwks": KEYS, "jwksUri": "https://a"},
        "no effect next to jwks",
        "jwtRules[0].jwksUri",
    ),
    Rule("jwtRules[0].timeout", "5s", "0s", "at least 1ms"),
    Rule(
        "jwtRules[0].outputClaimToHeaders",
        [{"header": "x-a", "claim": "c"}],
        [{"header": "x a", "claim": "c"}],
        "not a header name",
        "jwtRules[0].outputClaimToHeaders[0].header",
    ),
    Rule(
        "jwtRules[0].outputClaimToHeaders",
        [{"header": "x-a", "claim": "c"}],
        [{"header": "x-a"}],
        "is missing",
        "jwtRules[0].outputClaimToHeaders[0].claim",
    ),
    Rule("targetRefs", [TARGET], [{"kind": "Pod", "name": "a"}], "can't be a target", "targetRefs[0]"),
    Rule("targetRefs", [TARGET], [{"kind": "Service"}], "is missing", "targetRefs[0].name"),
    Rule("targetRefs", [TARGET], [{"name": "a"}], "is missing", "targetRefs[0].kind"),
    Rule("targetRef", TARGET, {**TARGET, "namespace": "other"}, "can't be set", "targetRef.namespace"),
    Rule(
        "",
        {**REQUEST, "targetRef": TARGET},
        {**REQUEST, "targetRef": TARGET, "selector": SELECTOR},
        "only one of selector, targetRef",
        "targetRef",
    ),
    Rule(
        "",
        {**REQUEST, "targetRefs": [TARGET]},
        {**REQUEST, "targetRef": TARGET, "targetRefs": [TARGET]},
        "only one of targetRef, targetRefs",
        "targetRefs",
    ),
]

POLICIES = [
    Rule("provider", ABSENT, {"name": "opa"}, "goes with action CUSTOM only"),
    Rule("", {}, {"action": "DENY"}, "DENY without rules does nothing", "rules"),
    Rule(SOURCE, {"principals": ["*"]}, ABSENT, "is missing"),
    Rule(SOURCE, {"notNamespaces": ["a"]}, {}, "at least one of principals"),
    Rule(
        SOURCE, {"ipBlocks": ["10.0.0.0/8"]}, {"ipBlocks": ["a"]}, "not an IP address or CIDR", f"{SOURCE}.ipBlocks[0]"
    ),
    Rule(
        SOURCE,
        {"notRemoteIpBlocks": ["::1"]},
        {"notRemoteIpBlocks": ["10.0.0.1/a"]},
        "not a CIDR",
        f"{SOURCE}.notRemoteIpBlocks[0]",
    ),
    Rule(
        SOURCE,
        {"requestPrincipals": ["*"]},
        {"requestPrincipals": [""]},
        "must not be empty",
        f"{SOURCE}.requestPrincipals[0]",
    ),
    Rule(
        SOURCE,
        {"serviceAccounts": ["ns/a", "b"]},
        {"serviceAccounts": ["a/b/c"]},
        "namespace/account",
        f"{SOURCE}.serviceAccounts[0]",
    ),
    Rule(SOURCE, {"serviceAccounts": ["a"]}, {"serviceAccounts": ["a*"]}, "wildcards", f"{SOURCE}.serviceAccounts[0]"),
    Rule(
        SOURCE,
        {"notServiceAccounts": ["a"]},
        {"notServiceAccounts": ["a" * 321]},
        "longer than 320",
        f"{SOURCE}.notServiceAccounts[0]",
    ),
    Rule(
        SOURCE,
        {"serviceAccounts": ["a"]},
        {"serviceAccounts": ["a"], "namespaces": ["b"]},
        "exclude each other",
        f"{SOURCE}.serviceAccounts",
    ),
    Rule(
        SOURCE, {"trustDomains": ["a*"]}, {"trustDomains": ["a/b"]}, "not a trust domain", f"{SOURCE}.trustDomains[0]"
    ),
    Rule(OPERATION, {"hosts": ["a"]}, {}, "at least one of hosts"),
    Rule(OPERATION, {"ports": ["80"]}, {"ports": ["http"]}, "not a port number", f"{OPERATION}.ports[0]"),
    Rule(OPERATION, {"notPorts": ["80"]}, {"notPorts": ["65536"]}, "not a port", f"{OPERATION}.notPorts[0]"),
    warns(OPERATION, {"ports": ["80"]}, {"ports": ["0"]}, "matches no connection", f"{OPERATION}.ports[0]"),
    Rule(OPERATION, {"methods": ["GET"]}, {"methods": [""]}, "must not be empty", f"{OPERATION}.methods[0]"),
    Rule(OPERATION, {"paths": ["/a/{*}/b/{**}"]}, {"paths": ["/a/{x}"]}, "are templates", f"{OPERATION}.paths[0]"),
    Rule(OPERATION, {"paths": ["/a*"]}, {"paths": ["/{**}/{*}"]}, "can't come after", f"{OPERATION}.paths[0]"),
    Rule(
        OPERATION, {"notPaths": ["/{**}"]}, {"notPaths": ["/{*}/a*"]}, "can't be combined", f"{OPERATION}.notPaths[0]"
    ),
    Rule(OPERATION, {"paths": ["/{**}/a"]}, {"paths": ["/{**}/{**}"]}, "can be there once", f"{OPERATION}.paths[0]"),
    Rule(WHEN, {"key": "request.headers[a]", "values": ["b"]}, {"values": ["b"]}, "is missing", f"{WHEN}.key"),
    Rule(WHEN, {"key": "source.ip", "notValues": ["10.0.0.1"]}, {"key": "source.ip"}, "are required for source.ip"),
    Rule(
        WHEN,
        {"key": "source.ip", "values": ["10.0.0.0/8"]},
        {"key": "source.ip", "values": ["a"]},
        "not an IP",
        f"{WHEN}.values[0]",
    ),
    Rule(
        WHEN,
        {"key": "destination.port", "values": ["80"]},
        {"key": "destination.port", "notValues": ["x"]},
        "not a port",
        f"{WHEN}.notValues[0]",
    ),
    warns(
        WHEN,
        {"key": "destination.port", "values": ["80"]},
        {"key": "destination.port", "values": ["0"]},
        "matches no connection",
        f"{WHEN}.values[0]",
    ),
    Rule(
        WHEN,
        {"key": "request.auth.claims[a][b]", "values": ["x"]},
        {"key": "request.auth.claims", "values": ["x"]},
        "not an attribute",
        f"{WHEN}.key",
    ),
    Rule(
        WHEN,
        {"key": "experimental.envoy.filters.a.b[c]", "values": ["x"]},
        {"key": "source.user", "values": ["x"]},
        "not an attribute",
        f"{WHEN}.key",
    ),
    Rule(
        WHEN,
        {"key": "connection.sni", "values": ["x"]},
        {"key": "connection.sni", "values": [""]},
        "must not be empty",
        f"{WHEN}.values[0]",
    ),
    Rule(
        "targetRefs",
        [TARGET],
        [{"group": "apps", "kind": "Service", "name": "a"}],
        "can't be a target",
        "targetRefs[0]",
    ),
]

LONG = "a" * 2049
POLICIES += [
    *(
        Rule(f"{SOURCE}.{name}", ["a" * 2048], [bad], said, f"{SOURCE}.{name}[0]")
        for name in ("principals", "notNamespaces", "trustDomains", "requestPrincipals")
        for bad, said in ((LONG, "has 2049 characters, allowed are 2048"),)
    ),
    Rule(
        f"{SOURCE}.requestPrincipals", ["a/" * 100], ["a/" * 101], "has 101 slashes", f"{SOURCE}.requestPrincipals[0]"
    ),
    Rule(
        f"{OPERATION}.paths", [f"/{LONG}"], [f"/{{*}}/{LONG}"], "allowed with {*} and {**} are", f"{OPERATION}.paths[0]"
    ),
    Rule(f"{OPERATION}.notHosts", ["a" * 16_384], ["a" * 16_385], "allowed are 16384", f"{OPERATION}.notHosts[0]"),
    *(
        Rule(WHEN, {"key": key, "values": [good]}, {"key": key, "values": [bad]}, said, f"{WHEN}.values[0]")
        for key, good, bad, said in (
            ("source.principal", "*" + "a" * 2047, LONG, "allowed are 2048"),
            ("source.serviceAccount", "a", LONG, "allowed are 2048"),
            ("source.serviceAccount", "ns/a", "a*", "wildcards"),
            ("source.serviceAccount", "a", "a/b/c", "namespace/account"),
            ("request.auth.principal", "/" * 100, "/" * 101, "has 101 slashes"),
            ("request.headers[x]", "a", "a" * 16_385, "allowed are 16384"),
        )
    ),
    *(
        Rule(WHEN, {"key": f"{name}[a]", "values": ["b"]}, {"key": bad, "values": ["b"]}, said, f"{WHEN}.key")
        for name, bad, said in (
            ("request.headers", "request.headers[a\rb]", "must not have line breaks"),
            ("request.headers", "request.headers[\n]", "must not have line breaks"),
            ("request.headers", "request.headers[a\0]", "must not have line breaks"),
            ("request.auth.claims", f"request.auth.claims[{LONG}]", "characters, allowed are 2048"),
        )
    ),
]

CUSTOMS = [
    Rule("provider", {"name": "opa"}, ABSENT, "action CUSTOM needs it", "provider.name"),
    Rule("provider", {"name": "opa"}, {}, "action CUSTOM needs it", "provider.name"),
    Rule("rules", [{}], ABSENT, "CUSTOM without rules does nothing"),
    Rule(SOURCE, {"ipBlocks": ["10.0.0.1"]}, {"namespaces": ["a"]}, "with action CUSTOM", f"{SOURCE}.namespaces"),
    Rule(
        SOURCE,
        {"remoteIpBlocks": ["10.0.0.1"]},
        {"notPrincipals": ["a"]},
        "with action CUSTOM",
        f"{SOURCE}.notPrincipals",
    ),
    Rule(
        WHEN,
        {"key": "source.ip", "values": ["::"]},
        {"key": "request.auth.principal", "values": ["a"]},
        "with action CUSTOM",
        f"{WHEN}.key",
    ),
]

TABLE = [
    (kind, base, rule)
    for kind, base, rules in (
        ("PeerAuthentication", PEER, PEERS),
        ("RequestAuthentication", REQUEST, REQUESTS),
        ("AuthorizationPolicy", POLICY, POLICIES),
        ("AuthorizationPolicy", CUSTOM, CUSTOMS),
    )
    for rule in rules
]


@pytest.mark.parametrize(("kind", "base", "rule"), TABLE, ids=str)
def test_a_rule_of_security_is_kept_or_named(kind: str, base: dict[str, Any], rule: Rule) -> None:
    holds(kind, base, rule)
