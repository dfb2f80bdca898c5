"""The short way from plain data to messages: what it reads, it reads as the long way does; the rest it leaves."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import betterproto2
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.api.istio.networking.v1alpha3 import ServiceEntry, VirtualService, WorkloadEntry
from mesh_pilot.api.istio.type.v1beta1 import WorkloadSelector
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.reading.decode_fast import read_fast
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import Origin, Problem
from tests.support.protos import compiled, message_classes, our_class, variants
from tests.support.sample import examples

GOLDEN: list[tuple[type[betterproto2.Message], Any]] = [
    (KINDS[str(document.data["kind"])].message, document.data["spec"])
    for path in sorted((Path(__file__).parents[1] / "golden").glob("*/config.yaml"))
    for document in load(path.read_text(encoding="utf-8"), Origin("test"))
    if isinstance(document, Document) and document.data["kind"] in KINDS and document.data.get("spec") is not None
]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
scalars |= st.sampled_from(["5", "-1", "1.5s", "0s", "1h", "NaN", "STATIC", "NONE", 2**31, 2**32, 2**63, 10**400, 1.0])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Every container in some data with a key or index of it."""
    items = list(data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ())
    return [(data, key) for key, _ in items] + [place for _, value in items for place in places(value)]


def agrees(message: type[betterproto2.Message], data: object) -> bool:
    """True if both ways read the data, and alike; False where the short way leaves it."""
    short = read_fast(message, data)
    if short is None:
        return False
    problems: list[Problem] = []
    assert repr(short) == repr(read_message(message, data, "spec", problems))
    assert bytes(short) == bytes(read_message(message, data, "spec", []) or b"")
    assert problems == []
    return True


@pytest.mark.parametrize("proto_names", [False, True], ids=["camelCase", "snake_case"])
def test_what_protobuf_writes_is_read_alike(proto_names: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    direct = 0
    for name, theirs in message_classes(compiled(tmp_path_factory.getbasetemp())).items():
        if name.startswith("istio.mcp.") or name == "google.rpc.Status":
            continue  # messages with an Any in them, which nobody writes
        for message in variants(theirs):
            direct += agrees(
                our_class(name), json_format.MessageToDict(message, preserving_proto_field_name=proto_names)
            )
    assert direct > 200


@given(st.data())
@settings(max_examples=examples(500))
def test_anything_in_one_place_is_read_alike(data: st.DataObject) -> None:
    message, spec = data.draw(st.sampled_from(GOLDEN))
    spec = copy.deepcopy(spec)
    container, key = data.draw(st.sampled_from([(spec, "x"), *places(spec)]))
    container[key] = data.draw(values)
    agrees(message, spec)


def test_what_people_write_goes_the_short_way() -> None:
    for message, spec in GOLDEN:
        problems: list[Problem] = []
        read_message(message, spec, "spec", problems)
        assert agrees(message, spec) or problems or message is KINDS["PeerAuthentication"].message


def test_the_message_has_nothing_of_the_data_in_it() -> None:
    data = {"hosts": ["a"], "endpoints": [{"labels": {"app": "a"}}]}
    message = read_fast(ServiceEntry, data)
    assert message is not None
    data["hosts"].append("b")
    data["endpoints"][0]["labels"]["app"] = "b"  # type: ignore[index]
    assert (message.hosts, message.endpoints[0].labels) == (["a"], {"app": "a"})


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (ServiceEntry, []),
        (ServiceEntry, None),
        (ServiceEntry, {"hostss": []}),
        (ServiceEntry, {"hosts": None}),
        (ServiceEntry, {"hosts": "a"}),
        (ServiceEntry, {"hosts": ["a", 5]}),
        (ServiceEntry, {"exportTo": [], "export_to": []}),
        (ServiceEntry, {"resolution": 1}),
        (ServiceEntry, {"resolution": "static"}),
        (ServiceEntry, {"ports": [{"number": "80"}]}),
        (ServiceEntry, {"ports": [{"number": True}]}),
        (ServiceEntry, {"ports": [{"number": -1}]}),
        (ServiceEntry, {"ports": [{"number": 2**32}]}),
        (ServiceEntry, {"ports": [{"number": 80.0}]}),
        (WorkloadEntry, {"labels": {"a": 5}}),
        (WorkloadEntry, {"labels": {5: "a"}}),
        (WorkloadEntry, {"labels": []}),
        (WorkloadEntry, {"address": 5}),
        (VirtualService, {"http": [{"timeout": "5"}]}),
        (VirtualService, {"http": [{"timeout": 5}]}),
        (VirtualService, {"http": [{"match": [{"uri": {"exact": "a", "prefix": "b"}}]}]}),
        (VirtualService, {"http": [{"fault": {"delay": {"percent": 5}}}]}),
        (MeshConfig, {"enablePrometheusMerge": True}),
        (WorkloadSelector, {1: 2}),
    ],
    ids=str,
)
def test_what_is_wrong_or_to_be_told_is_left_to_the_long_way(message: type[betterproto2.Message], data: object) -> None:
    assert read_fast(message, data) is None
