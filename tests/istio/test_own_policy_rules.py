"""Rules of our own kinds: LocalRateLimit and HealthCheck."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, holds, problems_of, warns

LIMIT = {"http": {"limits": [{"rate": {"count": 10}}]}}
L = "http.limits[0]"
CONNECTIONS = {"connections": [{"port": 80, "rate": {"count": 1}}]}
TARGET = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}
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
    Rule("http.status", 429, 430, "is not the status of an error that Envoy knows"),
    Rule("http.status", 503, 200, "is not the status of an error that Envoy knows"),
    Rule("http.responseHeaders", {"x-a": "100%%"}, {":status": "200"}, "starts with", "http.responseHeaders[:status]"),
    Rule("http.responseHeaders", {"x-a": "b"}, {"x-a": "%NO"}, "", "http.responseHeaders[x-a]"),
    Rule("http.enforcedPercent", 0, 101, "is not a percentage"),
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


@pytest.mark.parametrize("rule", CHECKS, ids=str)
def test_a_rule_of_a_health_check_is_kept_or_named(rule: Rule) -> None:
    holds("HealthCheck", CHECK, rule)


@pytest.mark.parametrize("more", [{"grpc": {}}, {"tcp": {"send": "a"}}], ids=lambda more: next(iter(more)))
def test_there_is_one_way_to_check(more: dict[str, Any]) -> None:
    assert problems_of("HealthCheck", {**CHECK, **more}) != []
    assert problems_of("HealthCheck", {"host": "a.test", **more}) == []
