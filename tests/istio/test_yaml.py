"""YAML with line marks: one broken document costs only itself, and every field knows its line."""

from __future__ import annotations

import math
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.istio.reading.yaml_marked import scalar_value
from mesh_pilot.model.config import ConfigError, Origin

ORIGIN = Origin("files", "shop/a.yaml")


def documents(text: str) -> list[Document | ConfigError]:
    return list(load(dedent(text), ORIGIN))


def data(text: str) -> list[object]:
    found = []
    for document in documents(text):
        assert isinstance(document, Document), document
        found.append(document.data)
    return found


def error(text: str) -> ConfigError:
    (found,) = documents(text)
    assert isinstance(found, ConfigError), found
    return found


def test_documents_are_told_apart_with_their_lines() -> None:
    first, second = documents("# a comment\na: 1\n---\n# another\n\nb:\n- 1\n- c: 2\n---\n# nothing\n---\n")
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert (first.data, first.line) == ({"a": 1}, 2)
    assert (second.data, second.line) == ({"b": [1, {"c": 2}]}, 6)


def test_a_field_knows_its_line_or_that_of_its_parent() -> None:
    (document,) = documents("""\
        metadata:
          labels: {app.kubernetes.io/name: a}
        spec:
          export_to: []
          http:
          - match:
            - headers:
                x-a: {exact: b}
            route:
              - destination:
                  host: a
                weight: 5
    """)
    assert isinstance(document, Document)
    lines = {
        "": 1,
        "metadata.labels[app.kubernetes.io/name]": 2,
        "spec.exportTo[0]": 4,
        "spec.http[0]": 6,
        "spec.http[0].match[0].headers[x-a].exact": 8,
        "spec.http[0].route[0].weight": 12,
        "spec.http[0].route[0].destination.subset": 10,
        "spec.http[7].route": 5,
        "nowhere": 1,
    }
    assert {path: document.line_of(path) for path in lines} == lines


def test_a_broken_document_costs_only_itself() -> None:
    first, broken, last = documents("a: 1\n---\nb: [1\nc: 2\n---\nd: 3\n")
    assert isinstance(first, Document)
    assert isinstance(last, Document)
    assert isinstance(broken, ConfigError)
    assert last.data == {"d": 3}
    assert last.line == 6
    assert broken.origin == Origin("files", "shop/a.yaml", 4)
    assert str(broken).startswith("shop/a.yaml:4: not valid YAML: ")
    assert broken.problems[0].line == 4


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 'the key "a" is given twice'),
        ("a: {b: 1, 'b': 2}", 1, 'the key "b" is given twice'),
        ("a: *b", 1, "the alias *b has no anchor"),
        ("a:\n\tb: 1", 2, "cannot start any token"),
        ("a: !thing b", 1, "can't be read as !thing"),
        ("a: !!int x", 1, "can't be read as tag:yaml.org,2002:int"),
        ("{[1]: 2}", 1, "a key must be a plain value"),
        ("a: 1\nb: \x00", 2, "control characters are not allowed"),
        ("<<: 5", 1, "<< merges objects only"),
        ("- 1", 1, "expected an object with apiVersion"),
        ("just text", 1, "expected an object with apiVersion"),
        ("a: " + "[" * 5000, 1, "nested too deeply"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, said: str) -> None:
    found = error(text)
    assert found.origin.line == line
    assert said in found.problems[0].reason


def test_lists_are_taken_apart() -> None:
    text = """\
        apiVersion: v1
        kind: List
        items:
        - kind: A
          metadata: {name: a}
        - kind: BList
          items:
          - kind: B
        - 5
    """
    first, second, third = documents(text)
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert isinstance(third, ConfigError)
    assert (first.data["kind"], first.line, first.line_of("metadata.name")) == ("A", 4, 5)
    assert (second.data["kind"], second.line) == ("B", 8)
    assert third.origin.line == 9


def test_json_is_yaml() -> None:
    assert data('{"a": [1, 2.5, "x", null, true], "b": {"c": "\\u00fc"}}') == [
        {"a": [1, 2.5, "x", None, True], "b": {"c": "ü"}}
    ]


def test_anchors_and_merges_are_followed() -> None:
    text = """\
        base: &base {a: 1, b: 2}
        list: [*base, *base]
        more: {<<: *base, b: 3}
        both: {<<: [{c: 4}, *base], d: 5}
    """
    assert data(text) == [
        {
            "base": {"a": 1, "b": 2},
            "list": [{"a": 1, "b": 2}] * 2,
            "more": {"a": 1, "b": 3},
            "both": {"a": 1, "b": 2, "c": 4, "d": 5},
        }
    ]


def test_aliases_can_not_explode() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 1000000 values" in error("\n".join(lines)).problems[0].reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("Null", None),
        ("true", True),
        ("Yes", True),
        ("OFF", False),
        ("y", "y"),
        ("5", 5),
        ("-1_000", -1000),
        ("0x1F", 31),
        ("0b11", 3),
        ("017", 15),
        ("0o17", 15),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("10:30", "10:30"),
        ("1.2.3", "1.2.3"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("2024-03-01T00:00:00Z", "2024-03-01T00:00:00Z"),
        ("2024-03-01", "2024-03-01"),
        ("-", "-"),
        ("+", "+"),
        ("tRue", "tRue"),
    ],
)
def test_plain_values_mean_what_kubernetes_takes_them_for(text: str, value: object) -> None:
    assert scalar_value(text) == value
    assert type(scalar_value(text)) is type(value)


def test_quoted_and_tagged_values_are_what_they_say() -> None:
    assert data("a: 'true'\nb: \"5\"\nc: !!str 5\nd: !!float 5\ne: ! 5\nf: |\n  yes\ng: ''\n") == [
        {"a": "true", "b": "5", "c": "5", "d": 5.0, "e": "5", "f": "yes\n", "g": ""}
    ]
    assert math.isnan(scalar_value(".nan"))  # type: ignore[arg-type]


def test_keys_become_strings() -> None:
    assert data("80: a\ntrue: b\n1.5: c\n") == [{"80": "a", "true": "b", "1.5": "c"}]


def test_separators_inside_text_do_not_separate() -> None:
    assert data('a: |\n  ---\n  b\nc: "x\n  --- y"\n') == [{"a": "---\nb\n", "c": "x --- y"}]


def test_a_directive_and_an_end_mark_are_read_over() -> None:
    assert data("%YAML 1.1\n---\na: 1\n...\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]


def test_nothing_is_no_document() -> None:
    assert documents("") == documents("# only\n\n---\n# this\n") == documents("---\n---\n") == []


def test_carriage_returns_do_not_matter() -> None:
    first, second = documents("a: 1\r\n---\r\nb: 2\r\n")
    assert isinstance(first, Document)
    assert isinstance(second, Document)
    assert (second.data, second.line) == ({"b": 2}, 3)


def test_the_golden_configs_read_as_pyyaml_reads_them() -> None:
    for path in sorted((Path(__file__).parents[1] / "golden").glob("*/config.yaml")):
        text = path.read_text(encoding="utf-8")
        expected = [d for d in yaml.load_all(text, Loader=yaml.CBaseLoader) if d]
        found = list(load(text, ORIGIN))
        assert len(found) == len(expected)
        for document, plain_document in zip(found, expected, strict=True):
            assert isinstance(document, Document)
            assert document.data["metadata"] == plain_document["metadata"]
            assert text.splitlines()[document.line - 1].startswith("apiVersion")
