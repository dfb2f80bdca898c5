"""Callers who try to be somebody else: what they show, what they ask for, and what they are told.

row = Row(shows=certificate("spiffe://evil.example/ns/shop/sa/web"), says="not a trust domain", counted=...)
await row.is_refused(plane, forger)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse
from google.protobuf.json_format import ParseDict

from mesh_pilot.api.google.protobuf import Struct, Value
from mesh_pilot.api.istio.v1.auth import IstioCertificateRequest, IstioCertificateResponse
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.certificates.service import PATH
from mesh_pilot.model.resource import CLUSTER, SECRET
from mesh_pilot.net.rpc import Cardinality, CertificateFiles, GRPCError, RpcError, Status, client_tls, open_channel
from tests.support.forgery import Forger, csr_of
from tests.support.planes import running_plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
WEB = "spiffe://cluster.local/ns/shop/sa/web"
HANDSHAKE = "handshake"
"""In place of an authenticator: refused before there was a call."""


@attrs.frozen(kw_only=True)
class Shown:
    """The evidence of one call."""

    files: CertificateFiles | None = None
    """The client certificate, if any, and the roots that the caller trusts; None: plaintext."""
    metadata: Iterable[tuple[str, str]] = ()


@attrs.frozen(kw_only=True)
class Stream:
    """The clusters of a node."""

    namespace: str = "shop"
    """That in the node's id."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """The node's."""

    async def of(self, address: str, shown: Shown) -> None:
        node = {"id": f"sidecar~10.1.1.1~web-1.{self.namespace}~{self.namespace}.svc.cluster.local"}
        async with _deltas(address, shown) as call:
            first = DeltaDiscoveryRequest(type_url=CLUSTER, node=ParseDict({**node, "metadata": self.metadata}, Node()))
            await call.send_message(first)
            answer = await call.recv_message()
            assert answer is not None and answer.type_url == CLUSTER


@attrs.frozen(kw_only=True)
class Certificate:
    """A certificate for a key of the caller's."""

    csr: Callable[[], bytes] = csr_of
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    """That of the message, not of the call."""

    async def of(self, address: str, shown: Shown) -> list[str]:
        """The chain."""
        request = message_of(self.csr(), **self.metadata)
        tls = client_tls(shown.files, check_hostname=False) if shown.files is not None else None
        async with open_channel(address, tls=tls) as channel:
            answer = await channel.unary(PATH, request, IstioCertificateResponse, metadata=list(shown.metadata))
            return list(answer.cert_chain)


@attrs.frozen(kw_only=True)
class Keys:
    """The private keys of these secrets, as a node of this type."""

    names: Sequence[str]
    node_type: str
    namespace: str

    async def of(self, address: str, shown: Shown) -> list[str]:
        """The names of those that are given."""
        domain = f"{self.namespace}.svc.cluster.local"
        node = Node(id=f"{self.node_type}~10.1.1.1~edge-1.{self.namespace}~{domain}")
        async with _deltas(address, shown) as call:
            await call.send_message(
                DeltaDiscoveryRequest(type_url=SECRET, node=node, resource_names_subscribe=self.names)
            )
            answer = await call.recv_message()
            assert answer is not None and answer.type_url == SECRET
            found = (Secret.FromString(resource.resource.value) for resource in answer.resources)
            return [secret.name for secret in found if secret.tls_certificate.private_key.inline_bytes]


@asynccontextmanager
async def _deltas(address: str, shown: Shown) -> AsyncIterator[Any]:
    tls = client_tls(shown.files, check_hostname=False) if shown.files is not None else None
    types = Cardinality.STREAM_STREAM, DeltaDiscoveryRequest, DeltaDiscoveryResponse
    async with (
        open_channel(address, tls=tls) as channel,
        channel.request(ADS, *types, metadata=list(shown.metadata)) as call,
    ):
        yield call


def message_of(csr: bytes, **metadata: str) -> bytes:
    """An encoded request for a certificate."""
    fields = {name: Value(string_value=value) for name, value in metadata.items()}
    return bytes(IstioCertificateRequest(csr=csr.decode(errors="replace"), metadata=Struct(fields=fields)))


@attrs.frozen(kw_only=True)
class Row:
    """Somebody who is refused."""

    shows: Callable[[Forger], Shown]
    asks: Stream | Certificate = Stream()
    status: Status | None = Status.UNAUTHENTICATED
    """None: the TLS handshake fails."""
    says: str
    """A part of what the caller is told."""
    counted: tuple[str, str]
    """The authenticator and the reason that are counted, and nothing else."""

    async def difference(self, plane: ControlPlane, forger: Forger) -> str:
        """How what happens differs from what should; empty if it does not."""
        shown = self.shows(forger)
        before = counts(plane)
        address = plane.addresses.grpc if shown.files is None else plane.addresses.secure_grpc
        status: Status | None = Status.OK
        text = ""
        with trio.fail_after(30):
            try:
                await self.asks.of(address, shown)
            except GRPCError as error:
                status, text = error.status, error.message or ""
            except RpcError as error:
                status, text = None, str(error)
        counted = counts(plane) - before
        if status is self.status and self.says in text and counted == Counter({self.counted: 1}):
            return ""
        return f"{status}, {text!r}, counted: {dict(counted)}"


async def differences(rows: Mapping[str, Row], plane: ControlPlane, forger: Forger) -> dict[str, str]:
    """What happens otherwise than it should, by row."""
    found = {name: await row.difference(plane, forger) for name, row in rows.items()}
    return {name: difference for name, difference in found.items() if difference}


def of_nobody(forger: Forger) -> Shown:
    """TLS without a client certificate."""
    return Shown(files=CertificateFiles(trusted=forger.trusted))


@asynccontextmanager
async def impersonated(folder: Path, **more: Any) -> AsyncIterator[tuple[ControlPlane, Forger]]:
    """A plane that trusts the forger's root and nobody on this machine without a proof. ``more`` are Settings."""
    (folder / "config").mkdir()
    forger = Forger(folder / "forger")
    server = forger.leaf(dns=("localhost",))
    async with running_plane(folder / "config", tls=server, trust_local=False, **more) as plane:
        yield plane, forger


def counts(plane: ControlPlane) -> Counter[tuple[str, str]]:
    """All refusals so far, by who refused and the reason."""
    failed = (server.statistics().failed_handshakes for server in plane.state.rpc_servers)
    found = Counter({(HANDSHAKE, reason): count for counts in failed for reason, count in counts.items()})
    return found + plane.state.callers.authentication.denials.counts
