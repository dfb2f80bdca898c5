"""The status that is written to the Kubernetes that holds the configuration, assembled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from mesh_pilot.app.config_cluster import config_access
from mesh_pilot.app.core import Core
from mesh_pilot.app.settings import Settings
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.replicas.election.base import Election, Term, Work
from mesh_pilot.safety.state.revision_log import Effects
from mesh_pilot.world.reducer import Published

if TYPE_CHECKING:
    from mesh_pilot.kubernetes.status.distribution import DistributionReports
    from mesh_pilot.kubernetes.status.live import LiveObjects
    from mesh_pilot.kubernetes.status.writer import StatusWriter


def live_objects(settings: Settings) -> LiveObjects | None:
    """The objects whose status is written; None: there is none to write."""
    if not settings.status.is_on or config_access(settings) is None:
        return None
    from mesh_pilot.kubernetes.status.live import LiveObjects

    return LiveObjects()


def write_status(
    settings: Settings, live: LiveObjects, core: Core, election: Election, effects: Effects, *, is_alone: bool
) -> StatusWriter:
    """Have the leader write the status of objects. ``effects``: at the proxies of all workers; ``is_alone``: of one.

    Before the election runs.
    """
    from mesh_pilot.kubernetes.status.conditions import ConditionReports
    from mesh_pilot.kubernetes.status.distribution import DistributionReports
    from mesh_pilot.kubernetes.status.held_events import HeldEvents
    from mesh_pilot.kubernetes.status.messages import MessageReports
    from mesh_pilot.kubernetes.status.writer import StatusWriter

    access = config_access(settings)
    assert access is not None
    writer = StatusWriter(access, live, per_second=settings.status.per_second)
    world, reducer = core.world, core.reducer
    reports: list[Work] = [writer.run]
    if settings.status.conditions:
        conditions = ConditionReports(world, writer)
        reducer.on_publish(lambda published: conditions.published(published.revision.statuses))
        reports.append(conditions.run)
    if settings.status.messages:
        interval = settings.status.interval
        messages = MessageReports(world, live, writer, partial(_proxies, core, is_alone), interval)
        reports.append(messages.run)
    if settings.status.distribution:
        distribution = DistributionReports(world, live, writer, effects.proxies)
        reducer.on_publish(partial(_tell, distribution))
        reports.append(distribution.run)
    held = HeldEvents(access, reducer.intake.held)
    reducer.on_publish(lambda published: held.published())
    reports.append(held.run)
    election.while_leading("status", partial(_together, reports))
    return writer


async def _together(reports: Sequence[Work], term: Term) -> None:
    async with trio.open_nursery() as nursery:
        for report in reports:
            nursery.start_soon(report, term)


def _tell(distribution: DistributionReports, published: Published) -> None:
    distribution.published(published.revision.number, published.revision.changed)


def _proxies(core: Core, is_alone: bool) -> list[Proxy] | None:
    return [each.proxy for each in core.xds.status.proxies() if each.proxy is not None] if is_alone else None
