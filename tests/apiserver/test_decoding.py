"""Lists and watches, cut into objects."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.kubernetes.apiserver import KubernetesError
from mesh_pilot.kubernetes.apiserver.decoding import MAX_LEVELS, prune, read_event, read_object, read_page
from mesh_pilot.model.config import ConfigError, Origin

TEXTS = st.text(alphabet='a"\\[]{},:\n\u00e9')
VALUES = st.recursive(st.one_of(st.none(), st.integers(), TEXTS), lambda v: st.lists(v) | st.dictionaries(TEXTS, v))
DEPTHS = pytest.mark.parametrize("depth", [101, 990, 4500, 9000])


def deep(depth: int, name: str = "deep") -> bytes:
    value = b'{"a]}":[' * (depth // 2) + b'"\\"]}"' + b"]}" * (depth // 2)
    spec = b'{"configPatches": [{"applyTo": "CLUSTER", "patch": {"operation": "MERGE", "value": {"x": %b}}}]}' % value
    return b'{"metadata": {"name": "%b", "namespace": "shop"}, "spec": %b}' % (name.encode(), spec)


@DEPTHS
def test_an_object_that_nests_too_deeply_is_refused_alone(depth: int) -> None:
    good = b'{"metadata":{"name":"good"},"spec":{"a":[[],{},"]"]}}'
    page = read_page(b'{"items":[%b,%b,%b],"metadata":{"resourceVersion":"7"}}' % (good, deep(depth), good))
    assert page.metadata.resource_version == "7"
    before, found, after = map(read_object, page.items or ())
    assert before == after == json.loads(good)
    event = read_event(b'{"type":"ADDED","object":%b}' % deep(depth))
    for each in (found, read_object(event.object)):
        assert each["metadata"]["name"] == "deep"
        document = {"apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter", **each}
        with pytest.raises(ConfigError, match="nested too deeply"):
            decode(document, origin=Origin("kubernetes", "here"))


@given(VALUES)
def test_what_does_not_nest_deeply_stays_as_it_is(value: object) -> None:
    text = msgspec.json.encode(value)
    assert prune(text) == text
    lists = b"[" * MAX_LEVELS
    assert prune(lists + text + b"]" * MAX_LEVELS) == lists + _shown(value, text) + b"]" * MAX_LEVELS


def _shown(value: object, text: bytes) -> bytes:
    """What is left of a value at the deepest level: a list or object in which there is no other is read yet."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return b'"..."' if any(isinstance(each, list | dict) for each in inner) else text


@pytest.mark.parametrize("text", [b"[" * 9999, b"{" * 9999 + b'"' + b"a" * 10**6, b"}" * 9999, b'{"items":[' * 5000])
def test_garbage_is_refused_soon(text: bytes) -> None:
    with pytest.raises(KubernetesError):
        read_page(text)
    with pytest.raises(KubernetesError):
        read_event(text)
