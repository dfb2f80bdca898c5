"""Events of all Istio objects in a Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import attrs
import structlog
import trio

from mesh_pilot.config.decode import decode
from mesh_pilot.config.kinds import KINDS, Kind
from mesh_pilot.model.config import Config, ConfigError, Origin
from mesh_pilot.model.events import Accepted, Delete, Event, Rejected, Replace, Synced, Upsert
from mesh_pilot.sources.base import Backoff
from mesh_pilot.sources.beside import beside, has_many_values
from mesh_pilot.sources.kubernetes.access import Access
from mesh_pilot.sources.kubernetes.follow import Object, follow

log = structlog.get_logger(scope="sources")

Key = tuple[str, ...]


@attrs.frozen
class KubernetesStatistics:
    items: int
    rejected: int
    synced: bool
    waiting_for: str
    stale_seconds: float
    """For how long some kind can't be read; 0 while all can."""
    trouble: str
    server: str
    kinds: Mapping[str, int]
    """Objects in force, by kind."""


class KubernetesSource:
    """State: what is in force and what stands refused, by key; which kinds this run has listed, and what is wrong."""

    def __init__(
        self,
        access: Access,
        *,
        name: str = "kubernetes",
        kinds: Mapping[str, Kind] = MappingProxyType(KINDS),
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """``backoff`` makes one for each kind."""
        self.name = name
        self._access = access
        self._kinds = kinds
        self._backoff = backoff
        self._items: dict[Key, Config] = {}
        self._standing: dict[Key, Rejected] = {}
        self._versions: dict[Key, str] = {}
        """Of every object that was judged, its version in Kubernetes."""
        self._unlisted: set[str] = set(kinds)
        self._announced = False
        self._trouble: dict[str, tuple[float, str]] = {}
        self._events: trio.MemorySendChannel[Event] | None = None
        self._turn = trio.Lock()
        """Held while the first picture is told: what changes meanwhile comes after it."""

    def __repr__(self) -> str:
        return f"<KubernetesSource {self.name}: {len(self._items)} objects, {len(self._standing)} refused>"

    def statistics(self) -> KubernetesStatistics:
        since, reason = min(self._trouble.values(), default=(0.0, ""))
        waiting = ""
        if not self._announced:
            waiting = reason or f"listing {', '.join(sorted(self._unlisted))}"
        counts = {kind: sum(key[1] == kind for key in self._items) for kind in self._kinds}
        return KubernetesStatistics(
            items=len(self._items),
            rejected=len(self._standing),
            synced=self._announced,
            waiting_for=waiting,
            stale_seconds=trio.current_time() - since if self._trouble and self._announced else 0.0,
            trouble=reason,
            server=self._access.server,
            kinds={kind: count for kind, count in counts.items() if count},
        )

    async def run(
        self,
        events: trio.MemorySendChannel[Event],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Read until cancelled. What is known is kept for the next run."""
        self._events, self._announced, self._unlisted = events, False, set(self._kinds)
        async with trio.open_nursery() as nursery:
            for kind in self._kinds.values():
                nursery.start_soon(partial(follow, self._access, kind, self, self._backoff()))
            task_status.started()

    # -- what followers tell

    async def listed(self, kind: Kind, version: str, objects: list[Object]) -> None:
        """All objects of a kind: those that are not among them are gone."""
        there = set()
        for found in objects:
            there.add(_key(kind, found))
            await self._look(kind, version, found)
        for key in [key for key in self._versions if key[1] == kind.name and key not in there]:
            await self._drop(key)
        self._unlisted.discard(kind.name)
        if not self._unlisted and not self._announced:
            await self._announce()

    async def changed(self, kind: Kind, version: str, found: Object, *, there: bool) -> None:
        if there:
            await self._look(kind, version, found)
        else:
            await self._drop(_key(kind, found))

    def lost(self, kind: Kind, reason: str) -> None:
        if kind.name not in self._trouble:
            tell = log.debug if self._trouble else log.warning  # of what stops all of them, one line is enough
            tell("can't be read; what was read stays in force", source=self.name, kind=kind.name, why=reason)
            self._trouble[kind.name] = (trio.current_time(), reason)

    def found(self, kind: Kind) -> None:
        self._trouble.pop(kind.name, None)

    # -- what becomes of it

    async def _look(self, kind: Kind, version: str, found: Object) -> None:
        """Judge an object, unless it is known in just this version."""
        key, at = _key(kind, found), found["metadata"].get("resourceVersion", "")
        if at and self._versions.get(key) == at:
            return
        path = f"{self._access.server}/apis/{kind.group}/{version}/{kind.plural}"
        origin = Origin(self.name, f"{path} {key[2]}/{key[3]}" if key[2] else f"{path} {key[3]}")
        document = {"apiVersion": f"{kind.group}/{version}", "kind": kind.name, "metadata": found["metadata"]}
        document |= {part: found[part] for part in ("spec", "status") if part in found}
        try:
            config = await beside(has_many_values(document), partial(decode, document, origin=origin))
        except ConfigError as error:
            self._versions[key] = at
            self._standing[key] = Rejected(self.name, origin, error.problems, key)
            await self._tell(self._standing[key])
            return
        before = self._items.get(key)
        self._versions[key] = at
        self._items[key] = config
        if before != config:
            await self._tell(Upsert(self.name, config))
        await self._recover(key)

    async def _drop(self, key: Key) -> None:
        self._versions.pop(key, None)
        if self._items.pop(key, None) is not None:
            await self._tell(Delete(self.name, key))
        await self._recover(key)

    async def _recover(self, key: Key) -> None:
        rejected = self._standing.pop(key, None)
        if rejected is not None:
            await self._tell(Accepted(self.name, rejected.origin.location))

    async def _tell(self, event: Event) -> None:
        """Pass an event on, once the first picture of this run is."""
        if self._announced and self._events is not None:
            async with self._turn:
                await self._events.send(event)

    async def _announce(self) -> None:
        assert self._events is not None
        items, rejections = tuple(self._items.values()), tuple(self._standing.values())
        picture: list[Event] = [Replace(self.name, (), items), *rejections, Synced(self.name)]
        async with self._turn:
            self._announced = True
            for event in picture:
                await self._events.send(event)
        log.info("initial sync complete", source=self.name, objects=len(items), rejected=len(rejections))


def _key(kind: Kind, found: Object) -> Key:
    metadata = found["metadata"]
    namespace = "" if kind.cluster_scoped else str(metadata.get("namespace", "default"))
    return ("config", kind.name, namespace, str(metadata.get("name", "")))


def kubernetes_source(access: Access, *, name: str = "kubernetes") -> KubernetesSource:
    """The source of every kind of Istio's in a Kubernetes."""
    return KubernetesSource(access, name=name)
