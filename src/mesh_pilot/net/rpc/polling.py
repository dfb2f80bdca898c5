"""Reading of many sockets by one task, which learns in one system call which of them have something to read.

A task for each socket would cost a wake-up, a switch of tasks and a system call for each piece that a peer sends: Trio
arms a socket for one event (``EPOLLONESHOT``) and forgets it then. That is 4 of 16 µs where nothing else is done, and a
task of each connection. Here sockets stay armed in our own epoll, whose file becomes readable in Trio's when one
of them has something. Each reader is called once in a pass of the loop, as its task would be, and reads once.

Where there is no epoll, tasks wait.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Protocol

import trio

__all__ = ["SocketPoller", "WaitingTasks", "open_poller"]

Read = Callable[[], None]
"""Reads a socket that has something to read, without waiting; raises nothing."""


class SocketPoller(Protocol):
    """The sockets that are read, each with what reads it."""

    def add(self, sock: socket.socket, read: Read) -> None:
        """Call ``read`` whenever there is something to read: data, the end, or an error."""

    def remove(self, sock: socket.socket) -> None:
        """Call it no more. To be done before the socket is closed; no effect on one that is not there."""


def open_poller(nursery: trio.Nursery) -> SocketPoller:
    """The best poller for this platform, with its tasks in ``nursery``."""
    return EpollPoller(nursery) if hasattr(select, "epoll") else WaitingTasks(nursery)


class EpollPoller:
    """The one for Linux. Mutable state: the readers by file descriptor, as the kernel knows them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Read] = {}
        nursery.start_soon(self._run, name="rpc poller")

    def add(self, sock: socket.socket, read: Read) -> None:
        self._readers[sock.fileno()] = read
        self._epoll.register(sock, select.EPOLLIN)

    def remove(self, sock: socket.socket) -> None:
        if self._readers.pop(sock.fileno(), None) is not None and not self._epoll.closed:
            self._epoll.unregister(sock)

    async def _run(self) -> None:
        with self._epoll as epoll:
            while True:
                await trio.lowlevel.wait_readable(epoll.fileno())
                for descriptor, _ in epoll.poll(0, max(1, len(self._readers))):
                    if descriptor in self._readers:  # else the reader of another has removed it
                        self._readers[descriptor]()  # in no variable, which would keep the last one's connection


class WaitingTasks:
    """The one for other platforms: a task for each socket. Mutable state: the scopes that end them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scopes: dict[socket.socket, trio.CancelScope] = {}

    def add(self, sock: socket.socket, read: Read) -> None:
        self._scopes[sock] = scope = trio.CancelScope()
        self._nursery.start_soon(self._wait, sock, read, scope, name="rpc reader")

    def remove(self, sock: socket.socket) -> None:
        if (scope := self._scopes.pop(sock, None)) is not None:
            scope.cancel()

    @staticmethod
    async def _wait(sock: socket.socket, read: Read, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.lowlevel.wait_readable(sock)
                if scope.cancel_called:  # since this task became ready
                    return
                read()
