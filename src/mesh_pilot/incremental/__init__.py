"""The memo table: derived values that remember what they read, and are computed again only when that changed.

Three things live here. *Cells* hold input, written from outside (an index key of the World). *Derived values* are
results of pure functions that are declared with ``@derived``; every cell and derived value that one read is noted, a
miss as well as a hit. A *Watch* stands at the other end: it keeps derived values alive and learns which of them may
have changed. ::

    @derived
    def total(view: View, account: str) -> int: ...

    total(view, "a")          # from memory, where nothing it read has changed
    total.query("a")          # the same as a value: typed, hashable; what plans hold
    total.compute(view, "a")  # the function itself: remembers nothing

When a cell changes, whatever read it, directly or through others, is marked stale, each with the few reads that may
be to blame; nothing is computed. When a stale value is asked for, those reads are brought up to date in the order
in which they were made, and only if one really came out different is the function called again; if its result is
equal to the last one, what depends on it is not called (early cut-off). The work done is thus proportional to what
a change touches, not to how much was derived.

Functions must be pure: the same reads give an equal value. An exception is remembered like a value, with its traceback
as a note, and raised to whoever asks, until one of the reads changes. Not safe for use from several threads. Knows
nothing of meshes.

May import: nothing of ours.
"""

from mesh_pilot.incremental.declared import NAME, ByName, Derived, Query, View, by_name, derived
from mesh_pilot.incremental.memo import CycleError, Index, Memo, Watch
from mesh_pilot.incremental.reports import Explanation, MemoStatistics

__all__ = [
    "NAME",
    "ByName",
    "CycleError",
    "Derived",
    "Explanation",
    "Index",
    "Memo",
    "MemoStatistics",
    "Query",
    "View",
    "Watch",
    "by_name",
    "derived",
]
