"""What a stream sees of the world: for each type, a live set of resources that one kind of proxy may have.

The engine implements these protocols; the state machine reads them. Sets are shared by all proxies of a scope, so
a change is worked out once, and a stream asks only "what was touched since I last looked?".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Protocol

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import Resource


class Part(Protocol):
    """A share of a set's resources, the same object for all proxies that have it in common."""

    def refresh(self) -> int: ...

    def all(self) -> Mapping[str, Resource]: ...

    def touched_since(self, revision: int) -> Set[str] | None: ...


class ResourceSet(Protocol):
    """The resources of one type. All calls are synchronous and cheap when nothing changed."""

    @property
    def type_url(self) -> str: ...

    @property
    def parts(self) -> Sequence[Part]:
        """What the set is joined from, with names apart; only itself where there is nothing to share. Sets with the
        same parts at the same revisions hold the same."""
        ...

    def refresh(self) -> int:
        """Bring the set up to date with the world and return its revision, which grows when anything changed."""
        ...

    def work(self, names: frozenset[str]) -> Iterator[None]:
        """Make what a reader needs, one resource a step: all, and what is there of these names. What was made is not
        made again. May be left at any step: whoever reads without it has the set do the work at once."""
        ...

    def all(self) -> Mapping[str, Resource]:
        """Everything a wildcard subscription gets, by name, in no order that means anything. Never changed in place."""
        ...

    def get(self, name: str) -> Resource | None:
        """One resource by name (also one that no wildcard gives, such as an on-demand route), or None."""
        ...

    def touched_since(self, revision: int) -> Set[str] | None:
        """Names added, changed or removed after ``revision``; None when that is too long ago to know (compare all)."""
        ...


class ProxyResources(Protocol):
    """All that one connected proxy may be sent. Opened when a stream starts, closed when it ends."""

    def set(self, type_url: str) -> ResourceSet | None:
        """The set of a type as it is for this proxy now (it may be another object after the proxy's scope changed:
        then ``touched_since`` of an old revision gives None); None for a type that is not served."""
        ...

    def watch(self, wake: Callable[[], None], wanted: Callable[[str], Set[str]]) -> None:
        """Call ``wake`` (synchronously, from the reducer; it must not block) when a set that was read may have
        changed. At most once until the set is refreshed again. ``wanted`` gives, for a type, the names that are
        followed besides what the wildcard gives: of others that were once read nothing need be kept."""
        ...

    def close(self) -> None:
        """Nothing is watched any more."""
        ...


class Catalog(Protocol):
    """Where streams get their resources: implemented over the World."""

    def open(self, proxy: Proxy) -> ProxyResources:
        """The resources of a proxy."""
        ...
