"""The new root signed by the old one: by it, those who know only the old root verify what the new one signs."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mesh_pilot.identity.authority import rotation
from mesh_pilot.identity.authority.authority import Authority
from mesh_pilot.identity.authority.folder import FolderStore
from mesh_pilot.identity.authority.material import (
    CROSS_CERTIFICATE,
    ROOTS,
    AuthorityError,
    KeyPair,
    joined,
    pem,
    read_material,
)
from mesh_pilot.identity.authority.store import StoredFiles
from mesh_pilot.identity.trust.bundles import TrustStore
from tests.identity.authority.verifiers import VERIFIERS, Untrusted
from tests.identity.test_server_names import is_known
from tests.support.authorities import LeafRequest, cacerts, make_ca
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

NOW = datetime.now(UTC)
OLD_ROOTS: Mapping[str, KeyPair] = {
    "p256": make_ca("old", key=ec.generate_private_key(ec.SECP256R1())),
    "p384": make_ca("old", key=ec.generate_private_key(ec.SECP384R1())),
    "rsa": make_ca("old", key=rsa.generate_private_key(65537, 2048)),
    "ends soon": make_ca("old", lifetime=timedelta(days=3)),
}


def begun(old: KeyPair) -> rotation.Files:
    files = cacerts(old)
    return rotation.begin(files, read_material(files, "ca", NOW), "mesh-pilot", NOW)


def switched(old: KeyPair) -> rotation.Files:
    files = begun(old)
    return rotation.switch(files, read_material(files, "ca", NOW))


def signed_by(files: rotation.Files) -> bytes:
    authority = Authority(StoredFiles(files), "ca", TrustStore(), now=lambda: datetime.now(UTC))
    return authority.sign_now(LeafRequest(dns_names=("web.test",)).signing).chain


@pytest.mark.process
@pytest.mark.parametrize("old", OLD_ROOTS.values(), ids=OLD_ROOTS)
@pytest.mark.parametrize("verify", VERIFIERS.values(), ids=VERIFIERS)
def test_a_chain_of_the_new_root_leads_to_either_root_until_finish(old: KeyPair, verify: object) -> None:
    assert callable(verify)
    files = switched(old)
    roots = files[ROOTS]
    _, new = x509.load_pem_x509_certificates(roots)
    chain = signed_by(files)
    for known in (pem(old.certificate), pem(new), roots, joined((new, old.certificate))):
        verify(chain, known)
    finished = rotation.finish(files, read_material(files, "ca", NOW))
    assert CROSS_CERTIFICATE not in finished
    chain = signed_by(finished)
    verify(chain, pem(new))
    with pytest.raises(Untrusted):
        verify(chain, pem(old.certificate))


def test_before_switch_the_chain_is_as_ever() -> None:
    old = OLD_ROOTS["p256"]
    material = read_material(begun(old), "ca", NOW)
    assert material.cross is not None
    assert material.chain == pem(old.certificate)


def test_a_root_that_allows_nothing_below_it_signs_no_other() -> None:
    """Verifiers would refuse the path; the rotation is as it would be without."""
    old = make_ca("old", path_length=0)
    files = switched(old)
    assert CROSS_CERTIFICATE not in files
    material = read_material(files, "ca", NOW)
    assert material.chain == pem(material.issuer.certificate)


def test_a_cross_certificate_of_other_roots_is_refused_with_its_file() -> None:
    files = {**switched(OLD_ROOTS["p256"]), CROSS_CERTIFICATE: switched(OLD_ROOTS["p384"])[CROSS_CERTIFICATE]}
    with pytest.raises(AuthorityError, match=r"cross-cert\.pem: is not .*mesh-pilot root .* signed by CN=old"):
        read_material(files, "ca", NOW)


def test_it_survives_a_folder(tmp_path: Path) -> None:
    async def kept() -> bytes:
        store = FolderStore(tmp_path / "ca")
        await store.write(switched(OLD_ROOTS["p256"]), (await store.read()).version)
        files = (await store.read()).files
        await store.write(rotation.finish(files, read_material(files, "ca", NOW)), (await store.read()).version)
        assert CROSS_CERTIFICATE not in (await store.read()).files
        return files[CROSS_CERTIFICATE]

    assert b"BEGIN CERTIFICATE" in trio.run(kept)


@pytest.mark.plane
async def test_a_client_of_the_old_root_connects_after_switch_and_not_after_finish(tmp_path: Path) -> None:
    """Python's ssl, with only the file that it was given before."""
    config, ca, known = tmp_path / "config", tmp_path / "ca", tmp_path / "known.pem"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)

    async def rotate(step: str) -> None:
        flags = ("--force",) if step != "begin" else ()
        done = await trio.to_thread.run_sync(lambda: mesh_pilot("ca", "rotate", step, "--ca-dir", str(ca), *flags))
        assert done.code == 0, done.err

    with trio.fail_after(60):
        async with running_plane(config, ca_dir=ca) as plane:
            address = plane.addresses.secure_grpc
            shutil.copyfile(ca / ROOTS, known)
            assert await is_known(address, known, "localhost")
            before = await shown(address)
            for step in ("begin", "switch"):
                await rotate(step)
            await eventually(lambda: is_another(address, before), what="the server's certificate is of the new root")
            assert await is_known(address, known, "localhost")
            assert await is_known(address, ca / ROOTS, "localhost")
            await rotate("finish")

            async def is_refused() -> bool:
                return not await is_known(address, known, "localhost")

            await eventually(is_refused, what="the old root alone no longer verifies the server")
            assert await is_known(address, ca / ROOTS, "localhost")


async def shown(address: str) -> bytes:
    """The server's certificate, whoever signed it."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with trio.SSLStream(await trio.open_tcp_stream(host, int(port)), context) as stream:
        await stream.do_handshake()
        found = stream.getpeercert(binary_form=True)
    assert isinstance(found, bytes)
    return found


async def is_another(address: str, before: bytes) -> bool:
    return await shown(address) != before
