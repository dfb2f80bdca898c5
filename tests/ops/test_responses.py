"""Answers: JSON that every reader takes, whatever is in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.ops.web.responses import PRETTY_BYTES, json_response, printable, text

ANY_TEXT = st.text(st.characters(codec=None, categories=None))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, True, False]))
def test_every_value_is_json_with_a_newline_at_its_end(value: Any, pretty: bool | None) -> None:
    body = bytes(json_response(value, pretty=pretty).body)
    assert body.endswith(b"\n")
    json.loads(body.decode("utf-8"), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


PLAIN_TEXT = st.text(st.characters(codec="utf-8"))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | PLAIN_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(PLAIN_TEXT, inner),
    max_leaves=20,
)


@given(PLAIN, st.sampled_from([None, True, False]))
def test_what_json_has_comes_through_unchanged(value: Any, pretty: bool | None) -> None:
    assert json.loads(json_response(value, pretty=pretty).body) == value


@given(ANY_TEXT)
def test_every_text_is_utf8(content: str) -> None:
    assert bytes(text(content).body).decode("utf-8") == printable(content)


def test_bytes_of_a_file_name_can_be_recognised() -> None:
    name = b"caf\xe9/\xff.yaml".decode("utf-8", "surrogateescape")
    assert printable(name) == r"caf\xe9/\xff.yaml"
    assert json.loads(json_response([name]).body) == [r"caf\xe9/\xff.yaml"]
    assert printable("\ud800") == r"\ud800"
    assert printable("é") == "é"


def test_numbers_that_json_does_not_have_are_strings() -> None:
    value = {"a": float("inf"), "b": [float("-inf"), float("nan")]}
    assert json.loads(json_response(value).body) == {"a": "Infinity", "b": ["-Infinity", "NaN"]}


def test_an_entry_that_is_nested_too_deeply_costs_itself() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    shown = json.loads(json_response({"configs": [{"good": 1}, deep, {"good": 2}]}).body)
    assert shown == {"configs": [{"good": 1}, {"error": "nested too deeply to be shown"}, {"good": 2}]}
    while deep:  # freed from outside: not all of it at once
        deep = deep[0]


def test_small_json_is_indented_and_large_json_has_an_entry_a_line() -> None:
    small = bytes(json_response([{"a": 1}]).body)
    assert small == b'[\n  {\n    "a": 1\n  }\n]\n'
    assert bytes(json_response([{"a": 1}], pretty=False).body) == b'[\n{"a": 1}\n]\n'
    large = [{"a": "x" * 1000}] * (PRETTY_BYTES // 1000)
    assert bytes(json_response(large).body).count(b"\n") == len(large) + 2
    assert bytes(json_response(large, pretty=True).body).count(b"\n") == 3 * len(large) + 2
