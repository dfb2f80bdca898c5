"""Services: which have no healthy endpoint, and which are in force only because a guard keeps them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

import attrs

from mesh_pilot.explain.truth.facts import PlaneFacts
from mesh_pilot.explain.truth.states import TruthState
from mesh_pilot.model.counts import counted
from mesh_pilot.model.service import Endpoint, Health, Resolution, Service, ServiceKey
from mesh_pilot.ops.causes.cause import Cause, CauseKind, CauseSubject, assessed, reach
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment, Gravity

HEALTHY = Assessment("healthy")
DOWN, EMPTY, DEGRADED = "down", "empty", "degraded"
WITHOUT_HEALTHY = (DOWN, EMPTY)
"""The states of services whose requests fail."""
ILL = "service"
"""The kind of what is remembered as seen first."""

Key = tuple[str, ...]


def assess_health(service: Service, endpoints: Sequence[Endpoint]) -> Assessment:
    """The assessment of a service by its endpoints alone."""
    if service.resolution is not Resolution.CLIENT_SIDE:
        return HEALTHY
    found = [each.health for each in endpoints if each.health is not Health.UNLISTED]
    healthy = found.count(Health.HEALTHY)
    if not found:
        return Assessment(EMPTY, Gravity.WARNING, f"{service.registry or 'the registry'} knows no endpoint of it")
    if not healthy:
        words = ", ".join(f"{found.count(each)} {each.value.lower()}" for each in Health if each in found)
        return Assessment(DOWN, Gravity.ERROR, f"none of {counted(len(found), 'endpoint')} is healthy: {words}")
    if healthy < len(found):
        return Assessment(DEGRADED, Gravity.WARNING, f"{healthy} of {len(found)} endpoints are healthy")
    return HEALTHY


def kept_services(state: PlaneState, facts: PlaneFacts) -> dict[Key, Assessment]:
    """The assessments of the services, by ``item_key``, that their sources have lost, or cannot confirm."""
    keys = {key for held in facts.held.values() for key in held.keys}
    keys |= {key for source in facts.stale for key in state.world.items_of(source)}
    truths = ((key, facts.at_door(key)) for key in keys if key[0] == "service")
    return {
        key: assessed(truth.state, Gravity.WARNING, truth.why, truth.since)
        for key, truth in truths
        if truth.state in (TruthState.HELD, TruthState.STALE)
    }


def assess_service(
    state: PlaneState, kept: Mapping[Key, Assessment], service: Service, endpoints: Sequence[Endpoint]
) -> Assessment:
    """The assessment of a service; a thread may make it. ``kept``: see ``kept_services``."""
    found = assess_health(service, endpoints)
    if found.state in WITHOUT_HEALTHY:
        return attrs.evolve(found, since=state.first_seen.since(ILL, service.key))
    return kept.get(("service", service.key.host, service.key.namespace), found)


class ServiceHealth:
    """The services without a healthy endpoint. State: each service's endpoints as they were, with what follows from
    them: only what has changed since is looked at."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self._known: dict[ServiceKey, tuple[Service, Sequence[Endpoint], Assessment]] = {}
        self._revision = -1
        self.assessed = 0
        """Assessments made since the start."""
        self.total = 0
        """The number of services."""
        self.ill: Mapping[ServiceKey, Assessment] = {}
        """The ones without a healthy endpoint."""

    def __repr__(self) -> str:
        return f"<ServiceHealth {len(self.ill)} of {self.total} ill>"

    def look(self) -> None:
        """Follow the World."""
        world = self._state.world
        if world.revision == self._revision:
            return
        self._revision = world.revision
        known: dict[ServiceKey, tuple[Service, Sequence[Endpoint], Assessment]] = {}
        for key, service in world.services.items():
            if service is None:
                continue
            endpoints, before = world.endpoints.peek(key), self._known.get(key)
            if before is not None and before[0] is service and before[1] is endpoints:
                known[key] = before
                continue
            self.assessed += 1
            known[key] = service, endpoints, assess_health(service, endpoints)
        self._known, self.total = known, len(known)
        ill = {key: found for key, (_, _, found) in known.items() if found.state in WITHOUT_HEALTHY}
        self._state.first_seen.look(ILL, ill)
        self.ill = ill


def service_causes(state: PlaneState, ill: Mapping[ServiceKey, Assessment], total: int) -> Iterator[Cause]:
    """A cause for the services whose endpoints are all ill, and one for those that have none.

    ``total``: the number of all services, ill and well.
    """
    for word in WITHOUT_HEALTHY:
        found = {key: each for key, each in ill.items() if each.state == word}
        if not found:
            continue
        times = [at for key in found if (at := state.first_seen.since(ILL, key)) is not None]
        first = min(found)
        one = found[first]
        why = one.why if len(found) == 1 else _WORDS[word].format(counted(len(found), "service"))
        yield Cause(
            kind=CauseKind.SERVICE,
            subject=CauseSubject("Service", first.namespace, first.host),
            assessment=assessed(word, one.severity, why, min(times, default=None)),
            touches=reach("services", [key.host for key in found], total),
            where="",
            command=f"mesh-pilot describe service {shlex.quote(first.host)}",
            more="requests to them are answered with 503" if len(found) > 1 else "requests to it are answered with 503",
        )


_WORDS = {DOWN: "{} without a healthy endpoint", EMPTY: "{} without any endpoint"}
