"""The slot of a worker: what it has of the first one."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import attrs
import trio

from mesh_pilot.replicas.workers.link import Link
from mesh_pilot.world import World


@attrs.frozen
class WorkerSlot:
    """The place of a worker other than the first."""

    number: int
    world: World
    link: Link
    """To the first worker."""
    grpc: Sequence[trio.SocketListener]
    """Shared with the other workers."""
    secure_grpc: Sequence[trio.SocketListener]
    http: str
    """The address of the web pages, for people."""
    told: trio.Event = attrs.field(factory=trio.Event)
    """Set once the first worker has said which roots are trusted, or is gone."""


def listeners(sockets: Sequence[socket.socket]) -> list[trio.SocketListener]:
    """Listeners on sockets that listen already. In Trio's loop only."""
    return [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]
