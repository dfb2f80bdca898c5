"""Spans of time with their counts by workload, packed: the values that the memory and the file on disk hold.

A span is a minute, an hour or a day (of UTC). Packed, an edge takes some ten bytes, where values of Python take five
hundred. Packing and unpacking touch nothing shared, so that a thread may do them. A span has at most `MAX_EDGES` rows:
those beyond that are summed in a row of `OTHERS` for each kind, and counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

import attrs
import msgspec

from mesh_pilot.model.traffic import GAUGES, Counter, RowKind
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.table import CallingWorkload

MINUTE, HOUR, DAY = 60, 3600, 86400
"""Lengths of spans, in seconds."""

MAX_EDGES = 20_000
"""Rows of a span."""
MAX_CHARACTERS = 2_000_000
"""Characters of the names of rows in a span."""

OTHERS = CallingWorkload("", "others")
"""The workload of rows that are the sum of those that did not fit; their name is empty."""

_HAS_REQUESTS, _LACKS_REQUESTS, _INCOMPLETE = 1, 2, 4
"""Bits of a row: some of its callers have an agent, some have none, and something was lost."""

EdgeKey = tuple[CallingWorkload, RowKind, str]


class SpanError(ValueError):
    """Packed counts that cannot be read."""


@attrs.frozen
class TrafficSpan:
    """The counts of some time."""

    begin: int
    """Seconds since the epoch."""
    seconds: int
    """``MINUTE``, ``HOUR`` or ``DAY``."""
    slots: int
    """The slots of the table that it is the sum of; fewer than fit if the control plane did not run all the time."""
    has_gap: bool = False
    """True if what another worker counted is missing."""
    left_out: int = 0
    """Edges that had no room, each counted as often as it was added."""
    data: bytes = attrs.field(default=b"", repr=False)

    @property
    def key(self) -> tuple[int, int]:
        return self.seconds, self.begin


class _Packed(msgspec.Struct, array_like=True):
    """The content of a span. A row: the number of its workload, its kind, the number of its name, its bits; then
    counters, each followed by its count."""

    workloads: list[tuple[str, str, str, list[tuple[str, str]]]]
    names: list[str]
    rows: list[list[int]]


_Row = tuple[int, int, str]
"""The number of a workload, a kind, and a name. Numbers, as an enum's hash costs as much as all else here together."""


class SpanSums:
    """Rows that are being added up. Mutable state: the workloads by number, the bits and the counts of rows, and what
    had no room."""

    def __init__(self) -> None:
        self._workloads: dict[CallingWorkload, int] = {}
        self._bits: dict[_Row, int] = {}
        self._counts: dict[_Row, dict[int, int]] = {}
        self._characters = 0
        self.left_out = 0
        """Rows that went into `OTHERS`."""

    def __repr__(self) -> str:
        return f"<SpanSums of {len(self)} rows>"

    def __len__(self) -> int:
        return len(self._counts)

    def add_counts(self, key: EdgeKey, counts: Counts) -> None:
        """Add counts, without gauges: the latest figure says nothing of an hour."""
        values = [(int(counter), count) for counter, count in counts.values.items() if counter not in GAUGES]
        if values:
            workload, kind, name = key
            bits = _HAS_REQUESTS if counts.has_requests else _LACKS_REQUESTS
            bits |= _LACKS_REQUESTS if counts.is_partial else 0
            bits |= 0 if counts.is_complete else _INCOMPLETE
            self._add((self._number(workload), int(kind), name), bits, values)

    def add_span(self, span: TrafficSpan) -> None:
        """Add all of a span. Raises SpanError; nothing is added then."""
        packed = _read(span.data)
        numbers = [
            self._number(CallingWorkload(namespace, name, principal, tuple(labels)))
            for namespace, name, principal, labels in packed.workloads
        ]
        names = packed.names
        for workload, kind, name, bits, *counts in packed.rows:
            self._add((numbers[workload], kind, names[name]), bits, zip(counts[::2], counts[1::2], strict=True))

    def _number(self, workload: CallingWorkload) -> int:
        return self._workloads.setdefault(workload, len(self._workloads))

    def _add(self, row: _Row, bits: int, values: Iterable[tuple[int, int]]) -> None:
        known = self._counts.get(row)
        if known is None:
            others = self._number(OTHERS)
            if row[0] != others and (len(self) >= MAX_EDGES or self._characters >= MAX_CHARACTERS):
                self.left_out += 1
                self._add((others, row[1], ""), bits, values)
                return
            self._characters += len(row[2])
            self._counts[row], self._bits[row] = dict(values), bits
            return
        self._bits[row] |= bits
        for counter, count in values:
            known[counter] = known.get(counter, 0) + count

    def packed(self) -> bytes:
        """The rows as bytes."""
        used: dict[int, int] = {}
        names: dict[str, int] = {}
        rows = []
        for (workload, kind, name), counts in self._counts.items():
            row = [used.setdefault(workload, len(used)), kind, names.setdefault(name, len(names))]
            row.append(self._bits[workload, kind, name])
            for pair in counts.items():
                row += pair
            rows.append(row)
        every = [*self._workloads]
        named = [(each.namespace, each.name, each.principal, [*each.labels]) for each in map(every.__getitem__, used)]
        return zlib.compress(_encode(_Packed(named, [*names], rows)), 1)

    def edges(self, *, is_complete: bool = True) -> Iterator[tuple[EdgeKey, Counts]]:
        """The rows, without those of kinds and counters of a later version. ``is_complete``: whether the time that they
        are of is covered."""
        every = [*self._workloads]
        for row, counts in self._counts.items():
            workload, kind, name = row
            if kind in _KINDS:
                bits = self._bits[row]
                values = {_COUNTERS[counter]: count for counter, count in counts.items() if counter in _COUNTERS}
                has_requests, lacks = bool(bits & _HAS_REQUESTS), bool(bits & _LACKS_REQUESTS)
                complete = is_complete and not bits & _INCOMPLETE
                yield (
                    (every[workload], _KINDS[kind], name),
                    Counts(values, has_requests, has_requests and lacks, complete),
                )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode
_COUNTERS = {int(each): each for each in Counter}
_KINDS = {int(each): each for each in RowKind}


def _read(data: bytes) -> _Packed:
    """Packed bytes, in whose rows all numbers are those of something. Raises SpanError."""
    if not data:
        return _Packed([], [], [])
    try:
        packed = _decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise SpanError(str(error)) from error
    workloads, names = len(packed.workloads), len(packed.names)
    for row in packed.rows:
        if len(row) % 2 or not (len(row) >= 4 and 0 <= row[0] < workloads and 0 <= row[2] < names):
            raise SpanError("a row is garbled")
    return packed


def merged(begin: int, seconds: int, parts: Sequence[TrafficSpan]) -> TrafficSpan:
    """One span of several. A part that cannot be read is left out, which is a gap."""
    sums = SpanSums()
    has_gap = any(each.has_gap for each in parts)
    left_out = slots = 0
    for each in parts:
        try:
            sums.add_span(each)
        except SpanError:
            has_gap = True
        else:
            slots += each.slots
            left_out += each.left_out
    return TrafficSpan(begin, seconds, slots, has_gap, left_out + sums.left_out, sums.packed())
