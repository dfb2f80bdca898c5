"""The effects of revisions on the proxies of all workers, for the history, which the first worker writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from mesh_pilot.model.history import ProxyRevision, RevisionOutcome
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.replicas.workers.questions import Answer
from mesh_pilot.safety.state.revision_log import Effects, ProxyEntry, ProxyMoves, ProxyRecord
from mesh_pilot.xds.ads.revisions import MAX_NACKS, MAX_OPEN


@attrs.frozen
class EffectsQuestion:
    """A question to a worker. Answered with ``WorkerEffects``."""


@attrs.frozen
class WorkerEffects:
    """The changes since the last answer."""

    outcomes: Sequence[RevisionOutcome]
    moved: Sequence[ProxyEntry]


@attrs.frozen
class _ProxyOfWorker:
    """A proxy of another worker, as a ``ProxyRecord``."""

    proxy: Proxy
    at: ProxyRevision

    def position(self) -> ProxyRevision:
        return self.at


def telling_effects(answer: Answer, effects: Effects) -> Answer:
    """The answers of a worker that also tells its effects."""
    moves = ProxyMoves()

    async def tell(question: object) -> object:
        if isinstance(question, EffectsQuestion):
            return WorkerEffects(effects.take_outcomes(), moves.take(effects.proxies()))
        return await answer(question)

    return tell


class EffectsOfAll:
    """The sum of this worker's effects and those that others tell; implements ``Effects``.

    State: by worker (0: this one) the latest outcome of each revision, and the proxies; the revisions that have changed
    since they were taken.
    """

    def __init__(self, own: Effects) -> None:
        self._own = own
        self._outcomes: dict[int, dict[int, RevisionOutcome]] = {}
        self._proxies: dict[int, dict[str, _ProxyOfWorker]] = {}
        self._changed: set[int] = set()

    def __repr__(self) -> str:
        return f"<EffectsOfAll {sorted(self._proxies)}, {len(self._changed)} revisions changed>"

    def told(self, worker: int, effects: WorkerEffects) -> None:
        """An answer of another worker."""
        self._add(worker, effects.outcomes)
        proxies = self._proxies.setdefault(worker, {})
        for entry in effects.moved:
            if entry.is_connected:
                proxies[entry.proxy.id] = _ProxyOfWorker(entry.proxy, entry.position)
            else:
                proxies.pop(entry.proxy.id, None)

    def ended(self, worker: int) -> None:
        """A worker ended: effects no longer wait for its proxies."""
        self._proxies.pop(worker, None)
        outcomes = self._outcomes.get(worker, {})
        self._add(
            worker,
            [attrs.evolve(each, waiting=0, is_over=True) for each in outcomes.values() if not each.is_over],
        )

    def take_outcomes(self) -> Sequence[RevisionOutcome]:
        self._add(0, self._own.take_outcomes())
        changed, self._changed = sorted(self._changed), set()
        return [self._sum(revision) for revision in changed]

    def proxies(self) -> Iterable[ProxyRecord]:
        yield from self._own.proxies()
        for proxies in self._proxies.values():
            yield from proxies.values()

    def _add(self, worker: int, outcomes: Iterable[RevisionOutcome]) -> None:
        known = self._outcomes.setdefault(worker, {})
        for outcome in outcomes:
            known[outcome.revision] = outcome
            self._changed.add(outcome.revision)
        while len(known) > 2 * MAX_OPEN:  # a worker tells nothing more of revisions that are older than its latest
            oldest = min(known)
            del known[oldest]
            self._changed.discard(oldest)

    def _sum(self, revision: int) -> RevisionOutcome:
        found = [known[revision] for known in self._outcomes.values() if revision in known]
        acked = [each.acked_seconds for each in found if each.acked_seconds is not None]
        return RevisionOutcome(
            revision=revision,
            proxies=sum(each.proxies for each in found),
            waiting=sum(each.waiting for each in found),
            bytes=sum(each.bytes for each in found),
            acked_seconds=max(acked, default=None),
            nacks=tuple(nack for each in found for nack in each.nacks)[:MAX_NACKS],
            nacked=sum(each.nacked for each in found),
            is_over=all(each.is_over for each in found),
        )
