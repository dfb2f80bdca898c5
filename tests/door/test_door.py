"""What validation accepts, real Envoys accept: searches of known seeds. `tox -e door` takes new ones, for hours."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog
import trio

from tests.door.__main__ import described
from tests.door.envoys import open_door
from tests.door.objects import NAMES
from tests.door.search import Totals, search
from tests.support.binaries import require_binary

SECONDS = 45.0
"""The most time of one search."""

FEWEST = 10
"""Examples without which a search has shown nothing."""


async def findings(folder: Path, seed: int, kinds: Sequence[str], *, examples: float) -> str:
    """Whatever is refused, as Markdown; empty if nothing is."""
    require_binary("envoy")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    totals = Totals()
    found: list[str] = []
    with trio.move_on_after(SECONDS):
        async with open_door(folder, seed) as door:
            async for finding in search(door, random.Random(seed), kinds, examples=examples, totals=totals):
                found.append(described(finding))
    print(f"seed {seed}: {totals.examples} examples, {totals.objects} objects, {totals.seen}")
    # An Envoy that does not answer is busy, with a large ring for example, and refuses nothing.
    if totals.unreduced and "no answer within" not in totals.unreduced:
        found.append(f"seed {seed}, cut off by time: {totals.unreduced}")
    assert found or totals.examples >= FEWEST
    return "\n".join(found)


@pytest.mark.envoy
@pytest.mark.parametrize("seed", [0, 1, 2])
async def test_what_validation_accepts_real_envoys_accept(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # should an Envoy write a file that an object names
    found = await findings(tmp_path, seed, NAMES, examples=60)
    assert not found, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMES)
async def test_objects_of_one_kind_are_accepted_too(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = await findings(tmp_path, 0, [kind], examples=60)
    assert not found, found
