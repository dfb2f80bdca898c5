"""Targets that take over for a Consul service, in their order: by its resolver, or by the default sameness group.

Rules: Consul, "Service resolver" (Failover), "Sameness group". A resolver's own instances always come first. Without a
resolver, the default group says where those of the local partition come among its members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import attrs

from mesh_pilot.consul.mesh.entries import ChainTarget, ConfigEntry, SamenessGroup
from mesh_pilot.model.config import Problem, Severity

FindGroup = Callable[[str], SamenessGroup | None]

Rank = int
"""The place in the order: 0 for the service's own instances, less for targets that come before them."""


def failover_targets(resolver: ConfigEntry, find: FindGroup) -> tuple[ChainTarget, ...]:
    """Targets that take over by a resolver, in order. A group that does not exist adds no targets."""
    group = find(resolver.failover_group) if resolver.failover_group else None
    if group is None:
        return resolver.failover
    return tuple(ChainTarget(peer=member.peer) for member in group.members if member.peer)


def group_ranks(group: SamenessGroup, partition: str) -> dict[str, Rank]:
    """The rank of each peer of a default group. ``partition``: the local one."""
    own = 0 if group.includes_local else _place_of(group, partition)
    ranks: dict[str, Rank] = {}
    for place, member in enumerate(group.members):
        if member.peer:
            ranks.setdefault(member.peer, place + 1 if group.includes_local else place - own)
    return ranks


def _place_of(group: SamenessGroup, partition: str) -> int:
    places = (at for at, member in enumerate(group.members) if member.partition == partition)
    return next(places, len(group.members))


def group_problems(group: SamenessGroup, partition: str, peers: Iterable[str]) -> Iterator[Problem]:
    """The members of a group that have no effect, and one that lacks us. ``peers``: those that are read."""
    for place, member in enumerate(group.members):
        where = f"Members[{place}]"
        if member.peer and member.peer not in peers:
            yield Problem(f"{where}.Peer", _unread(member.peer), Severity.WARNING)
        if member.partition and member.partition != partition:
            reason = "other partitions are not read; its services take over for none"
            yield Problem(f"{where}.Partition", reason, Severity.WARNING)
    is_listed = _place_of(group, partition) < len(group.members)
    if group.is_default and not group.includes_local and not is_listed:
        reason = f"partition {partition!r} is not a member; its own instances come last"
        yield Problem("Members", reason, Severity.WARNING)


def target_problems(targets: Iterable[ChainTarget], peers: Iterable[str]) -> Iterator[Problem]:
    """The targets of a resolver that have no effect, or not in their order."""
    earlier = ""
    for target in targets:
        if target.peer and target.peer not in peers:
            yield Problem("Failover[*]", _unread(target.peer), Severity.WARNING)
        elif target.peer:
            earlier = earlier or target.peer
        elif earlier:
            reason = f"datacenter {target.datacenter!r} takes over before peer {earlier!r}: datacenters come first"
            yield Problem("Failover[*]", reason, Severity.WARNING)


def _unread(peer: str) -> str:
    return f"needs --consul-peer {peer}: without it, what the peer exports is not read"


@attrs.frozen
class Takeovers:
    """The services for which those of a peer take over, by the present entries."""

    by_service: Mapping[str, tuple[tuple[str, Rank], ...]]
    """The services for which a service of the peer takes over, with its rank there, by its name."""
    resolved: frozenset[str] = frozenset()
    """The services with a resolver, for which the default group says nothing."""
    default: Rank | None = None
    """The peer's rank in the default group."""

    def of(self, service: str) -> tuple[tuple[str, Rank], ...]:
        """The services for which a service of the peer takes over, with its rank there."""
        found = self.by_service.get(service, ())
        if self.default is None or service in self.resolved:
            return found
        return (*found, (service, self.default))


def takeovers(
    peer: str, partition: str, resolvers: Mapping[str, ConfigEntry], groups: Mapping[str, ConfigEntry]
) -> Takeovers:
    """The takeovers of a peer, of all resolvers and sameness groups by their names."""
    found: dict[str, list[tuple[str, Rank]]] = {}
    known = {name: entry.group for name, entry in sorted(groups.items()) if entry.group and not entry.is_ignored}
    counted = {name: entry for name, entry in sorted(resolvers.items()) if not entry.is_ignored}
    for name, resolver in counted.items():
        for place, target in enumerate(failover_targets(resolver, known.get), start=1):
            if target.peer == peer:
                found.setdefault(target.service or name, []).append((name, place))
    default = next((group for group in known.values() if group.is_default), None)
    rank = group_ranks(default, partition).get(peer) if default is not None else None
    return Takeovers({name: tuple(each) for name, each in found.items()}, frozenset(counted), rank)
