"""How much of a sweep or a property a run tries: a sample by day in the default environment, all of it in its own.

The seed is the date unless ``TEST_SAMPLE`` names another, so that a failure can be repeated; each run prints it.
``TEST_EXAMPLES=all`` is for ``tox -e slow``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

SEED = os.environ.setdefault("TEST_SAMPLE", datetime.now(UTC).date().isoformat())
"""Set before workers start, which inherit it: all of them collect the same tests."""

ALL_EXAMPLES = os.environ.get("TEST_EXAMPLES") == "all"

T = TypeVar("T")


def of_the_day(rows: Sequence[T], count: int, what: str) -> list[T]:
    """So many of the rows. ``what`` makes the samples of two sweeps independent."""
    return random.Random(f"{SEED} {what}").sample(rows, min(count, len(rows)))


def examples(full: int) -> int:
    """The examples that a property of hypothesis tries: a fifth by default, all with ``TEST_EXAMPLES=all``."""
    return full if ALL_EXAMPLES else max(full // 5, 5)
