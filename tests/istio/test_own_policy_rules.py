"""Rules of our own kinds: LocalRateLimit, GlobalRateLimit and HealthCheck."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, holds, problems_of, warns

LIMIT = {"http": {"limits": [{"rate": {"count": 10}}]}}
L = "http.limits[0]"
CONNECTIONS = {"connections": [{"port": 80, "rate": {"count": 1}}]}
TARGET = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}
REST = {"otherwise": True, "rate": {"count": 1}}
LIMITS = [
    Rule("", LIMIT, {}, "limits nothing"),
    Rule("http.limits", LIMIT["http"]["limits"], [], "is missing"),
    Rule("", CONNECTIONS, {"connections": [CONNECTIONS["connections"][0]] * 2}, "port of another", "connections[1]"),
    Rule("connections", [], [{"rate": {"count": 1}}] * 2, "is a second limit without a port", "connections[1]"),
    Rule("targetRefs", [TARGET], [{"kind": "Service", "name": "a"}], "can't be limited", "targetRefs[0]"),
    Rule("targetRefs", [TARGET], [{**TARGET, "namespace": "a"}], "can't be set", "targetRefs[0].namespace"),
    Rule("selector", {"matchLabels": {"app": "a"}}, {"matchLabels": {"app": "*"}}, "wildcards",
         "selector.matchLabels[app]"),
    warns("selector", ABSENT, {}, "is empty", "selector.matchLabels"),
    Rule(f"{L}.port", 80, 65536, "is not a port"),
    Rule("connections[0]", {"rate": {"count": 1}}, {"port": 70000, "rate": {"count": 1}}, "is not a port",
         "connections[0].port"),
    Rule(f"{L}.rate", {"count": 1}, ABSENT, "is missing"),
    Rule(f"{L}.rate.count", 1, 0, "must be at least 1"),
    Rule(f"{L}.rate.burst", 10, 9, "is less than count, 10"),
    Rule(f"{L}.rate.interval", "50ms", "49ms", "at least 50ms"),
    Rule(f"{L}.rate.interval", "1s", "0s", "at least"),
    Rule(f"{L}.match", {"method": {"exact": "GET"}}, {}, "matches on nothing"),
    Rule(f"{L}.match.uri", {"prefix": "/a"}, {}, "needs one of exact, prefix and regex"),
    Rule(f"{L}.match.uri", {"exact": "/a"}, {"exact": ""}, "must not be empty"),
    Rule(f"{L}.match.uri", {"regex": "/a.*"}, {"regex": "("}, ""),
    Rule(f"{L}.match.headers", {"x-a": {}}, {":path": {"exact": "/"}}, "uri, method or authority",
         f"{L}.match.headers[:path]"),
    Rule(f"{L}.match.withoutHeaders", {"x-a": {"exact": ""}}, {"": {}}, "must not be empty",
         f"{L}.match.withoutHeaders[]"),
    Rule("http.limits", [{"match": {"uri": {"prefix": "/a"}}, "rate": {"count": 1}}, REST], [REST, REST],
         "is a second limit for the rest", "http.limits[1]"),
    Rule("http.limits", [REST, {**REST, "port": 80}], [{"rate": {"count": 1}}, REST], "leaves no request",
         "http.limits[1].otherwise"),
    Rule("http.limits", [REST], [{**REST, "match": {"uri": {"prefix": "/a"}}}], "is in place of match",
         "http.limits[0].otherwise"),
    Rule("http.status", 429, 430, "is not the status of an error that Envoy knows"),
    Rule("http.status", 503, 200, "is not the status of an error that Envoy knows"),
    Rule("http.responseHeaders", {"x-a": "100%%"}, {":status": "200"}, "starts with", "http.responseHeaders[:status]"),
    Rule("http.responseHeaders", {"x-a": "b"}, {"x-a": "%NO"}, "", "http.responseHeaders[x-a]"),
    Rule("http.enforcedPercent", 0, 101, "is not a percentage"),
]  # fmt: skip

SERVER = {"host": "limiter.test", "port": 8081}
SHARED = {"service": SERVER, "domain": "shop", "descriptors": [{"entries": [{"header": "x-user"}]}]}
D = "descriptors[0]"
E = f"{D}.entries[0]"
TEXT = {"key": "plan", "value": "free"}
MATCH = {"uri": {"prefix": "/a"}}
SHARED_LIMITS = [
    Rule("targetRefs", [TARGET], [{"kind": "Service", "name": "a"}], "can't be limited", "targetRefs[0]"),
    Rule("selector", {"matchLabels": {"app": "a"}}, {"matchLabels": {"app": "*"}}, "wildcards",
         "selector.matchLabels[app]"),
    Rule("service", SERVER, ABSENT, "is missing"),
    Rule("service.host", "limiter", ABSENT, "must not be empty"),
    Rule("service.host", "limiter.shop", "*.shop", "can't have a wildcard"),
    Rule("service.port", 1, ABSENT, "is missing"),
    Rule("service.port", 65535, 65536, "is not a port"),
    Rule("domain", "any text", ABSENT, "is missing"),
    Rule("domain", "a", "a\nb", "line break"),
    Rule("descriptors", SHARED["descriptors"], [], "is missing"),
    Rule(f"{D}.port", 80, 65536, "is not a port"),
    Rule(f"{D}.entries", [TEXT], [], "is missing"),
    Rule(D, {"match": MATCH, "entries": [{"path": True}, TEXT]}, {"match": MATCH, "entries": [{"path": True}]},
         "needs an entry with a value", f"{D}.match"),
    Rule(D, {"match": MATCH, "entries": [TEXT]}, {"match": {}, "entries": [TEXT]}, "matches on nothing", f"{D}.match"),
    Rule(E, TEXT, {"key": "plan"}, "needs one of"),
    Rule(E, TEXT, {"value": "free"}, "is missing: a value needs one", f"{E}.key"),
    Rule(E, TEXT, {"key": "plan", "value": ""}, "is missing", f"{E}.value"),
    Rule(E, TEXT, {"key": "plan", "value": "a\0b"}, "zero byte", f"{E}.value"),
    Rule(E, {"header": ":method"}, {"header": ":path"}, "use path: true", f"{E}.header"),
    Rule(E, {"header": "X-User"}, {"header": "x user"}, "is not a header name", f"{E}.header"),
    Rule(E, {"header": "x-user"}, {"header": ""}, "must not be empty", f"{E}.header"),
    Rule(E, {"claim": "sub"}, {"claim": ""}, "is not a claim", f"{E}.claim"),
    Rule(E, {"claim": "realm[a][b]"}, {"claim": "realm[a"}, "is not a claim", f"{E}.claim"),
    Rule(E, {"claim": 'a"b\\'}, {"claim": "a" * 257}, "has 257 characters, allowed are 256", f"{E}.claim"),
    Rule(E, {"claim": "a" + 16 * "[b]"}, {"claim": "a" + 17 * "[b]"}, "has 17 members, allowed are 16", f"{E}.claim"),
    Rule(E, {"path": True}, {"path": False}, "is true, or left out", f"{E}.path"),
    Rule(E, {"sourcePrincipal": True, "key": "who"}, {"sourcePrincipal": False}, "is true, or left out",
         f"{E}.sourcePrincipal"),
    Rule(E, {"remoteAddress": True}, {"remoteAddress": True, "key": "ip"}, "can't be chosen", f"{E}.key"),
    Rule("timeout", "0.02s", "0s", "at least"),
    Rule("status", 503, 200, "is not the status of an error that Envoy knows"),
    Rule("responseHeaders", {"x-a": "b"}, {":status": "200"}, "starts with", "responseHeaders[:status]"),
    Rule("enforcedPercent", 0, 101, "is not a percentage"),
]  # fmt: skip

CHECK = {"host": "a.test", "http": {"path": "/healthz"}}
CHECKS = [
    Rule("host", "a", ABSENT, "must not be empty"),
    Rule("host", "a.test", "*.test", "can't have a wildcard"),
    Rule("exportTo", ["."], ["a_b"], "is not a namespace", "exportTo[0]"),
    Rule("ports", [80, 81], [80, 80], "is given twice", "ports[1]"),
    Rule("ports", [80], [0], "is not a port", "ports[0]"),
    Rule("", CHECK, {"host": "a.test"}, "needs http, grpc or tcp"),
    Rule("http.path", "/", "health", 'must start with "/"'),
    Rule("http.path", "/", ABSENT, "is missing"),
    Rule("http.method", "HEAD", "CONNECT", "is not a method of a check"),
    Rule("http.headers", {"x-a": "b"}, {":path": "/"}, "starts with", "http.headers[:path]"),
    Rule("http.host", "b.test", "b\nc", "line break"),
    *(Rule("http.expectedStatuses", ["200", "200-299"], [bad], "is not a status", "http.expectedStatuses[0]")
      for bad in ("", "99", "600", "300-200", "2xx")),
    Rule("interval", "1s", "0s", "at least"),
    Rule("intervalJitter", "1s", "0.0001s", "at least"),
    Rule("timeout", "1s", "-1s", ""),
    Rule("noTrafficInterval", "1s", "0s", "at least"),
    Rule("minHealthPercent", 50, -1, "is not a percentage"),
    Rule("alwaysLogFailures", False, True, "needs logEvents"),
]  # fmt: skip


@pytest.mark.parametrize("rule", LIMITS, ids=str)
def test_a_rule_of_a_local_rate_limit_is_kept_or_named(rule: Rule) -> None:
    holds("LocalRateLimit", LIMIT, rule)


@pytest.mark.parametrize("rule", SHARED_LIMITS, ids=str)
def test_a_rule_of_a_global_rate_limit_is_kept_or_named(rule: Rule) -> None:
    holds("GlobalRateLimit", SHARED, rule)


@pytest.mark.parametrize("other", [{"path": True}, {"claim": "sub"}, {"key": "a", "value": "b"}], ids=str)
def test_an_entry_has_one_source(other: dict[str, Any]) -> None:
    both = {**SHARED, "descriptors": [{"entries": [{"header": "x-user", **other}]}]}
    assert problems_of("GlobalRateLimit", both) != []


@pytest.mark.parametrize("rule", CHECKS, ids=str)
def test_a_rule_of_a_health_check_is_kept_or_named(rule: Rule) -> None:
    holds("HealthCheck", CHECK, rule)


@pytest.mark.parametrize("more", [{"grpc": {}}, {"tcp": {"send": "a"}}], ids=lambda more: next(iter(more)))
def test_there_is_one_way_to_check(more: dict[str, Any]) -> None:
    assert problems_of("HealthCheck", {**CHECK, **more}) != []
    assert problems_of("HealthCheck", {"host": "a.test", **more}) == []
