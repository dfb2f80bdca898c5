"""An identity is shut out: it gets nothing, whatever it shows, until a time; renewals never lengthen a certificate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import grpc
import pytest
import structlog
import trio
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.cli.identity.ca import command as ca_command
from mesh_pilot.identity.authority.authority import Authority, root_for_this_run
from mesh_pilot.identity.authority.certificates import CLOCK_SKEW
from mesh_pilot.identity.authority.material import IDENTITIES, ROOTS, AuthorityError
from mesh_pilot.identity.authority.revoked_identities import RevokedIdentities, read_identities, with_identity
from mesh_pilot.identity.authority.store import StoredFiles
from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.identity.signers.signing import SigningRequest
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.model.resource import CLUSTER, LISTENER
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import (
    Cardinality,
    CertificateFiles,
    ClientCall,
    GRPCError,
    RpcError,
    Status,
    client_tls,
    open_channel,
)
from tests.identity.signing import create_certificate, new_csr, pem, request_of
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
WEB = "spiffe://cluster.local/ns/shop/sa/web"
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
IDENTITY = Identity("cluster.local", "shop", "web")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    made = tmp_path / "config"
    made.mkdir()
    (made / "service.yaml").write_text(SERVICE)
    return made


@attrs.define
class Thief:
    """A workload that keeps what it once got: a certificate with its key, and a join token."""

    plane: ControlPlane
    name: str
    token: str
    own: tuple[bytes, bytes] | None = None

    async def ask(self, *, seconds: int = 0, with_token: bool = False) -> x509.Certificate:
        """Raises grpc.RpcError."""
        key = ec.generate_private_key(ec.SECP256R1())
        ca = self.plane.settings.ca_dir
        assert ca is not None
        metadata = (("authorization", f"Bearer {self.token}"),) if with_token else ()
        chain = await create_certificate(
            self.plane.addresses.secure_grpc,
            request_of(new_csr(key=key), seconds=seconds),
            ca=ca / ROOTS,
            own=None if with_token else self.own,
            metadata=metadata,
        )
        self.own = "".join(chain).encode(), pem(key)
        return x509.load_pem_x509_certificate(chain[0].encode())

    @asynccontextmanager
    async def stream(self, evidence: str) -> AsyncIterator[ClientCall[DiscoveryRequest, DiscoveryResponse]]:
        """A stream that is served."""
        ca, addresses = self.plane.settings.ca_dir, self.plane.addresses
        assert ca is not None
        files = CertificateFiles(trusted=ca / ROOTS)
        if evidence == "certificate":
            assert self.own is not None
            for name, content in zip(("crt", "key"), self.own, strict=True):
                (ca.parent / f"{self.name}.{name}").write_bytes(content)
            files = attrs.evolve(files, certificate=ca.parent / f"{self.name}.crt", key=ca.parent / f"{self.name}.key")
        metadata = {"authorization": f"Bearer {self.token}"} if evidence == "token" else {}
        where = addresses.grpc if "word" in evidence else addresses.secure_grpc
        node = Node(id=f"sidecar~10.0.0.1~{self.name}.shop~shop.svc.cluster.local")
        node.metadata.update({"SERVICE_ACCOUNT": self.name})
        async with (
            open_channel(where, tls=None if "word" in evidence else client_tls(files)) as channel,
            channel.request(
                ADS, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse, metadata=metadata
            ) as call,
        ):
            await call.send_message(DiscoveryRequest(type_url=CLUSTER, node=node))
            assert await call.recv_message() is not None
            yield call


def thief(plane: ControlPlane, name: str = "web") -> Thief:
    assert plane.settings.ca_dir is not None
    tokens = JoinTokens(plane.settings.ca_dir / "join-tokens")
    return Thief(plane, name, tokens.create(Identity("cluster.local", "shop", name), timedelta(hours=1)).text)


@pytest.mark.plane
async def test_a_renewal_is_no_longer_than_what_it_renews_and_each_signature_leaves_a_line(
    config: Path, tmp_path: Path
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with running_plane(config, ca_dir=tmp_path / "ca") as plane:
            stolen = thief(plane)
            first = await stolen.ask(seconds=600, with_token=True)
            renewed = [await stolen.ask(seconds=2**40) for _ in range(3)]
    whole = first.not_valid_after_utc - first.not_valid_before_utc
    assert whole == timedelta(seconds=600) + CLOCK_SKEW
    assert all(each.not_valid_after_utc - each.not_valid_before_utc <= whole for each in renewed)
    audit = [line for line in lines if line["event"] == "certificate signed" and line["identity"] == WEB]
    assert [line["log_level"] for line in audit] == ["info"] * 4
    assert [line["serial"] for line in audit] == [f"{each.serial_number:x}" for each in (first, *renewed)]
    evidence = [line["evidence"] for line in audit]
    assert evidence[0].startswith("join_token ")
    assert len(evidence[0]) > len("join_token ")
    assert evidence[1:] == [f"client_certificate {each.serial_number:x}" for each in (first, *renewed[:2])]
    assert all(line["peer"].startswith("127.0.0.1:") for line in audit)


async def ca(plane: ControlPlane, *words: str) -> str:
    """What ``mesh-pilot ca`` prints for the folder of a control plane."""
    command = [*words, "--ca-dir", str(plane.settings.ca_dir)]
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(ca_command, command))
    assert done.exit_code == 0, done.output
    return done.output


def untils(plane: ControlPlane) -> Mapping[Identity, datetime]:
    assert plane.state.callers.authority is not None
    return plane.state.callers.authority.revoked.untils


@pytest.mark.plane
async def test_a_revoked_identity_gets_nothing_whatever_it_shows_at_all_replicas_until_it_is_lifted(
    config: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "ca"
    async with running_plane(config, ca_dir=folder) as first, running_plane(config, ca_dir=folder) as second:
        stolen, other = thief(first), thief(first, "cart")
        await stolen.ask(with_token=True)
        await other.ask(with_token=True)
        said = await ca(first, "revoke", "--identity", WEB, "--until", "2099-01-01T00:00:00Z")
        assert said == f"revoked until 2099-01-01 00:00:00 UTC: {WEB}\n"
        assert f"revoked   {WEB} until 2099-01-01T00:00:00Z" in await ca(first, "status", "--pilot", "127.0.0.1:1")
        for plane in (first, second):
            await eventually(lambda plane=plane: untils(plane) != {}, what="the replica follows")
            stolen.plane = other.plane = plane
            for with_token in (False, True):
                with pytest.raises(grpc.RpcError) as refused:
                    await stolen.ask(with_token=with_token)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert "is revoked until 2099-01-01 00:00:00 UTC" in refused.value.details()
            refusals = plane.state.callers.authentication.refused
            assert refusals["client_certificate", "identity_revoked"] == 1
            assert refusals["join_token", "identity_revoked"] == 1
            await other.ask()
        assert await ca(first, "revoke", "--identity", WEB, "--until", "2020-01-01") == f"no longer revoked: {WEB}\n"
        await eventually(lambda: not untils(second), what="the replica follows")
        stolen.plane = second
        await stolen.ask()


@pytest.mark.plane
@pytest.mark.parametrize("evidence", ["token", "certificate", "its word, with --trust-local"])
async def test_the_open_streams_of_an_identity_end_with_it_and_others_stay(
    config: Path, tmp_path: Path, evidence: str
) -> None:
    async with running_plane(config, ca_dir=tmp_path / "ca", trust_local="word" in evidence) as plane:
        web, cart = thief(plane), thief(plane, "cart")
        if evidence == "certificate":
            await web.ask(with_token=True)
            await cart.ask(with_token=True)
        async with web.stream(evidence) as cut, cart.stream(evidence) as served:
            await ca(plane, "revoke", "--identity", WEB, "--until", "2099-01-01")
            with trio.fail_after(60), pytest.raises((GRPCError, RpcError)):
                while await cut.recv_message() is not None:
                    pass
                raise RpcError("it ended")
            with pytest.raises(GRPCError) as refused:
                async with web.stream(evidence):
                    pass
            assert refused.value.status is Status.UNAUTHENTICATED
            assert "revoked until 2099" in (refused.value.message or "")
            await served.send_message(DiscoveryRequest(type_url=LISTENER))
            assert (await served.recv_message()) is not None


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@settings(max_examples=60, deadline=None)
@given(
    first=st.integers(1, 10**6),
    renewals=st.lists(st.tuples(st.integers(1, 2**40), st.floats(0, 1)), min_size=1, max_size=5),
)
async def test_no_chain_of_renewals_is_longer_than_its_first_certificate(
    first: int, renewals: list[tuple[int, float]]
) -> None:
    clock = Clock()
    authority = Authority.ephemeral(now=clock)
    certificate = await signed(authority, timedelta(seconds=first))
    whole = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    for seconds, part in renewals:
        clock.now += (certificate.not_valid_after_utc - clock.now) * part
        asked = timedelta(seconds=min(seconds, 86400 * 3650))
        certificate = await signed(authority, asked, renews=certificate)
        assert certificate.not_valid_after_utc - certificate.not_valid_before_utc <= whole


async def test_a_certificate_that_was_short_because_the_ca_ended_is_renewed_for_the_usual_time() -> None:
    clock = Clock()
    authority = Authority.ephemeral(now=clock)
    clock.now = authority.material.not_after - timedelta(minutes=5)
    cut = await signed(authority, timedelta(hours=24))
    authority.take(root_for_this_run(clock.now))
    renewed = await signed(authority, timedelta(hours=24), renews=cut)
    assert renewed.not_valid_after_utc == clock.now + timedelta(hours=24)


async def signed(authority: Authority, lifetime: timedelta, renews: x509.Certificate | None = None) -> x509.Certificate:
    request = SigningRequest(new_request(ec.generate_private_key(ec.SECP256R1())), lifetime, IDENTITY, renews=renews)
    return x509.load_pem_x509_certificate((await authority.sign(request)).chain)


def test_the_list_is_by_name_in_whichever_trust_domain_and_ends_by_itself() -> None:
    clock = Clock()
    files = with_identity({}, "ca", IDENTITY, NOW + timedelta(hours=1), NOW)
    known = RevokedIdentities(clock, read_identities(files, "ca"))
    assert known.until(Identity("old.example", "shop", "web")) == NOW + timedelta(hours=1)
    assert known.until(Identity("cluster.local", "shop", "cart")) is None
    clock.now += timedelta(hours=1)
    assert known.until(IDENTITY) is None
    other = Identity("cluster.local", "bank", "web")
    assert list(read_identities(with_identity(files, "ca", other, NOW + timedelta(days=9), clock.now), "ca")) == [other]
    assert with_identity(files, "ca", IDENTITY, NOW, NOW) == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"shop/web": "2026-12-01"}', "is not of the form spiffe://"),
        (b'{"spiffe://cluster.local/ns/shop/sa/web": 5}', "is not as in 2026"),
        (b'{"spiffe://cluster.local/ns/shop/sa/web": "soon"}', "is not as in 2026"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_list_that_cannot_be_read_is_said_and_the_last_one_stays(content: bytes, says: str) -> None:
    root = root_for_this_run(NOW)
    good = with_identity(root.files, "ca", IDENTITY, NOW + timedelta(hours=1), NOW)
    authority = Authority(StoredFiles(good), "ca", TrustStore(), now=lambda: NOW)
    authority.take(StoredFiles({**good, IDENTITIES: content}))
    assert says in authority.statistics().problem
    assert authority.revoked.until(IDENTITY) is not None
    with pytest.raises(AuthorityError, match=IDENTITIES):
        Authority(StoredFiles({**root.files, IDENTITIES: content}), "ca", TrustStore(), now=lambda: NOW)
