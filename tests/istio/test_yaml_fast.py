"""The short way through YAML: what it reads, it reads as the long way does; the rest it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.istio.reading.yaml import Document, load, split
from mesh_pilot.istio.reading.yaml_fast import MAX_OPENED, UncommonYamlError, read_document
from mesh_pilot.istio.reading.yaml_marked import MAX_NODES, MarkedReader, NumberTooLongError, UnsupportedYamlError
from mesh_pilot.model.config import ConfigError, Origin
from tests.support.sample import examples

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/config.yaml"))

WORDS = ["yes", "no", "on", "Off", "null", "~", "", "<<", "0x1f", "017", "0o17", "1_000", "1e3", ".5", "-.inf", ".nan"]
WORDS += [
    "10:30",
    "10.0.0.1",
    "10.0.0.0/8",
    "2024-03-01",
    "a b",
    "a: b",
    "- a",
    "#",
    "a #b",
    "'",
    '"',
    "\n",
    "ü",
    "=",
    "+1",
]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=6)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3)
)


def agrees(text: str) -> bool:
    """True if both ways read a string, and alike; False where the short way leaves it."""
    try:
        short = read_document(text)
    except (UncommonYamlError, NumberTooLongError):
        return False
    long = [(data, marks.line - 1) for data, marks in MarkedReader(text, 0).documents()]
    assert repr([short]) == repr(long)  # which tells 1 from True and 1.0, and finds nan like nan
    return True


@given(values, st.sampled_from([None, True, False]), st.sampled_from([None, "'", '"', "|", ">"]))
@settings(max_examples=examples(300))
def test_what_pyyaml_writes_is_read_alike(data: object, flow: bool | None, style: str | None) -> None:
    for one in ({"a": data}, data):
        agrees(yaml.dump(one, default_flow_style=flow, default_style=style, allow_unicode=True))


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`?\n\t 0.~<,", max_size=60))
@settings(max_examples=examples(1000))
def test_any_text_is_read_alike(text: str) -> None:
    try:
        agrees(text)
    except (UnsupportedYamlError, RecursionError) as error:
        raise AssertionError("only the short way reads it") from error


@given(
    st.lists(
        st.sampled_from(["a", "b", "on", "5", ": ", ", ", "{", "}", "[", "]", "\n", "\n  ", "- ", "? ", '"x"']),
        max_size=20,
    )
)
@settings(max_examples=examples(1000))
def test_any_tokens_are_read_alike(parts: list[str]) -> None:
    agrees("".join(parts))


@given(
    st.from_regex(r"[-+]?(0[xXoObB]?)?[0-9a-fA-F_.]{0,20}([eE][-+]?[0-9]{0,3})?", fullmatch=True)
    | st.sampled_from([spelling for word in WORDS for spelling in (word, word.upper(), word.title())]),
    st.sampled_from(["{}", "'{}'", '"{}"']),
    st.booleans(),
)
@settings(max_examples=examples(2000))
def test_any_scalar_means_the_same(scalar: str, written: str, is_key: bool) -> None:
    text = written.format(scalar)
    agrees(f"a: 1\n{text}: b\n" if is_key else f"a:\n- {text}\nb: {{c: {text}}}\n")


@given(st.lists(st.sampled_from(["\n", "  ", "# a\n", "---", "\t", "\r\n", "\r", "%", "...", "\u2028"]), max_size=8))
@settings(max_examples=examples(1000))
def test_an_object_begins_on_the_same_line(before: list[str]) -> None:
    agrees("".join(before) + "a: 1\n")


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_what_people_write_goes_the_short_way(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    documents = list(load(text, Origin("test")))
    assert all(isinstance(document, Document) for document in documents)
    parts = [part for _, part in split(text) if part.strip("- \n")]
    assert all(agrees(part) for part in parts if '"yes"' not in part)


@pytest.mark.parametrize(
    "text",
    [
        "a: &b 1",
        "a: &b [1]",
        "a: *b",
        "<<: {a: 1}",
        "a: !!str 5",
        "a: !!seq [5]",
        "!!str a: 5",
        "&a a: 5",
        "~: a",
        "a: yes",
        "a: 'on'",
        "a: 010",
        "on: a",
        "5: a\n'5': b",
        "a: 1\n...\nb: 2",
        "a: 1\n---\nb: 2",
        "%YAML 1.2\n---\na: 1",
        "# a\u2028\na: 1",
        "{[1]: 2}",
        "a: 1\na: 2",
        "items: [{a: 1}]\nkind: List",
        "- 1",
        "text",
        "---",
        "a: " + "[" * 150 + "]" * 150,
        "a: [" + "1, " * MAX_NODES + "]",
    ],
    ids=lambda text: text[:20],
)
def test_the_uncommon_is_left_to_the_long_way(text: str) -> None:
    with pytest.raises(UncommonYamlError):
        read_document(text)


def test_lines_are_those_of_the_document_that_is_asked() -> None:
    text = "a: 1\n...\n---\n\nb:\n  c: 1\n---\nd: 1\n\ne: 2\n"
    first, second, third = [document for document in load(text, Origin("test")) if isinstance(document, Document)]
    assert [first.line, second.line, third.line] == [1, 5, 8]
    assert (second.line_of("b.c"), third.line_of("e"), first.line_of("a")) == (6, 10, 1)


@pytest.mark.parametrize("opened", ["[", "{a: ", "[{a: ", "['] ] ]', "], ids=str.strip)
def test_texts_that_may_be_nested_deeply_never_reach_a_reader_that_is_quadratic_in_depth(
    opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(text: str) -> object:
        raise AssertionError("it was read")

    monkeypatch.setattr("mesh_pilot.istio.reading.yaml_fast.ryaml.loads_all", read)
    (found,) = load("a: " + opened * (MAX_OPENED + 1), Origin("test", "a.yaml"))
    assert isinstance(found, ConfigError)
    assert "nested too deeply" in found.problems[0].reason
