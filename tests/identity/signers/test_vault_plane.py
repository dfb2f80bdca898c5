"""A control plane whose Vault does not answer: it serves, and says what is missing and why."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
import structlog.testing
import trio

from mesh_pilot.app.settings import StartError
from mesh_pilot.net.rpc import CertificateFiles
from tests.support.certificates import write_certificates
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import running_plane


def signer_file(folder: Path, port: int) -> Path:
    (folder / "token").write_text("s.secret-token")
    file = folder / "signer.yaml"
    file.write_text(f"kind: vault\naddress: http://127.0.0.1:{port}\nrole: mesh\ntokenFile: token\n")
    return file


@pytest.mark.plane
async def test_a_plane_starts_without_its_vault_and_says_so(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    file = signer_file(tmp_path, free_ports(1)[0])
    files = write_certificates(tmp_path, "server")
    tls = CertificateFiles(certificate=files.certificate, key=files.key, trusted=files.ca)
    async with (
        running_plane(tmp_path, ca_signer=file, tls=tls) as plane,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):

        async def ready() -> httpx.Response:
            return await client.get(f"http://{plane.addresses.http}/ready")

        async def says_so() -> bool:
            return "signer: Vault, LIST http://" in (await ready()).text

        await eventually(says_so, what="the page has the reason")
        answer = await ready()
        assert answer.status_code == 200
        assert "secret-token" not in answer.text
        metrics = (await client.get(f"http://{plane.addresses.http}/metrics")).text
        assert 'mesh_pilot_signer_errors{reason="roots"}' in metrics


async def test_a_plane_without_a_certificate_of_its_own_says_why_it_cannot_start(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    file = signer_file(tmp_path, free_ports(1)[0])
    with pytest.raises(StartError, match=r"TLS port.*pki/sign/mesh.*; start again once it signs"):
        async with running_plane(tmp_path, ca_signer=file):
            pass


@pytest.mark.plane
async def test_identities_are_revoked_in_a_folder_next_to_a_signer_elsewhere(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    folder = tmp_path / "revoked"
    folder.mkdir(mode=0o700)
    (tmp_path / "config").mkdir()
    file = signer_file(tmp_path, free_ports(1)[0])
    files = write_certificates(tmp_path, "server")
    tls = CertificateFiles(certificate=files.certificate, key=files.key, trusted=files.ca)
    web = "spiffe://cluster.local/ns/shop/sa/web"
    command = ("ca", "revoke", "--ca-dir", str(folder), "--identity", web, "--until", "2999-01-01T00:00:00Z")
    with structlog.testing.capture_logs() as log:
        async with running_plane(tmp_path / "config", ca_signer=file, ca_dir=folder, tls=tls):
            done = await trio.to_thread.run_sync(partial(mesh_pilot, *command))
            assert (done.code, done.err) == (0, "")
            await eventually(
                lambda: any(web in line.get("revoked", ()) for line in log), what="the plane has read the folder"
            )
            listed = await trio.to_thread.run_sync(partial(mesh_pilot, "ca", "status", "--ca-dir", str(folder)))
            assert (listed.code, listed.out) == (0, f"revoked   {web} until 2999-01-01T00:00:00Z\n")
