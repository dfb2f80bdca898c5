"""Results that are kept: found again, and never too many."""

from __future__ import annotations

import pytest

from mesh_pilot.xds import kept


@pytest.fixture
def calls() -> list[int]:
    return []


@pytest.fixture
def doubled(calls: list[int]) -> kept.Kept[[int], int]:
    @kept.kept(lambda number: number)
    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    return double


def test_a_result_is_worked_out_once(doubled: kept.Kept[[int], int], calls: list[int]) -> None:
    assert [doubled(3), doubled(4), doubled(3)] == [6, 8, 6]
    assert calls == [3, 4]


def test_what_was_not_asked_for_longest_goes_first(doubled: kept.Kept[[int], int], calls: list[int]) -> None:
    half = kept.NAMES_KEPT // 2
    doubled(half)
    doubled(half - 10)
    doubled(half)
    doubled(20)
    doubled(half)
    assert calls == [half, half - 10, 20]
    doubled(half - 10)
    assert calls == [half, half - 10, 20, half - 10]


def test_many_small_ones_stay_and_one_that_is_too_large_is_kept_alone(
    doubled: kept.Kept[[int], int], calls: list[int]
) -> None:
    for number in range(300):
        doubled(number)
    calls.clear()
    for number in range(300):
        doubled(number)
    assert calls == []
    doubled(kept.NAMES_KEPT * 3)
    assert repr(doubled) == f"<Kept double: 1 results, {kept.NAMES_KEPT * 3 + 1} names>"


def test_all_is_forgotten_at_a_word(doubled: kept.Kept[[int], int], calls: list[int]) -> None:
    doubled(3)
    kept.forget()
    doubled(3)
    assert calls == [3, 3]
