"""What a memo table says of itself."""

from __future__ import annotations

import attrs


@attrs.frozen
class MemoStatistics:
    """How much is remembered and how much work was done."""

    cells: int
    """Input keys that something read."""
    derived: int
    """Derived values held."""
    computed: int
    """Calls of functions since the start."""
    cut_off: int
    """Calls whose result was equal to the last one, so that nothing above was called."""
    spared: int
    """Stale values that turned out unchanged without a call."""
    calls: dict[str, int]
    """Calls by function name."""
    held: dict[str, int]
    """Derived values held, by function name."""


@attrs.frozen
class Explanation:
    """One derived value, for a person who asks why it is what it is. Names only: what was read may be secret."""

    query: str
    state: str
    """``fresh``; ``stale``: something it read may have changed, and nobody has asked since; ``failed``: it raised."""
    computed_at: int
    """When it last came out different, by the table's own clock."""
    cause: str
    """The read that changed last before that; empty where it read nothing."""
    reads: tuple[str, ...]
    """What the last computation read, in order."""
    readers: tuple[str, ...]
    """What read it: derived values; streams by their watch."""
