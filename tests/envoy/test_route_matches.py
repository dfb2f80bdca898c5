"""Which requests a route takes: the matches of VirtualServices, those for the proxy and those decided here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.routing import TO_WEB, route, routes

ANY = {"prefix": "/"}


def match(text: str) -> dict[str, Any]:
    """A match as the proxy gets it."""
    found = route(f"match: [{text}], {TO_WEB}")["match"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{uri: {exact: /a}}", {"path": "/a", "case_sensitive": True}),
        ("{uri: {prefix: /a}}", {"prefix": "/a", "case_sensitive": True}),
        ("{uri: {prefix: /a}, ignoreUriCase: true}", {"prefix": "/a", "case_sensitive": False}),
        ("{uri: {regex: '/v[0-9]+'}}", {"safe_regex": {"regex": "/v[0-9]+"}, "case_sensitive": True}),
        ("{name: m}", {"prefix": "/", "case_sensitive": True}),
    ],
)
def test_paths(text: str, path: dict[str, Any]) -> None:
    assert match(text) == path


def test_without_a_match_every_path_is_taken() -> None:
    assert route(TO_WEB)["match"] == ANY


def test_headers_are_compared_in_every_way_and_an_empty_match_asks_for_presence() -> None:
    found = match("{headers: {a: {exact: '1'}, b: {prefix: x}, c: {regex: 'y+'}, d: {}, e: {regex: '*'}}}")["headers"]
    assert found == [
        {"name": "a", "string_match": {"exact": "1"}},
        {"name": "b", "string_match": {"prefix": "x"}},
        {"name": "c", "string_match": {"safe_regex": {"regex": "y+"}}},
        {"name": "d", "present_match": True},
        {"name": "e", "present_match": True},
    ]


def test_a_header_that_is_missing_is_without_the_value_that_must_not_be() -> None:
    found = match("{withoutHeaders: {a: {exact: '1'}, d: {}}}")["headers"]
    assert found == [
        {
            "name": "a",
            "string_match": {"exact": "1"},
            "invert_match": True,
            "treat_missing_header_as_empty": True,
        },
        {"name": "d", "present_match": True, "invert_match": True},
    ]


def test_method_authority_and_scheme_are_pseudo_headers() -> None:
    found = match("{scheme: {exact: https}, authority: {prefix: a.}, method: {regex: 'P.*'}}")["headers"]
    assert [header["name"] for header in found] == [":method", ":authority", ":scheme"]


def test_query_parameters_are_compared_in_every_way() -> None:
    found = match("{queryParams: {a: {exact: '1'}, b: {prefix: x}, c: {regex: 'y+'}, d: {}}}")["query_parameters"]
    assert found == [
        {"name": "a", "string_match": {"exact": "1"}},
        {"name": "b", "string_match": {"prefix": "x"}},
        {"name": "c", "string_match": {"safe_regex": {"regex": "y+"}}},
        {"name": "d"},
    ]


def test_a_rule_with_several_matches_is_as_many_routes_named_after_rule_and_match() -> None:
    rule = f"{{name: r, match: [{{name: m, uri: {{exact: /a}}}}, {{uri: {{exact: /b}}}}], {TO_WEB}}}"
    assert [r["name"] for r in routes(rule)] == ["r.m", "r"]


@pytest.mark.parametrize("text", ["", "match: [{uri: {prefix: /}}],", "match: [{port: 80}],", "match: [{name: m}],"])
def test_nothing_stands_behind_a_rule_that_takes_everything(text: str) -> None:
    assert len(routes(f"{{{text} {TO_WEB}}}", f"{{name: late, {TO_WEB}}}")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "{uri: {prefix: /a}}",
        "{uri: {prefix: /}, headers: {a: {exact: '1'}}}",
        "{uri: {prefix: /}, withoutHeaders: {a: {}}}",
        "{uri: {prefix: /}, queryParams: {a: {}}}",
        "{uri: {prefix: /}, method: {exact: GET}}",
        "{authority: {exact: a}}",
        "{scheme: {exact: http}}",
    ],
)
def test_a_rule_with_conditions_leaves_something_for_the_next(text: str) -> None:
    assert len(routes(f"{{match: [{text}], {TO_WEB}}}", f"{{name: late, {TO_WEB}}}")) == 2


def test_source_port_and_gateway_are_decided_here_and_leave_no_trace() -> None:
    rules = [
        f"{{name: gold, match: [{{uri: {{exact: /a}}, sourceLabels: {{tier: gold}}}}], {TO_WEB}}}",
        f"{{name: lab, match: [{{uri: {{exact: /a}}, sourceNamespace: lab}}], {TO_WEB}}}",
        f"{{name: port, match: [{{uri: {{exact: /a}}, port: 8080}}], {TO_WEB}}}",
        f"{{name: edge, match: [{{uri: {{exact: /a}}, gateways: [edge]}}], {TO_WEB}}}",
        f"{{name: mesh, match: [{{uri: {{exact: /a}}, gateways: [mesh], sourceLabels: {{tier: gold}}}}], {TO_WEB}}}",
        f"{{name: rest, {TO_WEB}}}",
    ]
    assert [r["name"] for r in routes(*rules)] == ["rest"]
    gold = routes(*rules, labels={"tier": "gold", "app": "a"})
    assert [r["name"] for r in gold] == ["gold", "mesh", "rest"]
    assert gold[0]["match"] == gold[1]["match"] == {"path": "/a", "case_sensitive": True}
    assert [r["name"] for r in routes(*rules, namespace="lab")] == ["lab", "rest"]
