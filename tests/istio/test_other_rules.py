"""Istio's rules for EnvoyFilter, ProxyConfig, Telemetry and WasmPlugin: for each, a good and a bad object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, holds, warns

HCM = "envoy.filters.network.http_connection_manager"
PATCH = {"operation": "MERGE", "value": {"a": 1}}
FILTER: dict[str, Any] = {"configPatches": [{"applyTo": "CLUSTER", "patch": PATCH}]}
INSERT = {"operation": "INSERT_BEFORE", "value": {"name": "a"}}
HTTP_FILTER: dict[str, Any] = {"configPatches": [{"applyTo": "HTTP_FILTER", "patch": INSERT}]}
LISTENER = "configPatches[0].match.listener.filterChain.filter"
PROXY: dict[str, Any] = {"concurrency": 2}
TELEMETRY: dict[str, Any] = {"tracing": [{"providers": [{"name": "zipkin"}]}]}
WASM: dict[str, Any] = {"url": "oci://registry/a:1"}
SERVICE = {"kind": "Service", "name": "a"}

FILTERS = [
    Rule("configPatches[0].applyTo", "LISTENER", ABSENT, "is missing"),
    Rule("configPatches[0].patch", PATCH, ABSENT, "is missing"),
    Rule("configPatches[0].patch.operation", "MERGE", ABSENT, "is missing"),
    Rule(
        "configPatches[0].patch",
        {"operation": "REMOVE"},
        {"operation": "ADD"},
        "ADD needs it",
        "configPatches[0].patch.value",
    ),
    Rule(
        "configPatches[0]",
        {"match": {"context": "WAYPOINT"}},
        {"match": {"context": "GATEWAY"}},
        "is missing",
        "configPatches[0].patch",
    ),
    Rule("configPatches[0].patch.value", {"a": [1, None]}, [], "expected an object"),
    Rule(
        "configPatches[0].match",
        {"cluster": {"name": "a"}},
        {"listener": {}},
        "does not go with applyTo CLUSTER",
        "configPatches[0].match.listener",
    ),
    Rule(
        "configPatches[0]",
        {"applyTo": "HTTP_ROUTE", "patch": PATCH, "match": {"routeConfiguration": {}}},
        {"applyTo": "HTTP_ROUTE", "patch": PATCH, "match": {"cluster": {}}},
        "does not go with",
        "configPatches[0].match.cluster",
    ),
    Rule("configPatches[0].match.proxy.proxyVersion", r"^1\.9.*", "(", "not a regular expression"),
    warns("configPatches[0].patch", PATCH, INSERT, "no ordered list", "configPatches[0].patch.operation"),
    warns(
        "configPatches[0].patch",
        PATCH,
        {"operation": "REPLACE", "value": {}},
        "it is for filters",
        "configPatches[0].patch.operation",
    ),
    Rule("workloadSelector", {"labels": {"a": "b"}}, {"labels": {"a": "*"}}, "wildcards", "workloadSelector.labels[a]"),
    warns("workloadSelector", {"labels": {"a": "b"}}, {}, "every workload", "workloadSelector.labels"),
    Rule(
        "",
        {**FILTER, "targetRefs": [SERVICE]},
        {**FILTER, "targetRefs": [SERVICE], "workloadSelector": {"labels": {"a": "b"}}},
        "only one of workloadSelector, targetRefs",
        "targetRefs",
    ),
]

LISTENERS = [
    Rule(
        "configPatches[0].match",
        {"listener": {}},
        {"routeConfiguration": {}},
        "does not go with",
        "configPatches[0].match.routeConfiguration",
    ),
    Rule(LISTENER, {"name": HCM}, {}, "is missing", f"{LISTENER}.name"),
    Rule(
        LISTENER,
        {"name": HCM, "subFilter": {"name": "a"}},
        {"name": HCM, "subFilter": {}},
        "is missing",
        f"{LISTENER}.subFilter.name",
    ),
    Rule(
        LISTENER,
        {"name": HCM, "subFilter": {"name": "a"}},
        {"name": "tcp", "subFilter": {"name": "a"}},
        "has sub-filters",
        f"{LISTENER}.subFilter",
    ),
    warns(
        LISTENER,
        {"name": HCM, "subFilter": {"name": "envoy.filters.http.router"}},
        {"name": HCM, "subFilter": {"name": "envoy.router"}},
        "is called envoy.filters.http.router",
        f"{LISTENER}.subFilter.name",
    ),
    Rule("configPatches[0].applyTo", "HTTP_FILTER", "HTTP_FILTERS", "allowed: INVALID"),
    Rule(
        "",
        {
            "configPatches": [
                {
                    "applyTo": "NETWORK_FILTER",
                    "patch": INSERT,
                    "match": {"listener": {"filterChain": {"filter": {"name": HCM}}}},
                }
            ]
        },
        {
            "configPatches": [
                {
                    "applyTo": "NETWORK_FILTER",
                    "patch": INSERT,
                    "match": {"listener": {"filterChain": {"filter": {"name": HCM, "subFilter": {"name": "a"}}}}},
                }
            ]
        },
        "only be matched with applyTo HTTP_FILTER",
        f"{LISTENER}.subFilter",
    ),
    warns(
        "",
        {
            "configPatches": [
                {"applyTo": "LISTENER", "patch": PATCH, "match": {"listener": {"filterChain": {"sni": "a"}}}}
            ]
        },
        {
            "configPatches": [
                {
                    "applyTo": "LISTENER",
                    "patch": PATCH,
                    "match": {"listener": {"filterChain": {"filter": {"name": HCM}}}},
                }
            ]
        },
        "no effect with applyTo LISTENER",
        LISTENER,
    ),
]

PROXIES = [
    Rule("concurrency", 0, -1, "is negative"),
    Rule("environmentVariables", {"A": "b"}, {"A=": "b"}, "not the name of a variable", "environmentVariables[A=]"),
    Rule("environmentVariables", {"A": "1"}, {"A": 1}, "put it in quotes", "environmentVariables[A]"),
    Rule("selector.matchLabels", {"a": "b"}, {"a": "*"}, "wildcards", "selector.matchLabels[a]"),
    Rule("image.imageType", "debug", 5, "put it in quotes"),
]

TELEMETRIES = [
    Rule("tracing[0].providers", [{"name": "a"}], [{}], "is missing", "tracing[0].providers[0].name"),
    warns("tracing[0].providers", [{"name": "a"}], [{"name": "a"}, {"name": "b"}], "the first is used"),
    Rule("tracing[0].randomSamplingPercentage", 0, 100.5, "not a percentage"),
    warns(
        "tracing[0].customTags",
        {"a": {"literal": {"value": "b"}}},
        {"a": {}},
        "has no effect: needs one of literal",
        "tracing[0].customTags[a]",
    ),
    Rule(
        "tracing[0].customTags",
        {"a": {"literal": {"value": "b"}}},
        {"a": {"literal": {}}},
        "is missing",
        "tracing[0].customTags[a].literal.value",
    ),
    Rule(
        "tracing[0].customTags",
        {"a": {"header": {"name": "b"}}},
        {"a": {"header": {}}},
        "is missing",
        "tracing[0].customTags[a].header.name",
    ),
    Rule(
        "tracing[0].customTags",
        {"a": {"environment": {"name": "b"}}},
        {"a": {"environment": {}}},
        "is missing",
        "tracing[0].customTags[a].environment.name",
    ),
    Rule(
        "tracing[0].customTags",
        {"a": {"formatter": {"value": "b"}}},
        {"a": {"formatter": {}}},
        "is missing",
        "tracing[0].customTags[a].formatter.value",
    ),
    Rule(
        "tracing[0].customTags",
        {"a": {"formatter": {"value": "%REQ(x)%"}}},
        {"a": {"formatter": {"value": "%REQ_WITHOUT_QUERY(:path)%"}}},
        "is not a command",
        "tracing[0].customTags[a].formatter.value",
    ),
    Rule(
        "tracing[0].customTags",
        {"a": {"header": {"name": "b c"}}},
        {"a": {"header": {"name": "b\n"}}},
        "line break",
        "tracing[0].customTags[a].header.name",
    ),
    Rule(
        "accessLogging",
        [{"filter": {"expression": "has(request.useragent) && response.code >= 400"}}],
        [{"filter": {"expression": "response.code >="}}],
        "is not an expression: it ends early",
        "accessLogging[0].filter.expression",
    ),
    Rule(
        "tracing[0].customTags",
        {"a": {"literal": {"value": "b"}}},
        {"": {"literal": {"value": "b"}}},
        "must have a name",
        "tracing[0].customTags[]",
    ),
    Rule(
        "metrics", [{"providers": [{"name": "a"}]}], [{"providers": [{}]}], "is missing", "metrics[0].providers[0].name"
    ),
    Rule(
        "metrics",
        [{"reportingInterval": "5s"}],
        [{"reportingInterval": "0s"}],
        "at least 1ms",
        "metrics[0].reportingInterval",
    ),
    Rule(
        "metrics",
        [{"overrides": [{"match": {"customMetric": "a"}}]}],
        [{"overrides": [{"match": {"customMetric": ""}}]}],
        "must not be empty",
        "metrics[0].overrides[0].match.customMetric",
    ),
    Rule(
        "metrics",
        [{"overrides": [{"tagOverrides": {"a": {"value": "b"}}}]}],
        [{"overrides": [{"tagOverrides": {"a": {}}}]}],
        "UPSERT needs it",
        "metrics[0].overrides[0].tagOverrides[a].value",
    ),
    Rule(
        "metrics",
        [{"overrides": [{"tagOverrides": {"a": {"operation": "REMOVE"}}}]}],
        [{"overrides": [{"tagOverrides": {"a": {"operation": "REMOVE", "value": "b"}}}]}],
        "UPSERT only",
        "metrics[0].overrides[0].tagOverrides[a].value",
    ),
    Rule(
        "accessLogging",
        [{"providers": [{"name": "a"}]}],
        [{"providers": [{}]}],
        "is missing",
        "accessLogging[0].providers[0].name",
    ),
    warns(
        "accessLogging",
        [{"filter": {"expression": "response.code >= 400"}}],
        [{"filter": {}}],
        "everything is logged",
        "accessLogging[0].filter.expression",
    ),
    Rule("selector.matchLabels", {"a": "b"}, {"a": "*"}, "wildcards", "selector.matchLabels[a]"),
    Rule("targetRef", SERVICE, {"kind": "Service"}, "is missing", "targetRef.name"),
]

PLUGINS = [
    Rule("url", "registry/a:1", ABSENT, "is missing"),
    Rule("url", "https://a/b.wasm", "s3://a", "not supported"),
    Rule("sha256", "0" * 64, "0" * 63, "not a SHA-256"),
    Rule("sha256", "f" * 64, "F" * 64, "not a SHA-256"),
    Rule("imagePullSecret", "a", "a" * 254, "longer than 253"),
    Rule("pluginName", "a", "a" * 257, "longer than 256"),
    Rule("vmConfig.env", [{"name": "a", "value": "b"}], [{"value": "b"}], "is missing", "vmConfig.env[0].name"),
    Rule(
        "vmConfig.env",
        [{"name": "a"}, {"name": "b"}],
        [{"name": "a"}, {"name": "a"}],
        "given twice",
        "vmConfig.env[1].name",
    ),
    Rule(
        "vmConfig.env",
        [{"name": "a", "valueFrom": "HOST"}],
        [{"name": "a", "valueFrom": "HOST", "value": "b"}],
        "excludes",
        "vmConfig.env[0].value",
    ),
    Rule(
        "vmConfig.env",
        [{"name": "a"}],
        [{"name": "a", "value": "b" * 2049}],
        "longer than 2048",
        "vmConfig.env[0].value",
    ),
    Rule("vmConfig.env", [{"name": "a" * 256}], [{"name": "a" * 257}], "longer than 256", "vmConfig.env[0].name"),
    Rule("match", [{"ports": [{"number": 80}]}], [{"ports": [{}]}], "not a port", "match[0].ports[0].number"),
    Rule("selector.matchLabels", {"a": "b"}, {"": "b"}, "must have a key", "selector.matchLabels[]"),
    Rule("targetRefs", [SERVICE], [{"kind": "Job", "name": "a"}], "can't be a target", "targetRefs[0]"),
]

TABLE = [
    (kind, base, rule)
    for kind, base, rules in (
        ("EnvoyFilter", FILTER, FILTERS),
        ("EnvoyFilter", HTTP_FILTER, LISTENERS),
        ("ProxyConfig", PROXY, PROXIES),
        ("Telemetry", TELEMETRY, TELEMETRIES),
        ("WasmPlugin", WASM, PLUGINS),
    )
    for rule in rules
]


@pytest.mark.parametrize(("kind", "base", "rule"), TABLE, ids=str)
def test_a_rule_of_the_other_kinds_is_kept_or_named(kind: str, base: dict[str, Any], rule: Rule) -> None:
    holds(kind, base, rule)
