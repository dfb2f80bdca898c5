"""Work in turns: others run between them, whatever is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from mesh_pilot.base import in_turns as turns


@pytest.mark.parametrize(("seconds", "has_turns"), [(0.0, True), (1000.0, False)])
async def test_others_have_their_turn_when_the_time_is_up(
    seconds: float, has_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", seconds)
    rounds = 0
    seen: list[int] = []

    async def other() -> None:
        nonlocal rounds
        while True:
            await trio.lowlevel.checkpoint()
            rounds += 1

    def entries() -> Iterator[int]:
        for number in range(5):
            seen.append(rounds)
            yield number

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.lowlevel.checkpoint()
        assert await turns.in_turns(entries()) == list(range(5))
        assert (len(set(seen)) > 1) is has_turns
        nursery.cancel_scope.cancel()
