"""The addresses of gateways between networks that are known by a host name, such as that of a load balancer.

Proxies are given IP addresses of endpoints, so the names are resolved here, again and again. Istio does so with
``RESOLVE_HOSTNAME_GATEWAYS``.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import attrs
import structlog
import trio

from mesh_pilot.model.events import Delete, EventSender, Item, Replace, ResolvedHost, Synced, Upsert, item_key
from mesh_pilot.net.fetching import FetchError
from mesh_pilot.net.fetching.refreshing import Refresh, RefreshStatistics, Rounds, refresh_statistics

REFRESH_SECONDS = 30.0
"""The time between two questions for the same name."""
ANSWER_SECONDS = 10.0
"""The time that an answer may take."""

_NAMING = (("networks",), ("service",), ("config", "ServiceEntry"))
"""Items that name hosts of gateways, or say where they are."""

log = structlog.get_logger(scope="sources")

Resolve = Callable[[str], Awaitable[tuple[str, ...]]]
"""The IP addresses of a host name, sorted. Raises FetchError."""


class HostDemand(Protocol):
    """The host names that are wanted."""

    def wanted_hosts(self) -> frozenset[str]: ...

    def is_complete(self) -> bool:
        """True once no other source can add to them at the start."""


async def resolve(host: str) -> tuple[str, ...]:
    """The addresses of a host by the system's resolver."""
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise FetchError(getattr(error, "strerror", "") or str(error)) from error
        return tuple(sorted({str(address[0]) for *_, address in found}))
    raise FetchError(f"no answer within {ANSWER_SECONDS:g} s")


@attrs.define(eq=False)
class _HostRefresh(Refresh):
    addresses: tuple[str, ...] = ()

    @property
    def is_in_force(self) -> bool:
        return bool(self.addresses)


class GatewayHosts:
    """Implements ``sources.base.contract.Source``, ``Placed`` and ``Seeded``.

    State: a refresh for each name that is wanted, and the addresses that an earlier run had.
    """

    name = "gateway-hosts"
    place = "the host names of gateways between networks"

    def __init__(self, demand: HostDemand, *, resolve: Resolve = resolve) -> None:
        self._demand = demand
        self._resolve = resolve
        self._refreshes: dict[str, _HostRefresh] = {}
        self._seeded: dict[str, tuple[str, ...]] = {}
        self._wake = trio.Event()
        self._synced = False
        self._rounds = Rounds(self.wake)

    def __repr__(self) -> str:
        return f"<GatewayHosts {', '.join(self._refreshes)}>"

    def seed(self, items: Sequence[Item]) -> None:
        """The addresses of an earlier run: they are in force until they are asked for again, or not needed."""
        self._seeded = {item.host: item.addresses for item in items if isinstance(item, ResolvedHost)}

    def wake(self) -> None:
        """The demand may have changed."""
        self._wake.set()

    def revised(self, changed: Iterable[tuple[str, ...]]) -> None:
        """A revision of the World, and what changed in it."""
        if not self._synced or any(key[: len(named)] == named for key in changed for named in _NAMING):
            self.wake()

    def statistics(self) -> RefreshStatistics:
        return refresh_statistics(self._refreshes.values(), "addresses", synced=self._synced)

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send addresses until cancelled; what is known is kept for the next run."""
        self._synced = False
        known = self._seeded | {host: refresh.addresses for host, refresh in self._refreshes.items()}
        self._refreshes.clear()
        self._rounds.begin()
        in_force = tuple(ResolvedHost(host, addresses) for host, addresses in known.items() if addresses)
        await events.send(Replace(self.name, ("addresses",), in_force))
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._wake = trio.Event()
                is_complete = self._demand.is_complete()
                wanted = self._demand.wanted_hosts()
                for gone in [host for host in self._refreshes if host not in wanted]:
                    self._refreshes.pop(gone).scope.cancel()
                    await events.send(Delete(self.name, item_key(ResolvedHost(gone))))
                for new in sorted(wanted - self._refreshes.keys()):
                    refresh = _HostRefresh(new, addresses=known.pop(new, ()))
                    self._refreshes[new] = refresh
                    nursery.start_soon(self._refresh, refresh, events)
                if is_complete:
                    for unneeded in known:
                        await events.send(Delete(self.name, item_key(ResolvedHost(unneeded))))
                    known.clear()
                    self._seeded.clear()
                    waited_for = [refresh for refresh in self._refreshes.values() if not refresh.addresses]
                    if not self._synced and self._rounds.is_first_over(waited_for):
                        self._synced = True
                        await events.send(Synced(self.name))
                await self._rounds.wait(self._wake, synced=self._synced)

    async def _refresh(self, refresh: _HostRefresh, events: EventSender) -> None:
        async def take(addresses: tuple[str, ...]) -> float:
            if addresses != refresh.addresses:
                refresh.addresses = addresses
                await events.send(Upsert(self.name, ResolvedHost(refresh.of, addresses)))
            return REFRESH_SECONDS

        async def failed(reason: str, is_new: bool) -> None:
            if is_new:
                stays = "the last addresses are kept" if refresh.addresses else "the network is reached without it"
                log.warning("host of a gateway cannot be resolved", host=refresh.of, reason=reason, meanwhile=stays)

        await self._rounds.run(
            refresh,
            lambda: self._resolve(refresh.of),
            take,
            failed,
            lambda: log.info("host of a gateway is resolved again", host=refresh.of),
        )
