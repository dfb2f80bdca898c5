"""Sources whose pictures are not their own word: stale (restored from an earlier run), held (lost at once), or blind.

For `/ready`, the web page, `/debug/rejections` and `mesh-pilot admin`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import trio

from mesh_pilot.model.json import Json
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.sources.base.contract import Sighted
from mesh_pilot.world.guard import accept_command

NAMED = 1000
"""The most names of held objects in an entry."""


def _to_second(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def entries(state: PlaneState) -> Iterator[dict[str, Json]]:
    """An entry for each source and condition, as JSON."""
    now = datetime.now(UTC)
    for source, confirmed_at in sorted(state.reducer.intake.stale().items()):
        yield {
            "source": source,
            "state": "stale",
            "since": _to_second(confirmed_at),
            "seconds": round((now - confirmed_at).total_seconds()),
            "reason": state.waiting_for(source) or "it has not given its first full picture in this run",
            "effect": "its picture of then stays in force until it has given a full one",
        }
    for supervisor in state.supervisors:
        own = supervisor.source.statistics()
        if isinstance(own, Sighted) and own.blindness:
            yield {
                "source": supervisor.source.name,
                "state": "blind",
                "since": _to_second(now - timedelta(seconds=own.blind_seconds)),
                "seconds": round(own.blind_seconds),
                "reason": own.blindness,
                "effect": "what it gave before is kept",
            }
    for source, held in sorted(state.reducer.intake.held().items()):
        seconds = trio.current_time() - held.since
        yield {
            "source": source,
            "state": "held",
            "since": _to_second(now - timedelta(seconds=seconds)),
            "seconds": round(seconds),
            "reason": held.reason,
            "objects": held.objects,
            "names": held.names()[:NAMED],
            "security": held.security,
            "effect": "they stay in force until the source has them again",
            "to_let_them_go": accept_command(source),
        }


def ready_lines(state: PlaneState, *, verbose: bool) -> Iterator[str]:
    """A line for each held picture; `verbose`: with names, and what to do. Stale ones: see `PlaneState.stale`."""
    for source, held in sorted(state.reducer.intake.held().items()):
        security = f", among them {', '.join(held.security)}" if held.security else ""
        line = f"{source}: held: {held.reason}, and {held.objects} stay in force{security}"
        yield f"{line}: {held.first_names}; to let them go: {accept_command(source)}" if verbose else line
