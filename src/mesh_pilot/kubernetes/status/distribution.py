"""How far a change of an object has come: condition ``Reconciled``, ``12/13 proxies up to date.``, as istiod's status.

An object is followed from the revision of the World in which it changed until every proxy has that; then its condition
stays as it is, whoever connects later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import trio

from mesh_pilot.base.reading import as_objects
from mesh_pilot.istio.kinds import ISTIO_KINDS
from mesh_pilot.kubernetes.status.live import Json, LiveObjects
from mesh_pilot.kubernetes.status.writer import StatusWriter
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Rejected
from mesh_pilot.model.history import ProxyRevision
from mesh_pilot.replicas.election.base import Term
from mesh_pilot.world import World

DISTRIBUTION = "distribution"
"""The part of a status that has it."""

RECONCILED = "Reconciled"

LOOK_SECONDS = 1.0
"""The interval at which proxies are counted, while an object is followed."""

FOLLOWED_SECONDS = 5.0
"""The shortest time for which an object is followed: other workers tell of their proxies now and then."""


class AtRevision(Protocol):
    """A connected proxy."""

    def position(self) -> ProxyRevision: ...


class DistributionReports:
    """Follows changed objects, and has it written how many proxies have them.

    State: `_followed`, the revision in which each changed, and when; `_refused`, the objects that are refused;
    `_is_leading`.
    """

    def __init__(
        self, world: World, live: LiveObjects, writer: StatusWriter, proxies: Callable[[], Iterable[AtRevision]]
    ) -> None:
        self._world = world
        self._live = live
        self._writer = writer
        self._proxies = proxies
        self._followed: dict[ConfigKey, tuple[int, float]] = {}
        self._refused: dict[ConfigKey, Rejected] = {}
        self._is_leading = False
        self._news = trio.Event()

    def published(self, revision: int, changed: Collection[tuple[str, ...]]) -> None:
        """A revision of the World."""
        if not self._is_leading:
            return
        refused = self._all_refused()
        differing = {key for key in refused.keys() | self._refused if refused.get(key) != self._refused.get(key)}
        self._refused = refused
        for key in differing.union(ConfigKey(*key[1:]) for key in changed if key[0] == "config"):
            if key.kind in ISTIO_KINDS:
                self._followed[key] = (revision, trio.current_time())
                self._news.set()

    def _all_refused(self) -> dict[ConfigKey, Rejected]:
        return {
            ConfigKey(*each.key[1:]): each
            for each in self._world.rejections()
            if each.key is not None and each.key[0] == "config"
        }

    async def run(self, term: Term) -> None:
        """Count while this replica leads. Objects whose condition is of an older generation are followed at once."""
        self._refused, since = self._all_refused(), (self._world.revision, trio.current_time())
        self._followed = {
            key: since for key in self._live if key.kind in ISTIO_KINDS and not _is_reported(self._live, key)
        }
        self._is_leading = True
        try:
            while True:
                if not self._followed:
                    self._news = trio.Event()
                    await self._news.wait()
                await trio.sleep(LOOK_SECONDS)
                self._count()
        finally:
            self._is_leading = False

    def _count(self) -> None:
        latest = self._world.revision
        positions = sorted(latest if (at := proxy.position().revision) is None else at for proxy in self._proxies())
        for key, (revision, since) in [*self._followed.items()]:
            if key not in self._live:
                self._writer.want(key, DISTRIBUTION, None)
                del self._followed[key]
                continue
            behind = bisect_left(positions, revision)
            refused = self._refused.get(key)
            is_in_force = refused is not None and self._world.item_of(refused.source, ("config", *key)) is not None
            condition = _reconciled(len(positions) - behind, len(positions), refused, is_in_force)
            self._writer.want(key, DISTRIBUTION, condition)
            if not behind and trio.current_time() >= since + FOLLOWED_SECONDS:
                del self._followed[key]


def _reconciled(having: int, proxies: int, refused: Rejected | None, is_in_force: bool) -> Json:
    """The condition, as istiod writes it; and for an object that is refused, why.

    ``is_in_force``: an earlier version of it is.
    """
    condition = {
        "type": RECONCILED,
        "status": "True" if having == proxies else "False",
        "message": f"{having}/{proxies} proxies up to date.",
    }
    if refused is not None:
        why = "; ".join(map(str, refused.problems[:3]))
        condition |= {
            "status": "False",
            "reason": "Refused",
            "message": f"{why} ({'the last good version is kept' if is_in_force else 'it has no effect'})",
        }
    return {"conditions": [condition]}


def _is_reported(live: LiveObjects, key: ConfigKey) -> bool:
    """True if the condition of an object is about its present generation."""
    found = live.get(key)
    return found is not None and any(
        each.get("type") == RECONCILED
        and each.get("status") == "True"
        and str(each.get("observedGeneration")) == str(found.generation)
        for each in as_objects(found.status, "conditions")
    )
