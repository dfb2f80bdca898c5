"""Istio's rules for ServiceEntry, WorkloadEntry and WorkloadGroup: for each, a good and a bad object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, changed, holds, problems_of, warns

HTTP = {"number": 80, "name": "http", "protocol": "HTTP"}
TCP = {"number": 3306, "name": "db", "protocol": "TCP"}
TLS = {"number": 443, "name": "tls", "protocol": "TLS"}
STATIC: dict[str, Any] = {
    "hosts": ["a.shop.com"],
    "ports": [HTTP],
    "resolution": "STATIC",
    "endpoints": [{"address": "10.0.0.1"}],
}
NONE: dict[str, Any] = {"hosts": ["*.shop.com"], "ports": [HTTP]}
DNS: dict[str, Any] = {"hosts": ["a.shop.com"], "ports": [HTTP], "resolution": "DNS"}
DYNAMIC: dict[str, Any] = {"hosts": ["*.shop.com"], "ports": [TLS], "resolution": "DYNAMIC_DNS"}
ENTRY: dict[str, Any] = {"address": "10.0.0.1"}
GROUP: dict[str, Any] = {"template": {"serviceAccount": "a"}}

STATICS = [
    Rule("hosts", ["*.a.com"], ["*"], "can't be a service", "hosts[0]"),
    Rule("hosts", ["a.com"], ABSENT, "at least one host"),
    Rule("hosts", ["a.com"], ["a_b.com"], "not a DNS label", "hosts[0]"),
    Rule("addresses", ["10.0.0.0/8", "2001:db8::1"], ["10.0.0.300"], "not an IP address", "addresses[0]"),
    Rule("addresses", ["240.0.0.1"], ["example.com"], "not an IP address", "addresses[0]"),
    Rule("ports", [HTTP, TCP], [HTTP, {**TCP, "name": "http"}], "given twice", "ports[1].name"),
    Rule("ports", [HTTP, TCP], [HTTP, {**TCP, "number": 80}], "given twice", "ports[1].number"),
    Rule("ports[0].number", 1, 0, "not a port"),
    Rule("ports[0].name", "http-web", "http_web", "not a DNS label"),
    Rule("ports[0].name", "http", ABSENT, "is missing"),
    Rule("ports[0].protocol", "grpc-web", "spdy", "not a protocol"),
    Rule("ports[0].targetPort", 8080, 99999, "not a port"),
    Rule("endpoints[0].address", "10.0.0.1", "a.shop.com", "host names need resolution DNS"),
    Rule("endpoints[0].address", "fd00::1", "a b", "not a host name or an IP address"),
    Rule("endpoints[0].address", "unix:///" + "x" * 106, "unix:///" + "x" * 107, "has 108 bytes, allowed are 107"),
    Rule("endpoints[0].address", "unix://@a", "unix://@\0", "zero byte"),
    Rule("endpoints[0]", {"network": "other"}, {}, "is missing", "endpoints[0].address"),
    Rule("endpoints[0].address", "unix:///run/a.sock", "unix://a.sock", "not an absolute path"),
    Rule("endpoints[0].address", "unix://@abstract", "unix://", "must not be empty"),
    Rule(
        "endpoints[0]",
        {"address": "unix:///a"},
        {"address": "unix:///a", "ports": {"http": 1}},
        "has no ports",
        "endpoints[0].ports",
    ),
    Rule("endpoints[0].ports", {"http": 8080}, {"web": 8080}, "its ports: http", "endpoints[0].ports[web]"),
    Rule("endpoints[0].ports", {"http": 8080}, {"http": 0}, "not a port", "endpoints[0].ports[http]"),
    Rule("endpoints[0].labels", {"a": "b"}, {"a": "b c"}, "not a label value", "endpoints[0].labels[a]"),
    Rule("endpoints[0].locality", "a/b/c", "a/b/c/d", "region/zone/subzone"),
    Rule("endpoints[0].weight", 0, -1, "out of range"),
    Rule("workloadSelector", ABSENT, {"labels": {"a": "b"}}, "exclude each other", "endpoints"),
    Rule("exportTo", ["~"], ["~", "."], "can't be combined"),
    Rule("resolution", "STATIC", "static", "allowed: NONE, STATIC"),
    Rule(
        "",
        {**STATIC, "endpoints": [{"address": "unix:///a"}]},
        {**STATIC, "ports": [HTTP, TCP], "endpoints": [{"address": "unix:///a"}]},
        "exactly one port",
        "ports",
    ),
    Rule(
        "",
        {**STATIC, "hosts": ["a.com", "b.com"]},
        {**STATIC, "hosts": ["a.com", "b.com"], "ports": [TCP]},
        "to be told apart",
        "ports[0].protocol",
    ),
]

NONES = [
    Rule("endpoints", ABSENT, [{"address": "10.0.0.1"}], "with resolution NONE"),
    Rule("addresses", ["10.0.0.0/8"], ["10.0.0.0/33"], "not a CIDR block", "addresses[0]"),
    Rule("workloadSelector", {"labels": {"a": "b"}}, {"labels": {"a": "*"}}, "wildcards", "workloadSelector.labels[a]"),
    warns("workloadSelector", {"labels": {"a": "b"}}, {}, "every workload", "workloadSelector.labels"),
]

DNSES = [
    Rule("addresses", ["10.0.0.1"], ["10.0.0.0/8"], "need resolution NONE or STATIC", "addresses[0]"),
    Rule("hosts", ["a.b"], ["*.b"], "can't be resolved", "hosts[0]"),
    Rule("endpoints", [{"address": "a.b"}], [{"address": "a_b"}], "not a host name", "endpoints[0].address"),
    Rule(
        "endpoints",
        [{"address": "10.0.0.1"}],
        [{"address": "unix:///a"}],
        "need resolution STATIC",
        "endpoints[0].address",
    ),
    Rule(
        "",
        {**DNS, "resolution": "DNS_ROUND_ROBIN", "endpoints": [{"address": "a.b"}]},
        {**DNS, "resolution": "DNS_ROUND_ROBIN", "endpoints": [{"address": "a.b"}, {"address": "c.d"}]},
        "one endpoint at most",
        "endpoints",
    ),
    warns(
        "",
        {**DNS, "hosts": ["a.b", "c.d"], "ports": [TLS]},
        {**DNS, "hosts": ["a.b", "c.d"], "ports": [TLS], "addresses": ["10.0.0.1"]},
        "TCP ports can't tell them apart",
        "hosts",
    ),
]

DYNAMICS = [
    Rule("hosts", ["*.a.com"], ["a.com"], "for wildcard hosts", "hosts[0]"),
    Rule("endpoints", ABSENT, [{"address": "a.com"}], "can't be set with DYNAMIC_DNS"),
    Rule("workloadSelector", ABSENT, {"labels": {"a": "b"}}, "can't be set with DYNAMIC_DNS"),
    Rule("addresses", ABSENT, ["10.0.0.1"], "can't be set with DYNAMIC_DNS"),
    Rule("ports", [HTTP], [TCP], "needs HTTP or TLS", "ports[0].protocol"),
]

ENTRIES = [
    Rule("address", "vm.example.com", ABSENT, "is missing"),
    Rule("address", "::1", "a_b", "not a host name or an IP address"),
    Rule("address", "unix:///a", "unix:///a/", "not an absolute path"),
    Rule("ports", {"http": 80}, {"http": 65536}, "not a port", "ports[http]"),
    Rule("ports", {"http": 80}, {"h_t": 1}, "not a DNS label", "ports[h_t]"),
    Rule("labels", {"a": "b"}, {"a": "*"}, "not a label value", "labels[a]"),
    Rule("", {"address": "unix:///a"}, {"address": "unix:///a", "ports": {"a": 1}}, "has no ports", "ports"),
]

GROUPS = [
    Rule("template", {}, ABSENT, "is missing"),
    Rule("template.ports", {"http": 80}, {"http": 0}, "not a port", "template.ports[http]"),
    Rule("template.labels", {"a": "b"}, {"a": "b/"}, "not a label value", "template.labels[a]"),
    Rule("metadata.labels", {"a": "b"}, {"a": "b/"}, "not a label value", "metadata.labels[a]"),
    Rule("probe", {"httpGet": {"port": 80}}, {}, "needs one of httpGet"),
    Rule("probe", {"httpGet": {"port": 80}}, {"httpGet": {"path": "/"}}, "not a port", "probe.httpGet.port"),
    Rule(
        "probe",
        {"httpGet": {"port": 80, "scheme": "HTTPS"}},
        {"httpGet": {"port": 80, "scheme": "ftp"}},
        "http or https",
        "probe.httpGet.scheme",
    ),
    Rule(
        "probe",
        {"httpGet": {"port": 80, "httpHeaders": [{"name": "a", "value": ""}]}},
        {"httpGet": {"port": 80, "httpHeaders": [{"value": "b"}]}},
        "is missing",
        "probe.httpGet.httpHeaders[0].name",
    ),
    Rule("probe", {"tcpSocket": {"port": 80}}, {"tcpSocket": {}}, "not a port", "probe.tcpSocket.port"),
    Rule("probe", {"grpc": {"port": 80}}, {"grpc": {"service": "a"}}, "not a port", "probe.grpc.port"),
    Rule("probe", {"exec": {"command": ["a"]}}, {"exec": {}}, "is missing", "probe.exec.command"),
    Rule(
        "probe",
        {"exec": {"command": ["a"]}},
        {"exec": {"command": ["a"]}, "periodSeconds": -1},
        "negative",
        "probe.periodSeconds",
    ),
]

TABLE = [
    (kind, base, rule)
    for kind, base, rules in (
        ("ServiceEntry", STATIC, STATICS),
        ("ServiceEntry", NONE, NONES),
        ("ServiceEntry", DNS, DNSES),
        ("ServiceEntry", DYNAMIC, DYNAMICS),
        ("WorkloadEntry", ENTRY, ENTRIES),
        ("WorkloadGroup", GROUP, GROUPS),
    )
    for rule in rules
]


@pytest.mark.parametrize(("kind", "base", "rule"), TABLE, ids=str)
def test_a_rule_of_services_and_workloads_is_kept_or_named(kind: str, base: dict[str, Any], rule: Rule) -> None:
    holds(kind, base, rule)


def test_a_static_service_may_have_no_endpoints_yet() -> None:
    assert problems_of("ServiceEntry", changed(STATIC, "endpoints", ABSENT)) == []
