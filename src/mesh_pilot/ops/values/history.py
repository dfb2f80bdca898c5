"""Revisions in lists: with the names of what they changed and of who refused them, trials of quarantine folded in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.model.history import RevisionNack, RevisionOutcome
from mesh_pilot.model.json import SPREAD, Json
from mesh_pilot.ops.observers.revision_memory import RememberedRevision
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.safety.state.reader import HistoryReader, RevisionRecord, name_of

NAMED = 5
"""Names in a row."""

OWN = ("rollout", "quarantine", "owners")
"""First parts of the names of what the control plane changes itself. Next to objects they say nothing."""


@attrs.frozen
class RevisionRow:
    """A revision in a list."""

    record: RevisionRecord = attrs.field(metadata=SPREAD)
    changed: Sequence[str]
    """The names of the first objects that it changed."""
    refused_by: Sequence[str]
    """The first proxies that refused something of it."""
    trials: int
    """Pushes after it by which quarantine looked for the object that is refused; they are revisions, too."""


def kept_rows(history: HistoryReader, found: Iterable[tuple[RevisionRecord, int]]) -> Iterator[RevisionRow]:
    """Rows of revisions in the store, each with the number of its trials."""
    for record, trials in found:
        changed = _objects(dict.fromkeys(name_of(each.key) for each in history.changes(record.number)))
        yield RevisionRow(record, changed, _refused_by(history.nacks(record.number)), trials)


def remembered_rows(state: PlaneState, *, is_folded: bool = True) -> Iterator[RevisionRow]:
    """Rows of the latest revisions of this run, the newest first. What became of older ones than the last 200 is not
    known any more."""
    outcomes = {each.revision: each for each in state.xds.status.revisions.recent()}
    trials = 0
    for each in reversed(state.revisions.revisions):
        if is_folded and each.is_trial:
            trials += 1
            continue
        outcome = outcomes.get(each.number)
        refused = _refused_by(outcome.nacks if outcome is not None else ())
        record = attrs.evolve(_record(each, outcome), traffic=state.revisions.traffic.get(each.number))
        yield RevisionRow(record, _objects(each.names), refused, trials)
        trials = 0


def _record(each: RememberedRevision, outcome: RevisionOutcome | None) -> RevisionRecord:
    head = (each.number, each.at, tuple(each.causes), each.more_causes, each.objects)
    if outcome is None:
        return RevisionRecord(*head, 0, 0, 0, None, 0, True)
    return RevisionRecord(
        *head,
        outcome.proxies,
        outcome.waiting,
        outcome.bytes,
        outcome.acked_seconds,
        outcome.nacked,
        outcome.is_over,
    )


def _objects(names: Iterable[str]) -> list[str]:
    """The first names of objects; those of the control plane's own things where nothing else changed."""
    every = [*names]
    return ([name for name in every if name.partition("/")[0] not in OWN] or every)[:NAMED]


def _refused_by(nacks: Iterable[RevisionNack]) -> list[str]:
    return list(dict.fromkeys(nack.proxy for nack in nacks))[:NAMED]


def workers_rows_together(answers: Sequence[Sequence[Mapping[str, Any]]]) -> list[Json]:
    """The rows of all workers, each of which knows what became of a revision at its own proxies."""
    first, *others = answers
    of_others = [{row["revision"]: row for row in rows} for rows in others]
    found: list[Json] = []
    for row in first:
        known = [row, *(rows[row["revision"]] for rows in of_others if row["revision"] in rows)]
        acked = [each["acked_seconds"] for each in known if each["acked_seconds"] is not None]
        sums = {name: sum(each[name] for each in known) for name in ("proxies", "waiting", "bytes", "nacks")}
        refused = dict.fromkeys(name for each in known for name in each["refused_by"])
        is_over = all(each["is_over"] for each in known)
        more = {"acked_seconds": max(acked, default=None), "refused_by": [*refused][:NAMED], "is_over": is_over}
        found.append({**row, **sums, **more})
    return found
