"""Protobuf's wire format against protobuf's own classes."""

from __future__ import annotations

import pytest
from google.protobuf import any_pb2, struct_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.base.protowire import LEN, VARINT, WireError, field, field_header, fields, read_varint, tag, varint

messages = st.dictionaries(st.text(max_size=200), st.text() | st.floats(allow_nan=False) | st.booleans(), max_size=5)


@given(st.integers(-(2**63), 2**63 - 1).filter(bool))
def test_a_number_is_written_as_protobuf_writes_it(value: int) -> None:
    assert tag(1, VARINT) + varint(value) == wrappers_pb2.Int64Value(value=value).SerializeToString()


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_a_number_is_read_back_with_the_offset_after_it(value: int, rest: bytes) -> None:
    encoded = varint(value)
    assert read_varint(b"\0" + encoded + rest, 1) == (value, 1 + len(encoded))


@given(st.binary(min_size=1, max_size=300))
def test_a_field_is_a_header_and_its_content(body: bytes) -> None:
    assert field(2, body) == field_header(2, len(body)) + body == any_pb2.Any(value=body).SerializeToString()


@given(messages)
def test_the_fields_of_a_message_are_all_of_it(content: dict[str, object]) -> None:
    message = struct_pb2.Struct()
    message.update(content)
    encoded = message.SerializeToString()
    found = list(fields(encoded))
    assert len(found) == len(content)
    assert b"".join(field(number, encoded[start:end]) for number, _, start, end in found) == encoded
    assert all(wire_type == LEN for _, wire_type, _, _ in found)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x08", "is cut short"),
        (b"\x0a\x05abc", "is cut short"),
        (b"\x09seven..", "is cut short"),
        (b"\x0d...", "is cut short"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "holds a number of more than 64 bits"),
        (b"\x0b", "has a field of wire type 3"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        list(fields(data))
