"""Sources, each with its state, and the conditions in which its picture is not its own word: stale (restored from an
earlier run), held (lost at once), or blind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import attrs
import trio

from mesh_pilot.model.json import IF_GIVEN, SPREAD
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment
from mesh_pilot.sources.base.contract import Sighted
from mesh_pilot.world.guard import accept_command

NAMED = 1000
"""The most names of held objects in an entry."""


@attrs.frozen(kw_only=True)
class SourceCondition:
    """A reason why what is in force of a source is not what it says now."""

    source: str
    state: str
    """``stale``, ``blind`` or ``held``."""
    since: str
    seconds: int
    reason: str
    objects: int | None = attrs.field(default=None, metadata=IF_GIVEN)
    """The number of objects that are held,"""
    names: Sequence[str] | None = attrs.field(default=None, metadata=IF_GIVEN)
    """the names of the first,"""
    security: Sequence[str] | None = attrs.field(default=None, metadata=IF_GIVEN)
    """and those among them that protect something."""
    effect: str
    to_let_them_go: str | None = attrs.field(default=None, metadata=IF_GIVEN)
    """The command that lets held objects go."""


@attrs.frozen
class SourceStatus:
    """A source of configuration or services with its state."""

    name: str
    assessment: Assessment = attrs.field(metadata=SPREAD)
    command: str
    """The order that ends what holds it up; empty without one."""
    activity: str
    """The state of its task: ``synced``, ``syncing``, ``waiting`` to be started again, ``idle``, ``ended``."""
    ever_synced: bool
    items: int
    rejected: int
    restarts: int
    last_error: str
    waiting_for: str
    """The reason why it has not synced; empty if it has."""
    events: int
    last_event_seconds_ago: float | None
    conditions: Sequence[SourceCondition]


def source_states(
    state: PlaneState, assessments: Mapping[str, Assessment], is_seen: Callable[[str], bool]
) -> Iterator[SourceStatus]:
    """Every source, also those that came later. ``assessments``: by name; ``is_seen``: which names of objects are
    told."""
    conditions, held = list(source_conditions(state, is_seen)), state.reducer.intake.held()
    now = trio.current_time()
    for supervisor in state.supervisors:
        own = supervisor.statistics()
        yield SourceStatus(
            name=own.name,
            assessment=assessments[own.name],
            command=accept_command(own.name) if own.name in held else "",
            activity=own.state.value,
            ever_synced=own.ever_synced,
            items=own.source.items,
            rejected=own.source.rejected,
            restarts=own.restarts,
            last_error=own.last_error,
            waiting_for=own.source.waiting_for,
            events=own.events,
            last_event_seconds_ago=None if own.last_event is None else round(now - own.last_event, 1),
            conditions=[each for each in conditions if each.source == own.name],
        )


def source_conditions(state: PlaneState, is_seen: Callable[[str], bool] = lambda _: True) -> Iterator[SourceCondition]:
    """An entry for each source and condition, with the names of objects that are to be told."""
    now = datetime.now(UTC)
    for source, confirmed_at in sorted(state.reducer.intake.stale().items()):
        yield SourceCondition(
            source=source,
            state="stale",
            since=_to_second(confirmed_at),
            seconds=round((now - confirmed_at).total_seconds()),
            reason=state.waiting_for(source) or "it has not given its first full picture in this run",
            effect="the last picture is kept until the source gives a full one",
        )
    for supervisor in state.supervisors:
        own = supervisor.source.statistics()
        if isinstance(own, Sighted) and own.blindness:
            yield SourceCondition(
                source=supervisor.source.name,
                state="blind",
                since=_to_second(now - timedelta(seconds=own.blind_seconds)),
                seconds=round(own.blind_seconds),
                reason=own.blindness,
                effect="what it gave before is kept",
            )
    for source, held in sorted(state.reducer.intake.held().items()):
        seconds = trio.current_time() - held.since
        yield SourceCondition(
            source=source,
            state="held",
            since=_to_second(now - timedelta(seconds=seconds)),
            seconds=round(seconds),
            reason=held.reason,
            objects=held.objects,
            names=[*filter(is_seen, held.names())][:NAMED],
            security=[*filter(is_seen, held.security)],
            effect="they are kept until the source has them again",
            to_let_them_go=accept_command(source),
        )


def _to_second(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def ready_lines(state: PlaneState, *, verbose: bool) -> Iterator[str]:
    """A line for each held picture; `verbose`: with names, and what to do. Stale ones: see `PlaneState.stale`."""
    for source, held in sorted(state.reducer.intake.held().items()):
        security = f", {len(held.security)} of them security policies" if held.security else ""
        line = f"{source}: held: {held.reason}, and {held.objects} are kept{security}"
        named = ", ".join(dict.fromkeys((*held.security, held.first_names)))
        yield f"{line}: {named}; to let them go: {accept_command(source)}" if verbose else line
