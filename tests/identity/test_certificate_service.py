"""Certificates for keys that workloads keep, asked for as Istio's agents do, at a whole control plane."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import grpc
import httpx
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from trio.testing import MockClock

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.authenticators.client_certificate import ClientCertificate
from mesh_pilot.identity.authenticators.denials import Denials
from mesh_pilot.identity.authenticators.settings import CallerSettings, JoinTokenSettings, TrustedGateways
from mesh_pilot.identity.authority import authority
from mesh_pilot.identity.certificates import service as certificate_service
from mesh_pilot.identity.certificates.service import PATIENCE_SECONDS, QUIET_SECONDS, CertificateService
from mesh_pilot.identity.signers.requests import SigningRequestError, read_request
from mesh_pilot.identity.signers.signing import SignedCertificate, SigningError, SigningRequest
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.identity.trust.callers import AuthenticationError, Credentials, TrustDomains
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import CertificateFiles
from tests.identity.signing import create_certificate, names, new_csr, pem, request_of
from tests.support.certificates import write_certificates
from tests.support.planes import running_plane

pytestmark = pytest.mark.plane

WEB = "spiffe://cluster.local/ns/shop/sa/web"
OTHER = "spiffe://cluster.local/ns/shop/sa/cart"


@attrs.frozen
class Service:
    """A control plane, and a client with the certificate of ``WEB``."""

    plane: ControlPlane
    folder: Path

    async def sign(self, request: bytes, *, uri: str = WEB, **more: Any) -> list[str]:
        files = write_certificates(self.folder, "client", uris=(uri,))
        own = files.certificate.read_bytes(), files.key.read_bytes()
        address = self.plane.addresses.secure_grpc
        return await create_certificate(address, request, **{"ca": files.ca, "own": own, **more})

    def denials(self) -> dict[tuple[str, str], int]:
        return dict(self.plane.state.callers.authentication.denials.counts)


@asynccontextmanager
async def service(folder: Path, **more: Any) -> AsyncIterator[Service]:
    (folder / "config").mkdir()
    server = write_certificates(folder, "server")
    tls = CertificateFiles(certificate=server.certificate, key=server.key, trusted=server.ca)
    async with running_plane(folder / "config", tls=tls, **more) as plane:
        yield Service(plane, folder)


async def test_a_workload_that_is_new_gets_its_first_certificate_for_a_join_token_once(tmp_path: Path) -> None:
    tokens = JoinTokens(tmp_path / "tokens")
    made = tokens.create(Identity("cluster.local", "shop", "web"), timedelta(hours=1), max_uses=1)
    async with service(tmp_path, join_tokens=JoinTokenSettings(tmp_path / "tokens")) as served:
        shown: dict[str, Any] = {"own": None, "metadata": (("authorization", f"Bearer {made.text}"),)}
        answers: list[list[str]] = []
        reasons: list[str] = []

        async def ask() -> None:
            try:
                answers.append(await served.sign(request_of(new_csr(names(WEB))), **shown))
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED
                reasons.append(error.details())

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ask)
        leaf = x509.load_pem_x509_certificate(answers[0][0].encode())
        assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == names(WEB)
        assert len(answers) == 1
        assert [f"join token {made.record.id} was already used 1 of 1 times" in reason for reason in reasons] == [
            True
        ] * 3
        assert served.denials() == {("join_token", "replayed"): 3}


async def test_a_request_that_nobody_could_have_signed_costs_no_use_of_the_token(tmp_path: Path) -> None:
    tokens = JoinTokens(tmp_path / "tokens")
    made = tokens.create(Identity("cluster.local", "shop", "web"), timedelta(hours=1), max_uses=1)
    async with service(tmp_path, join_tokens=JoinTokenSettings(tmp_path / "tokens")) as served:
        shown: dict[str, Any] = {"own": None, "metadata": (("authorization", f"Bearer {made.text}"),)}
        for wrong, reason in (
            (request_of(NO_DER), "csr_form"),
            (b"", "csr_form"),
            (request_of("x" * 20_000), "csr_size"),
            (request_of(new_csr(key=rsa.generate_private_key(65537, 1024))), "csr_key"),
            (request_of(new_csr(x509.BasicConstraints(ca=True, path_length=None))), "csr_ca"),
            (request_of(new_csr(), CertSigner="theirs"), "csr_signer"),
        ):
            await refused(served.sign(wrong, **shown))
            assert served.denials()["csr", reason]
        assert [record.uses for record in tokens.records()] == [0]
        await served.sign(request_of(new_csr()), **shown)
        assert [record.uses for record in tokens.records()] == [1]


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize("kind", ["EC", "RSA"])
async def test_an_agent_has_its_own_key_signed_for_its_identity(tmp_path: Path, kind: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1()) if kind == "EC" else rsa.generate_private_key(65537, 2048)
    async with service(tmp_path) as served:
        chain = await served.sign(request_of(new_csr(names(WEB), key=key), seconds=600))
        leaf, root = map(x509.load_pem_x509_certificate, map(str.encode, chain))
        leaf.verify_directly_issued_by(root)
        assert leaf.public_key() == key.public_key()
        assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == names(WEB)
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert leaf.not_valid_after_utc - datetime.now(UTC) <= timedelta(seconds=600)
        assert served.plane.state.callers.certificates.statistics().issued == 1


@pytest.mark.parametrize("csr", [new_csr(), new_csr(organization=None), new_csr(names(WEB), common_name=WEB)])
async def test_the_names_in_a_request_are_those_of_its_sender_or_none(tmp_path: Path, csr: str) -> None:
    async with service(tmp_path) as served:
        leaf = x509.load_pem_x509_certificate((await served.sign(request_of(csr)))[0].encode())
        assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == names(WEB)
        assert list(leaf.subject) == []


async def test_an_agent_that_knows_an_older_trust_domain_gets_the_name_of_today(tmp_path: Path) -> None:
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text("trustDomain: new.example\ntrustDomainAliases: [cluster.local]\n")
    async with service(tmp_path, mesh_config=mesh) as served:
        chain = await served.sign(request_of(new_csr(names(WEB))))
        leaf = x509.load_pem_x509_certificate(chain[0].encode())
        today = WEB.replace("cluster.local", "new.example")
        assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == names(today)


def broken_signature() -> str:
    good = x509.load_pem_x509_csr(new_csr().encode())
    other = x509.load_pem_x509_csr(new_csr().encode())
    encoded = other.public_bytes(Encoding.DER).replace(other.tbs_certrequest_bytes, good.tbs_certrequest_bytes)
    return x509.load_der_x509_csr(encoded).public_bytes(Encoding.PEM).decode()


def usage(*, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(True, False, False, False, False, key_cert_sign, False, False, False)


NO_DER = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----"
DENIED, INVALID = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("request_bytes", "status", "reason"),
    [
        (request_of(new_csr(names(OTHER))), DENIED, "csr_identity"),
        (request_of(new_csr(names(WEB, OTHER))), DENIED, "csr_identity"),
        (request_of(new_csr(names(WEB.replace("cluster.local", "evil.example")))), DENIED, "csr_identity"),
        (request_of(new_csr(names(WEB.replace("web", "w%65b")))), DENIED, "csr_identity"),
        (request_of(new_csr(x509.SubjectAlternativeName([x509.DNSName("a.test")]))), DENIED, "csr_identity"),
        (request_of(new_csr(common_name="admin")), DENIED, "csr_identity"),
        (request_of(new_csr(x509.BasicConstraints(ca=True, path_length=None))), INVALID, "csr_ca"),
        (request_of(new_csr(usage(key_cert_sign=True))), INVALID, "csr_ca"),
        (request_of(new_csr(), ImpersonatedIdentity=OTHER), DENIED, "csr_impersonation"),
        (request_of(new_csr(), CertSigner="theirs"), INVALID, "csr_signer"),
        (request_of(new_csr(key=rsa.generate_private_key(65537, 1024))), INVALID, "csr_key"),
        (request_of(new_csr(key=ec.generate_private_key(ec.SECP256K1()))), INVALID, "csr_key"),
        (request_of(broken_signature()), INVALID, "csr_signature"),
        (request_of(""), INVALID, "csr_form"),
        (request_of(NO_DER), INVALID, "csr_form"),
        (request_of("x" * 20_000), INVALID, "csr_size"),
        (b"\xff\xff", INVALID, "csr_form"),
        (b"\x0a\x02\xff\xfe", INVALID, "csr_form"),
        (b"", INVALID, "csr_form"),
    ],
)
async def test_a_request_that_is_wrong_is_refused_with_its_reason(
    tmp_path: Path, request_bytes: bytes, status: grpc.StatusCode, reason: str
) -> None:
    async with service(tmp_path) as served:
        found, _ = await refused(served.sign(request_bytes))
        assert (found, served.denials()) == (status, {("csr", reason): 1})
        figures = served.plane.state.callers.certificates.statistics()
        assert (figures.requests, figures.issued) == (1, 0)
        is_claim = reason in ("csr_identity", "csr_ca", "csr_impersonation")
        assert (figures.claim_errors, figures.parsing_errors) == (is_claim, not is_claim)


async def test_who_shows_nothing_gets_nothing(tmp_path: Path) -> None:
    async with service(tmp_path, trust_local=True) as served:
        addresses = served.plane.addresses
        for address, ca in ((addresses.grpc, None), (addresses.secure_grpc, tmp_path / "ca.pem")):
            call = create_certificate(address, request_of(new_csr()), ca=ca)
            assert (await refused(call))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert served.denials() == {("none", "no_evidence"): 2}
        assert served.plane.state.callers.certificates.statistics().authentication_failures == 2


async def test_a_workload_renews_with_the_certificate_that_it_has(tmp_path: Path) -> None:
    async with service(tmp_path) as served:
        key = ec.generate_private_key(ec.SECP256R1())
        chain = await served.sign(request_of(new_csr(names(WEB), key=key)))
        trusted = (tmp_path / "ca.pem").read_bytes() + chain[-1].encode()
        (tmp_path / "ca.pem").write_bytes(trusted)
        renewed = await create_certificate(
            served.plane.addresses.secure_grpc,
            request_of(new_csr(names(WEB))),
            ca=tmp_path / "ca.pem",
            own=("".join(chain).encode(), pem(key)),
        )
        assert len(renewed) == 2 and renewed[0] != chain[0]


async def test_a_request_and_the_certificates_around_it_are_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: Counter[str] = Counter()

    def counted(name: str) -> None:
        parse = getattr(x509, name)

        def count(data: bytes) -> object:
            parsed[name] += 1
            return parse(data)

        monkeypatch.setattr(x509, name, count)

    settings = CallerSettings(trusted_gateways=TrustedGateways(identities=frozenset({("shop", "web")})))
    forwarded = (("x-forwarded-client-cert", f"Hash=ab;URI={OTHER}"),)
    async with service(tmp_path, callers=settings) as served:
        request = request_of(new_csr(names(OTHER)))
        counted("load_pem_x509_csr")
        counted("load_der_x509_certificate")
        await served.sign(request, metadata=forwarded)
    assert parsed == {"load_pem_x509_csr": 1, "load_der_x509_certificate": 1}


async def test_the_signature_of_a_request_is_checked_once_and_before_it_is_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(module: object, name: str) -> None:
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: done.append(name) or original(*args))

    async with service(tmp_path) as served:
        noted(certificate_service, "check_claims")
        noted(authority, "sign_leaf")
        await served.sign(request_of(new_csr()))
    assert done == ["check_claims", "sign_leaf"]


async def test_a_named_gateway_asks_on_behalf_of_its_clients(tmp_path: Path) -> None:
    settings = CallerSettings(trusted_gateways=TrustedGateways(identities=frozenset({("shop", "web")})))
    async with service(tmp_path, callers=settings) as served:
        forwarded = (("x-forwarded-client-cert", f"Hash=ab;URI={OTHER}"),)
        chain = await served.sign(request_of(new_csr(names(OTHER))), metadata=forwarded)
        leaf = x509.load_pem_x509_certificate(chain[0].encode())
        assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value == names(OTHER)
        status, _ = await refused(
            served.sign(request_of(new_csr()), metadata=(("x-forwarded-client-cert", "Hash=ab"),))
        )
        assert status is grpc.StatusCode.UNAUTHENTICATED, "its client has no name, and is not the gateway"
        status, _ = await refused(served.sign(request_of(new_csr())))
        assert status is grpc.StatusCode.UNAUTHENTICATED, "its client has no certificate, and is not the gateway"
        stranger = WEB.replace("web", "cart")
        await refused(served.sign(request_of(new_csr(names(WEB))), uri=stranger, metadata=forwarded))
        assert served.denials()["xfcc", "xfcc_stranger"] == 1


async def test_pages_and_metrics_tell_who_was_refused_and_why(tmp_path: Path) -> None:
    async with service(tmp_path) as served, httpx.AsyncClient(trust_env=False, timeout=60) as web:
        await served.sign(request_of(new_csr()))
        await refused(served.sign(request_of(new_csr(names(OTHER)))))
        http = f"http://{served.plane.addresses.http}"
        page = (await web.get(f"{http}/debug/authenticationz")).json()
        assert page["accepted"] == {"client_certificate": 2}
        (latest,) = page["latest"]
        assert (latest["authenticator"], latest["reason"]) == ("csr", "csr_identity")
        assert OTHER in latest["text"]
        metrics = (await web.get(f"{http}/metrics")).text.splitlines()
        for line in (
            "citadel_server_csr_count 2.0",
            "citadel_server_success_cert_issuance_count 1.0",
            "citadel_server_id_extraction_err_count 1.0",
            'mesh_pilot_accepted_callers{authenticator="client_certificate"} 2.0',
            'mesh_pilot_refused_callers{authenticator="csr",reason="csr_identity"} 1.0',
        ):
            assert line in metrics


async def test_a_certificate_that_ended_on_an_open_connection_proves_nothing(tmp_path: Path) -> None:
    files = write_certificates(tmp_path, "client", uris=(WEB,))
    der = x509.load_pem_x509_certificate(files.certificate.read_bytes()).public_bytes(Encoding.DER)
    trusted = TrustDomains("cluster.local")
    tomorrow = ClientCertificate(lambda: trusted, lambda: datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(AuthenticationError) as caught:
        await tomorrow.authenticate(Credentials("192.0.2.1:5", True, der))
    assert caught.value.reason == "expired"


async def test_a_caller_that_asks_too_often_is_told_to_wait_and_others_are_not(tmp_path: Path) -> None:
    async with service(tmp_path, callers=CallerSettings(certificates_per_second=0.1)) as served:
        await served.sign(request_of(new_csr()))
        status, _ = await refused(served.sign(request_of(new_csr())))
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
        await served.sign(request_of(new_csr()), uri=OTHER)


class Away:
    """A signer that does not sign."""

    async def sign(self, request: SigningRequest) -> SignedCertificate:
        raise SigningError("the signer is away")


async def test_requests_wait_for_a_push_to_be_over_but_not_for_pushes_without_end(autojump_clock: MockClock) -> None:
    async def nobody(call: object) -> None:
        return None

    idle = CertificateService(
        nobody,
        Away(),
        roots=tuple,
        trust_domains=lambda: TrustDomains("cluster.local"),
        denials=Denials(),
    )

    async def waited(pushed_at: Callable[[], float]) -> float:
        idle.give_way(pushed_at)
        began = trio.current_time()
        await idle._wait_for_pushes()
        return trio.current_time() - began

    now = trio.current_time()
    assert await waited(lambda: -math.inf) == 0
    assert await waited(lambda: now) == pytest.approx(QUIET_SECONDS)
    assert await waited(trio.current_time) == pytest.approx(PATIENCE_SECONDS)
    assert await waited(trio.current_time) == 0
    await trio.sleep(PATIENCE_SECONDS)
    assert await waited(trio.current_time) == pytest.approx(PATIENCE_SECONDS)


def test_an_ed25519_key_is_not_signed_as_envoy_does_not_take_it() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, None)
    with pytest.raises(SigningRequestError) as caught:
        read_request(csr.public_bytes(Encoding.PEM).decode())
    assert caught.value.reason == "csr_key"
