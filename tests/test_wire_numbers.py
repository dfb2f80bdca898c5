"""The largest numbers of Protocol Buffers' wire format, and negative ones, take ten bytes."""

from __future__ import annotations

import pytest

from mesh_pilot.base.protowire import WireError, read_varint, varint


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_a_number_of_ten_bytes_is_read(number: int) -> None:
    assert read_varint(varint(number), 0) == (number, 10)
    assert varint(number - 2**64) == varint(number)


def test_a_number_of_eleven_bytes_is_refused() -> None:
    with pytest.raises(WireError, match="more than 64 bits"):
        read_varint(b"\x80" * 10 + b"\x01", 0)
