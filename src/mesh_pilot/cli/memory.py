"""The cyclic garbage collector of a process that holds one large, long-lived model.

Everything a control plane holds stays: walking it again and again finds nothing. So collection is off while the first
world is read; then that world is set aside (``gc.freeze``), and from there on collections are rare.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 50)
"""New objects before a collection of the young, and how many of those before one of the middle, and of all."""


@contextmanager
def long_lived() -> Iterator[None]:
    """Leave the collector off for the length of the block, or until ``set_aside``; afterwards it is as it was."""
    before = gc.get_threshold()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
        gc.enable()


def set_aside() -> None:
    """Call when the first world is in: what there is now is not looked at again, and collections begin."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
