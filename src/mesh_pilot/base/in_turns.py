"""Long work on Trio's thread in short turns, between which proxies are served."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TypeVar

import trio

T = TypeVar("T")

TURN_SECONDS = 0.002


async def in_turns(entries: Iterable[T]) -> list[T]:
    """The entries, each of which is some work. What they read must be able to change between turns."""
    found: list[T] = []
    end = time.perf_counter() + TURN_SECONDS
    for entry in entries:
        found.append(entry)
        if time.perf_counter() >= end:
            await trio.lowlevel.checkpoint()
            end = time.perf_counter() + TURN_SECONDS
    return found
