"""Servers of others at their worst: one port, with a misbehaviour for each path.

    with hostile_servers() as servers:
        f"http://{servers.host}/drip"           # headers, and then a blank now and then
        f"http://{servers.host}/good-module"    # as it should be
        servers.asked("good-module")            # how often it was asked for

A path ends with the name of its misbehaviour, so that any fetch can meet any of them:

- ``/NAME`` and ``/NAME/.well-known/openid-configuration``;
- ``/discovered/NAME/.well-known/openid-configuration``: a configuration that names ``/NAME`` for the keys;
- ``/v2/NAME/...``: a registry that misbehaves with its manifest; ``/v2/blob/NAME/...``: with its blob;
  ``/v2/token/NAME/...``: wants a token of ``/NAME``.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from tests.support.wasm_modules import marking

MANY = 30_000_000
"""Bytes of a module that is just not too large."""
OK = b"HTTP/1.1 200 OK\r\n"
MODULE = marking("x-mark", "good")
KEYS = json.dumps({"keys": [{"k": "YWJj", "kid": "good", "kty": "oct"}]}).encode()
NO_BLOB = "sha256:" + "0" * 64

Misbehaviour = Callable[[socket.socket], None]


def whole(body: bytes, *headers: str) -> Misbehaviour:
    head = "".join(f"{line}\r\n" for line in (f"content-length: {len(body)}", "connection: close", *headers))
    return lambda sock: sock.sendall(OK + head.encode() + b"\r\n" + body)


def first(*parts: bytes, again: bytes = b"", pause: float = 0.0) -> Misbehaviour:
    """Some bytes, and then others again and again, until the client goes."""

    def send(sock: socket.socket) -> None:
        for part in parts:
            sock.sendall(part)
        while again:
            sock.sendall(again)
            time.sleep(pause)
        sock.recv(1)

    return send


def redirect(where: str, body: bytes = b"") -> Misbehaviour:
    return first(f"HTTP/1.1 302 Found\r\nlocation: {where}\r\n\r\n".encode(), again=body)


def half(sock: socket.socket) -> None:
    sock.sendall(OK + b"content-length: 1000\r\n\r\nx")


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def zeros(size: int, level: int = 9) -> bytes:
    return gzip.compress(bytes(size), level)


def tar_header(name: bytes, size: bytes, kind: bytes) -> bytes:
    block = bytearray(512)
    block[: len(name)], block[124 : 124 + len(size)], block[156:157], block[257:263] = name, size, kind, b"ustar\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


ENCODED = "content-encoding: gzip"
NO_END = OK + b"\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
BACKWARDS = tar_header(b"z", (-512).to_bytes(12, signed=True), b"Z")


def misbehaviours() -> dict[str, Misbehaviour]:
    """By the name in the path."""
    nested = gzip.compress(zeros(400_000_000))
    return {
        "silent": first(),
        "drip-headers": first(OK, again=b"x: y\r\n", pause=1.0),
        "drip": first(NO_END, again=b" ", pause=1.0),
        "endless": first(NO_END, again=bytes(65536)),
        "endless-module": first(NO_END + b"\0asm\1\0\0\0", again=bytes(65536)),
        "one-byte-chunks": first(CHUNKED, again=b"1\r\n \r\n" * 1000),
        "endless-headers": first(OK, again=b"x: y\r\n" * 1000),
        "endless-continues": first(again=b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        "not-http": first(b"SSH-2.0-x\r\n\r\n"),
        "bomb": whole(zeros(400_000_000), ENCODED),
        "nested-bomb": whole(nested, "content-encoding: gzip, gzip"),
        "bomb-of-a-file": whole(zeros(400_000_000)),
        "nested-bomb-of-a-file": whole(nested),
        "empty-members": whole(gzip.compress(b"") * 200_000),
        "empty-members-encoded": whole(gzip.compress(b"") * 40_000, ENCODED),
        "round": redirect("/round"),
        "metadata": redirect("http://169.254.169.254/latest/meta-data/iam"),
        "a-file": redirect("file:///etc/passwd"),
        "redirect-without-end": redirect("/good-keys", bytes(65536)),
        "long-promise": first(OK + b"content-length: 99999999999999\r\n\r\n"),
        "half": half,
        "reset": reset,
        "backwards": whole(tar_header(b"d", b"0", b"5") + BACKWARDS * 4),
        "many-members": whole(gzip.compress(tar_header(b"d", b"0", b"5") * 100_000)),
        "no-module": whole(b"<html>".ljust(MANY)),
        "wrong-module": whole(MODULE + bytes(MANY)),
        "deep-json": whole(b'{"keys":' + b"[" * 400_000),
        "large-json": whole(b'{"keys":[' + b'{"kty":"RSA","n":"AQAB","e":"AQAB"},' * 27_000 + b"{}]}"),
        "good-keys": whole(KEYS),
        "good-module": whole(MODULE),
        "good-module-too": whole(MODULE),
        "good-keys-too": whole(KEYS),
    }


@attrs.define
class HostileServers:
    """State: what was asked for, by name."""

    host: str
    behaviours: dict[str, Misbehaviour]
    seen: Counter[str] = attrs.field(factory=Counter)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def bad(self) -> list[str]:
        return [name for name in self.behaviours if not name.startswith("good")]

    def asked(self, name: str) -> int:
        with self.lock:
            return self.seen[name]

    def serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            sock.settimeout(60)
            request = b""
            while b"\r\n\r\n" not in request:
                request += (part := sock.recv(65536))
                if not part:
                    return
            self.answer(request.split()[1].decode().partition("?")[0], sock)

    def answer(self, path: str, sock: socket.socket) -> None:
        parts = path.strip("/").split("/")
        if parts[0] == "v2" and parts[1] in ("blob", "token"):
            name = parts[2]
            if parts[1] == "token":
                challenge = f'www-authenticate: Bearer realm="http://{self.host}/{name}"\r\ncontent-length: 0\r\n\r\n'
                sock.sendall(b"HTTP/1.1 401 No\r\n" + challenge.encode())
                return
            if parts[3] == "manifests":
                kind = "application/vnd.oci.image.layer.v1.tar+gzip"
                layer = {"mediaType": kind, "digest": NO_BLOB, "size": 100}
                whole(json.dumps({"layers": [layer]}).encode())(sock)
                return
        elif parts[0] == "v2":
            name = parts[1]
        elif parts[0] == "discovered":
            name = parts[1]
            whole(json.dumps({"jwks_uri": f"http://{self.host}/{name}"}).encode())(sock)
            return
        else:
            name = parts[0]
        with self.lock:
            self.seen[name] += 1
        self.behaviours[name](sock)


@contextmanager
def hostile_servers(
    tls: ssl.SSLContext | None = None, behaviours: dict[str, Misbehaviour] | None = None
) -> Iterator[HostileServers]:
    """Servers on a port of loopback until the end of the block; ``tls``: they speak it; ``behaviours``: others."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    servers = HostileServers(f"127.0.0.1:{listener.getsockname()[1]}", behaviours or misbehaviours())

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            servers.serve(sock if tls is None else tls.wrap_socket(sock, server_side=True))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield servers
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
