"""New connections led away from an old Envoy to a new one next to it, so that none is lost when the old one ends.

Both listen on the same ports (``SO_REUSEPORT``), and the kernel gives connections to either. A listening socket that is
closed takes the connections with it that it has not accepted. So the new sockets are chosen by a filter (Linux,
``SO_ATTACH_REUSEPORT_CBPF``), the old ones are kept open by duplicates here until the old Envoy ended, and then
closed one by one while the filter names others. Needs no privileges: an Envoy is our child.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import structlog
import trio

from mesh_pilot.agent.envoy.child import EnvoyChild

log = structlog.get_logger(scope="agent")

_ADMIN_SECONDS, _ACCEPT_SECONDS, _POLL_SECONDS = 60.0, 5.0, 0.05

_SYS_PIDFD_GETFD = 438
_SO_REUSEPORT, _SO_ATTACH_REUSEPORT_CBPF, _SO_DETACH_REUSEPORT_BPF = 15, 51, 68
_RANDOM = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h
_LOAD, _MODULO, _ADD, _RETURN_A, _RETURN_K = 0x20, 0x94, 0x04, 0x16, 0x06
_TCP_INFO_UNACKED = 24
"""Offset in ``struct tcp_info``; of a listening socket the connections that wait to be accepted."""

Address: TypeAlias = "tuple[int, object]"
"""Family and name of a socket."""


class ListeningSockets:
    """Duplicates of the TCP sockets on which an Envoy listens, by address, in the order of their descriptors."""

    def __init__(self, pid: int) -> None:
        """Raises OSError on a kernel before Linux 5.6, or where it is forbidden."""
        self.by_address: dict[Address, list[socket.socket]] = {}
        descriptor = os.pidfd_open(pid)
        try:
            for number in sorted(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()):
                self._add(pid, descriptor, number)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(descriptor)

    def _add(self, pid: int, descriptor: int, number: int) -> None:
        try:
            if not str(Path(f"/proc/{pid}/fd/{number}").readlink()).startswith("socket:"):
                return
        except FileNotFoundError:
            return
        sock = socket.socket(fileno=_duplicate(descriptor, number))
        is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
        if is_tcp and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self.by_address.setdefault((sock.family, sock.getsockname()), []).append(sock)
        else:
            sock.close()

    def waiting(self) -> int:
        """Connections that Envoy has still to accept."""
        return sum(_waiting(sock) for sockets in self.by_address.values() for sock in sockets)

    def give_way(self, others: ListeningSockets) -> None:
        """Have new connections go to the sockets of ``others``, which were opened later, wherever they have any."""
        for address, sockets in self.by_address.items():
            if count := len(others.by_address.get(address, ())):
                before = len(sockets)
                _steer(sockets[0], (_LOAD, _RANDOM), (_MODULO, count), (_ADD, before), (_RETURN_A, 0))

    def close_without_loss(self, others: ListeningSockets) -> None:
        """Close all, once no other process has them open and ``give_way`` was called."""
        for address, sockets in self.by_address.items():
            others_here = others.by_address.get(address)
            while sockets:
                if others_here:
                    # The last of all takes the place of the one that is closed; the first of the others stays.
                    _steer(others_here[0], (_RETURN_K, len(sockets)))
                sockets.pop().close()
            if others_here:
                others_here[0].setsockopt(socket.SOL_SOCKET, _SO_DETACH_REUSEPORT_BPF, 0)

    def close(self) -> None:
        for sockets in self.by_address.values():
            for sock in sockets:
                sock.close()
        self.by_address.clear()


def _duplicate(pidfd: int, number: int) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    found: int = library.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _waiting(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_UNACKED + 4)
    count: int = struct.unpack_from("=I", info, _TCP_INFO_UNACKED)[0]
    return count


def _steer(sock: socket.socket, *program: tuple[int, int]) -> None:
    """Attach a filter, of operations and operands, to the group of a socket. It returns the index of a socket."""
    filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", code, 0, 0, k) for code, k in program))
    wrapped = struct.pack("@HP", len(program), ctypes.addressof(filters))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, wrapped)


class HandingOver:
    """The way of connections from one Envoy to another next to it. ``close`` it when the old one ended."""

    def __init__(self, old: EnvoyChild, new: EnvoyChild) -> None:
        self._old, self._new = old, new
        self._from: ListeningSockets | None = None
        self._to: ListeningSockets | None = None

    async def lead_admin(self) -> str:
        """Lead those for the admin interface as soon as the new Envoy has one. Returns why it has none."""
        with trio.move_on_after(_ADMIN_SECONDS):
            while not self._new.ended.is_set():
                if self._new.has_admin_file():
                    self._lead()
                    return ""
                await trio.sleep(_POLL_SECONDS)
        return self._new.end_reason if self._new.ended.is_set() else "it has no admin interface"

    async def lead_all(self) -> None:
        """Lead those for all listeners, and wait until the old Envoy has accepted the last that it got."""
        self._lead()
        with trio.move_on_after(_ACCEPT_SECONDS):
            await trio.sleep(_POLL_SECONDS)
            while self._from is not None and self._from.waiting():  # noqa: ASYNC110  the kernel has no event for it
                await trio.sleep(_POLL_SECONDS)

    def _lead(self) -> None:
        self._release()
        try:
            self._from = ListeningSockets(self._old.facts.pid)
            self._to = ListeningSockets(self._new.facts.pid)
            self._from.give_way(self._to)
        except OSError as error:
            log.warning("connections may be lost: they cannot be led to the new envoy", reason=str(error))

    def close(self) -> None:
        if self._from is not None and self._to is not None and self._old.ended.is_set():
            self._from.close_without_loss(self._to)
        self._release()

    def _release(self) -> None:
        for sockets in (self._from, self._to):
            if sockets is not None:
                sockets.close()
        self._from = self._to = None


def share_admin_port(bootstrap: Mapping[str, Any]) -> Mapping[str, Any]:
    """The bootstrap, with an admin port that a second Envoy may listen on too, while it takes over."""
    admin = bootstrap.get("admin")
    if not isinstance(admin, dict) or "socket_address" not in (admin.get("address") or {}):
        return bootstrap
    option = {"level": socket.SOL_SOCKET, "name": _SO_REUSEPORT, "int_value": 1, "state": "STATE_PREBIND"}
    options: Sequence[Any] = admin.get("socket_options") or ()
    return {**bootstrap, "admin": {**admin, "socket_options": [*options, option]}}
