"""Values with colons in flow lists: what Go's reader takes is taken, and nothing else is changed."""

from __future__ import annotations

import pytest

from mesh_pilot.istio.reading.yaml import MAX_MENDED, Document, load
from mesh_pilot.model.config import ConfigError, Origin

ORIGIN = Origin("files", "a.yaml")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a: [1.2.3.4, 2001:db8::]", ["1.2.3.4", "2001:db8::"]),
        ("a: [::1]", ["::1"]),
        ("a: [::]", ["::"]),
        ("a: [::1/128, 2001:db8::/32 , 2001:db8::]", ["::1/128", "2001:db8::/32", "2001:db8::"]),
        ("a: {b: ::1, c: fe80::}", {"b": "::1", "c": "fe80::"}),
        ("# é 日本\na: ['é', [2001:db8::]]", ["é", ["2001:db8::"]]),
        ("a: [x:, y]", ["x:", "y"]),
        ('a: ["[b, 2001:db8::]", 2001:db8::]', ["[b, 2001:db8::]", "2001:db8::"]),
    ],
)
def test_a_plain_value_in_a_flow_list_may_end_in_a_colon(text: str, meant: object) -> None:
    (document,) = load(text, ORIGIN)
    assert isinstance(document, Document)
    assert document.data == {"a": meant}


def test_lines_stay_what_they_were() -> None:
    (document,) = load("a: [2001:db8::]\nb:\n  c: 1\n", ORIGIN)
    assert isinstance(document, Document)
    assert document.line_of("b.c") == 3


@pytest.mark.parametrize("text", ["a: [:b]", "a: [b", "a: {b: :c}", "a: [" + "2001:db8::, " * (MAX_MENDED + 1) + "]"])
def test_all_else_that_is_wrong_stays_wrong(text: str) -> None:
    (found,) = load(text, ORIGIN)
    assert isinstance(found, ConfigError)
    assert found.problems[0].reason.startswith("not valid YAML: ")
