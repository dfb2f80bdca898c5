"""The sockets of a control plane, opened before anything runs: a taken port is known at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from mesh_pilot.app.settings import Settings, start_errors
from mesh_pilot.net.rpc import AddressError, open_listeners
from mesh_pilot.net.rpc.net import address_of

if TYPE_CHECKING:
    from mesh_pilot.replicas.workers.slot import WorkerSlot


@attrs.frozen
class Addresses:
    """The addresses at which it listens, with the real ports for 0; empty if a server is off."""

    grpc: str
    secure_grpc: str
    http: str
    monitoring: str
    webhooks: str = ""


@attrs.frozen
class Sockets:
    """The listeners of each port; none where a server is off."""

    grpc: list[trio.SocketListener]
    secure_grpc: list[trio.SocketListener]
    http: list[trio.SocketListener]
    monitoring: list[trio.SocketListener]
    webhooks: list[trio.SocketListener] = attrs.field(factory=list)

    def addresses(self) -> Addresses:
        groups = (self.grpc, self.secure_grpc, self.http, self.monitoring, self.webhooks)
        return Addresses(*(address_of(group[0].socket) if group else "" for group in groups))

    def close(self) -> None:
        for group in (self.grpc, self.secure_grpc, self.http, self.monitoring, self.webhooks):
            for listener in group:
                listener.socket.close()


def shared_sockets(slot: WorkerSlot) -> Sockets:
    return Sockets([*slot.grpc], [*slot.secure_grpc], [], [])


async def open_sockets(settings: Settings) -> Sockets:
    """Listen everywhere; nothing stays open when one address is not available."""
    sockets = Sockets([], [], [], [])
    try:
        with start_errors():
            sockets.grpc.extend(await _listen("--grpc-addr", settings.grpc_addr))
            sockets.secure_grpc.extend(await _listen("--secure-grpc-addr", settings.secure_grpc_addr))
            sockets.http.extend(await _listen("--http-addr", settings.http_addr))
            sockets.monitoring.extend(await _listen("--monitoring-addr", settings.monitoring_addr))
            if settings.webhooks is not None:
                sockets.webhooks.extend(await _listen("--https-addr", settings.webhooks.address))
    except BaseException:
        sockets.close()
        raise
    return sockets


async def _listen(flag: str, address: str) -> list[trio.SocketListener]:
    try:
        return await open_listeners(address)
    except AddressError as error:
        raise AddressError(f"{flag}: {error}") from error
