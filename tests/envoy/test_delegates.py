"""Delegation: rules of one VirtualService that stand in for a rule of another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.routing import TO_WEB, WEB, clusters, config, gateway_table, routes, service, virtual_service
from tests.support.worlds import world_of

FAULT, CORS = "envoy.filters.http.fault", "envoy.filters.http.cors"


def delegated(*rules: str, delegate: str, namespace: str = "team", more: str = "") -> list[dict[str, Any]]:
    inner = virtual_service("inner", f"{{{more} http: [{delegate}]}}", namespace=namespace)
    return routes(*rules, more=inner)


DELEGATE = "delegate: {name: inner, namespace: team}"


def test_a_delegates_rules_stand_in_for_the_one_that_delegates() -> None:
    found = delegated(
        "{name: out, match: [{name: m, uri: {prefix: /a}, headers: {h: {exact: '1'}}}], timeout: 9s, " + DELEGATE + "}",
        f"{{name: rest, {TO_WEB}}}",
        delegate="{name: in, match: [{name: n, uri: {prefix: /a/b}}], timeout: 1s, "
        "route: [{destination: {host: forum}}]}, {route: [{destination: {host: forum}}]}",
    )
    assert [r["name"] for r in found] == ["out-in.m-n", "out.m", "rest"]
    assert [r["match"]["prefix"] for r in found] == ["/a/b", "/a", "/"]
    assert found[0]["match"]["headers"] == found[1]["match"]["headers"]
    assert [r["route"]["timeout"] for r in found] == ["1s", "9s", "0s"]
    assert found[0]["route"]["cluster"] == "outbound|80||forum.team.svc.cluster.local"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("{uri: {prefix: /a}}", "{uri: {prefix: /b}}"),
        ("{uri: {prefix: /a/b}}", "{uri: {prefix: /a}}"),
        ("{uri: {exact: /a}}", "{uri: {prefix: /a}}"),
        ("{uri: {regex: '/a.*'}}", "{uri: {prefix: /ab}}"),
        ("{uri: {prefix: /a}}", "{uri: {regex: '/a.*'}}"),
        ("{uri: {prefix: /a}}", "{uri: {prefix: /a}, ignoreUriCase: true}"),
        ("{headers: {h: {exact: '1'}}}", "{headers: {h: {exact: '2'}}}"),
        ("{withoutHeaders: {h: {exact: '1'}}}", "{withoutHeaders: {h: {exact: '2'}}}"),
        ("{queryParams: {q: {prefix: a}}}", "{queryParams: {q: {exact: b}}}"),
        ("{port: 80, uri: {prefix: /a}}", "{port: 81}"),
        ("{sourceLabels: {app: a}, uri: {prefix: /a}}", "{sourceLabels: {app: b}}"),
        ("{sourceNamespace: shop, uri: {prefix: /a}}", "{sourceNamespace: lab}"),
        ("{gateways: [mesh], uri: {prefix: /a}}", "{gateways: [mesh, edge]}"),
        ("{method: {exact: GET}}", "{method: {exact: PUT}}"),
    ],
)
def test_a_delegates_rule_that_reaches_beyond_is_left_out(outer: str, inner: str) -> None:
    found = delegated(
        f"{{match: [{outer}], {DELEGATE}}}", f"{{name: rest, {TO_WEB}}}", delegate=f"{{match: [{inner}], {TO_WEB}}}"
    )
    assert [r.get("name") for r in found] == ["rest"]


def test_of_several_matches_each_pair_that_fits_is_merged() -> None:
    found = delegated(
        f"{{match: [{{uri: {{prefix: /a}}}}, {{uri: {{prefix: /b}}}}], {DELEGATE}}}",
        delegate=f"{{match: [{{uri: {{exact: /a/1}}}}, {{method: {{exact: GET}}}}], {TO_WEB}}}",
    )
    assert [r["match"].get("path") or r["match"]["prefix"] for r in found] == ["/a/1", "/a", "/b"]


def test_a_delegate_that_is_missing_or_hidden_costs_its_rule_only() -> None:
    rules = (f"{{match: [{{uri: {{prefix: /a}}}}], {DELEGATE}}}", f"{{name: rest, {TO_WEB}}}")
    assert [r["name"] for r in routes(*rules)] == ["rest"]
    hidden = delegated(*rules, delegate=f"{{name: in, {TO_WEB}}}", more="exportTo: ['.'],")
    assert [r["name"] for r in hidden] == ["rest"]
    shown = delegated(*rules, delegate=f"{{name: in, {TO_WEB}}}", more="exportTo: [shop],")
    assert [r["name"] for r in shown] == ["in", "rest"]


def test_a_delegate_inherits_everything_it_does_not_say_itself() -> None:
    (found,) = delegated(
        "{retries: {attempts: 7}, fault: {abort: {httpStatus: 500}}, mirror: {host: a.b}, "
        "mirrorPercentage: {value: 5}, corsPolicy: {allowOrigins: [{exact: a}]}, "
        "headers: {request: {remove: [x]}}, rewrite: {uri: /r}, " + DELEGATE + "}",
        delegate=f"{{{TO_WEB}}}",
    )
    action = found["route"]
    assert action["retry_policy"]["num_retries"] == 7 and action["prefix_rewrite"] == "/r"
    assert action["request_mirror_policies"][0]["runtime_fraction"]["default_value"]["numerator"] == 50000
    assert set(found["typed_per_filter_config"]) == {FAULT, CORS}
    assert found["request_headers_to_remove"] == ["x"]
    (own,) = delegated(f"{{retries: {{attempts: 7}}, {DELEGATE}}}", delegate=f"{{retries: {{attempts: 0}}, {TO_WEB}}}")
    assert "retry_policy" not in own["route"]


def test_gateways_in_matches_are_meant_where_they_are_written() -> None:
    gateway = config(
        "Gateway",
        "edge",
        "{selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}",
    )
    outer = virtual_service(
        "vs",
        "{hosts: [a.example.com], gateways: [edge], http: [{match: [{gateways: [edge], uri: {prefix: /a}}], "
        "delegate: {name: inner, namespace: team}}]}",
    )
    inner = (
        "{{http: [{{match: [{{gateways: [{}]}}], route: [{{destination: {{host: web.shop.svc.cluster.local}}}}]}}]}}"
    )
    same = virtual_service("inner", inner.format("shop/edge"), namespace="team")
    found = gateway_table(world_of(service("web") + gateway + outer + same))
    assert clusters(found["a.example.com:80"]) == [f"outbound|80||{WEB}"]
    other = virtual_service("inner", inner.format("edge"), namespace="team")
    assert "a.example.com:80" not in gateway_table(world_of(service("web") + gateway + outer + other))
