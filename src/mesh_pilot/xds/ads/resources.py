"""The resources that a stream serves: what the state machine asks of whatever generates them.

The catalog implements these protocols over the World. Sets are shared by all proxies of a scope, so a change is worked
out once; a stream compares the snapshot it is given with the one that its client holds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Protocol

from mesh_pilot.engine.patched import Names
from mesh_pilot.engine.snapshots import Snapshot, SnapshotStore
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import Resource


class TypeResources(Protocol):
    """The resources of one type for one proxy. All calls are synchronous, and cheap when nothing changed."""

    def snapshot(self) -> Snapshot:
        """Everything that a wildcard subscription gets now; the same object until that changes."""
        ...

    def select(self, names: Names) -> Snapshot:
        """The resources of these names now, also ones that no wildcard subscription gets, such as route tables."""
        ...

    def get(self, name: str) -> Resource | None:
        """One resource by name, or None."""
        ...

    def awaited(self) -> frozenset[str]:
        """The names that do not exist yet but will, such as a certificate that is being signed.

        A client that requests them is not told that there is none: Envoy would go on without.
        """
        ...

    def work(self, names: Names) -> Iterator[None]:
        """Generate what ``snapshot`` and ``select`` will need, one resource a step, and nothing twice.

        May be left at any step: reading generates at once what is missing.
        """
        ...


class ProxyResources(Protocol):
    """All that one connected proxy may be sent. Opened when a stream starts, closed when it ends."""

    @property
    def is_known(self) -> bool:
        """False until it could be made out, for the first time, what the proxy is sent. It is sent nothing before."""
        ...

    def set(self, type_url: str) -> TypeResources | None:
        """The resources of a type, None for one that is not served. Another object once the proxy's scope changed."""
        ...

    def explained(
        self, held: Mapping[str, Resource], type_url: str, seen: dict[Hashable, Mapping[str, Resource]] | None = None
    ) -> Mapping[str, Resource]:
        """The resources of a type that the proxy holds, each with the objects that it has it from.

        Resources with equal bytes are one object for all proxies, and name the objects of the first. ``seen`` shares
        what proxies have in common among the answers to one question. A thread may read the result.
        """
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


class Catalog(Protocol):
    """Where streams get their resources."""

    @property
    def snapshots(self) -> SnapshotStore:
        """The store of all snapshots that it hands out. Streams add what their clients hold."""
        ...

    def open(self, proxy: Proxy, wake: Callable[[str], None], requested: Callable[[str], Names]) -> ProxyResources:
        """The resources of a proxy.

        ``wake`` is called from the reducer with the type of a set that was read and may have changed, at most once
        until it is read again; with an empty text if all sets may be others. It must not block. ``requested`` gives the
        names of a type that the proxy requests now; resources that no proxy requests any more are not kept.
        """
        ...

    def placeholder_cluster(self, name: str) -> Resource:
        """A cluster that keeps one of its name in service at a client while it waits for endpoints (decision 011)."""
        ...

    def no_endpoints(self, cluster: str) -> Resource:
        """The endpoints of a cluster that has none."""
        ...
