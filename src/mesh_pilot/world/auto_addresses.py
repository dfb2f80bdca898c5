"""Addresses for services that have none, so that proxies that answer DNS can tell TCP services apart.

As Istio's automatic allocation (of 240.240.0.0/16, which nobody routes), but an address follows from the set of hosts
alone: the same world gives the same addresses, whatever the order in which it came about.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from mesh_pilot.model.service import Resolution, Service

PREFIX = "240.240"
_LAST = 254
"""Hosts of a /24: its network and broadcast addresses are left out, which some systems refuse."""
SLOTS = 256 * _LAST
"""How many addresses there are."""


def wants_address(service: Service) -> bool:
    """Whether a service gets an address: one of a ServiceEntry with a name that clients can look up.

    With resolution NONE a proxy passes on to where the client was going, which an address of ours would hide.
    """
    return (
        service.config is not None
        and not service.addresses
        and not service.host.startswith("*")
        and service.resolution not in (Resolution.PASSTHROUGH, Resolution.DYNAMIC_DNS)
    )


def allocate(hosts: Iterable[str]) -> dict[str, str]:
    """An address for each host: by its hash, or the next free one, where hosts that sort first choose first.

    Hosts beyond ``SLOTS`` get none.
    """
    taken: dict[int, str] = {}
    late: list[str] = []
    for host in sorted(hosts):
        slot = _home(host)
        if slot in taken:
            late.append(host)
        else:
            taken[slot] = host
    for host in late[: SLOTS - len(taken)]:
        slot = _home(host)
        while slot in taken:
            slot = (slot + 1) % SLOTS
        taken[slot] = host
    return {host: _address(slot) for slot, host in taken.items()}


def _home(host: str) -> int:
    return zlib.crc32(host.encode()) % SLOTS


def _address(slot: int) -> str:
    high, low = divmod(slot, _LAST)
    return f"{PREFIX}.{high}.{low + 1}"
