"""The source of configuration in a Kubernetes: Istio's objects, credentials, and the mesh config.

Theory of operation
===================

Each resource has its own reflector and task. What they say is taken in by one at a time (``turn``), so that
events go out in the order in which the state changed, and whoever is cancelled is not in the middle of it.

* *First the choice, then the objects.* The mesh config may choose namespaces (``discoverySelectors``). So its maps and
  the namespaces are read before the kinds: otherwise objects would be published only to be taken back.
* *Kinds come and go.* Which of Istio's kinds a server has is asked for when its CRDs change. A kind that is gone takes
  its objects along, but only after a second look: a server that starts may not know its CRDs yet.
* *Deleted or lost.* That an object is gone counts as somebody's deletion only if an event says so; what a list lacks
  after an outage may be a loss, and the World's guard may keep it (``deletions``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog
import trio

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import Access, ApiClient, ApiResource, KubernetesError, Object, reflect
from mesh_pilot.kubernetes.source.deletions import StandingKinds
from mesh_pilot.kubernetes.source.discovery import CRDS, DOUBT_SECONDS, CrdWatch, served_versions, tell_missing
from mesh_pilot.kubernetes.source.listening import TurnListener, map_title, title_of
from mesh_pilot.kubernetes.source.mesh_maps import CONFIG_MAPS, MESH, MeshMaps, problems_of
from mesh_pilot.kubernetes.source.namespaces import NamespaceFilter
from mesh_pilot.kubernetes.source.objects import LeftOut, SourceObjects
from mesh_pilot.kubernetes.source.readers import (
    resource_of,
)
from mesh_pilot.kubernetes.source.secret_accounts import SecretAccounts
from mesh_pilot.kubernetes.source.selection import ConfigSelection, KubernetesStatistics, ObjectObserver
from mesh_pilot.kubernetes.source.troubles import ReadTroubles
from mesh_pilot.model.events import Event, EventSender, MeshConfigValue, Synced

log = structlog.get_logger(scope="sources")

NAMESPACES = ApiResource("", ("v1",), "namespaces", "Namespace", cluster_scoped=True)

SETTLING_SECONDS = 1.0
"""The wait for more namespaces to be chosen or left out, before all is listed again."""


_KINDS, _NAMESPACES = "kinds", "namespaces"
"""Titles of what the source waits for in addition to the resources."""


class KubernetesSource:
    """Sends the configuration in a Kubernetes and how it changes.

    State: `_objects`, what is known of the objects, which survives a restart; `_served`, the resources that the server
    has, each with the task that reads it; `_missing`, the others; `_unlisted`, what this run has not listed yet;
    `_troubles`, since when and why something can't be read.
    """

    has_short_names = True

    def __init__(
        self,
        access: Access,
        *,
        name: str = "kubernetes",
        selection: ConfigSelection | None = None,
        backoff: Callable[[], Backoff] = Backoff,
        observer: ObjectObserver | None = None,
        accounts: SecretAccounts | None = None,
        client: Callable[[Access], ApiClient] = ApiClient,
    ) -> None:
        """``backoff`` makes one for each resource."""
        self.name = name
        self._selection = selection = selection or ConfigSelection()
        self.place = f"Kubernetes at {access.server}"
        if selection.revision:
            self.place += f", revision {selection.revision}"
        self._access = access
        self._backoff = backoff
        self._accounts = accounts
        if accounts is not None:
            accounts.is_used = True
        self._client = client
        self._removed = frozenset(resource_of(kind) for kind in selection.kinds.values() if kind.legacy)
        """Resources of kinds that Istio has no more: a server need not have them."""
        self._maps = MeshMaps(selection.mesh, name, access.server) if selection.mesh is not None else None
        self._namespaces = NamespaceFilter()
        self._objects = SourceObjects(name, access.server, selection, self._namespaces, self._send, observer, accounts)
        self._state, self._readers = self._objects.state, self._objects.readers
        self._served: dict[ApiResource, trio.CancelScope] = {}
        self._missing: frozenset[ApiResource] | None = None
        self._unlisted: set[str] = set()
        self._troubles = ReadTroubles(name)
        self._events: EventSender | None = None
        self._crds = CrdWatch(self._readers)
        self._standing: StandingKinds | None = None
        self._news = trio.Event()
        """Set when something is listed, or namespaces are chosen."""
        self._turned: set[str] = set()
        self.turn = trio.Lock()
        """Held while something that the server said is taken in and told: no task is cancelled in the middle of it."""

    def __repr__(self) -> str:
        return f"<KubernetesSource {self.name}: {len(self._state)} objects, {len(self._state.rejections())} refused>"

    def statistics(self) -> KubernetesStatistics:
        reason = self._troubles.reason
        is_announced = self._state.is_announced
        counts = Counter(key[1] if key[0] == "config" else key[0] for key in self._state.keys)
        left_out = self._objects.left_out()
        return KubernetesStatistics(
            items=len(self._state),
            rejected=len(self._state.rejections()),
            synced=is_announced,
            waiting_for="" if is_announced else reason or f"listing {', '.join(sorted(self._unlisted))}",
            stale_seconds=self._troubles.seconds if is_announced else 0.0,
            trouble=reason,
            server=self._access.server,
            kinds={kind: counts[kind] for kind in sorted(counts)},
            watch_errors=self._troubles.count,
            missing=tuple(sorted(resource.kind for resource in (self._missing or frozenset()) - self._removed)),
            other_revisions=left_out[LeftOut.REVISION],
            other_namespaces=left_out[LeftOut.NAMESPACE],
        )

    def mesh_changed(self, mesh: MeshConfig) -> None:
        """The mesh config in force: its ``discoverySelectors`` choose the namespaces that are read."""
        self._turned |= self._namespaces.select(mesh.discovery_selectors)
        self._news.set()

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Read until cancelled. What is known is kept for the next run."""
        self._events = events
        self._served.clear()
        self._troubles.clear()
        self._state.restart()
        names = self._maps.names if self._maps is not None else ()
        self._unlisted = {*map(map_title, names), _KINDS}
        async with self._client(self._access) as client, trio.open_nursery() as nursery:
            self._standing = StandingKinds(client)
            for name in names:
                nursery.start_soon(self._reflect_map, client, name)
            nursery.start_soon(self._choose_namespaces, client)
            nursery.start_soon(self._follow_kinds, client, nursery)
            nursery.start_soon(self._announce)
            if self._accounts is not None:
                nursery.start_soon(self._accounts.run, client, self._grant)
            task_status.started()

    # -- tasks

    async def _reflect_map(self, client: ApiClient, name: str) -> None:
        assert self._selection.mesh is not None
        await reflect(
            client,
            CONFIG_MAPS,
            TurnListener(self, map_title(name), partial(self._take_map, name)),
            self._backoff(),
            namespace=self._selection.mesh.namespace,
            field_selector=f"metadata.name={name}",
        )

    async def _choose_namespaces(self, client: ApiClient) -> None:
        """Read the namespaces, once there are selectors."""
        await self._until(lambda: self._namespaces.is_needed)
        await reflect(
            client,
            NAMESPACES,
            TurnListener(self, _NAMESPACES, self._take_namespaces),
            self._backoff(),
            metadata_only=True,
        )

    async def _follow_kinds(self, client: ApiClient, nursery: trio.Nursery) -> None:
        """Read the kinds that the server has, once it is known of which namespaces."""
        await self._until(lambda: self._unlisted <= {_KINDS} and self._namespaces.is_ready)
        self._turned.clear()
        nursery.start_soon(self._follow_choice)
        nursery.start_soon(partial(reflect, client, CRDS, self._crds, self._backoff(), metadata_only=True))
        backoff = self._backoff()
        while True:
            try:
                served = await served_versions(client, self._readers)
                if any(map(self._crds.may_come_back, self._held() - served.keys())):
                    await trio.sleep(DOUBT_SECONDS)
                    served = await served_versions(client, self._readers)
            except KubernetesError as error:
                self.lost(_KINDS, str(error))
                await trio.sleep(backoff.next_seconds())
                continue
            backoff.reset()
            async with self.turn:
                self.found(_KINDS)
                await self._serve(client, nursery, served)
            await self._crds.wait(self._served)

    def _held(self) -> set[ApiResource]:
        """The resources that are read, or were by an earlier run."""
        return {
            resource for resource, versions in self._objects.versions.items() if versions or resource in self._served
        }

    async def _serve(
        self, client: ApiClient, nursery: trio.Nursery, found: Mapping[ApiResource, frozenset[str]]
    ) -> None:
        """Begin to read what the server has now, and stop to read what it has no more."""
        served = {resource for resource, versions in found.items() if versions & {*resource.versions}}
        for resource in sorted(self._held() - served, key=title_of):
            if resource in self._served:
                self._served.pop(resource).cancel()
            await self._take_objects(resource, "", [], None)
            self.found(title_of(resource))
            self.listed(title_of(resource))
        for resource in self._readers:
            if resource in served and resource not in self._served:
                scope = self._served[resource] = trio.CancelScope()
                if not self._state.is_announced:
                    self._unlisted.add(title_of(resource))
                nursery.start_soon(self._reflect, client, resource, scope)
        missing = frozenset(self._readers.keys() - served)
        tell_missing(self.name, self._missing, missing, self._removed)
        self._missing = missing
        self.listed(_KINDS)

    async def _reflect(self, client: ApiClient, resource: ApiResource, scope: trio.CancelScope) -> None:
        """Read a resource for as long as the server has it; all again each time that its scope is cancelled."""
        reader = self._readers[resource]
        while self._served.get(resource) is scope:
            with scope:
                await reflect(
                    client,
                    resource,
                    TurnListener(self, title_of(resource), self._take_objects),
                    self._backoff(),
                    field_selector=reader.field_selector,
                    metadata_only=reader.metadata_only,
                )
            if self._served.get(resource) is scope:
                scope = self._served[resource] = trio.CancelScope()

    async def _follow_choice(self) -> None:
        """Drop the objects of namespaces that are not read any more, and list all again for those that are now."""
        while True:
            await self._until(lambda: bool(self._turned))
            await trio.sleep(SETTLING_SECONDS)
            async with self.turn:
                turned, self._turned = self._turned, set()
                away = {namespace for namespace in turned if not self._namespaces.allows(namespace)}
                await self._objects.leave_out(away)
                log.info("namespaces chosen again", source=self.name, left_out=sorted(away), read=sorted(turned - away))
                if turned - away:
                    for scope in self._served.values():
                        scope.cancel()

    async def _announce(self) -> None:
        """Send the first picture, once it is whole."""
        await self._until(lambda: not self._unlisted)
        async with self.turn:
            log.info(
                "initial sync complete",
                source=self.name,
                objects=len(self._state),
                rejected=len(self._state.rejections()),
            )
            await self._send([*self._state.announce(), Synced(self.name)])

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._news = trio.Event() if self._news.is_set() else self._news
            await self._news.wait()

    # -- what the server says; all of it with `turn` held

    async def _take_map(
        self, name: str, resource: ApiResource, version: str, objects: Sequence[Object], there: bool | None
    ) -> None:
        assert self._maps is not None
        ours = [found for found in objects if found["metadata"]["name"] == name]
        for setting in self._maps.put(name, ours[0] if ours and there is not False else None):
            key = ("mesh",) if setting.key == MESH else ("networks",)
            if setting.error is not None:
                line, problems = problems_of(setting.error)
                await self._send(self._state.refuse(key, problems, line=line, key=key))
            elif setting.item is None:
                await self._send(self._state.drop(key))
            else:
                await self._send(self._state.put(key, [setting.item]))
            if isinstance(setting.item, MeshConfigValue):
                self.mesh_changed(setting.item.config)

    async def _take_namespaces(
        self, resource: ApiResource, version: str, objects: Sequence[Object], there: bool | None
    ) -> None:
        labels = {found["metadata"]["name"]: found["metadata"].get("labels") or {} for found in objects}
        if there is None:
            self._turned |= self._namespaces.replace(labels)
        for name, each in labels.items() if there is not None else ():
            self._turned |= self._namespaces.put(name, each if there else None)
        self._news.set()

    async def _take_objects(
        self, resource: ApiResource, version: str, objects: Sequence[Object], there: bool | None
    ) -> None:
        await self._objects.take(resource, version, objects, there, self._standing)
        if not version:
            self._crds.wake()

    async def _grant(self, namespace: str) -> None:
        async with self.turn:
            await self._objects.grant(namespace)

    # -- telling

    def listed(self, title: str) -> None:
        """All of something was taken in."""
        self._unlisted.discard(title)
        self._news.set()

    def lost(self, title: str, reason: str) -> None:
        self._troubles.lost(title, reason)

    def forbidden(self, resource: ApiResource, title: str) -> None:
        """A kind that we may not read, and can do without, does not hold up the start: permissions may be older."""
        reader = self._readers.get(resource)
        if reader is not None and reader.is_optional:
            self.listed(title)

    def found(self, title: str) -> None:
        self._troubles.found(title)

    async def _send(self, events: Sequence[Event]) -> None:
        assert self._events is not None
        for event in events:
            await self._events.send(event)


def kubernetes_source(access: Access, *, name: str = "kubernetes", revision: str = "") -> KubernetesSource:
    """The source of every kind of configuration in a Kubernetes; credentials and ConfigMaps are not read."""
    return KubernetesSource(access, name=name, selection=ConfigSelection(revision=revision))
