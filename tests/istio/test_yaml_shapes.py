"""YAML documents of a known shape say what they say without it, and are not read as YAML again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.istio.reading import yaml_shapes
from mesh_pilot.istio.reading.yaml import Document, load, split
from mesh_pilot.istio.reading.yaml_fast import UncommonYamlError, read_document
from mesh_pilot.istio.reading.yaml_marked import NumberTooLongError
from mesh_pilot.istio.reading.yaml_shapes import MAX_TEXT, read_shaped
from mesh_pilot.model.config import Origin
from tests.support.sample import examples

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*/config.yaml"))

SERVICE = """
apiVersion: networking.istio.io/v1beta1
kind: ServiceEntry
metadata: {{name: {name}, namespace: "{namespace}"}}  # {comment}
spec:
  hosts: [{name}.shop]
  ports:
  - {{number: {port}, name: http}}
  resolution: {resolution}
  endpoints:
  - address: {address}
    labels: {{app: {name}, {label}: '{value}'}}
"""
USUAL = {
    "name": "reviews",
    "namespace": "shop",
    "comment": "one of many",
    "port": "80",
    "resolution": "STATIC",
    "address": "10.0.0.1",
    "label": "version",
    "value": "v1",
}
OTHER = {
    **USUAL,
    "name": "ratings-2.eu",
    "namespace": "null",
    "port": "18080",
    "address": "192.168.10.20",
    "value": "on",
}

WORDS = [
    "a",
    "b-c",
    "d.e",
    "s1",
    "y",
    "yes",
    "on",
    "off",
    "no",
    "null",
    "true",
    "Null",
    "~",
    "-",
    "--",
    "---",
    "...",
    ".5",
]
WORDS += ["1", "80", "010", "0", "0x1f", "1_000", "1e3", "e1", "123456789", "1234567890", "1.5", "1.2.3", "10.0.0.1"]
WORDS += ["10.0.0.1.", "10.0.0.0/8", "A", "aB", "a.", "-a", "a/b", "zz-gap-1", "973100001", "v" * 252, "v" * 253]
words = st.sampled_from(WORDS)
marks = st.sampled_from(
    ["", " ", ": ", ", ", "\n", "\n  ", "\n- ", "#", " # ", "'", '"', "|", ">-\n  ", "{", "}", "[", "]"]
)
values: st.SearchStrategy[Any] = st.recursive(
    words, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    yaml_shapes._outline.cache_clear()
    yield
    yaml_shapes._outline.cache_clear()


def said(read: Any, text: str) -> str:
    """What comes of a string, so that 1, True and 1.0 are told apart."""
    try:
        return repr(read(text))
    except (UncommonYamlError, NumberTooLongError) as error:
        return type(error).__name__


def agrees(*texts: str) -> None:
    """Each of these texts says the same by way of shapes, also after it was learned."""
    for text in (*texts, *texts, *texts):
        assert said(read_shaped, text) == said(read_document, text)


def respelled(text: str, others: list[str]) -> str:
    """A text with other words: a place has the word that stands there in `others`, an empty one leaves it."""
    turns = iter(others)
    return re.sub(r"[\w./-]+", lambda found: next(turns, "") or found[0], text)


@given(
    values,
    st.sampled_from([None, True, False]),
    st.sampled_from([None, "'", '"', "|", ">"]),
    st.lists(st.lists(st.just("") | words, max_size=12), min_size=1, max_size=3),
)
@settings(max_examples=examples(300))
def test_texts_with_other_words_say_what_they_say_without_shapes(
    data: object, flow: bool | None, style: str | None, others: list[list[str]]
) -> None:
    yaml_shapes._outline.cache_clear()
    text = yaml.dump({"a": data, "b": data}, default_flow_style=flow, default_style=style)
    agrees(text, text, *(respelled(text, each) for each in others))


@given(
    st.lists(words | marks, max_size=12), st.lists(st.lists(st.just("") | words, max_size=8), min_size=1, max_size=3)
)
@settings(max_examples=examples(500))
def test_so_do_texts_that_nobody_would_write(parts: list[str], others: list[list[str]]) -> None:
    yaml_shapes._outline.cache_clear()
    text = f"k: {''.join(parts)}\nl: m\n"
    agrees(text, text, *(respelled(text, each) for each in others))


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.parent.name)
def test_the_golden_files_say_what_they_say_without_shapes(file: Path) -> None:
    agrees(*(part for _, part in split(file.read_text())))


class Reads:
    """The texts that were read as YAML."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        monkeypatch.setattr(yaml_shapes, "read_document", self._read)

    def _read(self, text: str) -> tuple[dict[str, object], int]:
        self.texts.append(text)
        return read_document(text)

    def of(self, values: Mapping[str, str]) -> int:
        """How many texts were read for the sake of one."""
        before = len(self.texts)
        text = SERVICE.format_map(values)
        assert said(read_shaped, text) == said(read_document, text)
        return len(self.texts) - before


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def test_yaml_is_read_for_the_first_two_texts_of_a_shape_and_to_learn_it(reads: Reads) -> None:
    assert [reads.of({**USUAL, "name": f"s{number}"}) for number in range(100)] == [1, 3, *[0] * 98]
    assert reads.of(OTHER) == 1  # a string in quotes may be what no other may be
    assert reads.of({**OTHER, "namespace": "mall", "value": "v2"}) == 0


@pytest.mark.parametrize(
    "differs",
    [
        {"name": "yes"},
        {"name": "Reviews"},
        {"port": "080"},
        {"port": "http"},
        {"port": "1234567890"},
        {"resolution": "DNS"},
        {"label": "tier"},
        {"comment": "another"},
        {"value": "v1 of 2"},
    ],
)
def test_what_is_no_plain_word_or_stands_in_no_gap_is_read(reads: Reads, differs: Mapping[str, str]) -> None:
    reads.of(USUAL)
    reads.of(USUAL)
    assert reads.of(USUAL) == 0
    assert reads.of({**USUAL, **differs}) > 0


def test_shapes_that_differ_in_a_fixed_word_are_known_beside_each_other(reads: Reads) -> None:
    http, tcp = USUAL, {**USUAL, "resolution": "NONE"}
    assert [reads.of(each) for each in (http, http, tcp, http, tcp)] == [1, 3, 3, 0, 0]


def test_a_long_text_is_read(reads: Reads) -> None:
    text = f"a: b\n{'# comment' * MAX_TEXT}\n"
    for _ in range(4):
        read_shaped(text)
    assert len(reads.texts) == 4


def test_a_field_has_its_line_in_a_text_that_was_not_read(reads: Reads) -> None:
    texts = [SERVICE.format_map({**USUAL, "name": f"s{number}"}) for number in range(4)]
    documents = list(load("---".join(texts), Origin("test")))
    assert len(reads.texts) == 1 + 1 + 3 + 0
    last = documents[3]
    assert isinstance(last, Document)
    assert last.data["metadata"] == {"name": "s3", "namespace": "shop"}
    assert (last.line, last.line_of("spec.endpoints[0].labels.app")) == (38, 48)
