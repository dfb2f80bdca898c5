"""The fields that a client's reason speaks of."""

from __future__ import annotations

import time

import pytest

from mesh_pilot.safety.quarantine.hints import named_fields
from tests.support.worlds import configs

ROUTE = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: bad, namespace: shop}
spec:
  hosts: [evil.test, shop]
  http:
  - name: http
    match: [{uri: {regex: "ab+c"}}]
    headers: {response: {set: {x-odd: one, x-good: "odd-value"}}}
    directResponse: {status: 200}
"""
PATCH = """
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: bad, namespace: shop}
spec:
  configPatches:
  - applyTo: CLUSTER
    patch: {operation: MERGE, value: {typed: [{"@type": hello.world}]}}
"""


@pytest.mark.parametrize(
    ("text", "words", "fields"),
    [
        (ROUTE, "cannot parse: odd-value", ["spec.http[0].headers.response.set[x-good]"]),
        (ROUTE, "no argument for repetition operator: ab+c", ["spec.http[0].match[0].uri.regex"]),
        (ROUTE, "Duplicate entry of domain EVIL.test", ["spec.hosts[0]"]),
        (ROUTE, "invalid header name 'x-odd'", ["spec.http[0].headers.response.set[x-odd]"]),
        (ROUTE, "shopping, http_connection_manager, exact match", []),
        (PATCH, "unknown type hello.world in CLUSTER", ["spec.configPatches[0].patch.value.typed[0][@type]"]),
        (PATCH, "", []),
    ],
)
def test_fields_are_named_whose_texts_are_in_the_reason(text: str, words: str, fields: list[str]) -> None:
    assert list(named_fields(tuple(configs(text)), words)) == fields


def test_the_field_with_the_longest_text_comes_first() -> None:
    found = named_fields(tuple(configs(ROUTE)), "header x-odd of EVIL.test")
    assert found == ("spec.hosts[0]", "spec.http[0].headers.response.set[x-odd]")


def test_large_objects_cost_no_time() -> None:
    hosts = ", ".join(f"host-{number}.test" for number in range(5000))
    (config,) = configs(ROUTE.replace("evil.test, shop", hosts))
    began = time.process_time()
    named_fields((config,), "host-1.test " * 150)
    assert time.process_time() - began < 1
