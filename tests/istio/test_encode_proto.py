"""Encoding: byte for byte what betterproto2 gives, and what Google's protobuf reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh_pilot.api.google.protobuf import Value
from mesh_pilot.api.istio.networking.v1alpha3 import ServiceEntry, ServicePort, WorkloadEntry
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.istio.reading.encode_proto import encode
from mesh_pilot.istio.reading.mesh import default_mesh
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import Origin
from tests.support.protos import compiled, message_classes, our_class, variants

ORIGIN = Origin("test")


def test_every_message_is_written_as_protobuf_reads_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, theirs in message_classes(compiled(tmp_path_factory.getbasetemp())).items():
        for message in variants(theirs):
            ours = our_class(name).parse(message.SerializeToString())
            assert encode(ours) == bytes(ours), name
            assert theirs.FromString(encode(ours)) == message, name


def test_what_people_write_is_encoded_as_betterproto_does() -> None:
    for path in sorted((Path(__file__).parents[1] / "golden").glob("*/config.yaml")):
        for document in load(path.read_text(encoding="utf-8"), ORIGIN):
            assert isinstance(document, Document)
            if document.data["kind"] in KINDS:
                spec = decode_document(document, origin=ORIGIN).spec
                assert encode(spec) == bytes(spec), path


def test_odd_values_are_encoded_as_betterproto_does() -> None:
    strange = WorkloadEntry.parse(bytes(WorkloadEntry(address="ü", weight=2**32 - 1)) + b"\xf8\x3f\x05")
    assert strange._unknown_fields
    for message in (
        strange,
        ServiceEntry(),
        ServiceEntry(endpoints=[WorkloadEntry(), strange], ports=[ServicePort(number=128, name="a" * 200)]),
        WorkloadEntry(ports={"": 0}, labels={"": "", "a": "b"}),
        Value(number_value=-0.0),
        Value(number_value=float("nan")),
        Value(string_value=""),
        Value(bool_value=False),
        default_mesh("istio-system"),
    ):
        assert encode(message) == bytes(message)
