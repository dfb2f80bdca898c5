"""Whatever comes in, what comes out is a config or a ConfigError: hypothesis looks for anything else."""

from __future__ import annotations

import copy
import ipaddress
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.istio.kinds import KINDS, lookup
from mesh_pilot.istio.reading.decode import Metadata, decode, decode_binary
from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import ConfigError, Origin
from mesh_pilot.model.net import is_ip
from tests.support.sample import examples

ORIGIN = Origin("test")
GOLDEN = [
    document.data
    for path in sorted((Path(__file__).parents[1] / "golden").glob("*/config.yaml"))
    for document in load(path.read_text(encoding="utf-8"), ORIGIN)
    if isinstance(document, Document) and lookup(str(document.data["apiVersion"]), str(document.data["kind"]))
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["*", "0s", "1h", "a.b", "unix://", "(", "%", "10.0.0.0/8", "~", "ns/host", ":80"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def places(data: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every container with a key or index of it."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found.append((data, key))
        places(value, found)
    return found


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`\n\t 0.~<", max_size=60))
@settings(max_examples=examples(300))
def test_any_text_yields_documents_or_errors(text: str) -> None:
    for found in load(text, ORIGIN):
        assert isinstance(found, Document | ConfigError)
        line = found.line if isinstance(found, Document) else found.origin.line
        assert 1 <= line <= text.count("\n") + 2


@given(st.data())
@settings(max_examples=examples(300))
def test_a_good_object_with_anything_in_one_place_is_a_config_or_refused(data: st.DataObject) -> None:
    document: Any = copy.deepcopy(data.draw(st.sampled_from(GOLDEN)))
    container, key = data.draw(st.sampled_from(places(document, [])))
    container[key] = data.draw(values)
    try:
        decode(document, origin=ORIGIN)
    except ConfigError as error:
        assert error.problems


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=40))
@settings(max_examples=examples(300))
def test_any_bytes_are_a_config_or_refused(kind: str, body: bytes) -> None:
    try:
        decode_binary(KINDS[kind], body, Metadata("a", "b"), origin=ORIGIN)
    except ConfigError as error:
        assert error.problems


@given(st.text(alphabet="0123456789.:afx%/ ١", max_size=16) | st.ip_addresses().map(str))
@settings(max_examples=examples(500))
def test_ip_addresses_are_what_python_takes_for_one_but_with_a_zone(text: str) -> None:
    try:
        is_one = "%" not in str(ipaddress.ip_address(text))
    except ValueError:
        is_one = False
    assert is_ip(text) == is_one


@given(values)
def test_any_mesh_config_is_read_or_refused(data: object) -> None:
    try:
        decode_mesh(data, origin=ORIGIN)
    except ConfigError as error:
        assert error.problems
