"""Istio's rules for VirtualService: for each, an object that keeps it and one that breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, changed, holds, problems_of, warns

DESTINATION = {"destination": {"host": "reviews"}}
BASE: dict[str, Any] = {"hosts": ["reviews.shop.svc.cluster.local"], "http": [{"route": [DESTINATION]}]}
TLS: dict[str, Any] = {
    "hosts": ["*.shop.com"],
    "tls": [{"match": [{"sniHosts": ["a.shop.com"]}], "route": [DESTINATION]}],
}
TCP: dict[str, Any] = {"hosts": ["db.shop"], "tcp": [{"match": [{"port": 3306}], "route": [DESTINATION]}]}
DELEGATE: dict[str, Any] = {"http": [{"route": [DESTINATION]}]}
ROOT: dict[str, Any] = {"hosts": ["a.b"], "http": [{"delegate": {"name": "other"}}]}

GENERAL = [
    Rule("hosts[0]", "*.shop.com", "re_views", "is not a DNS label"),
    Rule("hosts[0]", "10.1.2.3", "a.1", "is a number"),
    Rule("hosts[0]", "a.b.", "a..b", 'the part "" is not a DNS label'),
    Rule("hosts[0]", "*-v1.shop.com", "a.*.com", "is not a DNS label"),
    Rule("hosts[0]", "a.b", "x" * 256, "longer than 255"),
    Rule("hosts[0]", "a.b", "", "must not be empty"),
    Rule(
        "",
        {**BASE, "hosts": ["*"], "gateways": ["g"]},
        {**BASE, "hosts": ["*"]},
        "can't be routed in the mesh",
        "hosts[0]",
    ),
    Rule("hosts", ["a.b", "*.c"], ["*.b", "a.b"], "overlap", "hosts[1]"),
    Rule("hosts", ["a.b", "c.b"], ["a.b", "a.b"], "overlap", "hosts[1]"),
    Rule("hosts", ["a.b", "*.B"], ["evil.test", "EVIL.test"], "case tells no hosts apart", "hosts[1]"),
    Rule("gateways", ["mesh", "ns/gate"], ["ns/"], "not of the form namespace/name", "gateways[0]"),
    Rule("gateways", ["gate"], ["Na_me/gate"], "not a DNS label", "gateways[0]"),
    warns("gateways", ["gate"], ["gate.ns"], "write ns/gate", "gateways[0]"),
    Rule("http", BASE["http"], ABSENT, "at least one of http, tls and tcp", ""),
    Rule("exportTo", ["."], ["a b"], "is not a namespace", "exportTo[0]"),
    Rule("exportTo", ["*"], ["*", "other"], "can't be combined", "exportTo"),
    Rule("exportTo", ["one", "two"], ["one", "one"], "given twice", "exportTo[1]"),
    Rule("exportTo", [".", "two"], [".", "shop"], "given twice", "exportTo[1]"),
    Rule("exportTo", ["."], ["~"], "for ServiceEntry only", "exportTo[0]"),
]

ROUTES = [
    Rule("http[0].route", [DESTINATION], ABSENT, "one of route, redirect, directResponse", "http[0]"),
    Rule("http[0].redirect", ABSENT, {"uri": "/a"}, "exclude each other", "http[0].route"),
    Rule("http[0].directResponse", ABSENT, {"status": 200}, "exclude each other", "http[0].route"),
    Rule("http[0].delegate", ABSENT, {"name": "d"}, "exclude each other", "http[0].route"),
    Rule("http[0].timeout", "1s", "1500us", "whole milliseconds"),
    Rule("http[0].timeout", "0s", "-1s", "0s or at least 1ms"),
    Rule("http[0].timeout", "1h30m", "5", "is not a duration"),
    Rule("http[0].route[0].destination.host", "reviews.shop.svc.cluster.local", "*", "not a host to send traffic to"),
    Rule("http[0].route[0].destination.host", "reviews", ABSENT, "is missing"),
    Rule("http[0].route[0].destination", {"host": "a"}, ABSENT, "is missing"),
    Rule("http[0].route[0].destination.subset", "v1", "v_1", "not a DNS label"),
    Rule(
        "http[0].route[0].destination.port",
        {"number": 80},
        {"number": 0},
        "not a port",
        "http[0].route[0].destination.port.number",
    ),
    Rule(
        "http[0].route[0].destination.port",
        {"number": 80},
        {"number": 65536},
        "not a port",
        "http[0].route[0].destination.port.number",
    ),
    Rule("http[0].route[0].weight", 5, -1, "is negative"),
    Rule("http[0].route[0].weight", 2147483647, 2147483648, "out of range"),
    Rule("http[0].route", [{**DESTINATION, "weight": 1}, DESTINATION], [DESTINATION, DESTINATION], "all weights are 0"),
    Rule("http[0].mirror", {"host": "b"}, {"host": ""}, "is missing", "http[0].mirror.host"),
    Rule(
        "http[0].mirrorPercentage", {"value": 0.5}, {"value": 101}, "not a percentage", "http[0].mirrorPercentage.value"
    ),
    Rule(
        "http[0].mirrors",
        [{"destination": {"host": "b"}}],
        [{"percentage": {"value": 5}}],
        "is missing",
        "http[0].mirrors[0].destination",
    ),
    Rule(
        "http[0].mirrors",
        [{"destination": {"host": "b"}, "percentage": {"value": 1}}],
        [{"destination": {"host": "b"}, "percentage": {"value": 0.00001}}],
        "too small",
        "http[0].mirrors[0].percentage.value",
    ),
    Rule(
        "http[0]",
        {"route": [DESTINATION], "mirror": {"host": "b"}},
        {"route": [DESTINATION], "mirror": {"host": "b"}, "mirrors": [{"destination": {"host": "c"}}]},
        "exclude each other",
        "http[0].mirrors",
    ),
    warns("http", BASE["http"], [*BASE["http"], *BASE["http"]], "matches everything", "http[1]"),
]

TLS_ROUTES = [
    Rule("tls[0].match", [{"sniHosts": ["*.shop.com"]}], ABSENT, "is missing"),
    Rule("tls[0].match[0].sniHosts", ["b.shop.com"], [], "is missing"),
    Rule(
        "tls[0].match[0].sniHosts",
        ["b.shop.com"],
        ["b.other.com"],
        "not covered by the hosts",
        "tls[0].match[0].sniHosts[0]",
    ),
    Rule(
        "tls[0].match[0].sniHosts", ["b.shop.com"], ["*.com"], "not covered by the hosts", "tls[0].match[0].sniHosts[0]"
    ),
    Rule(
        "tls[0].match[0].sniHosts", ["b.shop.com"], ["a_b.shop.com"], "not a DNS label", "tls[0].match[0].sniHosts[0]"
    ),
    Rule(
        "tls[0].match[0].destinationSubnets",
        ["10.0.0.0/8"],
        ["10.0.0.0/99"],
        "not a CIDR block",
        "tls[0].match[0].destinationSubnets[0]",
    ),
    Rule("tls[0].match[0].port", 443, 65536, "not a port"),
    Rule(
        "tls[0].match[0].sourceLabels", {"a": "b"}, {"a": "-"}, "not a label value", "tls[0].match[0].sourceLabels[a]"
    ),
    Rule("tls[0].match[0].gateways", ["g"], ["/g"], "not of the form", "tls[0].match[0].gateways[0]"),
    Rule("tls[0].match[0].sourceNamespace", "a", "-", "not a DNS label"),
    Rule("tls[0].route", [DESTINATION], ABSENT, "is missing"),
    Rule("tls[0].route[0].weight", 1, -5, "is negative"),
]

TCP_ROUTES = [
    Rule(
        "tcp[0].match[0].destinationSubnets",
        ["10.0.0.1", "2001:db8::/32"],
        ["x"],
        "not an IP address or CIDR",
        "tcp[0].match[0].destinationSubnets[0]",
    ),
    Rule("tcp[0].match[0].sourceSubnet", "10.0.0.0/8", "10.0.0/8", "not a CIDR block"),
    Rule("tcp[0].match[0].port", 1, 65536, "not a port"),
    Rule("tcp[0].match[0].sourceLabels", {"a": "b"}, {"": "b"}, "not a label key", "tcp[0].match[0].sourceLabels[]"),
    Rule("tcp[0].match[0].gateways", ["g"], [""], "must not be empty", "tcp[0].match[0].gateways[0]"),
    Rule("tcp[0].match[0].sourceNamespace", "a", "a_b", "not a DNS label"),
    Rule("tcp[0].route", [DESTINATION], ABSENT, "is missing"),
    Rule("tcp[0].route", [DESTINATION], [{}], "is missing", "tcp[0].route[0].destination"),
    warns("tcp", TCP["tcp"], [{"route": [DESTINATION]}, *TCP["tcp"]], "matches everything", "tcp[1]"),
]

DELEGATES = [
    Rule("gateways", ABSENT, ["g"], "http routes only"),
    Rule("tls", ABSENT, TLS["tls"], "http routes only"),
    Rule("tcp", ABSENT, TCP["tcp"], "http routes only"),
    Rule("http[0]", DELEGATE["http"][0], {"delegate": {"name": "d"}}, "can't delegate again", "http[0].delegate"),
]

ROOTS = [
    Rule("http[0].delegate.name", "d", ABSENT, "is missing"),
    Rule("http[0].delegate.namespace", "other", "o_ther", "not a DNS label"),
    Rule("http[0].route", ABSENT, [DESTINATION], "exclude each other"),
    Rule("http[0].redirect", ABSENT, {"uri": "/"}, "exclude each other"),
]

TABLE = [
    (base, rule)
    for base, rules in (
        (BASE, GENERAL + ROUTES),
        (TLS, TLS_ROUTES),
        (TCP, TCP_ROUTES),
        (DELEGATE, DELEGATES),
        (ROOT, ROOTS),
    )
    for rule in rules
]


@pytest.mark.parametrize(("base", "rule"), TABLE, ids=str)
def test_a_rule_is_kept_or_named(base: dict[str, Any], rule: Rule) -> None:
    holds("VirtualService", base, rule)


@pytest.mark.parametrize("field", ["mirrorPercent", "mirror_percent"])
def test_deprecated_fields_are_warned_of_and_checked(field: str) -> None:
    (warning,) = problems_of("VirtualService", changed(BASE, f"http[0].{field}", 5))
    assert (warning.path, warning.severity) == (f"spec.http[0].{field}", "warning")
    assert any(
        "not a percentage" in p.reason for p in problems_of("VirtualService", changed(BASE, f"http[0].{field}", 101))
    )


def test_everything_wrong_is_said_at_once() -> None:
    found = problems_of(
        "VirtualService", {"hosts": ["a b"], "http": [{"timeout": "x", "rout": []}], "tcp": [{"match": [{"port": -1}]}]}
    )
    assert [p.path for p in found] == [
        "spec.http[0].timeout",
        "spec.http[0].rout",
        "spec.tcp[0].match[0].port",
        "spec.hosts[0]",
        "spec.tcp[0].route",
    ]
