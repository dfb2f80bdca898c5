"""Addresses for services without any, so that proxies with DNS capture can tell TCP services apart.

As Istio's automatic allocation from 240.240.0.0/16, which is not routed. An address depends on the set of hosts alone:
the same world has the same addresses, regardless of the order of events.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from mesh_pilot.model.service import Resolution, Service

PREFIX = "240.240"
_LAST = 254
"""Usable addresses of a /24: some systems reject its network and broadcast addresses."""
SLOTS = 256 * _LAST
"""The number of addresses."""


def wants_address(service: Service) -> bool:
    """True if a service gets an automatic address: one of a ServiceEntry, with a name that clients can resolve.

    With resolution NONE a proxy forwards to the client's original destination, which an automatic address would hide.
    """
    return (
        service.config is not None
        and not service.addresses
        and not service.host.startswith("*")
        and service.resolution not in (Resolution.PASSTHROUGH, Resolution.DYNAMIC_DNS)
    )


def allocate(hosts: Iterable[str]) -> dict[str, str]:
    """An address for each host: by the host's hash, or the next free one. On collision the host that sorts first wins.

    Hosts beyond ``SLOTS`` get none.
    """
    taken: dict[int, str] = {}
    displaced: list[str] = []
    for host in sorted(hosts):
        slot = _slot_of(host)
        if slot in taken:
            displaced.append(host)
        else:
            taken[slot] = host
    for host in displaced[: SLOTS - len(taken)]:
        slot = _slot_of(host)
        while slot in taken:
            slot = (slot + 1) % SLOTS
        taken[slot] = host
    return {host: _address(slot) for slot, host in taken.items()}


def _slot_of(host: str) -> int:
    return zlib.crc32(host.encode()) % SLOTS


def _address(slot: int) -> str:
    high, low = divmod(slot, _LAST)
    return f"{PREFIX}.{high}.{low + 1}"
