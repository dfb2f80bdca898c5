"""Any bit of the state's file flips: a picture is as it was, or the log says that it is not used."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.state.test_store import FILLED, filled, found


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_said_or_harmless(tmp_path: Path, seed: int) -> None:
    survives_flips(tmp_path, seed, 15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
def test_many_flipped_bits(tmp_path: Path, seed: int) -> None:
    survives_flips(tmp_path, seed, 60)


@pytest.mark.parametrize("column", ["source", "place"])
@pytest.mark.parametrize("bit", range(8))
def test_the_name_of_a_picture_is_no_less_checked_than_its_items(tmp_path: Path, column: str, bit: int) -> None:
    """Each place where it stands, in the table and in its index."""
    filled(tmp_path / "state")
    file = tmp_path / "state" / "state.db"
    whole = file.read_bytes()
    text = b"aplace a" if column == "source" else b"place a"
    start = whole.find(text)
    assert start > 0
    while start > 0:
        assert_said_or_right(tmp_path, whole, start, bit)
        start = whole.find(text, start + 1)


def survives_flips(folder: Path, seed: int, count: int) -> None:
    filled(folder / "state")
    whole = (folder / "state" / "state.db").read_bytes()
    chance = random.Random(seed)
    for _ in range(count):
        at = chance.randrange(100) if chance.random() < 0.2 else chance.randrange(len(whole))
        assert_said_or_right(folder, whole, at, chance.randrange(8))


def assert_said_or_right(folder: Path, whole: bytes, at: int, bit: int) -> None:
    for each in (folder / "state").iterdir():
        each.unlink()
    damaged = bytearray(whole)
    damaged[at] ^= 1 << bit
    (folder / "state" / "state.db").write_bytes(damaged)
    with capture_logs() as logs:
        pictures = found(folder / "state")
    assert logs or pictures == FILLED, (at, bit)
    for source, items in pictures.items():
        assert items == FILLED[source], (at, bit)
