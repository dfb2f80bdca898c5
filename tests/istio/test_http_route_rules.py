"""Istio's rules for what the http routes of a VirtualService match and do: for each, a good and a bad object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, holds, warns

DESTINATION = {"destination": {"host": "reviews"}}
BASE: dict[str, Any] = {"hosts": ["reviews.shop.svc.cluster.local"], "http": [{"route": [DESTINATION]}]}
REDIRECT: dict[str, Any] = {"hosts": ["a.b"], "http": [{"redirect": {"uri": "/x"}}]}
ANSWER: dict[str, Any] = {"hosts": ["a.b"], "http": [{"directResponse": {"status": 200}}]}

MATCHES = [
    Rule("http[0].externalAuth", ABSENT, [{"destination": {"host": "a"}}], "AuthorizationPolicy with action CUSTOM"),
    Rule("http[0].match[0].uri", {"prefix": ""}, {"regex": "("}, "RE2 takes: missing )"),
    Rule("http[0].match[0].uri", {"regex": "/a/[0-9]+"}, {"regex": "a(?=b)"}, "invalid perl operator: (?="),
    Rule("http[0].match[0].uri", {"regex": "(?i)/a"}, {"regex": r"(a)\1"}, r"invalid escape sequence: \1"),
    Rule("http[0].match[0].uri", {"regex": r"a\++"}, {"regex": "a++"}, "bad repetition operator: ++"),
    Rule("http[0].match[0].uri", {"regex": "a{1,1000}"}, {"regex": "a{1001}"}, "invalid repetition size: {1001}"),
    Rule("http[0].match[0].uri", {"regex": r"[(?=]\pL[[:alpha:]]"}, {"regex": ""}, "must not be empty"),
    Rule(
        "http[0].match[0].uri",
        {"exact": "/a"},
        {"exact": "/a", "prefix": "/b"},
        "only one of exact and prefix",
        "http[0].match[0].uri.prefix",
    ),
    Rule("http[0].match[0].scheme", {"exact": "https"}, {"prefix": ""}, "prefix must not be empty"),
    Rule("http[0].match[0].method", {"regex": "GET|PUT"}, {"regex": "["}, "not a regular expression"),
    Rule("http[0].match[0].authority", {"prefix": "a"}, {"prefix": ""}, "prefix must not be empty"),
    Rule(
        "http[0].match[0].headers",
        {"x": {"exact": "1"}},
        {"x": {"regex": "*" * 3}},
        "not a regular expression",
        "http[0].match[0].headers[x]",
    ),
    Rule(
        "http[0].match[0].headers", {"x": {}}, {"": {"exact": "1"}}, "must not be empty", "http[0].match[0].headers[]"
    ),
    Rule(
        "http[0].match[0].withoutHeaders",
        {"x": {"regex": "*"}},
        {"x": {"prefix": ""}},
        "prefix must not be empty",
        "http[0].match[0].withoutHeaders[x]",
    ),
    Rule(
        "http[0].match[0].queryParams",
        {"q": {"exact": ""}},
        {"q": {"prefix": ""}},
        "prefix must not be empty",
        "http[0].match[0].queryParams[q]",
    ),
    Rule(
        "http[0].match[0].queryParams",
        {"q" * 1024: {"exact": "1"}},
        {"": {"exact": "1"}},
        "1 to 1024 bytes",
        "http[0].match[0].queryParams[]",
    ),
    Rule(
        "http[0].match[0].headers",
        {":path": {"exact": "1"}, "x!": {"exact": "1"}},
        {"x y": {"exact": "1"}},
        "not a header name",
        "http[0].match[0].headers[x y]",
    ),
    Rule(
        "http[0].match[0].withoutHeaders",
        {":status": {"exact": "1"}},
        {"::": {"exact": "1"}},
        "not a header name",
        "http[0].match[0].withoutHeaders[::]",
    ),
    Rule("http[0].match[0].port", 80, 70000, "not a port"),
    Rule(
        "http[0].match[0].sourceLabels",
        {"app": "a"},
        {"app": "a b"},
        "not a label value",
        "http[0].match[0].sourceLabels[app]",
    ),
    Rule(
        "http[0].match[0].sourceLabels",
        {"a.b/app": ""},
        {"a b": "c"},
        "not a label key",
        "http[0].match[0].sourceLabels[a b]",
    ),
    Rule("http[0].match[0].gateways", ["mesh"], ["a/b/c"], "not a DNS label", "http[0].match[0].gateways[0]"),
    Rule("http[0].match[0].sourceNamespace", "shop", "a.b", "not a DNS label"),
    warns(
        "http",
        [
            {"match": [{"uri": {"prefix": "/a"}}], "route": [DESTINATION]},
            {"match": [{"uri": {"prefix": "/b"}}], "route": [DESTINATION]},
        ],
        [
            {"match": [{"name": "one", "uri": {"prefix": "/a"}}], "route": [DESTINATION]},
            {"match": [{"uri": {"prefix": "/a"}}], "route": [DESTINATION]},
        ],
        "has the same match",
        "http[1].match[0]",
    ),
]

HEADERS = [
    Rule("http[0].headers.request.set", {"x": "%PROTOCOL%"}, {"x": "50%"}, '"%"', "http[0].headers.request.set[x]"),
    Rule(
        "http[0].headers.request.set",
        {"x": '%UPSTREAM_METADATA(["a", "b"])% 5%%'},
        {"x": "%REQ(a"},
        '"%"',
        "http[0].headers.request.set[x]",
    ),
    Rule(
        "http[0].headers.request.set",
        {"x": "%HOSTNAME%", "host": "%FOO%"},
        {"x": "%FOO%"},
        "'%FOO%' is not a command",
        "http[0].headers.request.set[x]",
    ),
    Rule(
        "http[0].headers.response.add",
        {"x": "é" * 8192},
        {"x": "é" * 8193},
        "has 16386 bytes, allowed are 16384",
        "http[0].headers.response.add[x]",
    ),
    Rule(
        "http[0].headers.request.set",
        {"x": "a\tb"},
        {"x": "a\nb"},
        "line break",
        "http[0].headers.request.set[x]",
    ),
    Rule(
        "http[0].headers.request.set",
        {"host": "a"},
        {"host": "a\r\nx: b"},
        "line break",
        "http[0].headers.request.set[host]",
    ),
    Rule("http[0].headers.request.remove", ["x y"], ["x\n"], "line break", "http[0].headers.request.remove[0]"),
    Rule(
        "http[0].headers.request.add",
        {":authority": "a"},
        {":path": "/"},
        'starts with ":"',
        "http[0].headers.request.add[:path]",
    ),
    Rule(
        "http[0].headers.request.remove", ["x"], ["host"], "can't be changed here", "http[0].headers.request.remove[0]"
    ),
    Rule(
        "http[0].headers.response.set",
        {"x": "1"},
        {"Host": "1"},
        "can't be changed here",
        "http[0].headers.response.set[Host]",
    ),
    Rule("http[0].headers.response.add", {"x": "1"}, {"": "1"}, "must not be empty", "http[0].headers.response.add[]"),
    Rule("http[0].headers.response.remove", ["x"], [""], "must not be empty", "http[0].headers.response.remove[0]"),
    Rule(
        "http[0].route[0].headers.response.add",
        {"x": "1"},
        {":status": "1"},
        'starts with ":"',
        "http[0].route[0].headers.response.add[:status]",
    ),
    Rule(
        "http[0]",
        {"route": [DESTINATION], "rewrite": {"authority": "a"}},
        {"route": [DESTINATION], "rewrite": {"authority": "a"}, "headers": {"request": {"set": {"host": "b"}}}},
        "changed by rewrite.authority already",
        "http[0].headers.request.set[host]",
    ),
]

POLICIES = [
    Rule(
        "http[0].corsPolicy.allowOrigins",
        [{"exact": "*"}],
        [{}],
        "needs one of exact, prefix and regex",
        "http[0].corsPolicy.allowOrigins[0]",
    ),
    Rule(
        "http[0].corsPolicy.allowOrigins",
        [{"regex": ".*"}],
        [{"exact": ""}],
        "exact must not be empty",
        "http[0].corsPolicy.allowOrigins[0]",
    ),
    Rule(
        "http[0].corsPolicy.allowMethods", ["GET", "*"], ["get"], "is not one of", "http[0].corsPolicy.allowMethods[0]"
    ),
    Rule("http[0].corsPolicy.allowHeaders", ["x"], [""], "must not be empty", "http[0].corsPolicy.allowHeaders[0]"),
    Rule("http[0].corsPolicy.allowHeaders", ["*"], ["x y"], "not a header name", "http[0].corsPolicy.allowHeaders[0]"),
    Rule("http[0].corsPolicy.exposeHeaders", ["x"], [""], "must not be empty", "http[0].corsPolicy.exposeHeaders[0]"),
    Rule("http[0].corsPolicy.maxAge", "24h", "1.5s", "whole seconds"),
    Rule("http[0].fault", {"delay": {"fixedDelay": "1s"}}, {}, "needs abort, delay"),
    warns("http[0].fault.abort", {"httpStatus": 500, "percentage": {"value": 1}}, {"httpStatus": 500}, "no request is"),
    warns(
        "http[0].fault.delay", {"fixedDelay": "1s", "percentage": {"value": 1}}, {"fixedDelay": "1s"}, "no request is"
    ),
    Rule(
        "http[0].fault.abort",
        {"httpStatus": 503},
        {"httpStatus": 600},
        "not a status",
        "http[0].fault.abort.httpStatus",
    ),
    Rule(
        "http[0].fault.abort",
        {"grpcStatus": "UNAVAILABLE"},
        {"grpcStatus": "BROKEN"},
        "not a gRPC status",
        "http[0].fault.abort.grpcStatus",
    ),
    Rule(
        "http[0].fault.abort",
        {"httpStatus": 503},
        {"http2Error": "x"},
        "not supported",
        "http[0].fault.abort.http2Error",
    ),
    warns(
        "http[0].fault.abort",
        {"httpStatus": 503, "percentage": {"value": 5}},
        {"percentage": {"value": 5}},
        "needs httpStatus",
    ),
    Rule(
        "http[0].fault.abort",
        {"httpStatus": 503, "percentage": {"value": 0}},
        {"httpStatus": 503, "percentage": {"value": -1}},
        "not a percentage",
        "http[0].fault.abort.percentage.value",
    ),
    warns(
        "http[0].fault.delay",
        {"fixedDelay": "1s", "percentage": {"value": 5}},
        {"percentage": {"value": 5}},
        "needs fixedDelay",
    ),
    Rule(
        "http[0].fault.delay",
        {"fixedDelay": "1s"},
        {"fixedDelay": "0s"},
        "at least 1ms",
        "http[0].fault.delay.fixedDelay",
    ),
    Rule(
        "http[0].fault.delay",
        {"fixedDelay": "1s"},
        {"exponentialDelay": "1s"},
        "not supported",
        "http[0].fault.delay.exponentialDelay",
    ),
    warns(
        "http[0].fault.delay",
        {"fixedDelay": "1s"},
        {"fixedDelay": "1s", "percent": 5},
        "use percentage",
        "http[0].fault.delay.percent",
    ),
    Rule(
        "http[0].retries",
        {"attempts": 3, "perTryTimeout": "2s"},
        {"attempts": -1},
        "is negative",
        "http[0].retries.attempts",
    ),
    Rule("http[0].retries", {"attempts": 0}, {"attempts": 0, "retryOn": "5xx"}, "attempts is 0"),
    Rule(
        "http[0].retries",
        {"attempts": 1, "retryOn": "5xx,503, reset"},
        {"attempts": 1, "retryOn": "5xx,bad"},
        '"bad" is not',
        "http[0].retries.retryOn",
    ),
    Rule(
        "http[0].retries",
        {"attempts": 1, "perTryTimeout": "1ms"},
        {"attempts": 1, "perTryTimeout": "0s"},
        "at least 1ms",
        "http[0].retries.perTryTimeout",
    ),
    Rule(
        "http[0].retries",
        {"attempts": 1, "backoff": "25ms"},
        {"attempts": 1, "backoff": "1us"},
        "at least 1ms",
        "http[0].retries.backoff",
    ),
    Rule(
        "http[0].retries",
        {"attempts": 1, "backoff": "9223372035s"},
        {"attempts": 1, "backoff": "9223372036s"},
        "must be at most",
        "http[0].retries.backoff",
    ),
    Rule("http[0].timeout", "9223372035s", "9000000h", "must be at most"),
    Rule("http[0].rewrite", {"uri": "/a"}, {"uri": "/a\n"}, "line break", "http[0].rewrite.uri"),
    Rule("http[0].rewrite", {"authority": "a"}, {"authority": "a\0"}, "zero byte", "http[0].rewrite.authority"),
    Rule("http[0].rewrite", {"uri": "/a"}, {}, "at least one of uri"),
    Rule(
        "http[0].rewrite",
        {"uriRegexRewrite": {"match": "^/a", "rewrite": "/b"}},
        {"uriRegexRewrite": {"match": "(", "rewrite": "/b"}},
        "not a regular expression",
        "http[0].rewrite.uriRegexRewrite.match",
    ),
    Rule(
        "http[0].rewrite",
        {"uriRegexRewrite": {"match": "^/a", "rewrite": "/b"}},
        {"uriRegexRewrite": {"match": "^/a", "rewrite": "/b\n"}},
        "line break",
        "http[0].rewrite.uriRegexRewrite.rewrite",
    ),
    warns(
        "http[0].rewrite",
        {"uriRegexRewrite": {"match": "^/(a)", "rewrite": r"/\1\\"}},
        {"uriRegexRewrite": {"match": "^/(a)", "rewrite": r"/\2"}},
        "leaves the path as it is",
        "http[0].rewrite.uriRegexRewrite.rewrite",
    ),
    warns(
        "http[0].rewrite",
        {"uriRegexRewrite": {"match": "^/(a)", "rewrite": r"\0"}},
        {"uriRegexRewrite": {"match": "^/(a)", "rewrite": "/b\\"}},
        "followed by neither",
        "http[0].rewrite.uriRegexRewrite.rewrite",
    ),
    Rule(
        "http[0].rewrite",
        {"uriRegexRewrite": {"match": "^/a", "rewrite": "/b"}},
        {"uriRegexRewrite": {"match": "a"}},
        "is missing",
        "http[0].rewrite.uriRegexRewrite.rewrite",
    ),
    Rule(
        "http[0].rewrite",
        {"authority": "a"},
        {"uri": "/", "uriRegexRewrite": {"match": "a", "rewrite": "b"}},
        "exclude each other",
        "http[0].rewrite.uriRegexRewrite",
    ),
]

REDIRECTS = [
    Rule("http[0].redirect", {"scheme": "https"}, {}, "at least one of uri"),
    Rule(
        "http[0].redirect",
        {"prefixRewrite": "/a"},
        {"uri": "/b", "prefixRewrite": "/a"},
        "exclude each other",
        "http[0].redirect.prefixRewrite",
    ),
    Rule(
        "http[0].redirect",
        {"derivePort": "FROM_REQUEST_PORT"},
        {"scheme": "ftp"},
        "http or https",
        "http[0].redirect.scheme",
    ),
    Rule("http[0].redirect", {"port": 8443}, {"port": 0}, "not a port", "http[0].redirect.port"),
    Rule(
        "http[0].redirect",
        {"uri": "/", "redirectCode": 308},
        {"uri": "/", "redirectCode": 304},
        "one of 301",
        "http[0].redirect.redirectCode",
    ),
    Rule("http[0].fault", ABSENT, {"delay": {"fixedDelay": "1s"}}, "exclude each other"),
    Rule("http[0].rewrite", ABSENT, {"uri": "/"}, "exclude each other"),
    Rule("http[0].directResponse", ABSENT, {"status": 200}, "exclude each other"),
]

ANSWERS = [
    Rule("http[0].directResponse.status", 503, 99, "not a status"),
    Rule("http[0].directResponse.status", 200, ABSENT, "is missing"),
    Rule(
        "http[0].directResponse.body", {"string": "hello"}, {"string": "x" * (1024 * 1024 + 1)}, "allowed are 1048576"
    ),
    warns(
        "http[0].directResponse.body", {"bytes": "aGVsbG8="}, {"string": "x" * 200_000}, "every proxy keeps in memory"
    ),
    Rule("http[0].rewrite", ABSENT, {"uri": "/"}, "exclude each other"),
]

TABLE = [
    (base, rule)
    for base, rules in (
        (BASE, MATCHES + HEADERS + POLICIES),
        (REDIRECT, REDIRECTS),
        (ANSWER, ANSWERS),
    )
    for rule in rules
]


@pytest.mark.parametrize(("base", "rule"), TABLE, ids=str)
def test_a_rule_of_http_routes_is_kept_or_named(base: dict[str, Any], rule: Rule) -> None:
    holds("VirtualService", base, rule)
