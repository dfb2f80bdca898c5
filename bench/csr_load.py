"""A process that has certificates signed at a steady rate over TLS, told what to do by lines on its standard input.

Not for people: ``signing.py`` starts it. ``on`` begins, ``off`` ends and is answered by a line of JSON: certificates
that were signed, calls that failed, and for how many seconds. Calls are due at fixed times, whatever the server does,
unless too many are unanswered.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mesh_pilot.api.istio.v1.auth import IstioCertificateRequest
from mesh_pilot.net.rpc import CertificateFiles, Channel, GRPCError, RpcError, client_tls, open_channel

MAX_UNANSWERED = 100

PATH = "/istio.v1.auth.IstioCertificateService/CreateCertificate"


def request(kind: str) -> bytes:
    """A request with a key of ``ec`` or ``rsa``."""
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return bytes(IstioCertificateRequest(csr=csr.public_bytes(serialization.Encoding.PEM).decode()))


class Load:
    """The calls. State: how many were answered, and how many failed."""

    def __init__(self, channels: list[Channel], message: bytes, rate: float) -> None:
        self._channels, self._message, self._rate = channels, message, rate
        self.signed = self.failed = 0

    async def run(self, over: trio.Event) -> None:
        """Call until it is over, the channels in turn; returns when all calls are answered."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in itertools.count():
                await trio.sleep_until(began + number / self._rate)
                if over.is_set():
                    return
                if len(nursery.child_tasks) < MAX_UNANSWERED:
                    nursery.start_soon(self._call, self._channels[number % len(self._channels)])

    async def _call(self, channel: Channel) -> None:
        try:
            await channel.unary(PATH, self._message, bytes, timeout_seconds=30)
            self.signed += 1
        except (GRPCError, RpcError):
            self.failed += 1


async def main(address: str, folder: str, callers: str, rate: str, kind: str) -> None:
    """Obey until there are no more lines. ``folder``: ``client-N.pem``, ``client-N.key``, ``ca.pem``."""
    async with AsyncExitStack() as stack:
        channels = []
        for number in range(int(callers)):
            certificate, key, ca = (
                Path(folder) / f for f in (f"client-{number}.pem", f"client-{number}.key", "ca.pem")
            )
            tls = client_tls(CertificateFiles(certificate=certificate, key=key, trusted=ca))
            channels.append(await stack.enter_async_context(open_channel(address, tls=tls)))
        lines = trio.wrap_file(sys.stdin)
        message = request(kind)
        print("ready", flush=True)
        async for _ in lines:
            load, began = Load(channels, message, float(rate)), time.monotonic()
            over = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run, over)
                await lines.readline()
                over.set()
            print(json.dumps([load.signed, load.failed, time.monotonic() - began]), flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
