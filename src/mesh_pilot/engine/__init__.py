"""The memo table: derived values that record their reads, and are only computed again when one of these changed.

*Cells* are the input: keys of an index of the World, written from outside. *Derived values* are the results of pure
functions that are declared with ``@derived``; the table records every cell and derived value that each of them read,
also missing keys. A *Watch* is the other end: it keeps derived values alive, and learns which of them may have
changed. ::

    @derived
    def total(view: View, account: str) -> int: ...

    total(view, "a")          # from the table, unless a read of it changed
    total.query("a")          # its identity: typed and hashable; plans consist of queries
    total.compute(view, "a")  # the function itself, without the table

When a cell changes, all values that read it, directly or through others, become stale, and each of them records which
of its reads may have changed. Nothing is computed yet. When someone reads a stale value, these reads are refreshed in
the order in which they were made. The function is only called again if one of them really changed. If its result is
equal to the last one, its readers are not called (early cut-off). The work is therefore proportional to what a change
touches, and not to the number of derived values.

Functions must be pure: the same reads give an equal value. An exception is stored like a value, with its traceback as a
note, and raised at each read until one of the function's reads changes. Not thread-safe.

Also here: ``snapshots``, immutable sets of resources and their differences, ``patched``, copies of large mappings and
sets that share what is the same, and ``failures``, internal errors that stand.

May import: ``model``.
"""

from mesh_pilot.engine.declared import NAME, ByName, Derived, Query, by_name, derived
from mesh_pilot.engine.memo import CycleError, Index, Memo
from mesh_pilot.engine.nodes import FailedPart, Observer
from mesh_pilot.engine.overlay import MemoOverlay
from mesh_pilot.engine.reports import Explanation, MemoStatistics
from mesh_pilot.engine.watch import Layer, Watch

__all__ = [
    "NAME",
    "ByName",
    "CycleError",
    "Derived",
    "Explanation",
    "FailedPart",
    "Index",
    "Layer",
    "Memo",
    "MemoOverlay",
    "MemoStatistics",
    "Observer",
    "Query",
    "Watch",
    "by_name",
    "derived",
]
