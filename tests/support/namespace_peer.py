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
    """On this port of both families, or of one address; as a user of its own for UDP, whose answers have one."""
    for family, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        if host and (":" in host) != (family == socket.AF_INET6):
            continue
        sock = open_socket(family, socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM, uid, uid)
        if protocol == "tcp":
            sock.setsockopt(*TRANSPARENT[family], 1)
        sock.bind((host or anywhere, port))
        if protocol == "tcp":
            sock.listen(64)
        work = serve_tcp if protocol == "tcp" else serve_udp
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


def main() -> None:
    commands = {"listen": listen, "ask": ask}
    for line in sys.stdin:
        what = json.loads(line)
        print(json.dumps(commands[what.pop("do")](**what)), flush=True)


main()
