"""Envoy's substitution format strings and CEL expressions: what is refused, and why."""

from __future__ import annotations

import pytest

from mesh_pilot.istio.rules.cel import MAX_DEPTH, cel_reason
from mesh_pilot.istio.rules.substitution import format_reason, header_format_reason, log_format_reason
from tests.support.formats import BAD_EXPRESSIONS, BAD_FORMATS, GOOD_EXPRESSIONS, GOOD_FORMATS


@pytest.mark.parametrize("text", GOOD_FORMATS)
def test_a_format_that_envoy_takes_is_fine_everywhere(text: str) -> None:
    assert header_format_reason(text) == log_format_reason(text) == format_reason(text) == ""


@pytest.mark.parametrize(("text", "said"), BAD_FORMATS.items())
def test_a_format_that_envoy_refuses_is_refused_with_the_reason(text: str, said: str) -> None:
    assert said in header_format_reason(text)
    assert said in log_format_reason(text)
    assert said in format_reason(text)


def test_some_commands_are_for_one_place_only() -> None:
    assert header_format_reason("%PER_REQUEST_STATE(a)%") == ""
    assert "is not a command" in log_format_reason("%PER_REQUEST_STATE(a)%")
    assert log_format_reason("%REQ_WITHOUT_QUERY(:path?x):9%") == ""
    assert "is not a command" in header_format_reason("%REQ_WITHOUT_QUERY(:path)%")


def test_the_reason_for_a_long_format_is_short() -> None:
    for text in ("%" + "A" * 100_000 + "%", "%REQ(" + "a b" * 50_000 + ")%", "x%" * 100_000):
        assert 0 < len(header_format_reason(text)) < 400


@pytest.mark.parametrize("expression", GOOD_EXPRESSIONS)
def test_an_expression_that_envoy_takes_is_fine(expression: str) -> None:
    assert cel_reason(expression) == ""


@pytest.mark.parametrize(("expression", "said"), BAD_EXPRESSIONS.items())
def test_an_expression_that_envoy_refuses_is_refused_with_the_reason(expression: str, said: str) -> None:
    assert said in cel_reason(expression)


def test_expressions_may_be_as_deep_as_envoy_takes_them() -> None:
    for head, tail, depth in (("(", ")", MAX_DEPTH), ("[", "]", MAX_DEPTH - 1), ("size(", ")", MAX_DEPTH - 1)):
        assert cel_reason(head * depth + "a" + tail * depth) == ""
        assert "deep" in cel_reason(head * (depth + 1) + "a" + tail * (depth + 1))
    assert cel_reason("a" + " + a" * (MAX_DEPTH - 1)) == cel_reason("a" + " && a" * 3_000) == ""
    assert "deep" in cel_reason("a" + " + a" * MAX_DEPTH)
    assert "allowed are 16384" in cel_reason("a" * 16_385)
