"""Attacks on whoever judges callers: ``python identity_attacks.py PORT SECONDS ATTACK FOLDER``.

FOLDER has ``own.pem``, the root; ``1.pem`` and ``1.key``, a client's certificate; ``2.pem`` and ``2.key``, one of a
foreign root; and requests for certificates. Prints one line of JSON at its end: the calls made, and how they ended.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc

from mesh_pilot.api.istio.v1.auth import IstioCertificateRequest

CSR = "/istio.v1.auth.IstioCertificateService/CreateCertificate"
THREADS = 8

told: Counter[str] = Counter()


def channel(port: int, folder: Path, *, certificate: bool) -> grpc.Channel:
    key, chain = ((folder / name).read_bytes() for name in ("1.key", "1.pem"))
    own = (key, chain) if certificate else (None, None)
    credentials = grpc.ssl_channel_credentials((folder / "own.pem").read_bytes(), *own)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    return grpc.secure_channel(f"localhost:{port}", credentials, options)


def calls(csr: str, *, certificate: bool, token: str = "") -> Callable[[int, float, Path], None]:
    """Requests for certificates one after another, on a connection of each thread."""

    def attack(port: int, end: float, folder: Path) -> None:
        request = bytes(IstioCertificateRequest(csr=(folder / csr).read_text()))
        metadata = [("authorization", f"Bearer {token}")] if token else []
        with channel(port, folder, certificate=certificate) as on:
            call = on.unary_unary(CSR)
            while time.monotonic() < end:
                try:
                    call(request, timeout=30, metadata=metadata)
                    told["OK"] += 1
                except grpc.RpcError as error:
                    told[error.code().name] += 1

    return attack


def handshakes(port: int, end: float, folder: Path) -> None:
    """Connections with a certificate of a foreign root."""
    context = ssl.create_default_context(cafile=str(folder / "own.pem"))
    context.load_cert_chain(folder / "2.pem", folder / "2.key")
    while time.monotonic() < end:
        with socket.create_connection(("127.0.0.1", port), 10) as raw:
            try:
                with context.wrap_socket(raw, server_hostname="localhost") as tls:
                    tls.recv(1)
                    told["closed"] += 1
            except ssl.SSLError as error:
                told[error.reason or "SSLError"] += 1
            except OSError as error:
                told[type(error).__name__] += 1


ATTACKS: dict[str, Callable[[int, float, Path], None]] = {
    "requests": calls("small.csr", certificate=True),
    "large_keys": calls("large.csr", certificate=True),
    "garbage": calls("garbage.csr", certificate=True),
    "strangers": calls("small.csr", certificate=False),
    "wrong_tokens": calls("small.csr", certificate=False, token=f"mpjt_{'e30' * 50}.{'e30' * 50}.{'e30' * 50}"),
    "handshakes": handshakes,
}


def main() -> None:
    port, seconds, attack, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=ATTACKS[attack], args=(port, end, folder)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"calls": told.total(), "told": dict(told)}))


if __name__ == "__main__":
    main()
