"""Sources: whose picture is not what they say now, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import trio

from mesh_pilot.model.counts import counted
from mesh_pilot.ops.causes.cause import Cause, CauseKind, CauseReach, CauseSubject, assessed
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment, Gravity
from mesh_pilot.sources.base.supervisor import SourceState, SupervisorStatistics
from mesh_pilot.world.guard import NAMED, HeldObjects, accept_command

SYNCED = Assessment("synced")
PATIENCE_SECONDS = 10.0
"""The time that a source may take for its first picture before that is worth a word."""
ILL = "source"
"""The kind of what is remembered as seen first."""


def assess_sources(state: PlaneState) -> dict[str, Assessment]:
    """The assessment of each source, by name."""
    stale, held = state.stale(), state.reducer.intake.held()
    restored = state.reducer.intake.stale()
    found = {}
    for supervisor in state.supervisors:
        own = supervisor.statistics()
        found[own.name] = _assessed(state, own, stale.get(own.name, ""), held.get(own.name), restored.get(own.name))
    ill = state.first_seen.look(ILL, [name for name, each in found.items() if each.severity is not Gravity.OK])
    return {
        name: each if name not in ill or each.since is not None else _since(each, ill[name])
        for name, each in found.items()
    }


def _assessed(
    state: PlaneState, own: SupervisorStatistics, stale: str, held: HeldObjects | None, restored: datetime | None
) -> Assessment:
    if held is not None:
        why = f"{held.reason}; {counted(held.objects, 'object')} are kept until the source has them again"
        since = datetime.now(UTC) - timedelta(seconds=trio.current_time() - held.since)
        return assessed("held", Gravity.WARNING, why, since)
    if stale:
        return assessed("stale", Gravity.WARNING, stale, restored)
    if own.state in (SourceState.WAITING, SourceState.ENDED):
        return assessed("failing", Gravity.ERROR, own.last_error or "it stopped")
    if own.state is not SourceState.SYNCED:
        is_new = datetime.now(UTC).timestamp() - state.started < PATIENCE_SECONDS
        why = own.waiting_for or "it has not given its first full picture"
        return assessed("waiting", Gravity.OK if is_new else Gravity.WARNING, why)
    return SYNCED


def _since(assessment: Assessment, since: datetime) -> Assessment:
    return Assessment(assessment.state, assessment.severity, assessment.why, since)


def source_causes(state: PlaneState, is_seen: Callable[[str], bool] = lambda _: True) -> Iterator[Cause]:
    """The causes about sources, and about all else that gives this plane its data, with the names of objects that are
    to be told."""
    held = state.reducer.intake.held()
    items = {each.source.name: each.source.statistics().items for each in state.supervisors}
    for name, found in assess_sources(state).items():
        if found.severity is Gravity.OK:
            continue
        own = held.get(name)
        names = [*filter(is_seen, own.names())] if own is not None else []
        count = own.objects if own is not None else items.get(name, 0)
        yield Cause(
            kind=CauseKind.SOURCE,
            subject=CauseSubject("Source", "", name),
            assessment=found,
            touches=CauseReach(count, None, "objects", names[:5]),
            command=accept_command(shlex.quote(name)) if own is not None else "mesh-pilot admin status",
            more=_more(own, is_seen),
        )
    for name, why in state.stale().items():
        if name not in items:  # a signer, a worker
            yield Cause(
                kind=CauseKind.PLANE,
                subject=CauseSubject("Plane", "", name),
                assessment=assessed("failing", Gravity.ERROR, why, state.first_seen.look(name, [name])[name]),
                touches=CauseReach(0, None, "objects", ()),
                command="mesh-pilot admin status",
            )


def _more(held: HeldObjects | None, is_seen: Callable[[str], bool]) -> str:
    if held is None:
        return "what it gave last is kept"
    named = [*filter(is_seen, held.security)][:NAMED]
    security = f"; among them {', '.join(named)}" if named else ""
    return f"if they are gone for good, the command lets them go{security}"
