"""What a route does with requests: where they go, and what is done to them on the way."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.routing import TO_WEB, WEB, config, plain, route, service, table
from tests.support.worlds import sidecar, world_of


def test_one_destination_is_a_cluster_and_several_are_weighted_clusters() -> None:
    assert route("route: [{destination: {host: web, subset: v1}, weight: 0}]")["route"]["cluster"] == (
        f"outbound|80|v1|{WEB}"
    )
    split = (
        "route: [{destination: {host: web}, weight: 9}, {destination: {host: a.b, port: {number: 1}}, weight: 1}, "
        "{destination: {host: c.d}}]"
    )
    assert route(split)["route"]["weighted_clusters"]["clusters"] == [
        {"name": f"outbound|80||{WEB}", "weight": 9},
        {"name": "outbound|1||a.b", "weight": 1},
    ]


def test_there_is_no_time_limit_unless_the_rule_has_one_and_zero_is_none() -> None:
    assert route(TO_WEB)["route"]["timeout"] == "0s"
    assert route(f"timeout: 0s, {TO_WEB}")["route"]["timeout"] == "0s"
    limited = route(f"timeout: 1.5s, {TO_WEB}")["route"]
    assert limited["timeout"] == "1.500s"
    assert limited["max_grpc_timeout"] == "1.500s"
    assert "max_stream_duration" not in limited, "Envoy would ignore the timeout"


def test_redirects() -> None:
    assert route("redirect: {uri: /b, authority: x.y, redirectCode: 308, scheme: https, port: 8443}")["redirect"] == {
        "path_redirect": "/b",
        "host_redirect": "x.y",
        "response_code": "PERMANENT_REDIRECT",
        "scheme_redirect": "https",
        "port_redirect": 8443,
    }
    assert route("redirect: {authority: x, derivePort: FROM_REQUEST_PORT}")["redirect"]["port_redirect"] == 80
    assert route("redirect: {authority: x, derivePort: FROM_PROTOCOL_DEFAULT}")["redirect"] == {"host_redirect": "x"}
    assert route("redirect: {prefixRewrite: /b, redirectCode: 303}")["redirect"] == {
        "prefix_rewrite": "/b",
        "response_code": "SEE_OTHER",
    }


def test_direct_responses() -> None:
    assert route("directResponse: {status: 204}")["direct_response"] == {"status": 204}
    text = route("directResponse: {status: 418, body: {string: tea}}")["direct_response"]
    assert text == {"status": 418, "body": {"inline_string": "tea"}}
    data = route("directResponse: {status: 418, body: {bytes: dGVh}}")["direct_response"]
    assert data == {"status": 418, "body": {"inline_bytes": "dGVh"}}


def test_rewrites() -> None:
    assert route(f"rewrite: {{uri: /b, authority: x.y}}, {TO_WEB}")["route"]["prefix_rewrite"] == "/b"
    assert route(f"rewrite: {{uri: /b, authority: x.y}}, {TO_WEB}")["route"]["host_rewrite_literal"] == "x.y"
    regex = route(f"rewrite: {{uriRegexRewrite: {{match: '^/a/(.*)$', rewrite: '/b/\\1'}}}}, {TO_WEB}")["route"]
    assert regex["regex_rewrite"] == {"pattern": {"regex": "^/a/(.*)$"}, "substitution": "/b/\\1"}


def test_a_fault_without_a_status_or_a_delay_has_no_effect() -> None:
    half = "fault: {abort: {percentage: {value: 5}}, delay: {percentage: {value: 5}}}"
    (fault,) = route(f"{half}, {TO_WEB}")["typed_per_filter_config"].values()
    assert list(fault) == ["@type"]


AS_SENT = {"trace_sampled": False, "disable_shadow_host_suffix_append": True}


def test_mirrors_with_their_shares() -> None:
    def mirrored(text: str) -> Any:
        return route(f"{text}, {TO_WEB}")["route"].get("request_mirror_policies")

    whole = {"default_value": {"numerator": 100}}
    assert mirrored("mirror: {host: web, subset: v2}") == [
        {"cluster": f"outbound|80|v2|{WEB}", "runtime_fraction": whole, **AS_SENT}
    ]
    assert mirrored("mirror: {host: web}, mirrorPercentage: {value: 0}") is None
    assert mirrored("mirror: {host: web}, mirrorPercent: 5")[0]["runtime_fraction"]["default_value"] == {
        "numerator": 50000,
        "denominator": "MILLION",
    }
    several = mirrored("mirrors: [{destination: {host: a.b}}, {destination: {host: c.d}, percentage: {value: 0.5}}]")
    assert [m["cluster"] for m in several] == ["outbound|80||a.b", "outbound|80||c.d"]
    assert several[1]["runtime_fraction"]["default_value"]["numerator"] == 5000


def test_header_operations_of_the_rule_come_before_those_of_its_only_destination() -> None:
    found = route(
        "headers: {request: {set: {b: '2', a: '1'}, add: {c: '3'}, remove: [d]}, response: {remove: [e]}}, "
        "route: [{destination: {host: web}, headers: {request: {add: {f: '4'}}, response: {set: {g: '5'}}}}]"
    )
    overwrite = {"append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    assert found["request_headers_to_add"] == [
        {"header": {"key": "a", "value": "1"}, **overwrite},
        {"header": {"key": "b", "value": "2"}, **overwrite},
        {"header": {"key": "c", "value": "3"}},
        {"header": {"key": "f", "value": "4"}},
    ]
    assert found["request_headers_to_remove"] == ["d"]
    assert found["response_headers_to_add"] == [{"header": {"key": "g", "value": "5"}, **overwrite}]
    assert found["response_headers_to_remove"] == ["e"]


def test_the_host_is_rewritten_by_a_field_of_its_own() -> None:
    assert route(f"headers: {{request: {{set: {{Host: a.b}}}}}}, {TO_WEB}")["route"]["host_rewrite_literal"] == "a.b"
    own = "route: [{destination: {host: web}, headers: {request: {set: {':authority': c.d}}}}]"
    assert route(own)["route"]["host_rewrite_literal"] == "c.d"
    both = route(f"headers: {{request: {{set: {{host: a.b}}}}}}, {own}")
    assert both["route"]["host_rewrite_literal"] == "a.b" and "request_headers_to_add" not in both
    split = "{destination: {host: web}, weight: 1, headers: {request: {set: {host: c.d}}}}"
    weighted = route(f"route: [{split}, {{destination: {{host: x.y}}, weight: 1}}]")["route"]["weighted_clusters"]
    assert [c.get("host_rewrite_literal") for c in weighted["clusters"]] == ["c.d", None]


def retries(text: str, **given: Any) -> Any:
    return route(f"{text} {TO_WEB}", **given)["route"].get("retry_policy")


def test_requests_are_retried_twice_unless_the_rule_or_the_mesh_says_otherwise() -> None:
    default = retries("")
    assert default["num_retries"] == 2
    assert default["retry_on"] == "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
    assert "retriable_status_codes" not in default
    assert default["retry_host_predicate"][0]["name"] == "envoy.retry_host_predicates.previous_hosts"
    mesh = "defaultHttpRetryPolicy: {attempts: 0}"
    assert retries("", mesh=mesh) is None
    assert retries("retries: {attempts: 1},", mesh=mesh)["num_retries"] == 1
    assert retries("retries: {attempts: 0},") is None


def test_everything_about_retries() -> None:
    found = retries(
        "retries: {attempts: 4, perTryTimeout: 0.75s, retryOn: 'gateway-error, 429,reset', retryRemoteLocalities: true,"
        " retryIgnorePreviousHosts: false, backoff: 0.1s},"
    )
    assert found["retry_on"] == "gateway-error,reset,retriable-status-codes"
    assert found["retriable_status_codes"] == [429]
    assert found["per_try_timeout"] == "0.750s"
    assert found["retry_priority"]["typed_config"]["update_frequency"] == 2
    assert found["retry_back_off"] == {"base_interval": "0.100s"}
    assert "retry_host_predicate" not in found


FAULT, CORS = "envoy.filters.http.fault", "envoy.filters.http.cors"


def test_faults_are_configuration_of_the_filter_for_the_route() -> None:
    found = route(
        "fault: {delay: {fixedDelay: 2s, percentage: {value: 33.3333}}, "
        f"abort: {{grpcStatus: UNAVAILABLE, percentage: {{value: 0.01}}}}}}, {TO_WEB}"
    )["typed_per_filter_config"][FAULT]
    assert found["delay"] == {"fixed_delay": "2s", "percentage": {"numerator": 333333, "denominator": "MILLION"}}
    assert found["abort"] == {"grpc_status": 14, "percentage": {"numerator": 100, "denominator": "MILLION"}}
    old = route(f"fault: {{delay: {{fixedDelay: 1s, percent: 7}}}}, {TO_WEB}")["typed_per_filter_config"][FAULT]
    assert old["delay"]["percentage"] == {"numerator": 7}
    without = route(f"fault: {{abort: {{httpStatus: 500}}}}, {TO_WEB}")["typed_per_filter_config"][FAULT]
    assert without["abort"] == {"http_status": 500}


def test_cors_is_configuration_of_the_filter_for_the_route() -> None:
    found = route(
        "corsPolicy: {allowOrigins: [{exact: a}, {prefix: b}, {regex: 'c+'}], allowMethods: [GET, PUT], allowHeaders: "
        f"[x, y], exposeHeaders: [z], maxAge: 90m, allowCredentials: false, unmatchedPreflights: IGNORE}}, {TO_WEB}"
    )["typed_per_filter_config"][CORS]
    assert found.pop("@type").endswith("cors.v3.CorsPolicy")
    assert found == {
        "allow_origin_string_match": [{"exact": "a"}, {"prefix": "b"}, {"safe_regex": {"regex": "c+"}}],
        "allow_methods": "GET,PUT",
        "allow_headers": "x,y",
        "expose_headers": "z",
        "max_age": "5400",
        "allow_credentials": False,
        "filter_enabled": {"default_value": {"numerator": 100}},
        "forward_not_matching_preflights": False,
    }
    old = route(f"corsPolicy: {{allowOrigin: [a, '*']}}, {TO_WEB}")["typed_per_filter_config"][CORS]
    assert old["allow_origin_string_match"] == [{"exact": "a"}, {"exact": "*"}]
    assert old["forward_not_matching_preflights"]


def test_redirects_and_answers_have_headers_and_cors_too() -> None:
    for action in ("redirect: {uri: /b}", "directResponse: {status: 204}"):
        found = route(
            f"{action}, headers: {{response: {{set: {{a: b}}}}}}, corsPolicy: {{allowOrigins: [{{exact: a}}]}}"
        )
        assert "response_headers_to_add" in found and CORS in found["typed_per_filter_config"]


def test_traces_call_a_route_by_destination_port_and_path() -> None:
    def operation(rule: str) -> str:
        return str(route(rule)["decorator"]["operation"])

    assert operation(TO_WEB) == f"{WEB}:80/*"
    assert operation(f"match: [{{uri: {{exact: /a}}}}], {TO_WEB}") == f"{WEB}:80/a"
    assert operation(f"match: [{{uri: {{regex: '/a.*'}}}}], {TO_WEB}") == f"{WEB}:80/a.*"
    assert operation("match: [{uri: {prefix: /a}}], redirect: {uri: /b}") == "vs:80/a*"
    split = "route: [{destination: {host: web}, weight: 1}, {destination: {host: a.b}, weight: 1}]"
    assert operation(split) == "vs:80/*"


def test_traces_call_a_route_of_whole_elements_of_a_path_by_its_destination() -> None:
    spec = (
        "{parentRefs: [{group: '', kind: Service, name: web}], "
        "rules: [{matches: [{path: {value: /a}}], backendRefs: [{name: web, port: 80}]}]}"
    )
    text = config("HTTPRoute", "web", spec).replace("networking.istio.io/v1", "gateway.networking.k8s.io/v1")
    found = table(world_of(service("web") + text), "80", sidecar(namespace="shop"))
    assert found[f"{WEB}:80"].routes[0].match.path_separated_prefix == "/a"
    assert found[f"{WEB}:80"].routes[0].decorator.operation == f"{WEB}:80/*"


def test_a_match_may_name_the_routes_statistics() -> None:
    assert route(f"match: [{{uri: {{exact: /a}}, statPrefix: a}}], {TO_WEB}")["stat_prefix"] == "a"


def hashing(text: str, name: str = "web", host: str = "web") -> str:
    return config(
        "DestinationRule", name, f"{{host: {host}, trafficPolicy: {{loadBalancer: {{consistentHash: {text}}}}}}}"
    )


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("{httpHeaderName: x-user}", {"header": {"header_name": "x-user"}}),
        ("{httpCookie: {name: c, path: /p, ttl: 60s}}", {"cookie": {"name": "c", "path": "/p", "ttl": "60s"}}),
        ("{httpCookie: {name: c, ttl: 0s}}", {"cookie": {"name": "c", "ttl": "0s"}}),
        ("{useSourceIp: true}", {"connection_properties": {"source_ip": True}}),
        ("{httpQueryParameterName: q}", {"query_parameter": {"name": "q"}}),
    ],
)
def test_routes_hash_by_what_the_destination_rule_says(text: str, policy: dict[str, Any]) -> None:
    assert route(TO_WEB, more=hashing(text))["route"]["hash_policy"] == [policy]
    default = table(world_of(service("web") + hashing(text)))[f"{WEB}:80"]
    assert plain(default.routes[0])["route"]["hash_policy"] == [policy]


def test_each_destination_adds_its_hash_policy_and_subsets_have_their_own() -> None:
    rule = (
        "{host: web, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: all}}}, subsets: [{name: v1, "
        "trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: one}}}}, {name: v2}]}"
    )
    split = (
        "route: [{destination: {host: web, subset: v1}, weight: 1}, {destination: {host: web, subset: v2}, weight: 1}]"
    )
    found = route(split, more=config("DestinationRule", "web", rule))["route"]["hash_policy"]
    assert [p["header"]["header_name"] for p in found] == ["one", "all"]
