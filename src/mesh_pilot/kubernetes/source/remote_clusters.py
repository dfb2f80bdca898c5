"""Other clusters, whose services are read besides those of the own one. They come, change and go while we run.

Each is its own source, with a supervisor; this one starts and ends them as kubeconfigs say. Rules: Istio's
"Install Multicluster" and its remote secrets. A start waits for one that is away only a limited time; what
the others have is not touched by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import attrs
import structlog
import trio

from mesh_pilot.kubernetes.apiserver import Access, KubernetesError
from mesh_pilot.kubernetes.source.kubeconfigs import Kubeconfig, KubeconfigFeed, Kubeconfigs
from mesh_pilot.model.events import EventSender, SourceAdded, SourceRemoved, Synced
from mesh_pilot.sources.base.contract import ClusterStatus, Source, SyncStatus
from mesh_pilot.sources.base.supervisor import StateWriter, Supervisor

NAME = "clusters"
SYNC_SECONDS = 30.0
"""The time that a start waits for a cluster's first picture, as istiod does."""

log = structlog.get_logger(scope="sources")

MakeSource = Callable[[Access, str], Source]
"""The source of a cluster, by the way to it and its id."""


@attrs.frozen
class ClustersStatistics:
    items: int
    """Clusters in force."""
    rejected: int
    """Kubeconfigs that are not used."""
    synced: bool
    waiting_for: str
    clusters: tuple[ClusterStatus, ...]
    timeouts: Mapping[str, int]
    """The number of times that a first picture did not come in time, by cluster id."""
    changes: Mapping[str, int]
    """Kubeconfigs that came (``add``), changed (``update``) or went (``delete``)."""


@attrs.define(eq=False)
class _Cluster:
    """A cluster; without a supervisor if its kubeconfig cannot be used."""

    config: Kubeconfig
    digest: bytes
    server: str = ""
    supervisor: Supervisor | None = None
    trouble: str = ""
    """The reason why its kubeconfig, or a newer one, is not used."""
    is_restored: bool = False
    timed_out: bool = False
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event | None = None
    """Set when its source ended; None: it does not run."""

    @property
    def status(self) -> SyncStatus:
        if self.supervisor is None:
            return SyncStatus.CLOSED
        if self.supervisor.statistics().ever_synced:
            return SyncStatus.SYNCED
        return SyncStatus.TIMEOUT if self.timed_out else SyncStatus.SYNCING

    @property
    def is_waited_for(self) -> bool:
        return self.status is SyncStatus.SYNCING and not self.is_restored


class RemoteClusters:
    """The source of all other clusters: it has no objects itself, and passes on those of the clusters' sources.

    State: `_configs`, the kubeconfigs that there are; `_clusters` by id; those that are not used, with the reason.
    """

    name = NAME

    def __init__(
        self,
        feed: KubeconfigFeed,
        make_source: MakeSource,
        *,
        own_id: str = "",
        sync_seconds: float = SYNC_SECONDS,
    ) -> None:
        """``own_id``: the cluster that is read already, and wins over the others.

        ``sync_seconds``: how long the start waits for clusters; 0: forever.
        """
        self.state_writer: StateWriter | None = None
        """The writer of the clusters' pictures; None: they are not kept."""
        self._feed = feed
        self._make_source = make_source
        self._own_id = own_id
        self._sync_seconds = sync_seconds
        self._configs: Kubeconfigs = {}
        self._clusters: dict[str, _Cluster] = {}
        self._unused: dict[tuple[str, str], str] = {}
        """Why a kubeconfig is not used, by cluster id and origin."""
        self._timeouts: dict[str, int] = {}
        self._changes = {"add": 0, "update": 0, "delete": 0}
        self._is_listed = trio.Event()
        self._moved = trio.Event()
        """Set when a cluster has synced, or kubeconfigs were taken over, since it was made."""
        self._synced = False
        self._mesh: object = None
        self._events: EventSender | None = None
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<RemoteClusters {', '.join(f'{id}: {c.status}' for id, c in self._clusters.items())}>"

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """The supervisors of the clusters' sources."""
        return [c.supervisor for _, c in sorted(self._clusters.items()) if c.supervisor is not None]

    def statistics(self) -> ClustersStatistics:
        waiting = ""
        if not self._synced:
            names = sorted(id for id, cluster in self._clusters.items() if cluster.is_waited_for)
            waiting = self._feed.trouble or "kubeconfigs"
            if self._is_listed.is_set():
                waiting = f"clusters {', '.join(names)}"
        return ClustersStatistics(
            items=len(self.supervisors),
            rejected=len(self._unused) + sum(bool(c.trouble) for c in self._clusters.values()),
            synced=self._synced,
            waiting_for=waiting,
            clusters=tuple(_status(id, cluster) for id, cluster in sorted(self._clusters.items())),
            timeouts=dict(self._timeouts),
            changes=dict(self._changes),
        )

    def mesh_changed(self, mesh: object) -> None:
        """Tell the clusters' sources the mesh config in force."""
        self._mesh = mesh
        for supervisor in self.supervisors:
            _tell_mesh(supervisor.source, mesh)

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow kubeconfigs until cancelled. The clusters are kept for the next run."""
        self._events = events
        self._synced = False
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for cluster in self._clusters.values():
                self._start(cluster)
            nursery.start_soon(self._announce, events)
            nursery.start_soon(self._feed.run, self._put)
            task_status.started()

    async def _announce(self, events: EventSender) -> None:
        """Say that all clusters are there, or that the wait for them was long enough."""
        with trio.move_on_after(self._sync_seconds or float("inf")):
            await self._is_listed.wait()
            while any(cluster.is_waited_for for cluster in self._clusters.values()):
                await self._moved.wait()
        if not self._is_listed.is_set():
            log.error("kubeconfigs of clusters were not read in time; going on without", why=self._feed.trouble)
        self._synced = True
        await events.send(Synced(self.name))

    # -- kubeconfigs

    async def _put(self, configs: Kubeconfigs) -> None:
        """Take over all kubeconfigs that there are."""
        self._configs = configs
        wanted, unused = choose(configs, {id: c.config.origin for id, c in self._clusters.items()}, self._own_id)
        for (id, origin), reason in unused.items():
            if self._unused.get((id, origin)) != reason:
                log.warning("a kubeconfig is not used", cluster=id, origin=origin, why=reason)
        self._unused = unused
        for id in [id for id in self._clusters if id not in wanted]:
            await self._remove(id)
        for id, config in wanted.items():
            digest = hashlib.sha256(config.text).digest()
            known = self._clusters.get(id)
            if known is None or known.digest != digest:
                await self._use(config, digest, known)
            elif known.config.origin != config.origin:
                known.config = config
        self._is_listed.set()
        self._tell_moved()

    async def _use(self, config: Kubeconfig, digest: bytes, known: _Cluster | None) -> None:
        """Begin to read a cluster, or go on by another kubeconfig. One that can't be used changes nothing."""
        self._changes["add" if known is None else "update"] += 1
        try:
            access = config.access()
        except KubernetesError as error:
            effect = "the last kubeconfig stays in use" if known is not None and known.supervisor else "it is not read"
            log.error("a kubeconfig cannot be used", cluster=config.cluster_id, why=str(error), effect=effect)
            if known is None:
                self._clusters[config.cluster_id] = _Cluster(config, digest, trouble=str(error))
            else:
                known.config, known.digest, known.trouble = config, digest, str(error)
            return
        assert self._events is not None
        source = self._make_source(access, config.cluster_id)
        if self._mesh is not None:
            _tell_mesh(source, self._mesh)
        cluster = _Cluster(config, digest, access.server, Supervisor(source, self._events))
        if known is not None and known.supervisor is not None:
            await self._end(known)  # what it had is kept until the new one has its full picture
            if self.state_writer is not None:
                await self.state_writer.replaced(source)
            cluster.is_restored = known.is_restored
        else:
            await self._add(source, config.cluster_id, cluster)
        self._clusters[config.cluster_id] = cluster
        self._start(cluster)
        log.info("cluster", id=config.cluster_id, origin=config.origin, server=access.server)

    async def _add(self, source: Source, id: str, cluster: _Cluster) -> None:
        assert self._events is not None
        before = [c.supervisor.source.name for other, c in self._clusters.items() if c.supervisor and other < id]
        after = (self.name, *before)
        kept = await self.state_writer.added(source) if self.state_writer is not None else None
        if kept is None:
            await self._events.send(SourceAdded(source.name, after))
            return
        cluster.is_restored = True
        log.info("last picture restored", source=source.name, items=len(kept.items))
        await self._events.send(SourceAdded(source.name, after, kept.items, kept.confirmed_at))

    async def _remove(self, id: str) -> None:
        """End a cluster: its services go."""
        cluster = self._clusters.pop(id)
        self._changes["delete"] += 1
        if cluster.supervisor is None:
            return
        assert self._events is not None
        name = cluster.supervisor.source.name
        await self._end(cluster)
        if self.state_writer is not None:
            await self.state_writer.removed(name)
        await self._events.send(SourceRemoved(name))
        log.info("cluster removed", id=id, origin=cluster.config.origin)

    # -- tasks

    def _start(self, cluster: _Cluster) -> None:
        if cluster.supervisor is not None:
            assert self._nursery is not None
            cluster.scope, cluster.ended = trio.CancelScope(), trio.Event()
            self._nursery.start_soon(self._run_cluster, cluster, cluster.supervisor, cluster.scope, cluster.ended)

    async def _run_cluster(
        self, cluster: _Cluster, supervisor: Supervisor, scope: trio.CancelScope, ended: trio.Event
    ) -> None:
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_time, cluster, supervisor)
                    await supervisor.run()
                    nursery.cancel_scope.cancel()
        finally:
            ended.set()

    async def _watch_time(self, cluster: _Cluster, supervisor: Supervisor) -> None:
        """Note if the first picture of a cluster does not come in time."""
        with trio.move_on_after(self._sync_seconds or float("inf")):
            await supervisor.wait_synced()
            self._tell_moved()
            return
        id = cluster.config.cluster_id
        cluster.timed_out = True
        self._timeouts[id] = self._timeouts.get(id, 0) + 1
        why = _status(id, cluster).trouble
        log.error("a cluster was not read in time; it is served when it is", cluster=id, why=why)

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    async def _end(self, cluster: _Cluster) -> None:
        cluster.scope.cancel()
        if cluster.ended is not None:
            await cluster.ended.wait()


def choose(
    configs: Kubeconfigs, used: Mapping[str, str], own_id: str
) -> tuple[dict[str, Kubeconfig], dict[tuple[str, str], str]]:
    """The kubeconfig to use for each cluster, and those that are not used, by cluster id and origin, with the reason.

    ``used``: by cluster id the origin of the one in use, which stays.
    """
    wanted: dict[str, Kubeconfig] = {}
    unused: dict[tuple[str, str], str] = {}
    for origin in sorted(configs):
        for config in configs[origin]:
            id = config.cluster_id
            if own_id and id == own_id:
                unused[id, origin] = "it is the cluster that holds the configuration"
                continue
            known = wanted.get(id)
            if known is None:
                wanted[id] = config
            elif used.get(id) == origin:
                unused[id, known.origin] = f"the one of {origin} is in use"
                wanted[id] = config
            else:
                unused[id, origin] = f"the one of {known.origin} is in use"
    return wanted, unused


def _status(id: str, cluster: _Cluster) -> ClusterStatus:
    trouble = cluster.trouble
    if not trouble and cluster.supervisor is not None:
        own = cluster.supervisor.statistics()
        trouble = getattr(own.source, "trouble", "") or own.last_error
    return ClusterStatus(id, cluster.config.origin, cluster.status, cluster.server, trouble)


def _tell_mesh(source: Source, mesh: object) -> None:
    told: Callable[[object], None] | None = getattr(source, "mesh_changed", None)
    if told is not None:
        told(mesh)
