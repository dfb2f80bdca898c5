"""Addresses as people write them, and the sockets behind them.

``host:port``, ``[::1]:port``, ``:port`` (every interface, IPv6 and IPv4), port 0 for any free one, ``unix:///path``.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import trio
from attrs import frozen

from mesh_pilot.net.rpc.errors import AddressError

__all__ = [
    "TcpAddress",
    "UnixAddress",
    "address_of",
    "connect",
    "has_ipv6",
    "machine_addresses",
    "open_listeners",
    "parse_address",
    "release_socket",
    "uid_of",
]

_BACKLOG = 1024
_HOW = "write host:port, [::1]:port, :port or unix:///path"

DEAD_AFTER_SECONDS = 30
"""A connection that we opened fails after its host has not answered TCP for this long."""
_PROBE_AFTER_SECONDS, _PROBE_EVERY_SECONDS = 10, 5


@frozen
class TcpAddress:
    """A host name or IP address, and a port. The host is empty for every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@frozen
class UnixAddress:
    """A Unix socket's path."""

    path: Path

    def __str__(self) -> str:
        return f"unix://{self.path}"


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """Read an address. Raises AddressError that says what is wrong with it."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path.removeprefix("//")
        if not path or path.endswith("/") or "\0" in path:
            raise AddressError(f"{text!r} names no socket file; {_HOW}")
        return UnixAddress(Path(path))
    host, colon, port = text.rpartition(":")
    if not colon:
        raise AddressError(f"{text!r} has no port; {_HOW}")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise AddressError(f"{text!r} has no valid port (0 to 65535); {_HOW}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise AddressError(f"{text!r} is ambiguous: put an IPv6 address in brackets; {_HOW}")
    return TcpAddress(host, int(port))


def address_of(sock: socket.socket | trio.socket.SocketType, *, peer: bool = False) -> str:
    """The address of a socket, or of its other side, as :func:`parse_address` reads it."""
    try:
        name = sock.getpeername() if peer else sock.getsockname()
    except OSError:
        return "unknown"
    if sock.family == socket.AF_UNIX:
        path = os.fsdecode(name) if name else os.fsdecode(sock.getsockname())
        return str(UnixAddress(Path(path)))
    return str(TcpAddress(name[0].removeprefix("::ffff:"), name[1]))


def uid_of(sock: socket.socket | trio.socket.SocketType) -> int | None:
    """The user of the process at the other side of a Unix socket; None for other sockets, or if unknown."""
    if sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


async def open_listeners(text: str) -> list[trio.SocketListener]:
    """Listen on an address; more than one listener when a name has several addresses.

    With port 0 all of them get the same free port; :func:`address_of` tells it. A Unix socket is readable by its owner
    only; a file left behind by a dead server is replaced. Raises AddressError, in one line, with the address.
    """
    address = parse_address(text)
    try:
        if isinstance(address, UnixAddress):
            return [_listen_unix(address)]
        return await _listen_tcp(address)
    except OSError as error:
        raise AddressError(f"cannot listen on {text}: {_reason(error)}") from error


async def _listen_tcp(address: TcpAddress) -> list[trio.SocketListener]:
    if not address.host:
        if socket.has_dualstack_ipv6():
            return [_bind(socket.AF_INET6, ("::", address.port), v6_only=False)]
        return [_bind(socket.AF_INET, ("0.0.0.0", address.port))]
    found = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[trio.SocketListener] = []
    port = address.port
    try:
        for family, name in dict.fromkeys((family, name) for family, _, _, _, name in found):
            dual = name[0] == "::" and socket.has_dualstack_ipv6()
            listeners.append(_bind(family, (name[0], port, *name[2:]), v6_only=not dual))
            port = listeners[0].socket.getsockname()[1]
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners


def _bind(family: int, name: tuple[object, ...], *, v6_only: bool = False) -> trio.SocketListener:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(v6_only))
        sock.bind(name)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _listen_unix(address: UnixAddress) -> trio.SocketListener:
    _remove_stale(address.path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old_mask = os.umask(0o177)
    try:
        sock.bind(os.fspath(address.path))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(old_mask)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _remove_stale(path: Path) -> None:
    """Remove a socket file that no server listens on; leave any other file, so that binding fails."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError:
            return


async def connect(text: str, *, local_address: str | None = None) -> socket.socket:
    """A connected, non-blocking socket, which fails once its other side has not answered TCP for 30 seconds.

    The operating systems see to that between themselves, so that a dead host is noticed without pings of HTTP/2, which
    servers of gRPC take ill. ``local_address`` is the IP address that it comes from; None for any of this host's.
    Raises AddressError, in one line, with the address.
    """
    address = parse_address(text)
    try:
        if isinstance(address, UnixAddress):
            stream = await trio.open_unix_socket(address.path)
        else:
            stream = await trio.open_tcp_stream(address.host or "localhost", address.port, local_address=local_address)
    except OSError as error:
        raise AddressError(f"cannot connect to {text}: {_reason(error)}") from error
    sock = release_socket(stream)
    if isinstance(address, TcpAddress):
        _notice_death(sock)
    return sock


def _notice_death(sock: socket.socket) -> None:
    """Have the other host probed while it is silent, and given up where it does not acknowledge what was sent."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probes = (DEAD_AFTER_SECONDS - _PROBE_AFTER_SECONDS) // _PROBE_EVERY_SECONDS
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_EVERY_SECONDS),
        ("TCP_KEEPCNT", probes),
        ("TCP_USER_TIMEOUT", DEAD_AFTER_SECONDS * 1000),
    ):
        if (option := getattr(socket, name, None)) is not None:  # not every system has them all
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def release_socket(stream: trio.SocketStream) -> socket.socket:
    """Take the non-blocking socket out of a Trio stream, which is of no more use."""
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


def _reason(error: OSError) -> str:
    """The operating system's words; trio's text for several failed attempts says nothing that the first does not."""
    cause: BaseException = error
    while cause.__cause__ is not None or isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause
    if isinstance(cause, socket.gaierror) or not isinstance(cause, OSError) or not cause.errno:
        return getattr(cause, "strerror", None) or str(cause)
    return os.strerror(cause.errno)


def machine_addresses() -> tuple[str, ...]:
    """The IP addresses of this machine, but for those of loopback and of a link; empty elsewhere than on Linux."""
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [
        *_local_ipv4(_lines("/proc/net/fib_trie")),
        *_local_ipv6(_lines("/proc/net/if_inet6")),
    ]
    return tuple(str(each) for each in dict.fromkeys(found) if not each.is_loopback and not each.is_link_local)


def has_ipv6() -> bool:
    """True if this machine has any IPv6 address, be it that of loopback."""
    return bool(_lines("/proc/net/if_inet6"))


def _local_ipv4(lines: Iterable[str]) -> Iterator[ipaddress.IPv4Address]:
    """The addresses of a routing trie: each on a line, and on the next its kind."""
    address = ""
    for line in lines:
        mark, _, text = line.strip().partition(" ")
        if mark == "|--":
            address = text
        elif text == "host LOCAL":
            yield ipaddress.IPv4Address(address)


def _local_ipv6(lines: Iterable[str]) -> Iterator[ipaddress.IPv6Address]:
    """The addresses of all interfaces: 32 hexadecimal digits at the beginning of each line."""
    return (ipaddress.IPv6Address(bytes.fromhex(line[:32])) for line in lines)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
