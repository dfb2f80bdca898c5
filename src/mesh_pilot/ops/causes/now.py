"""The control plane now: what is wrong, what is in progress, what was last.

Computed at most twice a second, whoever asks, and only if something has changed since: twenty people who watch a change
a second cost what one of them does. An answer is never older than the question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import attrs
import trio

from mesh_pilot import __version__
from mesh_pilot.base.in_turns import in_turns
from mesh_pilot.explain.analysis.findings import AnalysisMessage, Level
from mesh_pilot.explain.truth.facts import Key, PlaneFacts
from mesh_pilot.explain.truth.states import Truth, TruthState
from mesh_pilot.model.counts import counted
from mesh_pilot.ops.causes.cause import Cause, CauseKind, together
from mesh_pilot.ops.causes.findings import Findings
from mesh_pilot.ops.causes.objects import conflict_causes, kept_back, object_causes
from mesh_pilot.ops.causes.plane import NextCertificate, ending_certificates, plane_causes, root_end
from mesh_pilot.ops.causes.proxies import (
    IN_SYNC,
    AssessedProxy,
    assess_proxies,
    gone_proxies,
    proxy_causes,
    proxy_causes_in,
)
from mesh_pilot.ops.causes.services import ServiceHealth, service_causes
from mesh_pilot.ops.causes.sources import source_causes
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Gravity
from mesh_pilot.ops.values.truth import own_fleet

MOST_CAUSES = 100
"""Causes of an answer."""

INTERVAL_SECONDS = 0.5
"""The least time between two computations."""

STALE_SECONDS = 5.0
"""The age at which it is computed again though nothing has changed: times pass."""

LOOK_SECONDS = 60.0
"""The interval of looks without a request: how exactly it is known since when things are wrong."""


@attrs.frozen(kw_only=True)
class PlaneFace:
    """The control plane that answers."""

    name: str
    version: str
    boot: str
    """Another one after each start: what was known of the one before is void, also at the same revision."""
    revision: int
    data_at: datetime
    """The time of this answer."""
    started: datetime
    ready: bool
    workers: int
    keeps_history: bool
    """True if the history outlives the process."""
    takes_orders: bool
    """True if there are rollouts here."""
    has_store: bool
    """True if there is a store of configuration that can be written."""


@attrs.frozen(kw_only=True)
class NowTotals:
    """Numbers of now."""

    proxies: int
    """Proxies that are connected, each name once."""
    in_sync: int
    touched: int
    """Proxies that some cause touches."""
    gone: int
    services: int
    without_endpoints: int
    """Services without a healthy endpoint."""
    objects: int
    next_certificate: NextCertificate | None
    root_expires: datetime | None


@attrs.frozen
class AnalysisTotals:
    """The latest findings of the analyzers, in numbers. They may be of an earlier revision: in a large mesh they take
    time."""

    revision: int
    errors: int
    warnings: int
    infos: int


@attrs.frozen(kw_only=True)
class NowOfPlane:
    """A control plane now, as far as the state of things goes."""

    plane: PlaneFace
    sentence: str
    severity: Gravity
    causes: Sequence[Cause]
    """The worst and the widest first."""
    more_causes: int
    totals: NowTotals
    analysis: AnalysisTotals | None


@attrs.frozen
class _Apart:
    """The parts of an answer's causes, before those of several namespaces became one."""

    facts: PlaneFacts
    every: Sequence[AssessedProxy]
    objects: Sequence[Cause]
    plane: Sequence[Cause]


class PlaneNow:
    """The latest answer. State: it, what the plane's counters were then, and when that was."""

    def __init__(self, state: PlaneState) -> None:
        self._state = state
        self._health = ServiceHealth(state)
        self._findings = Findings(state)
        self._conflicts: tuple[int, Sequence[tuple[Key, Truth]]] = (-1, ())
        """The objects that several sources have in different versions, as of a revision."""
        self._groups: Mapping[str, Mapping[str, str]] = {}
        """The proxies of each number of the totals: their names, with their namespaces."""
        self._apart: _Apart | None = None
        self._lock = trio.Lock()
        self._found: NowOfPlane | None = None
        self._stamp: tuple[object, ...] = ()
        self._at = 0.0
        self.computed = 0
        """Computations since the start."""

    def __repr__(self) -> str:
        return f"<PlaneNow computed {self.computed} times>"

    @classmethod
    def of(cls, state: PlaneState) -> PlaneNow:
        """That of a plane, of which there is one."""
        found = state.kept.get(cls)
        if not isinstance(found, PlaneNow):
            found = state.kept[cls] = cls(state)
        return found

    @property
    def errors(self) -> Sequence[AnalysisMessage]:
        """The errors that the analyzers found last."""
        return [each for each in self._findings.messages if each.type.level is Level.ERROR]

    async def run(self) -> None:
        """Look once a minute even without a request, and make findings on request; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._findings.run)
            while True:
                await trio.sleep(LOOK_SECONDS)
                await self._get()

    async def get(self) -> NowOfPlane:
        """The answer of a time after the call. If cancelled, another caller computes it."""
        await self._findings.ask()
        return await self._get()

    async def _get(self) -> NowOfPlane:
        async with self._lock:
            stamp, now = self._counters(), trio.current_time()
            if self._found is not None and stamp == self._stamp and now - self._at < STALE_SECONDS:
                return self._found
            await trio.sleep_until(self._at + INTERVAL_SECONDS if self._found is not None else now)
            stamp, now = self._counters(), trio.current_time()
            self._found = await self._computed()
            self._stamp, self._at = stamp, now
            return self._found

    def _counters(self) -> tuple[object, ...]:
        """Values of which one changes whenever something does that an answer tells."""
        state = self._state
        status = state.xds.status
        rollout = state.rollouts.progress.state if state.rollouts is not None else None
        quarantine = state.quarantine.statistics() if state.quarantine is not None else None
        return (
            state.reducer.statistics().events,
            state.world.revision,
            status.totals.streams_total,
            status.streams_ended,
            status.totals.acks.total(),
            status.totals.rejects.total(),
            status.totals.pushes.total(),
            rollout,
            quarantine,
            state.progress.is_draining,
            self._findings.runs,
        )

    async def _computed(self) -> NowOfPlane:
        self.computed += 1
        state, facts = self._state, self._state.facts()
        self._health.look()
        every = await in_turns(assess_proxies(state, facts))
        back = kept_back(facts)
        fleet = await own_fleet(state, facts, back) if back else {}
        names = sorted({each.proxy.name for each in every})
        certificate, ending = ending_certificates(state, every)
        errors = self.errors
        self._apart = _Apart(
            facts,
            every,
            objects=[*object_causes(state, facts, fleet, errors), *conflict_causes(state, self._conflicting(facts))],
            plane=[*plane_causes(state, len(names))],
        )
        found = together(
            chain(
                self._apart.objects,
                proxy_causes(state, facts, every),
                service_causes(state, self._health.ill, self._health.total),
                source_causes(state),
                self._apart.plane,
                ending,
            )
        )
        causes = sorted(found, key=lambda each: each.order)
        ill = {each.proxy.name for each in every if each.assessment.severity is not Gravity.OK}
        behind = {each.proxy.name for each in every if each.assessment.state != IN_SYNC.state}
        touched = touched_names(causes, ill)
        spaces = {each.proxy.name: each.proxy.namespace for each in every}
        gone = {each.proxy.name: each.proxy.namespace for each in gone_proxies(state)}
        self._groups = {
            "proxies": spaces,
            "in_sync": {name: space for name, space in spaces.items() if name not in behind},
            "touched": {name: spaces.get(name, "") for name in touched},
            "gone": gone,
        }
        totals = NowTotals(
            proxies=len(names),
            in_sync=len(names) - len(behind),
            touched=len(touched),
            gone=len(gone),
            services=self._health.total,
            without_endpoints=len(self._health.ill),
            objects=sum(state.world.statistics().configs.values()),
            next_certificate=certificate,
            root_expires=root_end(state),
        )
        return NowOfPlane(
            plane=self._face(),
            sentence=_sentence(len(causes), totals),
            severity=_worst(causes),
            causes=causes[:MOST_CAUSES],
            more_causes=max(0, len(causes) - MOST_CAUSES),
            totals=totals,
            analysis=self._analysed(),
        )

    def seen(
        self, found: NowOfPlane, is_seen: Callable[[str], bool], is_name_seen: Callable[[str], bool]
    ) -> NowOfPlane:
        """An answer for those who may view some namespaces: the causes in them, and what they have counted.

        ``is_name_seen``: the same of names, such as ``VirtualService/shop/reviews``.
        """
        world, (certificate, causes) = self._state.world, self._causes_in(is_seen, is_name_seen)
        proxies: dict[str, Any] = {name: sum(map(is_seen, group.values())) for name, group in self._groups.items()}
        totals = attrs.evolve(
            found.totals,
            next_certificate=certificate,
            **proxies,
            services=sum(each is not None and is_seen(key.namespace) for key, each in world.services.items()),
            without_endpoints=sum(is_seen(key.namespace) for key in self._health.ill),
            objects=sum(each is not None and is_seen(key.namespace) for key, each in world.config.items()),
        )
        return attrs.evolve(
            found,
            sentence=_sentence(len(causes), totals),
            severity=_worst(causes),
            causes=causes[:MOST_CAUSES],
            more_causes=max(0, len(causes) - MOST_CAUSES),
            totals=totals,
            analysis=self._analysed(is_seen),
        )

    def _causes_in(
        self, is_seen: Callable[[str], bool], is_name_seen: Callable[[str], bool]
    ) -> tuple[NextCertificate | None, list[Cause]]:
        """The next certificate to end and the causes of the latest answer, as they are in some namespaces."""
        state, apart = self._state, self._apart
        if apart is None:
            return None, []
        every = [each for each in apart.every if is_seen(each.proxy.namespace)]
        ill = {key: each for key, each in self._health.ill.items() if is_seen(key.namespace)}
        services = sum(each is not None and is_seen(key.namespace) for key, each in state.world.services.items())
        own = (each for each in (*apart.objects, *apart.plane) if is_seen(each.subject.namespace))
        certificate, ending = ending_certificates(state, every)
        found = together(
            chain(
                (_with_names_in(each, is_seen) for each in own),
                proxy_causes_in(state, apart.facts, every, is_seen),
                source_causes(state, is_name_seen),
                service_causes(state, ill, services),
                ending,
            )
        )
        return certificate, sorted(found, key=lambda each: each.order)

    def _conflicting(self, facts: PlaneFacts) -> Sequence[tuple[Key, Truth]]:
        """Looked for once a revision: that takes a walk over all objects."""
        revision = self._state.world.revision
        if self._conflicts[0] != revision:
            found = ((key, facts.at_door(key)) for key in dict.fromkeys(facts.kept_back_or_out()))
            conflicts = [(key, truth) for key, truth in found if truth.state is TruthState.CONFLICTING]
            self._conflicts = revision, conflicts
        return self._conflicts[1]

    def _analysed(self, is_seen: Callable[[str], bool] = lambda _: True) -> AnalysisTotals | None:
        found = self._findings
        if found.revision is None:
            return None
        counts = Counter(each.type.level for each in found.messages if is_seen(each.config.namespace))
        return AnalysisTotals(found.revision, counts[Level.ERROR], counts[Level.WARNING], counts[Level.INFO])

    def _face(self) -> PlaneFace:
        state = self._state
        return PlaneFace(
            name=state.world.cluster_id or state.election.statistics().replica.host,
            version=__version__,
            boot=state.boot,
            revision=state.world.revision,
            data_at=datetime.now(UTC),
            started=datetime.fromtimestamp(state.started, UTC),
            ready=not state.not_ready(),
            workers=1 + len(state.others.numbers if state.others is not None else ()),
            keeps_history=state.recorder is not None and state.recorder.history is not None,
            takes_orders=state.rollouts is not None,
            has_store=state.config_store is not None,
        )


def touched_names(causes: Sequence[Cause], ill: Set[str]) -> set[str]:
    """The proxies that causes touch; of a cause that touches more than it names, those that are ill are the rest."""
    named = (each.touches.names for each in causes if each.touches.what == "proxies")
    return {*chain.from_iterable(named), *ill}


def _with_names_in(cause: Cause, is_seen: Callable[[str], bool]) -> Cause:
    """A cause with the names of those proxies alone that are in some namespaces."""
    if cause.touches.what != "proxies":
        return cause
    names = [each for each in cause.touches.names if is_seen(each.partition(".")[2])]
    where = "" if cause.kind is CauseKind.PLANE else cause.where  # the objects of an internal error
    return attrs.evolve(cause, where=where, touches=attrs.evolve(cause.touches, names=names))


def _sentence(causes: int, totals: NowTotals) -> str:
    return sentence(causes, totals.touched, totals.proxies, totals.objects + totals.services)


def _worst(causes: Sequence[Cause]) -> Gravity:
    return max((each.assessment.severity for each in causes), key=lambda each: each.rank, default=Gravity.OK)


def sentence(causes: int, touched: int, proxies: int, configured: int) -> str:
    """All of it in a sentence."""
    if causes:
        of = f" touch {touched} of {counted(proxies, 'proxy', 'proxies')}" if touched else ""
        verb = of if causes > 1 else of.replace(" touch ", " touches ")
        return f"{counted(causes, 'cause')}{verb}; traffic keeps the last good configuration."
    if not configured:
        return (
            "There is nothing here yet: put a file with an object into the folder of --config-dir, or connect Consul."
        )
    if not proxies:
        return "All objects are in force; no proxy has connected yet: mesh-pilot proxy connects a machine."
    return f"{'The' if proxies == 1 else 'All'} {counted(proxies, 'proxy has', 'proxies have')} what is written."
