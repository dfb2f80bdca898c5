"""The contract of sources and registries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

import attrs
import trio

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.model.events import EventSender, Item


class SourceStatistics(Protocol):
    """The statistics that every source has; each adds its own. A frozen value."""

    @property
    def items(self) -> int:
        """The number of items in force: sent and not deleted."""

    @property
    def rejected(self) -> int:
        """The number of rejections in force."""

    @property
    def synced(self) -> bool:
        """True once it has sent its first full picture since it last started."""

    @property
    def waiting_for(self) -> str:
        """The reason why it has not synced, for the operator; empty once it has."""


@runtime_checkable
class Staleness(Protocol):
    """More statistics, of a source whose feed can fall silent while its items are kept."""

    @property
    def stale_seconds(self) -> float:
        """The time for which the feed has not answered; 0 while it does."""

    @property
    def trouble(self) -> str:
        """The reason why it does not answer, or another failure; empty while all is well."""


@runtime_checkable
class Sighted(Protocol):
    """More statistics, of a source whose answers lack, without a word, what its credentials may not read."""

    @property
    def blindness(self) -> str:
        """Why something may be missing, with what to do; empty while nothing is."""

    @property
    def blind_seconds(self) -> float:
        """The seconds for which something may have been missing; 0 if nothing is."""


@runtime_checkable
class LeavesOut(Protocol):
    """A registry that knows instances which get no traffic."""

    def left_out(self, host: str) -> Sequence[str]:
        """A line for each of those of a host: which, where, in what state, and why."""


@runtime_checkable
class Watching(Protocol):
    """More statistics, of a source that lists and watches objects of an API server."""

    @property
    def watch_errors(self) -> int:
        """Lists and watches that failed, since the start."""


@runtime_checkable
class AwaitingPods(Protocol):
    """More statistics, of a source whose endpoints are of pods that it reads apart from them."""

    @property
    def pending_pods(self) -> int:
        """The pods with endpoints that wait for them."""


@attrs.frozen
class IgnoredKind:
    """Objects that a source does not read, because their kind is not one of Istio's."""

    api_version: str
    kind: str
    count: int
    first: str
    """File and line of the first of them."""
    reason: str
    """Why they are not read, and what to write instead; empty for kinds that no user would expect to be read."""


@runtime_checkable
class Ignoring(Protocol):
    """More statistics, of a source that may be given objects that it does not read."""

    @property
    def ignored(self) -> tuple[IgnoredKind, ...]: ...


@runtime_checkable
class Placed(Protocol):
    """More of a source whose picture is kept over restarts: what it reads, so that no other picture is taken for it."""

    @property
    def place(self) -> str:
        """All that decides what it reads, without secrets: ``Consul at http://127.0.0.1:8500``. It never changes."""


@runtime_checkable
class Seeded(Protocol):
    """More of a source that continues from the picture of an earlier run, such as key sets that it can't fetch now."""

    def seed(self, items: Sequence[Item]) -> None:
        """The restored picture, before the source is first run."""


class SyncStatus(StrEnum):
    """The state of a cluster, in istiod's words."""

    SYNCED = "synced"
    SYNCING = "syncing"
    TIMEOUT = "timeout"
    """The cluster's first picture has not come in time; it is served when it does."""
    CLOSED = "closed"
    """The cluster's kubeconfig cannot be used."""


@attrs.frozen
class ClusterStatus:
    """A cluster as it is now."""

    id: str
    origin: str
    """The place of its kubeconfig."""
    status: SyncStatus
    server: str
    """The URL of its API server; empty if its kubeconfig cannot be used."""
    trouble: str
    """The reason why something is not as it should be; empty while all is well."""


@runtime_checkable
class OtherClusters(Protocol):
    """More statistics, of the source that starts and ends those of other clusters."""

    @property
    def clusters(self) -> Sequence[ClusterStatus]: ...

    @property
    def rejected(self) -> int:
        """Kubeconfigs that are not used."""

    @property
    def timeouts(self) -> Mapping[str, int]:
        """First pictures that did not come in time, by cluster id."""

    @property
    def changes(self) -> Mapping[str, int]:
        """Kubeconfigs that came, changed or went."""


@runtime_checkable
class ClusterMember(Protocol):
    """More of a source of the services of one cluster."""

    cluster_id: str


class SourceError(Exception):
    """A source that can't be used as it is set up: what is wrong, in one line for the operator."""


class Registry(Protocol):
    """A kind of registry as it was set up: what the assembly of a control plane needs to know of it."""

    def check(self) -> None:
        """Raise SourceError for what a source would retry patiently, but which is a mistake at start."""

    def sources(self) -> Sequence[Source]:
        """The sources, in order of precedence."""

    def origins(self) -> Sequence[str]:
        """The origins of its services, for people: ``Consul at http://127.0.0.1:8500``."""

    def short_name_domain(self, *, is_alone: bool) -> str:
        """The DNS domain that bare host names in Istio objects belong to; empty: not one of this registry.

        `is_alone`: no other source has short names (see `ShortNames`).
        """


@runtime_checkable
class FollowsMesh(Protocol):
    """More of a source that depends on the mesh config, such as on its ``discoverySelectors``."""

    def mesh_changed(self, mesh: MeshConfig) -> None:
        """The mesh config in force, before the source first runs and after each change."""


@runtime_checkable
class ShortNames(Protocol):
    """A source in which bare host names mean services of the namespace that uses them, as in Kubernetes."""

    has_short_names: bool


class Source(Protocol):
    """A feed of events: owns its connection, and never lets one bad object stop the rest."""

    name: str
    """The name in its events, such as ``files``; unique in the process."""

    async def run(
        self,
        events: EventSender,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Send events until cancelled.

        `task_status` is started once it is at work, before it has synced. It retries what may come back; an error that
        it raises restarts it. It may be run again after it raised or was cancelled: it then sends its picture again,
        as a Replace, and Synced. Cancellation leaves nothing behind: what it knows is kept for the next run.
        """

    def statistics(self) -> SourceStatistics:
        """The source's statistics, at any time, running or not."""
