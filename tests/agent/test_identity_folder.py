"""The files of a certificate: whole after a kill at any moment, and only ours."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.identity.folder import CHAIN, KEY, PENDING, ROOTS, CertificateFolder
from mesh_pilot.agent.identity.material import IdentityMaterial, read_material
from mesh_pilot.agent.identity.rotator import CertificateRotator
from mesh_pilot.agent.settings import CredentialSettings, PlaneSettings
from mesh_pilot.identity.authority.material import key_pem, pem

DONE = 7


def material(account: str = "web") -> IdentityMaterial:
    """A certificate that is its own root."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, account)])
    uri = x509.UniformResourceIdentifier(f"spiffe://cluster.local/ns/shop/sa/{account}")
    now = datetime.now(UTC)
    leaf = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return read_material(key_pem(key), pem(leaf), pem(leaf))


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed before its ``step``-th change of the disk; False if it was done first."""
    child = os.fork()
    if child == 0:
        seen = count(1)

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **more: Any) -> Any:
                if next(seen) == step:
                    os._exit(0)
                return function(*args, **more)

            return call

        for name in ("open", "fsync", "rename", "unlink"):
            mock.patch.object(os, name, counted(getattr(os, name))).start()
        work()
        os._exit(DONE)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) != DONE


@pytest.mark.process
@pytest.mark.parametrize("is_first", [True, False])
def test_a_kill_at_any_moment_leaves_the_old_certificate_or_the_new_one(tmp_path: Path, is_first: bool) -> None:
    old, new = material(), material()
    outcomes = set()
    for step in count(1):
        folder = CertificateFolder(tmp_path / str(step))
        folder.create()
        if not is_first:
            folder.save(old)
        killed = killed_at(step, lambda folder=folder: folder.save(new))  # type: ignore[misc]
        # A second kill while the first is fixed changes nothing.
        killed_at(step, folder.load)
        found = folder.load()
        assert found.problem == "" and found.material in ((new, None) if is_first else (new, old))
        outcomes.add(found.material == new)
        left = {file.name for file in folder.path.iterdir()}
        assert left in ({KEY, CHAIN, ROOTS}, set()), "no key is left over"
        if not killed:
            break
    assert outcomes == {True, False} and step > 10


def test_files_of_other_users_are_not_used(tmp_path: Path) -> None:
    folder = CertificateFolder(tmp_path)
    folder.save(material())
    with mock.patch.object(os, "geteuid", lambda: 4711), mock.patch.object(os, "fstat") as status:
        status.return_value.st_uid = 12345
        found = folder.load()
    assert found.material is None
    assert "of user 12345" in found.problem and KEY in found.problem


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (KEY, b"nothing", "not a private key"),
        (CHAIN, b"nothing", "not one in PEM"),
        (CHAIN, None, "is missing"),
        (ROOTS, b"nothing", "roots are not"),
        (KEY, None, "is missing"),
    ],
)
def test_damaged_files_are_one_line(tmp_path: Path, name: str, content: bytes | None, says: str) -> None:
    folder = CertificateFolder(tmp_path)
    folder.save(material())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    found = folder.load()
    assert found.material is None and says in found.problem and "\n" not in found.problem


def test_a_key_of_another_certificate_is_told(tmp_path: Path) -> None:
    folder = CertificateFolder(tmp_path)
    folder.save(material())
    (tmp_path / KEY).write_bytes(material().key)
    assert "for another key" in folder.load().problem


def test_what_cannot_be_finished_is_used_all_the_same(tmp_path: Path) -> None:
    folder, new = CertificateFolder(tmp_path), material()
    with mock.patch.object(CertificateFolder, "_finish", side_effect=OSError(28, "No space left on device")):
        with pytest.raises(OSError, match="No space"):
            folder.save(new)
        found = folder.load()
    assert found.material == new and "No space left" in found.problem
    assert (tmp_path / PENDING).exists()
    assert folder.load().material == new and not (tmp_path / PENDING).exists()


def test_an_empty_folder_is_no_problem(tmp_path: Path) -> None:
    found = CertificateFolder(tmp_path / "none").load()
    assert (found.material, found.problem) == (None, "")


async def test_a_certificate_that_a_slow_disk_took_late_is_not_put_over_the_next_one(tmp_path: Path) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    first, second = material(), material()

    class SlowFolder(CertificateFolder):
        def save(self, material: IdentityMaterial) -> None:
            if material is first:
                begun.set()
                assert may_go_on.wait(10)
            super().save(material)

    held: Observable[IdentityMaterial | None] = Observable(first)
    planes = PlaneSettings((Pilot.parse("127.0.0.1:1"),), plaintext=True)
    keeper = CertificateRotator(CredentialSettings(), planes, SlowFolder(tmp_path), held, lambda _: None)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper._save, first)
            await trio.to_thread.run_sync(begun.wait)
            held.set(second)
            nursery.start_soon(keeper._save, second)
            await trio.sleep(0.05)
            may_go_on.set()
    assert CertificateFolder(tmp_path).load().material == second and keeper.is_kept
