"""Istio's rules for load balancing and locality in a DestinationRule: for each, a good and a bad object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import Rule, holds, warns

POLICY: dict[str, Any] = {"host": "reviews", "trafficPolicy": {"tls": {"mode": "DISABLE"}}}
LOCALITY = "trafficPolicy.loadBalancer.localityLbSetting"
HASH = "trafficPolicy.loadBalancer.consistentHash"
DISTRIBUTE = {"from": "a/*", "to": {"a/b": 40, "c": 60}}
FAILING: dict[str, Any] = {"host": "reviews", "trafficPolicy": {"outlierDetection": {}}}

BALANCING = [
    Rule(
        "trafficPolicy.loadBalancer",
        {"simple": "LEAST_REQUEST"},
        {"simple": "RANDOM", "consistentHash": {"useSourceIp": True}},
        "only one of simple and consistentHash",
        "trafficPolicy.loadBalancer.consistentHash",
    ),
    warns(HASH, {"httpHeaderName": "x"}, {}, "has none of httpHeaderName"),
    Rule(HASH, {"httpHeaderName": "a b"}, {"httpHeaderName": "a\rb"}, "no header can have", f"{HASH}.httpHeaderName"),
    Rule(
        HASH,
        {"httpCookie": {"name": "c", "ttl": "9223372035s"}},
        {"httpCookie": {"name": "c", "ttl": "9223372036s"}},
        "at most 9223372035s",
        f"{HASH}.httpCookie.ttl",
    ),
    *(
        Rule(
            HASH,
            {"httpCookie": {"name": "c", "attributes": [{"name": "a", "value": "b"}]}},
            {"httpCookie": {"name": "c", "attributes": [{"name": "a", "value": "b", field: bad}]}},
            said,
            f"{HASH}.httpCookie.attributes[0].{field}",
        )
        for field in ("name", "value")
        for bad, said in (
            ("a\nb", "no header can have"),
            ("a\0", "no header can have"),
            ("ü" * 8193, "has 16386 bytes"),
        )
    ),
    Rule(HASH, {"httpQueryParameterName": "q"}, {"httpHeaderName": ""}, "must not be empty", f"{HASH}.httpHeaderName"),
    Rule(
        HASH,
        {"httpCookie": {"name": "c", "ttl": "0s"}},
        {"httpCookie": {"ttl": "0s"}},
        "is missing",
        f"{HASH}.httpCookie.name",
    ),
    Rule(
        HASH,
        {"httpCookie": {"name": "c"}},
        {"httpCookie": {"name": "c", "ttl": "-1s"}},
        "must not be negative",
        f"{HASH}.httpCookie.ttl",
    ),
    Rule(
        HASH,
        {"httpCookie": {"name": "c", "attributes": [{"name": "SameSite"}]}},
        {"httpCookie": {"name": "c", "attributes": [{"value": "x"}]}},
        "is missing",
        f"{HASH}.httpCookie.attributes[0].name",
    ),
    Rule(
        HASH,
        {"useSourceIp": True, "maglev": {"tableSize": 65537}},
        {"useSourceIp": True, "maglev": {"tableSize": 65536}},
        "not a prime",
        f"{HASH}.maglev.tableSize",
    ),
    Rule(
        HASH,
        {"useSourceIp": True, "maglev": {"tableSize": 101}},
        {"useSourceIp": True, "maglev": {"tableSize": 5000077}},
        "too large",
        f"{HASH}.maglev.tableSize",
    ),
    Rule(
        HASH,
        {"useSourceIp": True, "maglev": {"tableSize": 101}},
        {"useSourceIp": True, "maglev": {}},
        "is missing",
        f"{HASH}.maglev.tableSize",
    ),
    Rule(
        HASH,
        {"useSourceIp": True, "ringHash": {"minimumRingSize": "1024"}},
        {"useSourceIp": True, "ringHash": {"minimumRingSize": 9000000}},
        "too large",
        f"{HASH}.ringHash.minimumRingSize",
    ),
    Rule("trafficPolicy.loadBalancer.warmupDurationSecs", "60s", "0s", "at least 1ms"),
    Rule(
        "trafficPolicy.loadBalancer",
        {"warmup": {"duration": "60s"}},
        {"warmup": {}},
        "is missing",
        "trafficPolicy.loadBalancer.warmup.duration",
    ),
    Rule(
        "trafficPolicy.loadBalancer",
        {"warmup": {"duration": "60s", "minimumPercent": 10}},
        {"warmup": {"duration": "60s", "minimumPercent": 101}},
        "not a percentage",
        "trafficPolicy.loadBalancer.warmup.minimumPercent",
    ),
    Rule(
        "trafficPolicy.loadBalancer",
        {"warmup": {"duration": "60s", "aggression": 0.5}},
        {"warmup": {"duration": "60s", "aggression": 0}},
        "0 is not a number above 0",
        "trafficPolicy.loadBalancer.warmup.aggression",
    ),
    Rule(
        "trafficPolicy.loadBalancer",
        {"warmup": {"duration": "60s"}},
        {"warmup": {"duration": "60s"}, "warmupDurationSecs": "5s"},
        "exclude each other",
        "trafficPolicy.loadBalancer.warmup",
    ),
    warns(
        "trafficPolicy.loadBalancer",
        {"simple": "ROUND_ROBIN", "warmupDurationSecs": "60s"},
        {"simple": "RANDOM", "warmupDurationSecs": "60s"},
        "only ROUND_ROBIN and LEAST_REQUEST",
        "trafficPolicy.loadBalancer.warmupDurationSecs",
    ),
]

LOCALITIES = [
    Rule(
        LOCALITY,
        {"distribute": [DISTRIBUTE]},
        {"distribute": [DISTRIBUTE], "failover": [{"from": "a", "to": "b"}]},
        "exclude each other",
        f"{LOCALITY}.failover",
    ),
    Rule(
        LOCALITY,
        {"failoverPriority": ["x"]},
        {"distribute": [DISTRIBUTE], "failoverPriority": ["x"]},
        "exclude each other",
        f"{LOCALITY}.failoverPriority",
    ),
    Rule(
        LOCALITY,
        {"failover": [{"from": "a", "to": "b"}], "failoverPriority": ["x"]},
        {"failover": [{"from": "a", "to": "b"}], "failoverPriority": ["topology.kubernetes.io/region"]},
        "exclude each other",
        f"{LOCALITY}.failoverPriority[0]",
    ),
    Rule(
        LOCALITY,
        {"failover": [{"from": "a", "to": "b"}]},
        {"failover": [{"from": "a", "to": "a"}]},
        "different regions",
        f"{LOCALITY}.failover[0]",
    ),
    Rule(
        LOCALITY,
        {"failover": [{"from": "a", "to": "b"}]},
        {"failover": [{"from": "a/b", "to": "c"}]},
        "not a region",
        f"{LOCALITY}.failover[0].from",
    ),
    Rule(
        LOCALITY,
        {"failover": [{"from": "a", "to": "b"}]},
        {"failover": [{"from": "a", "to": "*"}]},
        "not a region",
        f"{LOCALITY}.failover[0].to",
    ),
    Rule(
        f"{LOCALITY}.distribute",
        [DISTRIBUTE],
        [{"from": "a", "to": {"b": 99}}],
        "add up to 99",
        f"{LOCALITY}.distribute[0].to",
    ),
    Rule(
        f"{LOCALITY}.distribute",
        [DISTRIBUTE],
        [{"from": "a", "to": {"b": 0, "c": 100}}],
        "not a weight",
        f"{LOCALITY}.distribute[0].to[b]",
    ),
    Rule(f"{LOCALITY}.distribute", [DISTRIBUTE], [{"from": "a/*/b", "to": {"b": 100}}], "wildcard can only be the end"),
    Rule(f"{LOCALITY}.distribute", [DISTRIBUTE], [{"from": "a//b", "to": {"b": 100}}], "region/zone/subzone"),
    Rule(
        f"{LOCALITY}.distribute",
        [DISTRIBUTE, {"from": "b", "to": {"a": 100}}],
        [DISTRIBUTE, {"from": "a/z", "to": {"a": 100}}],
        "overlap",
    ),
    Rule(
        f"{LOCALITY}.distribute",
        [DISTRIBUTE],
        [{"from": "a", "to": {"b/*": 50, "b/c": 50}}],
        "overlap",
        f"{LOCALITY}.distribute[0].to",
    ),
    warns(
        "trafficPolicy",
        {"outlierDetection": {}, "loadBalancer": {"localityLbSetting": {"failoverPriority": ["x"]}}},
        {"loadBalancer": {"localityLbSetting": {"failoverPriority": ["x"]}}},
        "needs an outlierDetection",
        LOCALITY,
    ),
    Rule(
        "trafficPolicy.loadBalancer",
        {"zoneAwareLbSetting": {"enabled": True}},
        {"zoneAwareLbSetting": {}, "localityLbSetting": {}},
        "exclude each other",
        "trafficPolicy.loadBalancer.zoneAwareLbSetting",
    ),
    Rule(
        "trafficPolicy.loadBalancer.zoneAwareLbSetting",
        {"failoverPriority": ["version"], "failover": [{"from": "a", "to": "b"}]},
        {"failoverPriority": ["topology.kubernetes.io/zone"]},
        "Envoy prefers the zone",
        "trafficPolicy.loadBalancer.zoneAwareLbSetting.failoverPriority[0]",
    ),
]

TABLE = [(base, rule) for base, rules in ((POLICY, BALANCING), (FAILING, LOCALITIES)) for rule in rules]


@pytest.mark.parametrize(("base", "rule"), TABLE, ids=str)
def test_a_rule_of_load_balancing_is_kept_or_named(base: dict[str, Any], rule: Rule) -> None:
    holds("DestinationRule", base, rule)
