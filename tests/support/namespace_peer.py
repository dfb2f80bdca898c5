"""Runs in a network namespace, as root, for ``tests.support.namespaces``: listens, and connects as any user.

A command is a line of JSON on standard input, the answer one on standard output. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import os
import socket
import struct
import sys
import threading
from typing import Any

SO_ORIGINAL_DST = 80
TRANSPARENT = {socket.AF_INET: (socket.IPPROTO_IP, 19), socket.AF_INET6: (socket.IPPROTO_IPV6, 75)}
SO_MARK = 36


def original(connection: socket.socket) -> str:
    """The address that the client asked for."""
    if connection.family == socket.AF_INET6:
        raw = connection.getsockopt(socket.IPPROTO_IPV6, SO_ORIGINAL_DST, 28)
        return f"{ipaddress.ip_address(raw[8:24])} {struct.unpack('!H', raw[2:4])[0]}"
    raw = connection.getsockopt(socket.IPPROTO_IP, SO_ORIGINAL_DST, 16)
    return f"{ipaddress.ip_address(raw[4:8])} {struct.unpack('!H', raw[2:4])[0]}"


def described(connection: socket.socket, port: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "listener": port,
        "local": "{} {}".format(*connection.getsockname()[:2]),
        "peer": "{} {}".format(*connection.getpeername()[:2]),
    }
    with contextlib.suppress(OSError):
        found["original"] = original(connection)
    return found


def serve_tcp(listener: socket.socket, port: int) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(json.dumps(described(connection, port)).encode())


def serve_echo(listener: socket.socket, port: int) -> None:
    """What a connection sends is sent back, after a greeting with the port."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection, port), daemon=True).start()


def echo(connection: socket.socket, port: int) -> None:
    with connection, contextlib.suppress(OSError):
        connection.sendall(f"{port}\n".encode())
        while data := connection.recv(4096):
            connection.sendall(data)


def serve_udp(sock: socket.socket, port: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            _, peer = sock.recvfrom(4096)
            answer = {"listener": port, "peer": "{} {}".format(*peer[:2])}
            sock.sendto(json.dumps(answer).encode(), peer)


LIBC = ctypes.CDLL(None)


def open_socket(family: int, kind: int, uid: int = 0, gid: int = 0) -> socket.socket:
    """A socket of this user and group: whoever opens it owns its packets."""
    LIBC.setfsgid(gid)
    LIBC.setfsuid(uid)
    try:
        sock = socket.socket(family, kind)
    finally:
        LIBC.setfsuid(0)
        LIBC.setfsgid(0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock


def listen(protocol: str, port: int, host: str, uid: int) -> dict[str, Any]:
    """On this port of both families, or of one address; as its own user for UDP, whose answers have one."""
    for family, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        if host and (":" in host) != (family == socket.AF_INET6):
            continue
        sock = open_socket(family, socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM, uid, uid)
        if protocol != "udp":
            sock.setsockopt(*TRANSPARENT[family], 1)
        sock.bind((host or anywhere, port))
        if protocol != "udp":
            sock.listen(64)
        work = {"tcp": serve_tcp, "echo": serve_echo, "udp": serve_udp}[protocol]
        threading.Thread(target=work, args=(sock, port), daemon=True).start()
    return {}


def ask(
    protocol: str, host: str, port: int, uid: int, gid: int, source: str, mark: int, timeout: float
) -> dict[str, Any]:
    """What the one says who answers at this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = open_socket(family, socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM, uid, gid)
    with sock:
        if mark:
            sock.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
        if source:
            address, _, source_port = source.partition(" ")
            sock.setsockopt(*TRANSPARENT[family], 1)
            sock.bind((address, int(source_port or 0)))
        sock.settimeout(timeout)
        try:
            sock.connect((host, port))
            if protocol == "udp":
                sock.send(b"?")
            return dict(json.loads(sock.recv(4096) or b"{}"))
        except TimeoutError:
            return {"error": "timeout"}
        except OSError as error:
            return {"error": os.strerror(error.errno or 0)}


OPEN: dict[str, Stream] = {}
"""Connections to echo servers that live on between commands."""


class Stream:
    """A connection to an echo server; a busy one exchanges a line every few milliseconds until it fails."""

    def __init__(self, host: str, port: int, uid: int, busy: bool) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = open_socket(family, socket.SOCK_STREAM, uid, uid)
        self._socket.settimeout(2.0)
        self._socket.connect((host, port))
        self._lines = self._socket.makefile("rwb", buffering=0)
        self.listener = int(self._lines.readline())
        self._lock = threading.Lock()
        self._exchanged = 0
        self._error = ""
        if busy:
            threading.Thread(target=self._talk, daemon=True).start()

    def _talk(self) -> None:
        while not self.exchange()["error"]:
            pass

    def exchange(self) -> dict[str, Any]:
        """Send a line and read it back; how many have come back, and the error that ended the connection."""
        with self._lock:
            if not self._error:
                try:
                    line = f"{self._exchanged}\n".encode()
                    self._lines.write(line)
                    if self._lines.readline() == line:
                        self._exchanged += 1
                    else:
                        self._error = "closed"
                except OSError as error:
                    self._error = str(error)
            return {"listener": self.listener, "exchanged": self._exchanged, "error": self._error}


def open_stream(name: str, host: str, port: int, uid: int, busy: bool) -> dict[str, Any]:
    OPEN[name] = Stream(host, port, uid, busy)
    return {"listener": OPEN[name].listener}


def exchange(name: str) -> dict[str, Any]:
    return OPEN[name].exchange()


def main() -> None:
    commands = {"listen": listen, "ask": ask, "open": open_stream, "exchange": exchange}
    for line in sys.stdin:
        what = json.loads(line)
        print(json.dumps(commands[what.pop("do")](**what)), flush=True)


main()
