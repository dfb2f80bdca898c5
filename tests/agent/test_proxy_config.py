"""ProxyConfig without the generated messages: the same fields, and the same values as these have."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.agent.bootstrap.proxy_config import (
    LEGACY,
    PROXY_CONFIG,
    FieldProblem,
    ProxyConfigField,
    decode,
    effective,
    effects,
    overlay,
    read_proxy_config,
)
from mesh_pilot.api.istio.mesh import v1alpha1 as mesh
from mesh_pilot.base.protowire import VARINT, WireError, field, tag, varint
from mesh_pilot.istio.reading.decode_json import read_message
from tools.gen_proxy_config import TARGET, text

EVERYTHING: dict[str, Any] = {
    "binaryPath": "/usr/bin/envoy",
    "serviceCluster": "web",
    "drainDuration": "45s",
    "terminationDrainDuration": "0.250s",
    "proxyAdminPort": 15001,
    "controlPlaneAuthPolicy": "MUTUAL_TLS",
    "concurrency": 0,
    "interceptionMode": "TPROXY",
    "tracing": {
        "zipkin": {"address": "zipkin.local:9411"},
        "sampling": 12.5,
        "tlsSettings": {"mode": "MUTUAL", "subjectAltNames": ["a", "b"], "insecureSkipVerify": False},
        "enableIstioTags": True,
    },
    "envoyMetricsService": {"address": "metrics:1", "tcpKeepalive": {"probes": 3, "time": "10s"}},
    "proxyMetadata": {"ISTIO_META_A": "b", "c": ""},
    "extraStatTags": ["x", "y"],
    "proxyStatsMatcher": {"inclusionPrefixes": ["cluster."], "inclusionRegexps": [".*"]},
    "holdApplicationUntilProxyStarts": True,
    "caCertificatesPem": ["PEM"],
    "runtimeValues": {"a.b": "1"},
    "statsCompression": False,
    "connectionSettings": {"profile": "EDGE", "globalDownstreamConnectionLimit": 100},
}


def encoded(data: dict[str, Any]) -> bytes:
    message = read_message(mesh.ProxyConfig, data, "", [])
    assert message is not None
    return bytes(message)


def test_the_table_is_what_the_generated_messages_say() -> None:
    assert text() == TARGET.read_text(encoding="utf-8"), "python -m tools.gen_proxy_config"


def test_every_field_says_where_it_has_an_effect() -> None:
    assert effects().keys() == {*PROXY_CONFIG, *LEGACY}


def test_what_is_encoded_is_decoded_as_it_is_written() -> None:
    found = decode(encoded(EVERYTHING))
    assert found == {**EVERYTHING, "terminationDrainDuration": "0.25s"}


def test_what_is_right_is_read_as_it_is() -> None:
    problems: list[FieldProblem] = []
    assert read_proxy_config(EVERYTHING, problems) == {**EVERYTHING, "terminationDrainDuration": "0.25s"}
    assert problems == []


def test_names_of_the_proto_and_numbers_as_texts_are_read() -> None:
    problems: list[FieldProblem] = []
    data = {"drain_duration": "1m30s", "proxy_stats_matcher": {"inclusion_prefixes": ["a"]}, "concurrency": "2"}
    expected = {"drainDuration": "90s", "proxyStatsMatcher": {"inclusionPrefixes": ["a"]}, "concurrency": 2}
    assert read_proxy_config(data, problems) == expected
    assert problems == []


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        ({"concurency": 2}, "concurency", "no such field"),
        ({"tracing": {"zipkin": {"adress": "a"}}}, "tracing.zipkin.adress", "no such field"),
        ({"concurrency": "two"}, "concurrency", "expected a whole number"),
        ({"concurrency": -1}, "concurrency", "expected a whole number"),
        ({"concurrency": float("inf")}, "concurrency", "expected a whole number"),
        ({"drainDuration": 45}, "drainDuration", "expected a duration"),
        ({"interceptionMode": "ALL"}, "interceptionMode", "expected one of REDIRECT"),
        ({"tracing": "zipkin"}, "tracing", "expected an object"),
        ({"extraStatTags": "a"}, "extraStatTags", "expected a list"),
        ({"runtimeValues": {"a": ["b"]}}, "runtimeValues", "expected a string"),
        ({"statsCompression": "no"}, "statsCompression", "expected true or false"),
    ],
)
def test_what_is_wrong_is_named_and_left_out(data: dict[str, Any], path: str, reason: str) -> None:
    problems: list[FieldProblem] = []
    found = read_proxy_config({**data, "serviceCluster": "web"}, problems)
    assert [problem.path for problem in problems] == [path]
    assert re.search(reason, problems[0].reason)
    assert found["serviceCluster"] == "web"


def test_this_machine_has_the_last_word_and_its_annotation_the_first_and_metadata_are_merged() -> None:
    plane = encoded(
        {"concurrency": 2, "tracing": {"zipkin": {"address": "z:1"}}, "proxyMetadata": {"A": "1", "B": "1"}}
    )
    local = {"tracing": {"datadog": {"address": "d:1"}}, "proxyMetadata": {"B": "2"}}
    annotated = {"concurrency": 7, "meshId": "m", "proxyMetadata": {"A": "0", "C": "0"}}
    assert effective(annotated, plane, local) == {
        "concurrency": 2,
        "meshId": "m",
        "tracing": {"datadog": {"address": "d:1"}},
        "proxyMetadata": {"A": "1", "B": "2", "C": "0"},
    }
    assert effective({}, None, local) == local
    assert effective(annotated, None, local) == overlay(annotated, local)
    assert overlay({}, local) == local


def values(known: ProxyConfigField) -> st.SearchStrategy[Any]:
    texts = st.text(alphabet="abcé./=", min_size=1, max_size=5)
    kinds: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "object": lambda: messages(known.fields),
        "name": lambda: st.sampled_from(known.names[1:]),
        "text": lambda: texts,
        "int": lambda: st.integers(0 if known.wrapped else 1, 2**31 - 1),
        "double": lambda: st.floats(1, 1e9),
        "bool": lambda: st.booleans() if known.wrapped else st.just(True),
        "duration": lambda: st.integers(1, 10**9).map(lambda number: f"{number}s"),
        "texts": lambda: st.dictionaries(texts, texts, min_size=1, max_size=3),
    }
    one = kinds[known.kind]()
    return st.lists(one, min_size=1, max_size=3) if known.repeated else one


def messages(table: Mapping[str, ProxyConfigField]) -> st.SearchStrategy[dict[str, Any]]:
    known = {name: each for name, each in table.items() if each.kind != "opaque"}
    return st.fixed_dictionaries({}, optional={name: values(each) for name, each in known.items()})


def one_of_each_choice(data: dict[str, Any]) -> dict[str, Any]:
    """The same without a second member of a oneof."""
    if "serviceCluster" in data:
        data.pop("tracingServiceName", None)
    tracing = data.get("tracing", {})
    for name in [name for name in ("zipkin", "lightstep", "datadog") if name in tracing][1:]:
        del tracing[name]
    return data


@given(messages(PROXY_CONFIG).map(one_of_each_choice))
def test_any_config_comes_through_the_wire_as_the_generated_message_reads_it(data: dict[str, Any]) -> None:
    problems: list[FieldProblem] = []
    assert decode(encoded(data)) == read_proxy_config(data, problems)
    assert problems == []


@pytest.mark.parametrize(
    ("duration", "read"),
    [
        (field(1, b""), None),
        (tag(1, VARINT) + varint(-1), None),
        (tag(1, VARINT) + varint(315_576_000_001), None),
        (tag(2, VARINT) + varint(1_000_000_000), None),
        (tag(2, VARINT) + varint(1_500), "0.000001s"),
        (tag(1, VARINT) + varint(2) + tag(2, VARINT) + varint(8), "2s"),
    ],
)
def test_a_duration_that_nobody_can_use_is_refused(duration: bytes, read: str | None) -> None:
    data = field(4, duration)  # drainDuration
    if read is None:
        with pytest.raises(WireError):
            decode(data)
    else:
        assert decode(data) == {"drainDuration": read}


@given(st.binary(max_size=200))
def test_bytes_of_anybody_raise_wire_error_or_nothing(data: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(data)
