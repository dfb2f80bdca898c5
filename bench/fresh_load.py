"""A process with Envoys that are new: each shows a certificate, has another signed, and comes back with that for xDS.

Not for people: ``fresh.py`` starts it, and names the step that all clients take, a line each on its standard input:
``connect``, ``certificate``, ``reconnect``, ``answer``. Each is answered by a line with the number of clients that have
failed in it.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from envoy.service.discovery.v3 import discovery_pb2

from bench.client import BUILD, DELTA_PATH
from bench.csr_load import PATH
from bench.wire import CDS
from mesh_pilot.api.istio.v1.auth import IstioCertificateRequest, IstioCertificateResponse
from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.net.rpc import (
    CLIENT_LIMITS,
    Cardinality,
    CertificateFiles,
    CertificatePem,
    GRPCError,
    RpcError,
    TlsSource,
    client_tls,
    client_tls_in_memory,
    open_channel,
)

STEPS = ("connect", "certificate", "reconnect", "answer")
PEM = serialization.Encoding.PEM
SECONDS = 60.0
"""The time that a client has for a step."""
LIMITS = attrs.evolve(CLIENT_LIMITS, handshake_timeout_seconds=SECONDS)


class Crowd:
    """All clients, each a task, and the steps that they take together.

    State: which steps have begun, and how many clients have taken each, or failed in one.
    """

    def __init__(self, address: str, evidence: Sequence[TlsSource], ca: Path) -> None:
        self._address, self._evidence, self._ca = address, evidence, ca
        self._begun = {step: trio.Event() for step in (*STEPS, "the end")}
        self._taken: Counter[str] = Counter()
        self.failed = 0
        self._news = trio.Event()

    async def take(self, step: str, count: int) -> int:
        """Have all clients take a step; returns how many have failed so far."""
        self._begun[step].set()
        while self._taken[step] + self.failed < count:
            await self._news.wait()
            self._news = trio.Event()
        return self.failed

    async def live(self, number: int) -> None:
        """The life of one client."""
        try:
            await self._live(number)
        except* (GRPCError, RpcError, OSError, AssertionError, trio.TooSlowError) as failure:
            if not self.failed:
                print(f"the first client that failed: {failure.exceptions[0]!r}", file=sys.stderr)
            self.failed += 1
            self._news.set()

    async def _live(self, number: int) -> None:
        account = number % len(self._evidence)
        key = ec.generate_private_key(ec.SECP256R1())
        csr = new_request(key).public_bytes(PEM).decode()
        pem = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        await self._begun["connect"].wait()
        async with open_channel(self._address, tls=self._evidence[account], limits=LIMITS) as first:
            await self._done("connect", "certificate")
            asked = bytes(IstioCertificateRequest(csr=csr))
            answer = await first.unary(PATH, asked, IstioCertificateResponse, timeout_seconds=SECONDS)
            shown = CertificatePem(certificate="".join(answer.cert_chain[:-1]).encode(), key=pem)
            tls = client_tls_in_memory(lambda: shown, trusted=self._ca)
            await self._done("certificate", "reconnect")
        async with open_channel(self._address, tls=tls, limits=LIMITS) as second:
            await self._done("reconnect", "answer")
            async with second.request(DELTA_PATH, Cardinality.STREAM_STREAM, bytes, bytes) as call:
                await call.send_message(_first_request(number, f"caller-{account}"))
                assert await call.recv_message()
                await self._done("answer", "the end")

    async def _done(self, step: str, following: str) -> None:
        """A client has taken a step; wait for the next one."""
        self._taken[step] += 1
        self._news.set()
        await self._begun[following].wait()


def _first_request(number: int, account: str) -> bytes:
    """Of an Envoy: clusters."""
    request = discovery_pb2.DeltaDiscoveryRequest(type_url=CDS)
    request.node.CopyFrom(BUILD)
    request.node.id = f"sidecar~10.1.{number >> 8}.{number & 255}~c{number}.shop~shop.svc.cluster.local"
    request.node.metadata.update({"NAMESPACE": "shop", "SERVICE_ACCOUNT": account})
    return request.SerializeToString()


async def main(address: str, folder: str, callers: str, count: str) -> None:
    """Obey until there are no more lines. ``folder``: ``client-N.pem``, ``client-N.key``, ``ca.pem``."""
    at = Path(folder)
    ca = at / "ca.pem"
    shown = [
        client_tls(CertificateFiles(certificate=at / f"client-{n}.pem", key=at / f"client-{n}.key", trusted=ca))
        for n in range(int(callers))
    ]
    crowd = Crowd(address, shown, ca)
    async with trio.open_nursery() as nursery:
        for number in range(int(count)):
            nursery.start_soon(crowd.live, number)
        print("ready", flush=True)
        async for line in trio.wrap_file(sys.stdin):
            print(await crowd.take(line.strip(), int(count)), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    trio.run(main, *sys.argv[1:])
