"""Ways to be somebody else: a whole plane, over real TLS, refuses each with its own reason that is counted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import attrs
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from mesh_pilot.identity.authenticators.settings import CallerSettings, TrustedGateways
from mesh_pilot.net.rpc import CertificateFiles, Status
from tests.support.certificates import write_certificates
from tests.support.command import mesh_pilot
from tests.support.credentials import write_credential
from tests.support.envoy import eventually
from tests.support.forgery import Forger, Signer, badly_signed_csr, csr_of
from tests.support.impersonation import (
    HANDSHAKE,
    WEB,
    Certificate,
    Keys,
    Row,
    Shown,
    Stream,
    differences,
    impersonated,
    of_nobody,
)
from tests.support.planes import running_plane
from tests.support.x509_parts import HOUR

pytestmark = pytest.mark.plane

OLD = timedelta(minutes=-1)
SERVER_ONLY = [ExtendedKeyUsageOID.SERVER_AUTH]


def certificate(reason: str, says: str, *uris: str, dns: tuple[str, ...] = ()) -> Row:
    """A certificate of our own root that names nobody we know."""
    return Row(
        shows=lambda forger: Shown(files=forger.leaf(*uris, dns=dns)),
        says=says,
        counted=("client_certificate", reason),
    )


def handshake(reason: str, says: str, files: Callable[[Forger], CertificateFiles]) -> Row:
    """A certificate that proves nothing."""
    return Row(
        shows=lambda forger: Shown(files=files(forger)),
        status=None,
        says=f"alert {says}",
        counted=(HANDSHAKE, reason),
    )


def claim(says: str, asks: Stream) -> Row:
    """The web workload of the shop, whose node says something else."""
    return Row(
        shows=lambda forger: Shown(files=forger.leaf(WEB)),
        asks=asks,
        says=f"claims {says}, but it is proven to be {WEB}",
        counted=("client_certificate", "claim"),
    )


def domain(uri: str) -> Row:
    return certificate("trust_domain", "not a trust domain of this mesh", uri)


def names(*uris: str, dns: tuple[str, ...] = ()) -> Row:
    return certificate("spiffe_names", "exactly one is needed", *uris, dns=dns)


def form(uri: str) -> Row:
    return certificate("spiffe_form", "not of the form spiffe://", uri)


CERTIFICATES = {
    "a foreign trust domain": domain("spiffe://evil.example/ns/shop/sa/web"),
    "an alias that is not configured": domain("spiffe://old.example/ns/shop/sa/web"),
    "a trust domain that begins as ours": domain("spiffe://cluster.local.evil.example/ns/shop/sa/web"),
    "no name": names(dns=("web.shop.svc",)),
    "a name that is not an SPIFFE id": names("https://cluster.local/ns/shop/sa/web"),
    "two names": names(WEB, "spiffe://cluster.local/ns/other/sa/web"),
    "one name twice": names(WEB, WEB),
    "a name of another form": form("spiffe://cluster.local/shop/web"),
    "a part too many": form(f"{WEB}/admin"),
    "no account": form("spiffe://cluster.local/ns/shop/sa/"),
    "an empty part": form("spiffe://cluster.local/ns//shop/sa/web"),
    "dots for a namespace": form("spiffe://cluster.local/ns/../sa/web"),
    "an upper-case namespace": form("spiffe://cluster.local/ns/SHOP/sa/web"),
    "an upper-case trust domain": form("spiffe://Cluster.Local/ns/shop/sa/web"),
    "a percent-encoded letter": form("spiffe://cluster.local/ns/sh%6fp/sa/web"),
    "a percent-encoded slash": form("spiffe://cluster.local/ns/shop%2fsa%2fweb/sa/web"),
    "a query": form(f"{WEB}?admin"),
    "a fragment": form(f"{WEB}#admin"),
    "a port": form("spiffe://cluster.local:443/ns/shop/sa/web"),
    "a user": form("spiffe://cluster.local@evil.example/ns/shop/sa/web"),
    "a NUL": form(f"{WEB}\0.evil.example"),
    "a line's end": form(f"{WEB}\n"),
    "a trailing dot": form("spiffe://cluster.local./ns/shop/sa/web"),
    "an expired certificate": handshake("expired", "certificate expired", lambda f: f.leaf(WEB, ends=OLD)),
    "one of tomorrow": handshake("not_yet_valid", "bad certificate", lambda f: f.leaf(WEB, begins=HOUR, ends=2 * HOUR)),
    "a self-signed one": handshake("self_signed", "unknown ca", lambda f: f.leaf(WEB, self_signed=True)),
    "one of a foreign root": handshake("unknown_issuer", "unknown ca", lambda f: f.leaf(WEB, signer=f.foreign)),
    "one of our root's namesake": handshake("signature", "decrypt error", lambda f: f.leaf(WEB, signer=f.namesake)),
    "one that a leaf has signed": handshake("not_a_ca", "unknown ca", lambda f: f.under_a_leaf(WEB)),
    "one for a server": handshake("purpose", "unsupported certificate", lambda f: f.leaf(WEB, usages=SERVER_ONLY)),
    "another namespace in the node's id": claim("namespace other", Stream(namespace="other")),
    "another namespace in the metadata": claim("namespace other", Stream(metadata={"NAMESPACE": "other"})),
    "another account": claim("namespace shop, service account admin", Stream(metadata={"SERVICE_ACCOUNT": "admin"})),
    "a namespace that looks alike": claim("namespace ѕhop", Stream(metadata={"NAMESPACE": "ѕhop"})),
    "a namespace in capitals": claim("namespace SHOP", Stream(metadata={"NAMESPACE": "SHOP"})),
}


def in_plaintext(forger: Forger) -> Shown:
    return Shown()


def stranger(shows: Callable[[Forger], Shown], asks: Stream | Certificate) -> Row:
    """A caller without evidence."""
    return Row(shows=shows, asks=asks, says="", counted=("none", "no_evidence"))


def with_metadata(reason: tuple[str, str], says: str, *metadata: tuple[str, str]) -> Row:
    """A caller over TLS whose only evidence is in the metadata."""
    return Row(shows=lambda f: attrs.evolve(of_nobody(f), metadata=metadata), says=says, counted=reason)


STRANGERS = {
    "nobody, who wants configuration": stranger(of_nobody, Stream()),
    "nobody, who wants a certificate": stranger(of_nobody, Certificate()),
    "nobody, who wants one in plaintext": stranger(in_plaintext, Certificate()),
    "two authorization headers": with_metadata(
        ("none", "no_evidence"), "neither", ("authorization", "Bearer a.b.c"), ("authorization", "Bearer d.e.f")
    ),
    "a password": with_metadata(("none", "no_evidence"), "neither", ("authorization", "Basic d2ViOndlYg==")),
    "an empty token": with_metadata(("none", "no_evidence"), "neither", ("authorization", "Bearer ")),
}


def forwarded(reason: str, says: str, header: str, *, by: str = "") -> Row:
    """A certificate that a proxy claims to have seen; ``by`` is the proxy's own, if it has one."""
    metadata = [("x-forwarded-client-cert", header)]
    return Row(
        shows=lambda f: (
            Shown(files=f.leaf(by), metadata=metadata) if by else attrs.evolve(of_nobody(f), metadata=metadata)
        ),
        says=says,
        counted=("xfcc", reason),
    )


EDGE = "spiffe://cluster.local/ns/shop/sa/edge"
"""A gateway whose word is taken."""
ADMIN = "spiffe://cluster.local/ns/shop/sa/admin"
EVIL = "spiffe://evil.example/ns/shop/sa/web"

FORWARDED = {
    "a header of a stranger": forwarded("xfcc_stranger", "is not a gateway that may", f"URI={WEB}"),
    "a foreign name behind a gateway": forwarded("trust_domain", "not a trust domain", f"URI={EVIL}", by=EDGE),
    "no name behind a gateway": forwarded("spiffe_names", "no SPIFFE name", 'Hash=ab;Subject="CN=web"', by=EDGE),
    "two names behind a gateway": forwarded("spiffe_names", "2 SPIFFE names", f"URI={WEB};URI={ADMIN}", by=EDGE),
    "a name before the gateway's own word": forwarded(
        "trust_domain", "not a trust domain", f"URI={WEB},URI={EVIL}", by=EDGE
    ),
    "a name within a quoted subject": forwarded(
        "spiffe_names", "no SPIFFE name", f'Subject="CN=x,URI={WEB},O=\\";URI={WEB}"', by=EDGE
    ),
    "a quote that does not end": forwarded("xfcc_form", "not of Envoy's form", f'Subject="CN=x;URI={WEB}', by=EDGE),
    "nothing between commas": forwarded("xfcc_form", "not of Envoy's form", f"URI={WEB},,", by=EDGE),
}


def signing(reason: str, status: Status, csr: Callable[[], bytes] = csr_of, **metadata: str) -> Row:
    """A request of the web workload's that is signed for nobody."""
    return Row(
        shows=lambda forger: Shown(files=forger.leaf(WEB)),
        asks=Certificate(csr=csr, metadata=metadata),
        status=status,
        says="",
        counted=("csr", reason),
    )


DENIED, INVALID = Status.PERMISSION_DENIED, Status.INVALID_ARGUMENT

REQUESTS = {
    "a CSR for somebody else": signing("csr_identity", DENIED, lambda: csr_of(uris=[ADMIN])),
    "a CSR for somebody else besides": signing("csr_identity", DENIED, lambda: csr_of(uris=[WEB, ADMIN])),
    "a CSR with a DNS name": signing(
        "csr_identity", DENIED, lambda: csr_of(uris=[WEB], dns=["istiod.istio-system.svc"])
    ),
    "a CSR of a foreign trust domain": signing("csr_identity", DENIED, lambda: csr_of(uris=[EVIL])),
    "a CSR with a percent-encoded name": signing("csr_identity", DENIED, lambda: csr_of(uris=[f"{WEB[:-1]}%62"])),
    "a CSR with a NUL": signing("csr_identity", DENIED, lambda: csr_of(uris=[f"{WEB}\0"])),
    "a CSR with somebody else's common name": signing("csr_identity", DENIED, lambda: csr_of(subject="admin")),
    "a CSR for a CA": signing("csr_ca", INVALID, lambda: csr_of(uris=[WEB], ca=True)),
    "a CSR with a short key": signing("csr_key", INVALID, lambda: csr_of(rsa.generate_private_key(65537, 1024))),
    "a CSR with a curve of others": signing(
        "csr_key", INVALID, lambda: csr_of(ec.generate_private_key(ec.SECP256K1()))
    ),
    "a CSR that another key has signed": signing("csr_signature", INVALID, badly_signed_csr),
    "a certificate in place of a CSR": signing("csr_form", INVALID, lambda: Signer.root("root").pem),
    "an identity in the metadata": signing("csr_impersonation", DENIED, ImpersonatedIdentity=ADMIN),
    "a signer in the metadata": signing("csr_signer", INVALID, CertSigner="theirs"),
}


@pytest.mark.parametrize(
    "rows", [CERTIFICATES, STRANGERS, FORWARDED, REQUESTS], ids=["certificates", "strangers", "forwarded", "requests"]
)
async def test_who_shows_what_is_not_theirs_is_refused(tmp_path: Path, rows: dict[str, Row]) -> None:
    callers = CallerSettings(trusted_gateways=TrustedGateways(identities=frozenset({("shop", "edge")})))
    async with impersonated(tmp_path, callers=callers) as (plane, forger):
        for asks in (Stream(), Certificate()):
            await asks.of(plane.addresses.secure_grpc, Shown(files=forger.leaf(WEB)))
        assert await differences(rows, plane, forger) == {}


WAYS_TO_NAME = (
    "kubernetes://edge",
    "kubernetes://shop/edge",
    "kubernetes://../shop/edge",
    "kubernetes://edge-cacert",
    "kubernetes-gateway://shop/edge",
    "edge",
)
"""Names of the credential of the gateways of the shop, right and wrong."""


@pytest.mark.parametrize(
    ("uri", "node_type", "namespace", "given"),
    [
        (EDGE, "router", "shop", ["kubernetes-gateway://shop/edge", "kubernetes://edge", "kubernetes://shop/edge"]),
        (EDGE, "sidecar", "shop", []),
        ("spiffe://cluster.local/ns/other/sa/edge", "router", "other", []),
        ("spiffe://cluster.local/ns/istio-system/sa/edge", "router", "istio-system", []),
        ("", "router", "shop", []),
    ],
    ids=["its gateway", "a sidecar", "another's gateway", "a gateway of the root namespace", "in plaintext"],
)
async def test_a_credential_is_for_gateways_of_its_namespace_however_it_is_named(
    tmp_path: Path, uri: str, node_type: str, namespace: str, given: list[str]
) -> None:
    write_credential(tmp_path / "secrets", "shop/edge", write_certificates(tmp_path, "edge", dns=("a.test",)))
    async with impersonated(tmp_path, secrets_dir=tmp_path / "secrets") as (plane, forger):
        shown = Shown(files=forger.leaf(uri)) if uri else Shown()
        address = plane.addresses.secure_grpc if uri else plane.addresses.grpc
        asks = Keys(names=WAYS_TO_NAME, node_type=node_type, namespace=namespace)
        assert sorted(await asks.of(address, shown)) == given


async def test_a_revoked_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    folder = tmp_path / "ca"
    async with running_plane(tmp_path / "config", ca_dir=folder) as plane:
        forger = Forger(tmp_path / "forger", own=Signer.load(folder / "ca-cert.pem", folder / "ca-key.pem"))
        stolen = forger.leaf(WEB)
        row = certificate("revoked", "revoked")
        row = attrs.evolve(row, shows=lambda _: Shown(files=stolen))
        assert await row.difference(plane, forger) == "Status.OK, '', counted: {}"
        command = ("ca", "revoke", str(stolen.certificate), "--ca-dir", str(folder))
        done = await trio.to_thread.run_sync(lambda: mesh_pilot(*command))
        assert done.code == 0, done.err

        async def refused() -> bool:
            return await row.difference(plane, forger) == ""

        await eventually(refused, what="the certificate is refused")
