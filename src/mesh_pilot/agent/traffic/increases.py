"""The increases of Envoy's counters since they were last reported. Pure: pages in, reports out, no clock.

A page is compared with the one before as a set of lines, in C: only what has changed is looked at. An Envoy's counters
begin with 0, and so does what is counted of one that the agent has started. Of one that ran before the agent, or took
over from another by hot restart, the first page is where counting begins: a part of it was reported already.

Every count is in one report at most. Where some may be in none, a later report says that it follows a gap: after the
end of an Envoy, after the agent's start, and after a stream that broke with a report under way.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mesh_pilot.agent.traffic.statistics import Subject, denials_of, is_repeated, subject_of
from mesh_pilot.model.traffic import (
    GAUGES,
    MAX_ROWS,
    NO_ALLOW_MATCHED,
    Counter,
    RowKind,
    TrafficReport,
    TrafficRow,
)

_NO_RULE: Subject = (RowKind.POLICY, NO_ALLOW_MATCHED)


@attrs.define(eq=False)
class _Denials:
    """Denials by a listener's policies. ``unmatched``: the part of them that was attributed to no rule."""

    total: int = 0
    by_rules: int = 0
    unmatched: int = 0


class Increases:
    """Mutable state: the latest page and its values, denials by listener, what is to be reported, and whether there
    was a gap."""

    def __init__(self) -> None:
        self._rows: dict[Subject, dict[Counter, int]] = {}
        self._told: dict[Subject, int] = {}
        """The figures in flight that the control plane knows, but for 0."""
        self._in_flight: dict[Subject, int] = {}
        self._has_gap = True
        self._has_read = False
        self._begin(counts_first_page=True)

    def __repr__(self) -> str:
        return f"<Increases of {len(self._values)} statistics, {len(self._rows)} rows to report>"

    def _begin(self, *, counts_first_page: bool) -> None:
        self._lines: frozenset[str] = frozenset()
        self._values: dict[str, int] = {}
        self._denials: dict[str, _Denials] = {}
        self._has_rules = False
        self._counts = counts_first_page

    @property
    def statistics(self) -> int:
        """The number of statistics in the latest page."""
        return len(self._values)

    @property
    def rows(self) -> int:
        """The number of rows that wait for being reported."""
        return len(self._rows)

    def begin(self, *, counts_first_page: bool) -> None:
        """Another Envoy is read from now on."""
        self._begin(counts_first_page=counts_first_page)
        self._in_flight = {}
        self._has_gap = True

    def read(self, page: str) -> None:
        """Take a page of ``/stats``, lines of ``NAME: VALUE``."""
        self._has_read = True
        lines = frozenset(page.splitlines())
        new, old = lines - self._lines, self._lines - lines
        self._lines = lines
        changed = dict(_values(new))
        before = {name: self._values.pop(name, 0) for name in {name for name, _ in _values(old)} | changed.keys()}
        self._values.update(changed)
        self._has_rules = self._has_rules or any(".rbac.policy." in name for name in changed)
        for name, value in changed.items():
            self._take(name, value, before[name])
        for name in before.keys() - changed.keys():  # of a cluster that is gone
            self._forget(name)
        self._take_unmatched()
        self._counts = True

    def _take(self, name: str, value: int, before: int) -> None:
        found = subject_of(name)
        if found is None or is_repeated(name, self._values):
            return
        subject, counter = found
        if counter in GAUGES:
            self._in_flight[subject] = value
            return
        if value < before:  # the cluster was removed and is back
            before, self._has_gap = 0, True
        if listener := denials_of(name):
            self._take_denials(listener, value - before, is_rule=subject[0] is RowKind.POLICY)
        self._add(subject, counter, value - before)

    def _take_denials(self, listener: str, increase: int, *, is_rule: bool) -> None:
        denials = self._denials.setdefault(listener, _Denials())
        if is_rule:
            denials.by_rules += increase
        else:
            denials.total += increase

    def _take_unmatched(self) -> None:
        """Count the denials that rules leave. Without any rule's statistics it is not known which these are.

        A page has a listener's denials before those of its rules, which may grow in between: these are too few
        then, until the next page.
        """
        for denials in self._denials.values():
            unmatched = denials.total - denials.by_rules
            if unmatched > denials.unmatched and (self._has_rules or not self._counts):
                self._add(_NO_RULE, Counter.DENIED, unmatched - denials.unmatched)
                denials.unmatched = unmatched

    def add_attempts(self, cluster: str, attempts: int, failed: int) -> None:
        """Take increases that a load report of Envoy's tells."""
        subject = RowKind.CLUSTER, cluster
        self._count(subject, Counter.ATTEMPTS, attempts)
        if failed:
            self._count(subject, Counter.FAILED_ATTEMPTS, failed)

    def _add(self, subject: Subject, counter: Counter, increase: int) -> None:
        if self._counts and increase > 0:
            self._count(subject, counter, increase)

    def _count(self, subject: Subject, counter: Counter, increase: int) -> None:
        row = self._rows.get(subject)
        if row is None:
            if len(self._rows) == MAX_ROWS:
                self._has_gap = True
                return
            row = self._rows[subject] = {}
        row[counter] = row.get(counter, 0) + increase

    def _forget(self, name: str) -> None:
        found = subject_of(name)
        if found is not None and found[1] in GAUGES:
            self._in_flight.pop(found[0], None)

    # -- reports

    def lost(self) -> None:
        """Counts may be in no report."""
        self._has_gap = True

    def tell_all(self) -> None:
        """Another control plane is told from now on: it does not know what is in flight."""
        self._told = {}

    def take(self, seconds: float) -> TrafficReport | None:
        """The report of what has changed, which is not reported again; None if nothing has.

        A gap alone is reported once an Envoy was read: each that exited before is in it.
        """
        rows, self._rows = self._rows, {}
        for subject in self._in_flight.keys() | self._told.keys():
            figure = self._in_flight.get(subject, 0)
            if figure != self._told.get(subject, 0):
                rows.setdefault(subject, {})[Counter.IN_FLIGHT] = figure
        if not (rows or (self._has_gap and self._has_read)):
            return None
        self._told = {subject: figure for subject, figure in self._in_flight.items() if figure}
        had_gap, self._has_gap = self._has_gap, False
        return TrafficReport(
            tuple([TrafficRow(*subject, counts) for subject, counts in rows.items()]), seconds, had_gap
        )


def _values(lines: Iterable[str]) -> Iterable[tuple[str, int]]:
    for line in lines:
        name, _, value = line.rpartition(": ")
        if value.isascii() and value.isdigit():
            yield name, int(value)
