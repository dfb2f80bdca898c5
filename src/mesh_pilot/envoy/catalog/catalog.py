"""Where streams get their resources: each connected proxy's sets over the World, shared wherever they can be."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from functools import partial
from typing import Any

import attrs

from mesh_pilot.envoy.catalog.diagnostics import Diagnostics
from mesh_pilot.envoy.catalog.failures import FailingSet, Failure, Failures, StandingFailure
from mesh_pilot.envoy.catalog.generators import PartKey, Parts, hosts_of, parts_of
from mesh_pilot.envoy.catalog.resource_sets import AT_ONCE, JoinedSet, LiveSet, Part
from mesh_pilot.envoy.catalog.table_sets import TableSets
from mesh_pilot.envoy.clusters.placeholders import no_endpoints, placeholder
from mesh_pilot.envoy.envoy_filter.parse import filter_problems
from mesh_pilot.envoy.envoy_filter.patch import PatchProblem
from mesh_pilot.envoy.envoy_filter.plans import plan_problems, table_problems
from mesh_pilot.incremental import ByName, Query, Watch
from mesh_pilot.mesh.proxy.registration import RegistrationClaim
from mesh_pilot.mesh.proxy.scope import PlanShards, ProxyFacts, ProxyKeys, proxy_facts, proxy_keys
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import SECRET, VIRTUAL_HOST, Resource
from mesh_pilot.model.spiffe import parse_identity
from mesh_pilot.security.secrets import IdentitySet, Issuer
from mesh_pilot.snapshots import NO_NAMES, SnapshotStore
from mesh_pilot.world import World

_OF_ITS_OWN: Mapping[str, Any] = {
    "claim": RegistrationClaim((), ""),
    "name": "",
    "ip_addresses": (),
    "labels": frozenset(),
    "service_account": "",
    "texts": frozenset(),
}
"""What most proxies have for themselves alone."""


@attrs.frozen
class CatalogStatistics:
    proxies: int
    """Proxies that have their resources open."""
    sets: int
    """Live sets held, shared by those proxies."""
    idle_sets: int
    """Sets kept warm for a reconnect, read by nobody."""


class WorldCatalog:
    """Opens the resources of proxies over one World."""

    def __init__(self, world: World, issuer: Issuer | None = None, *, split: bool = False) -> None:
        """``issuer`` gives proxies whose identity is known their certificates; without one there are none. With
        ``split`` those that can take virtual hosts by themselves get them so, unless they say otherwise."""
        self._world = world
        self._split = split
        self._issuer = issuer
        self._sets: dict[PartKey, LiveSet] = {}
        self._idle: dict[PartKey, bool] = {}
        """Sets without readers; True once a ``trim`` has seen them so."""
        self._open: dict[WorldResources, None] = {}
        self.failed = Failures()
        self.snapshots = SnapshotStore()

    def open(
        self,
        proxy: Proxy,
        wake: Callable[[], None] = lambda: None,
        requested: Callable[[str], frozenset[str]] = lambda _: NO_NAMES,
    ) -> WorldResources:
        """See ``xds.resources.Catalog``."""
        identity = parse_identity(proxy.identity)
        own = self._issuer.secrets_of(identity) if self._issuer and identity else None
        resources = WorldResources(self, proxy_facts(proxy, split=self._split), own, wake, requested)
        self._open[resources] = None
        return resources

    def placeholder_cluster(self, name: str) -> Resource:
        return placeholder(name)

    def no_endpoints(self, cluster: str) -> Resource:
        return no_endpoints(cluster)

    def diagnostics(self) -> Diagnostics:
        """Problems of the connected proxies."""
        return Diagnostics(self._world.memo.view, self._open)

    def failures(self) -> list[StandingFailure]:
        """What cannot be generated because of an error of ours, and which connected proxies lack it."""
        found: dict[Failure, set[str]] = {}
        for failing, failure in self.failed.standing():
            found.setdefault(failure, set()).update(
                reader.name
                for reader in failing.readers()
                if isinstance(reader, WorldResources) and reader.concerns(failing, failure)
            )
        return [StandingFailure(failure, tuple(sorted(names))) for failure, names in found.items() if names]

    def trim(self) -> None:
        """Let go of sets that nobody has read since the last call, and of names that nobody asks for any more."""
        for _ in self.trim_slowly():
            pass

    def trim_slowly(self) -> Iterator[int]:
        """As ``trim``, in steps that take no time to speak of. Each gives the number of derived values it forgot.

        Streams may be served between two steps. Call it every half a minute or so.
        """
        idle = [part for part, seen in self._idle.items() if seen]
        for part in self._idle:
            self._idle[part] = True
        for part in idle:
            if self._idle.pop(part, None) is not None:
                yield from self._forget(self._sets.pop(part).close())
        for part, live in list(self._sets.items()):
            yield from self._forget(live.keep(partial(_requested_of, live, part[0])))
        yield from self._forget(iter(()))

    def _forget(self, dropping: Iterator[None]) -> Iterator[int]:
        """Forget the derived values that nothing needs once something is dropped, step by step."""
        memo = self._world.memo
        for _ in dropping:
            yield memo.collect(AT_ONCE)
        while memo.orphans:
            yield memo.collect(AT_ONCE)

    def scope_of(self, proxy: Proxy) -> Hashable:
        """What decides which resources are made for a proxy besides its own: two that have it in common share them."""
        facts = proxy_facts(proxy, split=self._split)
        return attrs.evolve(facts, **_OF_ITS_OWN)

    def statistics(self) -> CatalogStatistics:
        return CatalogStatistics(len(self._open), len(self._sets), len(self._idle))

    def _attach(self, part: PartKey, reader: WorldResources) -> LiveSet:
        live = self._sets.get(part)
        if live is None:
            live = self._sets[part] = LiveSet(self._world.memo, *part, self.snapshots, self.failed)
        self._idle.pop(part, None)
        live.attach(reader, reader.wake)
        return live

    def _detach(self, part: PartKey, reader: WorldResources) -> None:
        if self._sets[part].detach(reader):
            self._idle[part] = False


class WorldResources:
    """One proxy's resources: implements ``xds.resources.ProxyResources``."""

    def __init__(
        self,
        catalog: WorldCatalog,
        facts: ProxyFacts,
        own: IdentitySet | None,
        wake: Callable[[], None],
        requested: Callable[[str], frozenset[str]],
    ) -> None:
        self.wake = wake
        """Called by every set that may have changed. Nothing stands between a set and the session that it wakes."""
        self.requested = requested
        """The names of a type that the proxy requests now."""
        self._catalog = catalog
        self._own = own
        self._world = catalog._world
        self._facts = facts
        self._watch = Watch(self._world.memo, self._retarget)
        self._target: ProxyKeys | None = None
        self._stale = True
        self._parts: Parts = {}
        self._sets: dict[str, JoinedSet] = {}
        self._hosts: ByName[PlanShards] | None = None
        self._host_sets: TableSets | None = None

    def __repr__(self) -> str:
        return f"<WorldResources of {self._facts.name} open={sorted(self._sets)}>"

    @property
    def name(self) -> str:
        """The proxy's."""
        return self._facts.name

    @property
    def target(self) -> ProxyKeys:
        """The proxy as translators see it now."""
        return self._follow_target()

    def _follow_target(self) -> ProxyKeys:
        """Bring the parts up to date with the proxy's target."""
        if self._stale or self._target is None:
            self._stale = False
            self._watch.take()
            target = self._watch.get(proxy_keys.query(self._facts))
            if target != self._target:
                self._leave_all()
                self._target = target
                self._parts = parts_of(target)
                self._hosts = hosts_of(target)
        assert self._target is not None
        return self._target

    def set(self, type_url: str) -> JoinedSet | TableSets | None:
        self._follow_target()
        if type_url == VIRTUAL_HOST:
            return self._virtual_hosts()
        joined = self._sets.get(type_url)
        if joined is None:
            parts = self._parts.get(type_url)
            if parts is None:
                return None
            live: tuple[Part, ...] = tuple(self._catalog._attach(p, self) for p in parts)
            if type_url == SECRET and self._own is not None:
                self._own.attach(self, self.wake)
                live = (self._own, *live)
            joined = self._sets[type_url] = JoinedSet(self._catalog.snapshots, type_url, live)
        return joined

    def patch_problems(self, seen: dict[PartKey, tuple[PatchProblem, ...]] | None = None) -> tuple[PatchProblem, ...]:
        """What EnvoyFilters could not do to what this proxy has; found by looking at all of it.

        ``seen`` keeps what was found in parts that other proxies share, for a look at many; it is good until the
        next change.
        """
        target = self.target
        if not target.filters:
            return ()
        view = self._world.memo.view
        seen = {} if seen is None else seen
        found = dict.fromkeys(filter_problems(view, target.filters))
        tables = self._host_sets.tables if self._host_sets is not None else ()
        for part in (*(p for parts in self._parts.values() for p in parts), *map(self._hosts_part, tables)):
            if part not in seen:
                seen[part] = tuple(self._problems_of(part))
            found.update(dict.fromkeys(seen[part]))
        return tuple(found)

    def _problems_of(self, part: PartKey) -> Iterator[PatchProblem]:
        view, (_, query) = self._world.view, part
        if isinstance(query, Query):
            return plan_problems(view, query)
        live = self._catalog._sets.get(part)
        return table_problems(view, query, live.asked() if live is not None else ())

    def concerns(self, failing: FailingSet, failure: Failure) -> bool:
        """Whether the proxy has the resource, or would; it reads the set."""
        return failing.is_plan or failure.resource in self.requested(failure.type_url)

    def close(self) -> None:
        self._leave_all()
        self._watch.close()
        self.wake = lambda: None
        self.requested = lambda _: NO_NAMES
        self._catalog._open.pop(self, None)

    def _virtual_hosts(self) -> TableSets | None:
        if self._hosts is not None and self._host_sets is None:
            self._host_sets = TableSets(
                self._catalog.snapshots,
                partial(self.requested, VIRTUAL_HOST),
                lambda table: self._catalog._attach(self._hosts_part(table), self),
                lambda table: self._catalog._detach(self._hosts_part(table), self),
            )
        return self._host_sets

    def _hosts_part(self, table: str) -> PartKey:
        assert self._hosts is not None
        return (VIRTUAL_HOST, self._hosts.query(table))

    def _leave_all(self) -> None:
        for type_url in list(self._sets):
            self._leave(type_url)
        if self._host_sets is not None:
            self._host_sets.close()
            self._host_sets = None

    def _leave(self, type_url: str) -> None:
        del self._sets[type_url]
        for part in self._parts[type_url]:
            self._catalog._detach(part, self)
        if type_url == SECRET and self._own is not None:
            self._own.detach(self)

    def _retarget(self) -> None:
        self._stale = True
        self.wake()


def _requested_of(live: LiveSet, type_url: str) -> Set[str]:
    """The names of a type that the readers of a set request now."""
    # Proxies of a scope mostly request the very same set of names.
    requested = (reader.requested(type_url) for reader in live.readers() if isinstance(reader, WorldResources))
    return frozenset().union(*{id(names): names for names in requested}.values())
