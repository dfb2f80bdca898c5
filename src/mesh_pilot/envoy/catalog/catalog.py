"""The catalog of streams: each connected proxy's sets of resources over the World, shared wherever possible.

A set belongs to a query and not to a proxy: proxies whose targets lead to the same query read the same set. So a change
costs the ways in which proxies differ, not their number; sets for each proxy would make, compare and keep the same
resources once for each. What its own proxy has, its certificate and its agent's settings, is a set next to the
shared ones (``joined_sets``).

Translators, with Envoy's messages, are imported inside: a plane has them once the first proxy is there.

A set without readers is dropped at the second look that finds it idle: a proxy that reconnects at once, or whose scope
changes back, finds all made. Two looks need no clock, and no time limit that would be wrong for somebody.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

import attrs

from mesh_pilot.engine import ByName, Layer, Query, Watch
from mesh_pilot.engine.failures import PROXY, Condition, OwnFailures, failure_of
from mesh_pilot.engine.patched import Names
from mesh_pilot.engine.snapshots import EMPTY, NO_NAMES, Snapshot, SnapshotStore
from mesh_pilot.envoy.catalog.explained import Explained
from mesh_pilot.envoy.catalog.failing import FailingParts, StandingFailure, standing_failures
from mesh_pilot.envoy.catalog.joined_sets import AgentSettingsSet, JoinedSet, Joins, Part
from mesh_pilot.envoy.catalog.kept_resources import KeptResources, VirtualHostSets
from mesh_pilot.envoy.catalog.resource_sets import EVICTION_SLICE, ResourceSet
from mesh_pilot.identity.certificates.secrets import IdentitySet, Issuer
from mesh_pilot.identity.trust.roots import AgentRoots, ProxyRoots
from mesh_pilot.mesh.proxy.keys import ProxyFacts, ProxyKeys, proxy_facts, proxy_keys, shared_facts
from mesh_pilot.mesh.proxy.plans import PlanShards
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.proxy import BOOTSTRAP_PATCHES, Proxy
from mesh_pilot.model.resource import PROXY_CONFIG, RESOURCE_TYPES, ROUTE, SECRET, VIRTUAL_HOST, Resource
from mesh_pilot.model.spiffe import parse_identity
from mesh_pilot.world import View, World
from mesh_pilot.world.overlays import EVERYONE

if TYPE_CHECKING:
    from mesh_pilot.envoy.catalog.diagnostics import Diagnostics
    from mesh_pilot.envoy.catalog.generators import Generators, SetKey
    from mesh_pilot.envoy.envoy_filter.outcome import PatchOutcome
    from mesh_pilot.envoy.envoy_filter.patch import PatchProblem
    from mesh_pilot.envoy.envoy_filter.plans import Patched


@attrs.frozen
class CatalogStatistics:
    proxies: int
    """Proxies that have their resources open."""
    sets: int
    """Sets of resources, shared by those proxies."""
    idle_sets: int
    """Sets without readers that stay for a reconnect."""


class WorldCatalog:
    """Opens the resources of proxies over one World."""

    def __init__(self, world: World, issuer: Issuer | None = None, *, roots: AgentRoots | None = None) -> None:
        """``issuer`` gives proxies whose identity is known their certificates; without one there are none. ``roots``
        are for Istio's agents."""
        self._world = world
        self._issuer = issuer
        self._roots = roots
        self._sets: dict[SetKey, ResourceSet] = {}
        self._idle: dict[SetKey, bool] = {}
        """Sets without readers; True once ``evict_idle`` has seen them."""
        self._open: dict[WorldResources, None] = {}
        self._by_proxy: dict[Proxy, WorldResources] = {}
        self.failed = world.failed
        """The register of failures."""
        self._parts = FailingParts(world.memo, self.failed)
        self.snapshots = SnapshotStore()
        self.joins = Joins(self.snapshots)

    def open(
        self,
        proxy: Proxy,
        wake: Callable[[str], None] = lambda type_url: None,
        requested: Callable[[str], Names] = lambda _: NO_NAMES,
    ) -> WorldResources:
        """See ``xds.ads.resources.Catalog``."""
        identity = parse_identity(proxy.identity)
        facts = proxy_facts(proxy)
        own: Callable[[], IdentitySet | ProxyRoots] | None = None
        if self._issuer and proxy.agent:
            own = self._issuer.roots_set
        elif self._issuer and identity and not facts.has_agent_secrets:
            own = partial(self._issuer.secrets_of, identity)
            own()  # its certificate is signed while the proxy asks for other things
        resources = WorldResources(self, proxy, facts, own, wake, requested)
        self._open[resources] = None
        self._by_proxy[proxy] = resources
        return resources

    def placeholder_cluster(self, name: str) -> Resource:
        from mesh_pilot.envoy.clusters.outbound import placeholder

        return placeholder(name)

    def no_endpoints(self, cluster: str) -> Resource:
        from mesh_pilot.envoy.clusters.outbound import no_endpoints

        return no_endpoints(cluster)

    def opened(self, proxy: Proxy) -> WorldResources | None:
        """The resources of a connected proxy."""
        return self._by_proxy.get(proxy)

    def as_written(self, proxy: Proxy) -> Sequence[Mapping[str, Resource]]:
        """All that a connected proxy would have if nothing were withheld from it and every change were for all; empty
        if it is so."""
        opened = self.opened(proxy)
        return opened.as_written() if opened is not None and opened.is_known else ()

    def served_gateways(self) -> frozenset[ConfigKey]:
        """The Gateways, Istio's, that connected routers have."""
        known = (resources.target.scope for resources in self._open if resources.is_known and not resources.is_agent)
        return frozenset(key for scope in known for key in scope.gateways)

    def diagnostics(self) -> Diagnostics:
        """Problems of the connected proxies."""
        from mesh_pilot.envoy.catalog.diagnostics import Diagnostics

        return Diagnostics(self._world.memo.view, [resources for resources in self._open if resources.is_known])

    def failures(self) -> list[StandingFailure]:
        """All that cannot be made because of an internal error, and the proxies concerned."""
        self._parts.follow(self._sets.values())
        return standing_failures(self.failed)

    def evict_idle(self) -> None:
        """Drop sets that were not read since the last call, and names that are no longer requested."""
        for _ in self.evict_idle_slowly():
            pass

    def evict_idle_slowly(self) -> Iterator[int]:
        """As ``evict_idle``, in short steps. Each gives the number of derived values that it forgot.

        Streams may be served between two steps. Call it every half a minute or so.
        """
        idle = [key for key, seen in self._idle.items() if seen]
        for key in self._idle:
            self._idle[key] = True
        for key in idle:
            if self._idle.pop(key, None) is not None:
                yield from self._forget(self._sets.pop(key).close())
        for (_, (type_url, _)), resources in list(self._sets.items()):
            yield from self._forget(resources.forget_unrequested(partial(_requested_of, resources, type_url)))
        yield from self._forget(iter(()))

    def _forget(self, dropping: Iterator[None]) -> Iterator[int]:
        """Forget the derived values that nothing needs after each step of dropping."""
        memo = self._world.memo
        for _ in dropping:
            yield memo.collect(EVICTION_SLICE)
        while memo.orphans:
            yield memo.collect(EVICTION_SLICE)

    def scope_of(self, proxy: Proxy) -> Hashable:
        """The scope of a proxy: proxies of one scope share all resources except those of the workload itself."""
        return shared_facts(proxy)

    def statistics(self) -> CatalogStatistics:
        return CatalogStatistics(len(self._open), len(self._sets), len(self._idle))

    def _attach(self, key: SetKey, reader: WorldResources) -> ResourceSet:
        found = self._sets.get(key)
        if found is None:
            layer, (type_url, resources) = key
            found = self._sets[key] = ResourceSet(layer, type_url, resources, self.snapshots, self.failed)
        self._idle.pop(key, None)
        found.attach(reader, reader.wake)
        return found

    def _detach(self, key: SetKey, reader: WorldResources) -> None:
        if self._sets[key].detach(reader):
            self._idle[key] = False


class WorldResources:
    """One proxy's resources: implements ``xds.ads.resources.ProxyResources``."""

    def __init__(
        self,
        catalog: WorldCatalog,
        proxy: Proxy,
        facts: ProxyFacts,
        own: Callable[[], IdentitySet | ProxyRoots] | None,
        wake: Callable[[str], None],
        requested: Callable[[str], Names],
    ) -> None:
        self.wake = wake
        """The callback of the session. Sets call it directly when they may have changed."""
        self.requested = requested
        """The names of a type that the proxy requests now."""
        self._catalog = catalog
        self._find_own = own
        self._own: IdentitySet | ProxyRoots | None = None
        """The set of its identity, or the roots for an agent, while it reads secrets."""
        self._world = catalog._world
        self._facts = facts
        self.proxy = proxy
        self._layer: Layer = self._world.memo
        self._world.follow_domains((*proxy.domains, EVERYONE), self._retarget)
        self._watched: Layer = self._layer
        """The layer whose keys of the proxy are watched."""
        self._watch = Watch(self._watched, self._retarget)
        self._target: ProxyKeys | None = None
        self._failed = OwnFailures(catalog.failed, self)
        self._stale = True
        self._generators: Generators = {}
        self._sets: dict[str, JoinedSet | KeptResources] = {}
        self._before: dict[str, Snapshot] = {}
        """The resources of the proxy in its last scope, of types that it has not asked for again."""
        self._hosts: ByName[PlanShards] | None = None
        self._host_sets: VirtualHostSets | None = None
        self._kept_hosts: KeptResources | None = None

    def __repr__(self) -> str:
        return f"<WorldResources of {self._facts.name} open={sorted(self._sets)}>"

    @property
    def name(self) -> str:
        """The name of the proxy."""
        return self._facts.name

    @property
    def is_agent(self) -> bool:
        """True for an agent's own stream."""
        return self._facts.agent is not None

    @property
    def is_known(self) -> bool:
        """See ``xds.ads.resources.ProxyResources``."""
        return self._follow_target() is not None

    @property
    def target(self) -> ProxyKeys:
        """The proxy as translators see it now. Only if it ``is_known``."""
        target = self._follow_target()
        assert target is not None
        return target

    def _follow_target(self) -> ProxyKeys | None:
        """Change the sets if the keys of the proxy have changed. If those cannot be made now, the last ones stay."""
        if self._stale:
            self._stale = False
            layer = self._layer_in_force()
            if layer is not self._watched:
                self._watch.close()
                self._watch, self._watched = Watch(layer, self._retarget), layer
            self._watch.take()
            from mesh_pilot.envoy.catalog.generators import generators_of, vhds_generator

            try:
                target = self._watch.get(proxy_keys.query(self._facts))
                generators, hosts = generators_of(target), vhds_generator(target)
            except Exception as error:
                state = Condition.MISSING if self._target is None else Condition.STALE
                self._failed.put(PROXY, failure_of(error, PROXY, self.name, state), error)
                return self._target
            self._failed.clear()
            if layer is not self._layer or target != self._target:
                self._before.update(self._latest())
                self._leave_all()
                self._layer, self._target, self._generators, self._hosts = layer, target, generators, hosts
        return self._target

    def _layer_in_force(self) -> Layer:
        """The World, or its overlay for the proxy."""
        overlay = self._world.overlay_of(self.proxy.domains, self.proxy.id)
        return overlay.layer if overlay is not None else self._world.memo

    @property
    def view(self) -> View:
        """The World as the proxy is served it."""
        view: View = self._layer.view
        return view

    def as_written(self) -> Sequence[Mapping[str, Resource]]:
        """See ``WorldCatalog.as_written``."""
        memo = self._world.memo
        if not self.is_known or self._layer is memo:
            return ()
        from mesh_pilot.envoy.catalog.generators import generators_of, vhds_generator

        # What is withheld may decide the scope itself, as EnvoyFilters and Gateways do.
        target = proxy_keys.query(self._facts).get(memo.view)
        keys = [key for of_type in generators_of(target).values() for key in of_type]
        hosts = vhds_generator(target)
        if hosts is not None and self._host_sets is not None:
            keys += ((VIRTUAL_HOST, hosts.query(table)) for table in self._host_sets.tables)
        found = []
        for key in keys:
            resources = self._catalog._attach((memo, key), self)
            found.append(resources.ask(self.requested(resources.type_url)).entries)
            self._catalog._detach((memo, key), self)
        return found

    def _latest(self) -> Iterator[tuple[str, Snapshot]]:
        """The resources handed out last, by type."""
        for type_url, resources in self._sets.items():
            yield type_url, resources.latest
        hosts = self._kept_hosts or self._host_sets
        if hosts is not None:
            yield VIRTUAL_HOST, hosts.latest

    def set(self, type_url: str) -> JoinedSet | VirtualHostSets | KeptResources | None:
        # The order matters: a proxy without a target has empty sets, not unknown types; on-demand hosts have sets of
        # their own; all else is made once, and where a scope was replaced, with the resources of before kept until they
        # are answered.
        if self._follow_target() is None:
            is_served = type_url in RESOURCE_TYPES and (type_url != VIRTUAL_HOST or self._facts.split)
            return self._catalog.joins.of(()) if is_served else None
        if type_url == VIRTUAL_HOST:
            return self._virtual_hosts()
        joined = self._sets.get(type_url)
        if joined is None:
            keys = self._generators.get(type_url)
            if keys is None:
                return None
            sets = tuple(self._catalog._attach((self._layer, key), self) for key in keys)
            parts: tuple[Part, ...] = sets
            if type_url == SECRET and self._find_own is not None:
                self._own = self._find_own()
                self._own.attach(self, partial(self.wake, SECRET))
                parts = (self._own, *parts)
            if type_url == PROXY_CONFIG and self._catalog._roots is not None:
                self._catalog._roots.attach(self, partial(self.wake, PROXY_CONFIG))
                roots = self._catalog._roots
                parts = tuple(AgentSettingsSet(settings, roots) for settings in sets) or (roots,)
            store, before = self._catalog.snapshots, self._before.pop(type_url, EMPTY)
            found = self._catalog.joins.of(parts)
            joined = found if before is EMPTY else KeptResources(store, found, before)
            self._sets[type_url] = joined
        return joined

    def explained(
        self, held: Mapping[str, Resource], type_url: str, seen: dict[Hashable, Mapping[str, Resource]] | None = None
    ) -> Mapping[str, Resource]:
        """See ``xds.ads.resources.ProxyResources``."""
        hosts = self._kept_hosts or self._host_sets
        live = hosts if type_url == VIRTUAL_HOST else self._sets.get(type_url)
        if live is None or not held:
            return held
        parts = tuple(live.parts())
        if seen is None:
            return Explained(held, tuple(part.made(held) for part in parts))
        for part in parts:
            if part not in seen:
                seen[part] = part.made()
        # The answer keeps what it explains, so that no other mapping gets its id.
        return seen.setdefault((id(held), parts), Explained(held, tuple(seen[part] for part in parts)))

    def patch_problems(self, seen: dict[SetKey, PatchOutcome] | None = None) -> tuple[PatchProblem, ...]:
        """The patches of EnvoyFilters that failed on resources of this proxy; looks at all of them.

        ``seen`` shares the results between proxies with the same sets. It is valid until the next change.
        """
        from mesh_pilot.envoy.envoy_filter.parse import filter_problems

        target = self.target
        found = dict.fromkeys(filter_problems(self.view, target.filters))
        found.update(dict.fromkeys(self.patch_outcome(seen).problems))
        return tuple(found)

    def missing_patches(self) -> tuple[PatchProblem, ...]:
        """The patches of EnvoyFilters that this proxy's bootstrap lacks."""
        from mesh_pilot.envoy.envoy_filter.bootstrap import missing_patches

        target, marks = self.target, dict(self._facts.texts).get(BOOTSTRAP_PATCHES, "")
        return tuple(missing_patches(self.view, target.filters, target.scope.type, marks))

    def patch_outcome(self, seen: dict[SetKey, PatchOutcome] | None = None) -> PatchOutcome:
        """The outcome of the patches of EnvoyFilters that apply to this proxy; ``seen`` as for ``patch_problems``."""
        from mesh_pilot.envoy.envoy_filter.outcome import PatchOutcome

        if not self.target.filters:
            return PatchOutcome()
        seen = {} if seen is None else seen
        tables = self._host_sets.tables if self._host_sets is not None else ()
        planned = ((self._layer, key) for keys in self._generators.values() for key in keys)
        keys = [*planned, *map(self._vhds_key, tables)]
        for key in keys:
            if key not in seen:
                seen[key] = PatchOutcome.of(self._patched_of(key))
        return PatchOutcome.of(seen[key] for key in keys)

    def unmatched_patches(self, seen: dict[SetKey, PatchOutcome] | None = None) -> tuple[PatchProblem, ...]:
        """The patches of EnvoyFilters that apply to this proxy and match nothing that it has."""
        from mesh_pilot.envoy.envoy_filter.outcome import unmatched

        outcome = self.patch_outcome(seen)
        asked = bool(self.requested(ROUTE))
        return tuple(unmatched(self.view, self.target, outcome, knows_tables=asked))

    def _patched_of(self, key: SetKey) -> Iterator[Patched]:
        from mesh_pilot.envoy.envoy_filter.plans import patched_of_plan, patched_tables

        _, (_, query) = key
        if isinstance(query, Query):
            return patched_of_plan(self.view, query)
        found = self._catalog._sets.get(key)
        return patched_tables(self.view, query, found.asked() if found is not None else ())

    def close(self) -> None:
        self._leave_all()
        self._failed.clear()
        self._watch.close()
        self._world.unfollow_domains((*self.proxy.domains, EVERYONE), self._retarget)
        self.wake = lambda type_url: None
        self.requested = lambda _: NO_NAMES
        self._catalog._open.pop(self, None)
        if self._catalog._by_proxy.get(self.proxy) is self:
            del self._catalog._by_proxy[self.proxy]
        del self._watch, self._failed  # which have it, too: a cycle

    def _virtual_hosts(self) -> VirtualHostSets | KeptResources | None:
        if self._hosts is not None and self._host_sets is None:
            self._host_sets = VirtualHostSets(
                self._catalog.snapshots,
                partial(self.requested, VIRTUAL_HOST),
                lambda table: self._catalog._attach(self._vhds_key(table), self),
                lambda table: self._catalog._detach(self._vhds_key(table), self),
            )
            before = self._before.pop(VIRTUAL_HOST, EMPTY)
            if before is not EMPTY:
                self._kept_hosts = KeptResources(self._catalog.snapshots, self._host_sets, before)
        return self._kept_hosts or self._host_sets

    def _vhds_key(self, table: str) -> SetKey:
        assert self._hosts is not None
        return self._layer, (VIRTUAL_HOST, self._hosts.query(table))

    def _leave_all(self) -> None:
        for type_url in list(self._sets):
            self._leave(type_url)
        if self._host_sets is not None:
            self._host_sets.close()
            self._host_sets = self._kept_hosts = None

    def _leave(self, type_url: str) -> None:
        del self._sets[type_url]
        for key in self._generators[type_url]:
            self._catalog._detach((self._layer, key), self)
        if type_url == SECRET and self._own is not None:
            self._own.detach(self)
            self._own = None
        if type_url == PROXY_CONFIG and self._catalog._roots is not None:
            self._catalog._roots.detach(self)

    def _retarget(self) -> None:
        self._stale = True
        self.wake("")


def _requested_of(resources: ResourceSet, type_url: str) -> Set[str]:
    """The names of a type that the readers of a set request now."""
    # Proxies of a scope mostly request the very same set of names.
    requested = (reader.requested(type_url) for reader in resources.readers() if isinstance(reader, WorldResources))
    return frozenset().union(*{id(names): names for names in requested}.values())
