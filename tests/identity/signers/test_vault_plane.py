"""A control plane whose Vault does not answer: it serves, and says what is missing and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from mesh_pilot.app.settings import StartError
from mesh_pilot.identity.signers.vault.settings import VaultSettings
from mesh_pilot.net.rpc import CertificateFiles
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.planes import running_plane


@pytest.mark.plane
async def test_a_plane_starts_without_its_vault_and_says_so(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    vault = VaultSettings(address=f"http://127.0.0.1:{free_ports(1)[0]}", role="mesh", token="s.secret-token")
    files = write_certificates(tmp_path, "server")
    tls = CertificateFiles(certificate=files.certificate, key=files.key, trusted=files.ca)
    async with (
        running_plane(tmp_path, vault=vault, tls=tls) as plane,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):

        async def ready() -> httpx.Response:
            return await client.get(f"http://{plane.addresses.http}/ready")

        async def says_so() -> bool:
            return "vault: Vault, LIST http://" in (await ready()).text

        await eventually(says_so, what="the page has the reason")
        answer = await ready()
        assert answer.status_code == 200
        assert "secret-token" not in answer.text
        metrics = (await client.get(f"http://{plane.addresses.http}/metrics")).text
        assert 'mesh_pilot_vault_errors{reason="roots"}' in metrics


async def test_a_plane_without_a_certificate_of_its_own_says_why_it_cannot_start(
    tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    vault = VaultSettings(address=f"http://127.0.0.1:{free_ports(1)[0]}", role="mesh", token="s.secret-token")
    with pytest.raises(StartError, match=r"TLS port.*pki/sign/mesh.*; start again once it signs"):
        async with running_plane(tmp_path, vault=vault):
            pass
