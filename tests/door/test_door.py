"""What validation accepts, real Envoys accept: a search of known seeds, and one that is new each time."""

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


async def findings(folder: Path, seed: int, kinds: Sequence[str], *, examples: int, seconds: float) -> list[str]:
    """Whatever is refused, as Markdown."""
    require_binary("envoy")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    totals, found = Totals(), []
    with trio.move_on_after(seconds):
        async with open_door(folder, seed) as door:
            async for finding in search(door, random.Random(seed), kinds, examples=examples, totals=totals):
                found.append(described(finding))
    print(f"seed {seed}: {totals.examples} examples, {totals.objects} objects, {totals.seen}")
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_what_validation_accepts_real_envoys_accept(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # should an Envoy write a file that an object names
    found = await findings(tmp_path, seed, NAMES, examples=60, seconds=SECONDS)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", NAMES)
async def test_of_each_kind_alone_too_with_a_seed_of_its_own(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seed = random.SystemRandom().randrange(10**6)
    found = await findings(tmp_path, seed, [kind], examples=10**6, seconds=SECONDS)
    assert not found, "\n".join([f"seed {seed}", *found])
