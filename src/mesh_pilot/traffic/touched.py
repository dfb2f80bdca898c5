"""The edges that a change of objects may bear on: by the hosts and the workloads that the objects are about.

A VirtualService, a DestinationRule, a ServiceEntry or a service is about calls to hosts; a policy about what arrives at
workloads; a Sidecar about all traffic of workloads; an EnvoyFilter, a Gateway or the mesh config, and whatever else
proxies are made of, about all. Endpoints are about none: instances come and go by themselves, at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import attrs

from mesh_pilot.mesh.names.resources import ClusterName, Direction
from mesh_pilot.mesh.selection.workloads import applies
from mesh_pilot.mesh.virtual_services.rules import destinations_of
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Item, MeshConfigValue, MeshNetworksValue, Quarantine, RolloutState
from mesh_pilot.model.hosts import covering
from mesh_pilot.model.service import Service
from mesh_pilot.model.traffic import RowKind
from mesh_pilot.traffic.table import CallingWorkload

MAX_TOUCHED = 500
"""A change that is about more hosts and selecting objects than that is taken to be about everything, as a first picture
is: two changes are compared while one of them is being published."""

_OF_HOSTS = ("VirtualService", "DestinationRule", "ServiceEntry")
_OF_WORKLOADS = ("AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication", "Sidecar")
_OF_NOTHING = ("WorkloadEntry", "WorkloadGroup")

FullHost = Callable[[str, str], str]
"""The full name of a host as an object of a namespace has it, such as ``World.full_host``."""


@attrs.frozen
class TouchedEdges:
    """The edges that a change may bear on."""

    is_everything: bool = False
    hosts: frozenset[str] = frozenset()
    """Full names, or ``*.`` and a domain, to which calls go."""
    selecting: tuple[Config, ...] = ()
    """Objects that select workloads."""
    root_namespace: str = ""
    """The namespace whose objects select workloads of all."""
    _covering: frozenset[str] = attrs.field(init=False, eq=False, repr=False)
    """The hosts, and all wildcards that cover any of them."""

    @_covering.default
    def _covering_hosts(self) -> frozenset[str]:
        return frozenset(pattern for host in self.hosts for pattern in covering(host))

    def __bool__(self) -> bool:
        return self.is_everything or bool(self.hosts or self.selecting)

    def has(self, workload: CallingWorkload, kind: RowKind, cluster: ClusterName | None) -> bool:
        """True for a row of a workload that the change may bear on. ``cluster``: the parts of its name."""
        if self.is_everything:
            return True
        if cluster is not None and cluster.direction is Direction.OUTBOUND:
            return is_among(cluster.host, self.hosts) or self._selects(workload, ("Sidecar",))
        return self._selects(workload, _OF_WORKLOADS)

    def overlaps(self, other: TouchedEdges) -> bool:
        """True if some edge may be touched by both."""
        if self.is_everything or other.is_everything:
            return bool(self) and bool(other)
        is_common = not (self._covering.isdisjoint(other.hosts) and other._covering.isdisjoint(self.hosts))
        return is_common or bool({*self._namespaces()} & {*other._namespaces()})

    def _selects(self, workload: CallingWorkload, kinds: Iterable[str]) -> bool:
        labels = frozenset(workload.labels)
        return any(
            each.key.kind in kinds
            and each.namespace in (workload.namespace, self.root_namespace)
            and applies(each, workload.namespace, labels)
            for each in self.selecting
        )

    def _namespaces(self) -> Iterator[str]:
        return (each.namespace for each in self.selecting)


def touched_by(items: Iterable[Item | None], full_host: FullHost, root_namespace: str) -> TouchedEdges:
    """The edges that items are about. Of a change give both the item before and the one after it."""
    hosts: set[str] = set()
    selecting: list[Config] = []
    for item in _within(each for each in items if each is not None):
        match item:
            case Service():
                hosts.add(item.host)
            case Config() if item.key.kind in _OF_HOSTS:
                hosts |= hosts_of([item], full_host)
            case Config() if item.key.kind in _OF_WORKLOADS:
                selecting.append(item)
            case Config() if item.key.kind in _OF_NOTHING:
                pass
            case Config() | MeshConfigValue() | MeshNetworksValue():
                return TouchedEdges(is_everything=True)
        if len(hosts) + len(selecting) > MAX_TOUCHED:
            return TouchedEdges(is_everything=True)
    return TouchedEdges(False, frozenset(hosts), tuple(selecting), root_namespace)


def hosts_of(items: Iterable[Item], full_host: FullHost) -> set[str]:
    """The full names of the hosts that objects are about, and of those that their routes lead to."""
    found = {
        full_host(host, item.namespace)
        for item in items
        if isinstance(item, Config) and item.key.kind in _OF_HOSTS
        for host in _named(item)
    }
    return found - {"", "*"}


def is_among(host: str, hosts: Collection[str]) -> bool:
    """True if a host, or a wildcard that covers it, is among others."""
    return any(pattern in hosts for pattern in covering(host))


def _within(items: Iterable[Item]) -> Iterator[Item]:
    """The items, and those that a rollout or quarantine serves to some proxies in the place of others."""
    for item in items:
        match item:
            case RolloutState():
                yield from (each for change in item.changes for each in (*change.new, *change.old))
            case Quarantine(is_trial=True):
                pass  # it ends within seconds
            case Quarantine():
                yield from (each for withheld in item.withheld for each in (*withheld.refused, *withheld.served))
            case _:
                yield item


def _named(config: Config) -> Iterator[str]:
    spec = config.spec
    if config.key.kind == "DestinationRule":
        yield spec.host
        return
    yield from spec.hosts
    if config.key.kind == "VirtualService":
        for rule in spec.http:
            yield from (destination.host for destination in destinations_of(rule))
        for rule in (*spec.tls, *spec.tcp):
            yield from (each.destination.host for each in rule.route if each.destination is not None)
