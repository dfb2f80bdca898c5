"""The source of all Istio objects in a Kubernetes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import attrs
import structlog
import trio

from mesh_pilot.apiserver import Access, ApiClient, ApiResource, Object, reflect
from mesh_pilot.config.decode import decode
from mesh_pilot.config.kinds import ISTIO_KINDS, Kind
from mesh_pilot.model.config import ConfigError, Origin
from mesh_pilot.model.events import Event, Synced
from mesh_pilot.sources.base import Backoff, EventSender
from mesh_pilot.sources.offload import has_many_values, offload
from mesh_pilot.sources.published import Key, Precedence, PublishedState

log = structlog.get_logger(scope="sources")


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
    watch_errors: int = 0
    """Lists and watches that failed, since the start."""


class KubernetesSource:
    """Sends the Istio objects of a Kubernetes and how they change.

    State: `_state`, what was published, by key; `_versions`, of every object that was read, its version in Kubernetes;
    `_paths`, where each kind was last read; `_unlisted`, the kinds that this run has not listed yet; `_trouble`, since
    when and why a kind can't be read.
    """

    has_short_names = True

    def __init__(
        self,
        access: Access,
        *,
        name: str = "kubernetes",
        kinds: Mapping[str, Kind] = MappingProxyType(ISTIO_KINDS),
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """``backoff`` makes one for each kind."""
        self.name = name
        self.place = f"Kubernetes at {access.server}"
        self._access = access
        self._kinds = kinds
        self._resources = tuple(
            ApiResource(kind.group, kind.versions, kind.plural, kind.name, kind.cluster_scoped)
            for kind in kinds.values()
        )
        self._backoff = backoff
        self._state = PublishedState[Key](name, Precedence.FIRST, describe=self._location)
        self._versions: dict[Key, str] = {}
        self._paths: dict[str, str] = {}
        self._unlisted: set[str] = set(kinds)
        self._trouble: dict[str, tuple[float, str]] = {}
        self._errors = 0
        self._events: EventSender | None = None
        self._turn = trio.Lock()
        """Held while events are sent: what changes while the first picture is sent comes after it."""

    def __repr__(self) -> str:
        return f"<KubernetesSource {self.name}: {len(self._state)} objects, {len(self._state.rejections())} refused>"

    def statistics(self) -> KubernetesStatistics:
        since, reason = min(self._trouble.values(), default=(0.0, ""))
        waiting = ""
        is_announced = self._state.is_announced
        if not is_announced:
            waiting = reason or f"listing {', '.join(sorted(self._unlisted))}"
        counts = Counter(key[1] for key in self._state.keys)
        return KubernetesStatistics(
            items=len(self._state),
            rejected=len(self._state.rejections()),
            synced=is_announced,
            waiting_for=waiting,
            stale_seconds=trio.current_time() - since if self._trouble and is_announced else 0.0,
            trouble=reason,
            server=self._access.server,
            kinds={kind: counts[kind] for kind in self._kinds if counts[kind]},
            watch_errors=self._errors,
        )

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Read until cancelled. What is known is kept for the next run."""
        self._events, self._unlisted = events, set(self._kinds)
        self._state.restart()
        async with ApiClient(self._access) as client, trio.open_nursery() as nursery:
            for resource in self._resources:
                nursery.start_soon(reflect, client, resource, self, self._backoff())
            task_status.started()

    # -- what reflectors report

    async def listed(self, resource: ApiResource, version: str, objects: list[Object]) -> None:
        """All objects of a kind: those that are not among them are gone."""
        there = set()
        for found in objects:
            there.add(_key(resource, found))
            await self._read(resource, version, found)
        for key in [key for key in self._versions if key[1] == resource.kind and key not in there]:
            await self._drop(key)
        self._unlisted.discard(resource.kind)
        if not self._unlisted and not self._state.is_announced:
            log.info(
                "initial sync complete",
                source=self.name,
                objects=len(self._state),
                rejected=len(self._state.rejections()),
            )
            await self._send([*self._state.announce(), Synced(self.name)])

    async def changed(self, resource: ApiResource, version: str, found: Object, *, there: bool) -> None:
        if there:
            await self._read(resource, version, found)
        else:
            await self._drop(_key(resource, found), found["metadata"].get("resourceVersion", ""))

    def lost(self, resource: ApiResource, reason: str) -> None:
        self._errors += 1
        if resource.kind not in self._trouble:
            write = log.debug if self._trouble else log.warning  # one line is enough if all kinds fail at once
            write(
                "Kubernetes list or watch failed; its last objects stay in force",
                source=self.name,
                kind=resource.kind,
                why=reason,
            )
            self._trouble[resource.kind] = (trio.current_time(), reason)

    def found(self, resource: ApiResource) -> None:
        self._trouble.pop(resource.kind, None)

    # -- objects

    async def _read(self, resource: ApiResource, version: str, found: Object) -> None:
        """Decode an object, unless it was read in this very version."""
        key, at = _key(resource, found), found["metadata"].get("resourceVersion", "")
        if at and self._versions.get(key) == at:
            return
        self._paths[resource.kind] = f"{self._access.server}{resource.path(version)}"
        api_version = resource.api_version(version)
        document = {"apiVersion": api_version, "kind": resource.kind, "metadata": found["metadata"]}
        document |= {part: found[part] for part in ("spec", "status") if part in found}
        origin = Origin(self.name, self._location(key))
        try:
            config = await offload(has_many_values(document), partial(decode, document, origin=origin))
        except ConfigError as error:
            events = self._state.refuse(key, error.problems, key=key)
        else:
            events = self._state.put(key, [config], cause=f"resourceVersion {at}" if at else "")
        self._versions[key] = at
        await self._send(events)

    async def _drop(self, key: Key, at: str = "") -> None:
        self._versions.pop(key, None)
        await self._send(self._state.drop(key, cause=f"resourceVersion {at}" if at else ""))

    def _location(self, key: Key) -> str:
        _, kind, namespace, name = key
        return f"{self._paths[kind]} {namespace}/{name}" if namespace else f"{self._paths[kind]} {name}"

    async def _send(self, events: Sequence[Event]) -> None:
        if not events:
            return
        assert self._events is not None
        async with self._turn:
            for event in events:
                await self._events.send(event)


def _key(resource: ApiResource, found: Object) -> Key:
    metadata = found["metadata"]
    namespace = "" if resource.cluster_scoped else str(metadata.get("namespace", "default"))
    return ("config", resource.kind, namespace, str(metadata.get("name", "")))


def kubernetes_source(access: Access, *, name: str = "kubernetes") -> KubernetesSource:
    """The source of every kind of Istio's in a Kubernetes."""
    return KubernetesSource(access, name=name)
