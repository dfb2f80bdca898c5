"""Addresses for services without any, so that proxies with DNS capture can tell TCP services apart.

As Istio's automatic allocation, from ranges that are not routed: 241.0.0.0/8, and where a proxy has no IPv4 the
corresponding ones of 2001:2::/48. The addresses depend on the set of hosts and their ages alone: the same world has the
same ones on every replica and after every restart, whatever the order of events. A host that comes moves none that is
older, and one of the same age (registries tell none) only if both want the same address: in so wide a range, of the
hosts that come to 10,000 one in 3,000 does (bench/auto_addresses.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime

import attrs

from mesh_pilot.model.service import Resolution, Service, ServiceKey
from mesh_pilot.world.copying import Copied

_FIRST_OCTET = 241
_LAST = 254
"""Usable addresses of a /24: some systems reject its network and broadcast addresses."""
SLOTS = 256 * 256 * _LAST
"""The number of addresses."""
MAX_HOSTS = SLOTS // 16
"""Hosts beyond them get no address."""


def wants_address(service: Service) -> bool:
    """True if a service gets an automatic address: one without addresses, whose name clients can resolve.

    With resolution NONE a proxy forwards to the client's original destination, which an automatic address would hide. A
    cluster's services have addresses, or none on purpose.
    """
    return (
        not service.namespaced_name
        and not service.addresses
        and not service.headless
        and not service.host.startswith("*")
        and service.resolution not in (Resolution.PASSTHROUGH, Resolution.DYNAMIC_DNS)
    )


class AutoAddresses(Copied):
    """The addresses of hosts, one for each. Adding or removing a host looks at its neighbours only.

    A host has the slot of its hash, or the next that no older host has: an ordered hash table, in which each set of
    hosts has one layout.
    """

    def __init__(self) -> None:
        self._slots: dict[int, str] = {}
        self._hosts: dict[str, tuple[datetime, int]] = {}
        """The time of creation and the slot of each host."""

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, host: str) -> str:
        """The address of a host; empty if it has none."""
        found = self._hosts.get(host)
        return _address(found[1]) if found else ""

    def put(self, host: str, created: datetime) -> frozenset[str]:
        """Give a host an address. The other hosts whose address moved, if only for a short time."""
        before = self._hosts.get(host)
        if before is not None and before[0] == created:
            return frozenset()
        moved = self.remove(host)
        if len(self._hosts) >= MAX_HOSTS:
            return moved
        return (moved | self._insert(host, created)) - {host}

    def remove(self, host: str) -> frozenset[str]:
        """Take the address of a host back. The other hosts whose address moved."""
        found = self._hosts.pop(host, None)
        if found is None:
            return frozenset()
        slot = found[1]
        del self._slots[slot]
        displaced = list(self._run(_next(slot)))
        before = {each: self._hosts.pop(each) for each in displaced}
        for _, each_slot in before.values():
            del self._slots[each_slot]
        for each, (created, _) in before.items():
            self._insert(each, created)
        return frozenset(each for each, (_, each_slot) in before.items() if self._hosts[each][1] != each_slot)

    def _insert(self, host: str, created: datetime) -> frozenset[str]:
        """Put a host into its slot; those that are younger make room. The hosts that got another slot, with it."""
        moved = {host}
        slot = _slot_of(host)
        while (there := self._slots.get(slot)) is not None:
            there_created = self._hosts[there][0]
            if (created, host) < (there_created, there):
                self._slots[slot], self._hosts[host] = host, (created, slot)
                moved.add(there)
                host, created = there, there_created
            slot = _next(slot)
        self._slots[slot], self._hosts[host] = host, (created, slot)
        return frozenset(moved)

    def _run(self, slot: int) -> Iterator[str]:
        """The hosts from a slot to the next free one."""
        while (host := self._slots.get(slot)) is not None:
            yield host
            slot = _next(slot)


class ServiceAddresses(Copied):
    """The automatic addresses of services: those of one host share one.

    State: `_created`, by host the services that get an address, and when they were created; `_hosts`.
    """

    def __init__(self) -> None:
        self._created: dict[str, dict[ServiceKey, datetime]] = {}
        self._hosts = AutoAddresses()

    def put(self, changed: Mapping[ServiceKey, Service | None]) -> list[ServiceKey]:
        """Take services that changed. All services whose address may have moved with that."""
        moved: set[str] = set()
        for key, service in changed.items():
            created = self._created.get(key.host, {})
            if service is not None and wants_address(service):
                created[key] = service.created
                self._created[key.host] = created
            elif created.pop(key, None) is None:
                continue
            before = self._hosts[key.host]
            if created:
                moved |= self._hosts.put(key.host, min(created.values()))
            else:
                del self._created[key.host]
                moved |= self._hosts.remove(key.host)
            if before and self._hosts[key.host] != before:
                moved.add(key.host)
        return sorted(key for host in moved for key in self._created.get(host, ()))

    def apply(self, service: Service) -> Service:
        """The service with its automatic address, if it gets one."""
        if service.key not in self._created.get(service.host, ()):
            return service
        return attrs.evolve(service, auto_address=self._hosts[service.host])


def to_ipv6(address: str) -> str:
    """The IPv6 counterpart of an automatic address."""
    _, high, middle, low = map(int, address.split("."))
    return f"2001:2::{high:x}:{middle << 8 | low:x}" if high else f"2001:2::{middle << 8 | low:x}"


def _slot_of(host: str) -> int:
    return zlib.crc32(host.encode("utf-8", "surrogatepass")) % SLOTS


def _next(slot: int) -> int:
    return (slot + 1) % SLOTS


def _address(slot: int) -> str:
    rest, low = divmod(slot, _LAST)
    return f"{_FIRST_OCTET}.{rest >> 8}.{rest & 255}.{low + 1}"
