"""Reports of a memo table: statistics, and explanations of values."""

from __future__ import annotations

import attrs


@attrs.frozen
class MemoStatistics:
    """The size of a memo table, and its work since the start."""

    cells: int
    """Input keys with readers."""
    derived: int
    """Derived values in the table."""
    computed: int
    """Calls of functions since the start."""
    cut_off: int
    """Calls whose result was equal to the last one, so that no reader was called."""
    spared: int
    """Stale values that were refreshed without a call."""
    calls: dict[str, int]
    """Calls by function name."""
    held: dict[str, int]
    """Derived values in the table, by function name."""


@attrs.frozen
class Explanation:
    """Explains a derived value to a person. Only names: the values of its reads may be secret."""

    query: str
    state: str
    """``fresh``; ``stale``: a read may have changed, and the value was not read since; ``failed``: it raised."""
    computed_at: int
    """When it last changed, in the table's logical time."""
    cause: str
    """The read that changed last before that; empty without reads."""
    reads: tuple[str, ...]
    """The reads of the last computation, in order."""
    readers: tuple[str, ...]
    """The derived values that read it, and the watches of streams."""
