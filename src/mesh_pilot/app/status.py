"""The status that is written to the Kubernetes that holds the configuration, assembled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from mesh_pilot.app.config_cluster import config_access
from mesh_pilot.app.settings import Settings
from mesh_pilot.app.workers.effects import EffectsOfAll
from mesh_pilot.election.base import Term, Work
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.ops.state import PlaneState
from mesh_pilot.status.conditions import ConditionReports
from mesh_pilot.status.distribution import DistributionReports
from mesh_pilot.status.held_events import HeldEvents
from mesh_pilot.status.live import LiveObjects
from mesh_pilot.status.messages import MessageReports
from mesh_pilot.status.writer import StatusWriter
from mesh_pilot.world.reducer import Published


def live_objects(settings: Settings) -> LiveObjects | None:
    """The objects whose status is written; None: there is none to write."""
    return LiveObjects() if settings.status.is_on and config_access(settings) is not None else None


def write_status(settings: Settings, live: LiveObjects, state: PlaneState, of_all: EffectsOfAll | None) -> StatusWriter:
    """Have the leader write the status of objects. ``of_all``: the proxies of all workers; None: there is one.

    Before the election runs.
    """
    access = config_access(settings)
    assert access is not None
    writer = StatusWriter(access, live, per_second=settings.status.per_second)
    world, election, effects = state.world, state.election, of_all or state.xds.status
    reports: list[Work] = [writer.run]
    if settings.status.conditions:
        conditions = ConditionReports(world, writer)
        state.reducer.on_publish(lambda published: conditions.published(published.revision.statuses))
        reports.append(conditions.run)
    if settings.status.messages:
        interval = settings.status.interval
        messages = MessageReports(world, live, writer, partial(_proxies, state, of_all is None), interval)
        reports.append(messages.run)
    if settings.status.distribution:
        distribution = DistributionReports(world, live, writer, effects.proxies)
        state.reducer.on_publish(partial(_tell, distribution))
        reports.append(distribution.run)
    held = HeldEvents(access, state.reducer.intake.held)
    state.reducer.on_publish(lambda published: held.published())
    reports.append(held.run)
    election.duty("status", partial(_together, reports))
    return writer


async def _together(reports: Sequence[Work], term: Term) -> None:
    async with trio.open_nursery() as nursery:
        for report in reports:
            nursery.start_soon(report, term)


def _tell(distribution: DistributionReports, published: Published) -> None:
    distribution.published(published.revision.number, published.revision.changed)


def _proxies(state: PlaneState, is_alone: bool) -> list[Proxy] | None:
    return [each.proxy for each in state.xds.status.proxies() if each.proxy is not None] if is_alone else None
