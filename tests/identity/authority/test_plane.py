"""The CA of a whole control plane: a rotation and a revocation while clients are connected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from cryptography import x509
from envoy.config.core.v3.base_pb2 import Node
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from mesh_pilot.app import identity
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.authority.material import ROOTS
from mesh_pilot.model.resource import CLUSTER, IDENTITY_SECRET, SECRET, TRUST_SECRET
from mesh_pilot.net.rpc import (
    Cardinality,
    CertificateFiles,
    Channel,
    ClientCall,
    GRPCError,
    RpcError,
    Status,
    client_tls,
    open_channel,
)
from tests.support.authorities import LeafRequest
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
NODE = Node(id="sidecar~10.0.0.1~reco.shop~shop.svc.cluster.local")
Stream = ClientCall[Any, Any]


class Workload:
    """A client with its own key, and the certificate that it was signed last."""

    def __init__(self, plane: ControlPlane, folder: Path, name: str) -> None:
        self._plane = plane
        self._ca = plane.settings.ca_dir
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"

    async def get_certificate(self) -> None:
        request = LeafRequest()
        signed = await self._plane.state.callers.authority.sign(request.signing)
        self.certificate.write_bytes(signed.chain)
        self._key.write_bytes(request.key_pem)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Channel]:
        """A connection to the secure port; both sides verify the other."""
        assert self._ca is not None
        files = CertificateFiles(certificate=self.certificate, key=self._key, trusted=self._ca / ROOTS)
        async with open_channel(self._plane.addresses.secure_grpc, tls=client_tls(files)) as channel:
            yield channel


@asynccontextmanager
async def stream(channel: Channel, type_url: str, *names: str) -> AsyncIterator[Stream]:
    async with channel.request(ADS, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse) as call:
        await call.send_message(DiscoveryRequest(type_url=type_url, node=NODE, resource_names=names))
        yield call
        await call.cancel()


async def next_secrets(call: Stream) -> dict[str, secret_pb2.Secret]:
    """The secrets of the next response, which is accepted."""
    response = await call.recv_message()
    assert response is not None
    names = (IDENTITY_SECRET, TRUST_SECRET)
    await call.send_message(
        DiscoveryRequest(
            type_url=SECRET, resource_names=names, version_info=response.version_info, response_nonce=response.nonce
        )
    )
    found = (secret_pb2.Secret.FromString(each.value) for each in response.resources)
    return {secret.name: secret for secret in found}


def roots_in(secrets: dict[str, secret_pb2.Secret]) -> int:
    return secrets[TRUST_SECRET].validation_context.trusted_ca.inline_bytes.count(b"BEGIN")


def signer_in(secrets: dict[str, secret_pb2.Secret]) -> x509.Certificate:
    chain = secrets[IDENTITY_SECRET].tls_certificate.certificate_chain.inline_bytes
    return x509.load_pem_x509_certificates(chain)[-1]


async def page(plane: ControlPlane) -> Any:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.get(f"http://{plane.addresses.http}/debug/ca")).json()


async def ready(plane: ControlPlane) -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.get(f"http://{plane.addresses.http}/ready")).text


async def ca(plane: ControlPlane, *words: str) -> str:
    """Run ``mesh-pilot ca`` on the folder of a control plane; returns what it says to mistakes, "" if it did it."""
    more = ("--ca-dir", str(plane.settings.ca_dir))
    outcome = await trio.to_thread.run_sync(lambda: mesh_pilot("ca", *words, *more))
    return "" if outcome.code == 0 else outcome.err


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "a.yaml").write_text(SERVICE)
    return tmp_path / "config"


@pytest.mark.timeout(300)
async def test_clients_stay_connected_through_a_rotation_and_no_step_can_come_too_early(
    config: Path, tmp_path: Path
) -> None:
    async with running_plane(config, ca_dir=tmp_path / "ca", trust_local=True) as plane:
        pilot = ("--pilot", plane.addresses.http)
        old, new = (Workload(plane, tmp_path, name) for name in ("old", "new"))
        await old.get_certificate()
        async with (
            open_channel(plane.addresses.grpc, tls=None) as local,
            stream(local, SECRET, IDENTITY_SECRET, TRUST_SECRET) as proxy,
            old.channel() as secure,
            stream(secure, CLUSTER) as kept,
        ):
            assert await kept.recv_message() is not None
            first: dict[str, secret_pb2.Secret] = {}
            while len(first) < 2:
                first |= await next_secrets(proxy)
            assert await ready(plane) == "ready\n"

            assert await ca(plane, "rotate", "begin") == ""
            with trio.fail_after(60):
                response = await proxy.recv_message()  # not accepted yet
            assert response is not None
            assert "1 of 1 proxies have not accepted both roots yet" in await ca(plane, "rotate", "switch", *pilot)
            assert "before mesh-pilot ca rotate switch, wait: 1 of 1 proxies" in await ready(plane)
            await proxy.send_message(
                DiscoveryRequest(
                    type_url=SECRET,
                    resource_names=(IDENTITY_SECRET, TRUST_SECRET),
                    version_info=response.version_info,
                    response_nonce=response.nonce,
                )
            )
            held = {s.name: s for s in map(secret_pb2.Secret.FromString, (r.value for r in response.resources))}
            assert roots_in(held) == 2

            async def nothing_is_pending() -> bool:
                return not (await page(plane))["pending"]

            await eventually(nothing_is_pending, what="the proxy has accepted both roots")
            assert "everybody has followed; next: mesh-pilot ca rotate switch" in await ready(plane)
            assert await ca(plane, "rotate", "switch", *pilot) == ""
            with trio.fail_after(60):
                held = await next_secrets(proxy)
            assert signer_in(held) != signer_in(first)
            await new.get_certificate()
            async with new.channel() as other, stream(other, CLUSTER) as beside, old.channel() as again:
                assert await beside.recv_message() is not None
                async with stream(again, CLUSTER) as once_more:
                    assert await once_more.recv_message() is not None
            refused = await ca(plane, "rotate", "finish", *pilot)
            assert "certificates of the old root are in force until" in refused

            assert await ca(plane, "rotate", "finish", "--force", *pilot) == ""
            with trio.fail_after(60):
                assert roots_in(await next_secrets(proxy)) == 1
            async with new.channel() as other, stream(other, CLUSTER) as beside:
                assert await beside.recv_message() is not None
            with pytest.raises(RpcError, match="unknown ca"):
                async with old.channel() as other, stream(other, CLUSTER) as beside:
                    await beside.recv_message()
            assert await ready(plane) == "ready\n"


async def test_a_revoked_client_is_refused_and_proxies_get_the_list(config: Path, tmp_path: Path) -> None:
    async with running_plane(config, ca_dir=tmp_path / "ca", trust_local=True) as plane:
        stolen, other = (Workload(plane, tmp_path, name) for name in ("stolen", "other"))
        for each in (stolen, other):
            await each.get_certificate()
            async with each.channel() as channel, stream(channel, CLUSTER) as call:
                assert await call.recv_message() is not None
        async with (
            open_channel(plane.addresses.grpc, tls=None) as local,
            stream(local, SECRET, IDENTITY_SECRET, TRUST_SECRET) as proxy,
        ):
            first: dict[str, secret_pb2.Secret] = {}
            while len(first) < 2:
                first |= await next_secrets(proxy)
            assert await ca(plane, "revoke", str(stolen.certificate)) == ""
            with trio.fail_after(60):
                context = (await next_secrets(proxy))[TRUST_SECRET].validation_context
        assert context.only_verify_leaf_cert_crl
        (crl,) = [x509.load_pem_x509_crl(context.crl.inline_bytes)]
        leaf = x509.load_pem_x509_certificate(stolen.certificate.read_bytes())
        assert [entry.serial_number for entry in crl] == [leaf.serial_number]
        with pytest.raises(GRPCError) as refused:
            async with stolen.channel() as channel, stream(channel, CLUSTER) as call:
                await call.recv_message()
        assert refused.value.status is Status.UNAUTHENTICATED
        assert "revoked" in str(refused.value.message)
        async with other.channel() as channel, stream(channel, CLUSTER) as call:
            assert await call.recv_message() is not None


async def test_the_open_stream_of_a_revoked_client_ends_and_others_go_on(config: Path, tmp_path: Path) -> None:
    async with running_plane(config, ca_dir=tmp_path / "ca") as plane:
        stolen, other = (Workload(plane, tmp_path, name) for name in ("stolen", "other"))
        await stolen.get_certificate()
        await other.get_certificate()
        async with (
            other.channel() as good,
            stream(good, CLUSTER) as served,
            stolen.channel() as bad,
            stream(bad, CLUSTER) as cut,
        ):
            for call in (served, cut):
                assert await call.recv_message() is not None
            assert await ca(plane, "revoke", str(stolen.certificate)) == ""
            with trio.fail_after(60), pytest.raises((GRPCError, RpcError)):
                await cut.recv_message()
            async with stream(good, CLUSTER) as another:
                assert await another.recv_message() is not None
            await eventually(lambda: plane.state.rpc_servers[1].statistics().streams_open == 1)
        assert [server.statistics().connections_retired for server in plane.state.rpc_servers] == [{}, {"revoked": 1}]


async def test_a_root_that_was_made_by_a_clock_ahead_makes_the_plane_unready_until_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = timedelta(days=2)
    monkeypatch.setattr(identity, "_now", lambda: datetime.now(UTC) + ahead)
    (tmp_path / "config").mkdir()
    async with (
        running_plane(tmp_path / "config", ca_dir=tmp_path / "ca") as plane,
        httpx.AsyncClient(timeout=60) as client,
    ):
        url = f"http://{plane.addresses.http}/ready"
        assert (await client.get(url)).status_code == 200
        ahead = timedelta(0)  # NTP has answered
        found = await client.get(url)
        assert found.status_code == 503
        assert "ca: the root CN=mesh-pilot root" in found.text
        assert "has not begun" in found.text
