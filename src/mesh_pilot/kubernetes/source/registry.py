"""The services of a Kubernetes, as a source: a cluster is a registry.

Each resource has its own reflector, and they bring objects in any order: a Pod may come before the Node that says where
it is. So nothing is joined here. Objects go into `KubernetesServices`, which says which services an object is part of,
and those are sent again. Nothing is sent before every resource has been listed once: a Service without its slices would
look like one that has lost them.

A resource that may not be read, or that the server does not have, is told once and counts as empty. Objects that
cannot be read are refused one by one; their last good version stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.base.backoff import Backoff
from mesh_pilot.istio.kubernetes.cluster_sets import (
    ClusterSetMode,
    ServiceExportObject,
    ServiceImportObject,
    read_import,
)
from mesh_pilot.istio.kubernetes.objects import (
    EndpointsObject,
    NamespaceObject,
    NodeObject,
    PodObject,
    ServiceObject,
    object_name,
    read_object,
)
from mesh_pilot.istio.kubernetes.services import JoinedObject, KubernetesServices
from mesh_pilot.istio.kubernetes.validation import check_object
from mesh_pilot.istio.reading.problems import Problems, TooManyErrorsError, as_reported
from mesh_pilot.kubernetes.apiserver import Access, ApiClient, ApiResource, Object, reflect
from mesh_pilot.kubernetes.source.namespaces import NamespaceFilter
from mesh_pilot.kubernetes.source.troubles import ReadTroubles
from mesh_pilot.model.config import Problem
from mesh_pilot.model.events import Event, EventSender, Item, Synced, item_key
from mesh_pilot.sources.base.published import LocationContent, Precedence, PublishedState, ValidObject

log = structlog.get_logger(scope="sources")

SERVICES = ApiResource("", ("v1",), "services", "Service")
ENDPOINT_SLICES = ApiResource("discovery.k8s.io", ("v1beta1", "v1"), "endpointslices", "EndpointSlice")
ENDPOINTS = ApiResource("", ("v1",), "endpoints", "Endpoints")
PODS = ApiResource("", ("v1",), "pods", "Pod")
NODES = ApiResource("", ("v1",), "nodes", "Node", cluster_scoped=True)
NAMESPACES = ApiResource("", ("v1",), "namespaces", "Namespace", cluster_scoped=True)

SERVICE_EXPORTS = ApiResource("multicluster.x-k8s.io", ("v1alpha1", "v1beta1"), "serviceexports", "ServiceExport")
SERVICE_IMPORTS = ApiResource("multicluster.x-k8s.io", ("v1alpha1", "v1beta1"), "serviceimports", "ServiceImport")

TYPES: Mapping[str, type[JoinedObject]] = {
    "Service": ServiceObject,
    "EndpointSlice": EndpointsObject,
    "Endpoints": EndpointsObject,
    "Pod": PodObject,
    "Node": NodeObject,
    "Namespace": NamespaceObject,
    "ServiceExport": ServiceExportObject,
    "ServiceImport": ServiceImportObject,
}

UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that may serve."""

FEW = 200
"""Objects that are worked on without a look at other tasks."""

Location = tuple[str, str]
"""A kind and a name; the kind is empty for what a service comes to, with all that belongs to it."""


@attrs.frozen
class RegistryStatistics:
    items: int
    rejected: int
    synced: bool
    waiting_for: str
    stale_seconds: float
    """The time for which some kind can't be read; 0 while all can."""
    trouble: str
    server: str
    objects: Mapping[str, int]
    """Objects that are known, by kind."""
    pending_pods: int = 0
    """Pods with endpoints that wait for them."""
    watch_errors: int = 0
    """Lists and watches that failed, since the start."""


@attrs.frozen
class ObjectReading:
    """An object as it was read: all that is kept of it."""

    name: str
    version: str
    value: JoinedObject | None = None
    """None: it is of no use, or refused."""
    problems: tuple[Problem, ...] = ()


class KubernetesRegistrySource:
    """Sends the services of a cluster with their endpoints, and how they change.

    State: `_services`, the join of all objects; `_state`, what was published; `_names`, by kind, the objects that the
    server has; `_stale`, the services to look at; `_unlisted`, the kinds that this run has not listed yet; `_chosen`,
    the namespaces whose services count.
    """

    has_short_names = True

    def __init__(
        self,
        access: Access,
        *,
        cluster_id: str = "Kubernetes",
        domain: str = "cluster.local",
        system_namespace: str = "istio-system",
        cluster_set: ClusterSetMode = ClusterSetMode.OFF,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """``domain``: services are hosts below ``svc.`` of it. ``system_namespace``: its network is the cluster's.

        ``cluster_set``: how far ServiceExports and ServiceImports count. ``backoff`` makes one for each kind.
        """
        self.name = f"kubernetes/{cluster_id}"
        self.place = f"services of Kubernetes at {access.server} in {domain}"
        self.cluster_id = cluster_id
        self._access = access
        self._domain = domain
        self._backoff = backoff
        self._services = KubernetesServices(
            cluster_id=cluster_id, system_namespace=system_namespace, needs_pods=True, cluster_set=cluster_set
        )
        self._of_cluster_sets = () if cluster_set is ClusterSetMode.OFF else (SERVICE_EXPORTS, SERVICE_IMPORTS)
        self._state = PublishedState[Location](self.name, Precedence.FIRST, describe=self._describe)
        self._names: dict[str, set[str]] = {}
        self._stale: dict[str, None] = {}
        self._unlisted: set[str] = set()
        self._chosen = NamespaceFilter()
        self._mesh_changed = trio.Event()
        self._troubles = ReadTroubles(self.name)
        self._events: EventSender | None = None
        self._nursery: trio.Nursery | None = None
        self._client: ApiClient | None = None
        self._endpoints_scope: trio.CancelScope | None = None
        """The scope of the reflector of Endpoints, which runs where the server has no slices."""
        self._turn = trio.Lock()
        """Held while events are sent: what changes while the first picture is sent comes after it."""

    def __repr__(self) -> str:
        return f"<KubernetesRegistrySource {self.name}: {self._services!r}, {len(self._state.rejections())} refused>"

    def statistics(self) -> RegistryStatistics:
        is_announced = self._state.is_announced
        waiting = ""
        if not is_announced:
            waiting = self._troubles.reason or f"listing {', '.join(sorted(self._unlisted)) or 'all'}"
        return RegistryStatistics(
            items=len(self._state),
            rejected=len(self._state.rejections()),
            synced=is_announced,
            waiting_for=waiting,
            stale_seconds=self._troubles.seconds if is_announced else 0.0,
            trouble=self._troubles.reason,
            server=self._access.server,
            objects={kind: len(names) for kind, names in sorted(self._names.items()) if names},
            pending_pods=self._services.pending_pods(),
            watch_errors=self._troubles.count,
        )

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Read until cancelled. What is known is kept for the next run."""
        self._events, self._endpoints_scope = events, None
        always = (SERVICES, ENDPOINT_SLICES, PODS, NODES, NAMESPACES)
        self._unlisted = {each.kind for each in (*always, *self._of_cluster_sets)}
        self._state.restart()
        async with ApiClient(self._access) as self._client, trio.open_nursery() as self._nursery:
            for resource in (SERVICES, ENDPOINT_SLICES, NODES, *self._of_cluster_sets):
                self._nursery.start_soon(self._reflect, resource)
            self._nursery.start_soon(partial(self._reflect, PODS, field_selector=UNFINISHED))
            self._nursery.start_soon(partial(self._reflect, NAMESPACES, metadata_only=True))
            self._nursery.start_soon(self._follow_mesh)
            task_status.started()

    def mesh_changed(self, mesh: MeshConfig) -> None:
        """Only services of namespaces that ``discoverySelectors`` choose count."""
        self._turned(self._chosen.select(mesh.discovery_selectors))
        self._mesh_changed.set()

    async def _follow_mesh(self) -> None:
        while True:
            await self._mesh_changed.wait()
            self._mesh_changed = trio.Event()
            if self._state.is_announced:
                await self._settle()

    def _turned(self, namespaces: Collection[str]) -> None:
        """The services of these namespaces count now, or no longer."""
        if namespaces:
            found = (name for name in self._services.names() if name.partition("/")[0] in namespaces)
            self._stale |= dict.fromkeys(found)

    async def _reflect(self, resource: ApiResource, *, field_selector: str = "", metadata_only: bool = False) -> None:
        assert self._client is not None
        await reflect(
            self._client,
            resource,
            self,
            self._backoff(),
            field_selector=field_selector,
            metadata_only=metadata_only,
            transform=partial(self._read, resource.kind),
        )

    # -- what reflectors report

    async def listed(self, resource: ApiResource, version: str, objects: list[ObjectReading]) -> None:
        """All objects of a kind: those that are not among them are gone."""
        kind = resource.kind
        if kind == ENDPOINT_SLICES.kind and not self._has_slices(bool(version)):
            return
        if other := _IN_PLACE_OF.get(kind):
            await self._take(other, (), self._names.pop(other, ()), settle=False)
        if kind == NAMESPACES.kind:
            self._turned(self._chosen.replace({each.name: _labels_of(each) for each in objects}))
        before = self._names.get(kind, set())
        self._names[kind] = {found.name for found in objects}
        await self._take(kind, objects, before - self._names[kind])
        self._unlisted.discard(kind)
        await self._announce()

    async def changed(self, resource: ApiResource, version: str, found: ObjectReading | Object, *, there: bool) -> None:
        kind = resource.kind
        if kind == ENDPOINTS.kind and self._endpoints_scope is None:
            return
        names = self._names.setdefault(kind, set())
        if isinstance(found, ObjectReading) and there:
            names.add(found.name)
            if kind == NAMESPACES.kind:
                self._turned(self._chosen.put(found.name, _labels_of(found)))
            await self._take(kind, [found], (), _cause(found.version))
        elif not isinstance(found, ObjectReading):
            name = object_name(found)
            names.discard(name)
            if kind == NAMESPACES.kind:
                self._turned(self._chosen.put(name, None))
            version = found["metadata"].get("resourceVersion", "")  # none: a list lacks it
            is_deleted = kind == SERVICES.kind and bool(version)
            await self._take(kind, (), {name}, _cause(version), is_deleted=is_deleted)

    def lost(self, resource: ApiResource, reason: str) -> None:
        self._troubles.lost(resource.kind, reason)

    def found(self, resource: ApiResource) -> None:
        self._troubles.found(resource.kind)

    # -- Endpoints, where there are no slices

    def _has_slices(self, served: bool) -> bool:
        """Take note of whether the server has EndpointSlices: where it has none, Endpoints are read in their place."""
        if not served and self._endpoints_scope is None:
            assert self._nursery is not None
            log.info("server has no EndpointSlices; Endpoints are read", source=self.name)
            self._endpoints_scope = trio.CancelScope()
            self._unlisted.discard(ENDPOINT_SLICES.kind)
            self._unlisted.add(ENDPOINTS.kind)
            self._nursery.start_soon(self._reflect_endpoints, self._endpoints_scope)
        elif served and self._endpoints_scope is not None:
            self._endpoints_scope.cancel()
            self._endpoints_scope = None
            self._unlisted.discard(ENDPOINTS.kind)
        return served

    async def _reflect_endpoints(self, scope: trio.CancelScope) -> None:
        with scope:
            await self._reflect(ENDPOINTS)

    # -- objects

    def _read(self, kind: str, found: Object) -> ObjectReading:
        name, version = object_name(found), found["metadata"].get("resourceVersion", "")
        problems = Problems()
        try:
            with suppress(TooManyErrorsError):
                problems.take(check_object(kind, found, self._domain))
            if not problems:
                return ObjectReading(name, version, self._reduced(kind, found))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return ObjectReading(name, version, problems=(Problem("", f"is not a readable {kind}: {error}"),))
        return ObjectReading(name, version, problems=as_reported(problems, lambda _: 0))

    def _reduced(self, kind: str, found: Object) -> JoinedObject | None:
        if kind == SERVICE_IMPORTS.kind:
            return read_import(found, self.cluster_id)
        if kind == SERVICE_EXPORTS.kind:
            return ServiceExportObject()
        return read_object(kind, found, self._domain, self.cluster_id)

    async def _take(
        self,
        kind: str,
        read: Collection[ObjectReading],
        gone: Collection[str],
        cause: str = "",
        *,
        settle: bool = True,
        is_deleted: bool = False,
    ) -> None:
        """Take in what was read of a kind: what is refused stays as it was. ``settle``: publish what that changes.

        ``is_deleted``: the services that are gone were deleted, and their endpoints with them.
        """
        for count, name in enumerate(gone):
            self._stale |= dict.fromkeys(self._services.remove(TYPES[kind], name))
            await _breathe(count)
        for count, found in enumerate(read):
            if found.problems:
                continue
            if found.value is None:
                affected = self._services.remove(TYPES[kind], found.name)
            else:
                affected = self._services.put(found.name, found.value)
            if affected:
                self._stale |= dict.fromkeys(affected)
            await _breathe(count)
        if settle and self._state.is_announced:
            await self._settle(cause, gone if is_deleted else ())
        # Problems are told last, after what could be read is in force: a wrong object holds up no other one.
        readings: dict[Location, LocationContent | None] = {}
        for found in read:
            if found.problems:
                readings[kind, found.name] = LocationContent({}, found.problems)
            elif self._state.content((kind, found.name)).problems:
                readings[kind, found.name] = None
        readings |= dict.fromkeys((kind, name) for name in gone if self._state.content((kind, name)).problems)
        if readings:
            await self._send(self._state.update(readings, cause=cause))

    async def _settle(self, cause: str = "", deleted: Collection[str] = ()) -> None:
        """Publish the services that have changed."""
        count = 0
        while self._stale:
            name, _ = self._stale.popitem()
            items = self._services.items(name) if self._chosen.allows(name.partition("/")[0]) else ()
            content = _content(items) if items else None
            events = self._state.update({("", name): content}, cause=cause, explicit=name in deleted)
            if events:
                await self._send(events)
            count += 1
            await _breathe(count)

    async def _announce(self) -> None:
        """Send the first picture, once every kind has been listed."""
        if self._unlisted:
            return
        await self._settle()
        if self._state.is_announced or self._unlisted:
            return
        log.info(
            "initial sync complete",
            source=self.name,
            services=sum(1 for key in self._state.keys if key[0] == "service"),
            rejected=len(self._state.rejections()),
        )
        await self._send([*self._state.announce(), Synced(self.name)])

    def _describe(self, location: Location) -> str:
        """``https://10.0.0.1:6443/api/v1/services shop/web``."""
        kind, name = location
        resource = _RESOURCES[kind or SERVICES.kind]
        return f"{self._access.server}{resource.path(resource.versions[-1])} {name}"

    async def _send(self, events: Sequence[Event]) -> None:
        assert self._events is not None
        async with self._turn:
            for event in events:
                await self._events.send(event)


_IN_PLACE_OF = {ENDPOINT_SLICES.kind: ENDPOINTS.kind, ENDPOINTS.kind: ENDPOINT_SLICES.kind}

_RESOURCES = {
    each.kind: each
    for each in (SERVICES, ENDPOINT_SLICES, ENDPOINTS, PODS, NODES, NAMESPACES, SERVICE_EXPORTS, SERVICE_IMPORTS)
}


async def _breathe(count: int) -> None:
    if count % FEW == FEW - 1:
        await trio.lowlevel.checkpoint()


def _labels_of(found: ObjectReading) -> Mapping[str, str]:
    return found.value.labels if isinstance(found.value, NamespaceObject) else {}


def _cause(version: str) -> str:
    return f"resourceVersion {version}" if version else ""


def _content(items: Iterable[Item]) -> LocationContent:
    return LocationContent({key: ValidObject(key, item) for item in items for key in (item_key(item),)})
