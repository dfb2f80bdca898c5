"""Which files are being written, as events tell it."""

from __future__ import annotations

import math

from mesh_pilot.sources.files.writers import Writers


def test_a_file_is_being_written_from_the_first_write_until_it_is_released() -> None:
    writers = Writers(30)
    assert not writers.wrote("/a", 1)
    assert not writers.wrote("/a", 2)
    writers.wrote("/b", 3)
    assert writers.open == {"/a", "/b"}
    assert writers.next_overdue == 31
    writers.released("/a")
    writers.released("/never/written")
    assert writers.open == {"/b"}
    assert writers.next_overdue == 33
    assert repr(writers) == "<Writers: 1 files open, 0 overdue>"


def test_a_file_that_stays_open_is_overdue_once_until_it_is_released() -> None:
    writers = Writers(30)
    writers.wrote("/a", 1)
    assert writers.take_overdue(30.9) == []
    assert writers.take_overdue(31) == ["/a"]
    assert writers.take_overdue(32) == []
    assert writers.open == frozenset()
    assert writers.wrote("/a", 40)
    assert writers.next_overdue == math.inf
    writers.released("/a")
    assert not writers.wrote("/a", 50)


def test_what_was_written_since_a_mark_is_known_even_where_it_is_closed() -> None:
    writers = Writers(30)
    writers.wrote("/a", 1)
    writers.mark()
    assert writers.modified == frozenset()
    writers.wrote("/b", 2)
    writers.released("/b")
    assert writers.modified == {"/b"}
    assert writers.open == {"/a"}


def test_nothing_is_known_once_events_were_lost() -> None:
    writers = Writers(30)
    writers.wrote("/a", 1)
    writers.wrote("/b", 1)
    writers.take_overdue(31)
    writers.wrote("/c", 31)
    writers.forget()
    assert writers.open == frozenset()
    assert not writers.wrote("/a", 32)
