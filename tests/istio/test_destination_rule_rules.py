"""Istio's rules for DestinationRule: for each, an object that keeps it and one that breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, holds, warns

BASE: dict[str, Any] = {"host": "reviews"}
POLICY: dict[str, Any] = {"host": "reviews", "trafficPolicy": {"tls": {"mode": "DISABLE"}}}
POOL = "trafficPolicy.connectionPool"
OUTLIERS = "trafficPolicy.outlierDetection"

GENERAL = [
    Rule("host", "*.shop.com", ABSENT, "is missing"),
    Rule("host", "*", "a..b", "not a DNS label"),
    Rule("trafficPolicy", {"outlierDetection": {}}, {}, "says nothing"),
    Rule("exportTo", ["*"], ["*", "."], "can't be combined"),
    Rule(
        "workloadSelector",
        {"matchLabels": {"app": "a"}},
        {"matchLabels": {"app": "*"}},
        "wildcards don't work",
        "workloadSelector.matchLabels[app]",
    ),
    Rule(
        "",
        {"host": "a", "workloadSelector": {"matchLabels": {"a": "b"}}, "exportTo": ["."]},
        {"host": "a", "workloadSelector": {"matchLabels": {"a": "b"}}, "exportTo": ["x"]},
        'can only be "."',
        "exportTo",
    ),
    Rule(
        "",
        {"host": "a", "workloadSelector": {"matchLabels": {"a": "b"}}, "exportTo": ["shop"]},
        {"host": "a", "workloadSelector": {"matchLabels": {"a": "b"}}, "exportTo": ["shop", "bank"]},
        'can only be "."',
        "exportTo",
    ),
    Rule(
        "subsets",
        [{"name": "v1", "labels": {"version": "v1"}}],
        [{"labels": {"version": "v1"}}],
        "is missing",
        "subsets[0].name",
    ),
    Rule("subsets", [{"name": "v1"}], [{"name": "v.1"}], "not a DNS label", "subsets[0].name"),
    Rule(
        "subsets", [{"name": "v1"}, {"name": "v2"}], [{"name": "v1"}, {"name": "v1"}], "given twice", "subsets[1].name"
    ),
    Rule(
        "subsets",
        [{"name": "v1", "labels": {"a": "b"}}],
        [{"name": "v1", "labels": {"a": "b!"}}],
        "not a label value",
        "subsets[0].labels[a]",
    ),
    Rule(
        "subsets",
        [{"name": "v1", "trafficPolicy": {"tls": {}}}],
        [{"name": "v1", "trafficPolicy": {}}],
        "says nothing",
        "subsets[0].trafficPolicy",
    ),
]

POLICIES = [
    Rule(
        "trafficPolicy.portLevelSettings",
        [{"port": {"number": 80}, "tls": {}}],
        [{"tls": {}}],
        "is missing",
        "trafficPolicy.portLevelSettings[0].port",
    ),
    Rule(
        "trafficPolicy.portLevelSettings",
        [{"port": {"number": 80}, "tls": {}}],
        [{"port": {}, "tls": {}}],
        "not a port",
        "trafficPolicy.portLevelSettings[0].port.number",
    ),
    Rule(
        "trafficPolicy.portLevelSettings",
        [{"port": {"number": 80}, "tls": {}}],
        [{"port": {"number": 80}}],
        "says nothing",
        "trafficPolicy.portLevelSettings[0]",
    ),
    warns(
        "trafficPolicy.portLevelSettings",
        [{"port": {"number": 80}, "tls": {}}, {"port": {"number": 81}, "tls": {}}],
        [{"port": {"number": 80}, "tls": {}}, {"port": {"number": 80}, "tls": {}}],
        "given twice",
        "trafficPolicy.portLevelSettings[1].port.number",
    ),
    Rule(POOL, {"tcp": {}}, {}, "needs tcp, http, or both"),
    Rule(f"{POOL}.http.http1MaxPendingRequests", 1, -1, "is negative"),
    Rule(f"{POOL}.http.http2MaxRequests", 1, -1, "is negative"),
    Rule(f"{POOL}.http.maxRequestsPerConnection", 0, -1, "is negative"),
    Rule(f"{POOL}.http.maxRetries", 1, -1, "is negative"),
    Rule(f"{POOL}.http.maxConcurrentStreams", 1, -1, "is negative"),
    Rule(f"{POOL}.http.idleTimeout", "0s", "1ns", "finer than a microsecond"),
    Rule(
        f"{POOL}.http",
        {"h2UpgradePolicy": "UPGRADE"},
        {"h2UpgradePolicy": "UPGRADE", "useClientProtocol": True},
        "h2UpgradePolicy is UPGRADE",
        f"{POOL}.http.useClientProtocol",
    ),
    Rule(
        f"{POOL}.http.http2KeepAlive",
        {"interval": "30s", "timeout": "5s"},
        {"interval": "0s", "timeout": "5s"},
        "at least 1ms",
        f"{POOL}.http.http2KeepAlive.interval",
    ),
    Rule(
        f"{POOL}.http.http2KeepAlive",
        {"interval": "30s", "timeout": "5s"},
        {"interval": "30s", "timeout": "-5s"},
        "at least 1ms",
        f"{POOL}.http.http2KeepAlive.timeout",
    ),
    Rule(
        f"{POOL}.http.http2KeepAlive",
        {"interval": "30s", "timeout": "5s"},
        {"timeout": "5s"},
        "is missing",
        f"{POOL}.http.http2KeepAlive.interval",
    ),
    warns(
        f"{POOL}.http.http2KeepAlive",
        {"interval": "30s", "timeout": "5s"},
        {"interval": "30s"},
        "15s is used",
        f"{POOL}.http.http2KeepAlive.timeout",
    ),
    Rule(f"{POOL}.tcp.maxConnections", 1, -1, "is negative"),
    Rule(f"{POOL}.tcp.connectTimeout", "10s", "0s", "at least 1ms"),
    Rule(f"{POOL}.tcp.maxConnectionDuration", "1h", "1us", "at least 1ms"),
    Rule(f"{POOL}.tcp.idleTimeout", "0s", "-1s", "0s or at least"),
    Rule(f"{POOL}.tcp.tcpKeepalive.time", "7200s", "1500ms", "whole seconds"),
    Rule(f"{POOL}.tcp.tcpKeepalive.interval", "75s", "0s", "at least 1s"),
    Rule(f"{POOL}.tcp.tcpKeepalive.time", "4294967295s", "4294967296s", "less than 2^32 seconds"),
    Rule(f"{OUTLIERS}.interval", "5s", "0s", "at least 1ms"),
    Rule(f"{OUTLIERS}.baseEjectionTime", "5s", "100us", "at least 1ms"),
    Rule(f"{OUTLIERS}.maxEjectionPercent", 100, 101, "not a percentage"),
    Rule(f"{OUTLIERS}.minHealthPercent", 0, -1, "not a percentage"),
    Rule(
        f"{OUTLIERS}",
        {"splitExternalLocalOriginErrors": True, "consecutiveLocalOriginFailures": 5},
        {"consecutiveLocalOriginFailures": 5},
        "splitExternalLocalOriginErrors",
        f"{OUTLIERS}.consecutiveLocalOriginFailures",
    ),
    Rule(
        f"{OUTLIERS}.outlierDetectionHttpErrorCodes",
        [100, 418, 599],
        [99],
        "not an HTTP status",
        f"{OUTLIERS}.outlierDetectionHttpErrorCodes[0]",
    ),
    warns(
        f"{OUTLIERS}",
        {"consecutive5xxErrors": 5},
        {"consecutiveErrors": 5},
        "is deprecated",
        f"{OUTLIERS}.consecutiveErrors",
    ),
    Rule(f"{OUTLIERS}.consecutive5xxErrors", 0, -1, "out of range"),
    Rule(
        "trafficPolicy.tunnel",
        {"targetHost": "a.b", "targetPort": 443},
        {"targetPort": 443},
        "must not be empty",
        "trafficPolicy.tunnel.targetHost",
    ),
    Rule(
        "trafficPolicy.tunnel",
        {"protocol": "POST", "targetHost": "10.0.0.1", "targetPort": 443},
        {"protocol": "GET", "targetHost": "a.b", "targetPort": 443},
        "CONNECT or POST",
        "trafficPolicy.tunnel.protocol",
    ),
    Rule(
        "trafficPolicy.tunnel",
        {"targetHost": "a.b", "targetPort": 443},
        {"targetHost": "a.b"},
        "not a port",
        "trafficPolicy.tunnel.targetPort",
    ),
    Rule(
        "trafficPolicy",
        {"proxyProtocol": {"version": "V2"}},
        {"proxyProtocol": {}, "tunnel": {"targetHost": "a.b", "targetPort": 1}},
        "exclude each other",
        "trafficPolicy.proxyProtocol",
    ),
    Rule("trafficPolicy.proxyProtocol.version", "V2", "V3", "allowed: V1, V2"),
    Rule("trafficPolicy.retryBudget.percent", 20, 200, "not a percentage"),
    Rule("trafficPolicy.retryBudget.budgetInterval", "1s", "0s", "at least 1ms"),
]

TLS = [
    Rule(
        "trafficPolicy.tls",
        {"mode": "MUTUAL", "clientCertificate": "c", "privateKey": "k"},
        {"mode": "MUTUAL", "clientCertificate": "c"},
        "mode MUTUAL needs it",
        "trafficPolicy.tls.privateKey",
    ),
    Rule(
        "trafficPolicy.tls",
        {"mode": "MUTUAL", "credentialName": "n"},
        {"mode": "MUTUAL", "privateKey": "c"},
        "mode MUTUAL needs it",
        "trafficPolicy.tls.clientCertificate",
    ),
    Rule(
        "trafficPolicy.tls",
        {"mode": "SIMPLE", "credentialName": "n"},
        {"mode": "SIMPLE", "credentialName": "n", "caCertificates": "c"},
        "exclude each other",
        "trafficPolicy.tls.caCertificates",
    ),
    Rule(
        "trafficPolicy.tls",
        {"mode": "SIMPLE", "caCrl": "n"},
        {"mode": "SIMPLE", "credentialName": "n", "caCrl": "c"},
        "exclude each other",
        "trafficPolicy.tls.caCrl",
    ),
    Rule(
        "trafficPolicy.tls",
        {"mode": "SIMPLE", "insecureSkipVerify": True},
        {"mode": "SIMPLE", "insecureSkipVerify": True, "caCertificates": "c"},
        "exclude each other",
        "trafficPolicy.tls.caCertificates",
    ),
    Rule(
        "trafficPolicy.tls",
        {"mode": "SIMPLE", "insecureSkipVerify": False, "subjectAltNames": ["a"]},
        {"mode": "SIMPLE", "insecureSkipVerify": True, "subjectAltNames": ["a"]},
        "exclude each other",
        "trafficPolicy.tls.subjectAltNames",
    ),
    Rule(
        "trafficPolicy.tls",
        {"mode": "MUTUAL", "insecureSkipVerify": True, "credentialName": "c"},
        {"mode": "SIMPLE", "insecureSkipVerify": True, "credentialName": "c"},
        "exclude each other",
        "trafficPolicy.tls.credentialName",
    ),
    warns(
        "trafficPolicy.tls",
        {"mode": "ISTIO_MUTUAL"},
        {"mode": "ISTIO_MUTUAL", "caCertificates": "c"},
        "no effect in mode ISTIO_MUTUAL",
        "trafficPolicy.tls.caCertificates",
    ),
    Rule("trafficPolicy.tls.mode", "SIMPLE", "simple", "allowed: DISABLE, SIMPLE"),
    Rule(
        "trafficPolicy.tls",
        {"mode": "SIMPLE", "sni": "ü" * 127},
        {"mode": "SIMPLE", "sni": "ü" * 128},
        "has 256 bytes, allowed are 255",
        "trafficPolicy.tls.sni",
    ),
    Rule(
        "trafficPolicy.tls",
        {"mode": "DISABLE", "sni": "a\0"},
        {"mode": "ISTIO_MUTUAL", "sni": "a\0"},
        "can't have a zero byte",
        "trafficPolicy.tls.sni",
    ),
    Rule(
        "trafficPolicy.tls",
        {"mode": "SIMPLE", "credentialName": "c" * 500},
        {"mode": "SIMPLE", "credentialName": "c" * 501},
        "has 501 characters, allowed are 500",
        "trafficPolicy.tls.credentialName",
    ),
    Rule(
        "trafficPolicy.tls",
        {"mode": "MUTUAL", "clientCertificate": "/c", "privateKey": "/k"},
        {"mode": "MUTUAL", "clientCertificate": "/c", "privateKey": "/" * 501},
        "has 501 characters, allowed are 500",
        "trafficPolicy.tls.privateKey",
    ),
]

TABLE = [(base, rule) for base, rules in ((BASE, GENERAL), (POLICY, POLICIES + TLS)) for rule in rules]


@pytest.mark.parametrize(("base", "rule"), TABLE, ids=str)
def test_a_rule_of_destination_rules_is_kept_or_named(base: dict[str, Any], rule: Rule) -> None:
    holds("DestinationRule", base, rule)
