"""A real EST server, for tests of signers: GlobalSign's, whose CA signs for whoever asks.

async with est_server(tmp_path) as server:
    named = read_signer(server.signer_file(), KINDS)
    ...
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import attrs
import httpx
import trio

from mesh_pilot.identity.authority.material import KeyPair, joined, key_pem, pem
from tests.support.authorities import make_ca
from tests.support.binaries import require_binary
from tests.support.certificates import CertificateFiles, write_certificates
from tests.support.envoy import eventually
from tests.support.ports import free_ports


@attrs.define(eq=False)
class EstServer:
    """An EST server that runs, or can be started again."""

    folder: Path
    port: int
    server: CertificateFiles
    client: CertificateFiles
    root: KeyPair
    process: trio.Process | None = None

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "est.log").read_text()

    def signer_file(self, **more: object) -> Path:
        """A file for ``--ca-signer``."""
        settings = {
            "kind": "est",
            "address": self.address,
            "caCertificates": str(self.server.ca),
            "clientCertificate": str(self.client.certificate),
            "privateKey": str(self.client.key),
            **more,
        }
        path = self.folder / "signer.yaml"
        path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
        return path

    async def start(self) -> None:
        middle = make_ca("intermediate", self.root, lifetime=timedelta(hours=20))
        (self.folder / "mesh-ca.pem").write_bytes(joined([middle.certificate, self.root.certificate]))
        (self.folder / "mesh-ca.key").write_bytes(key_pem(middle.key))
        tls = {
            "listen_address": f"127.0.0.1:{self.port}",
            "certificates": str(self.server.certificate),
            "private_key": str(self.server.key),
            "client_cas": [str(self.client.ca)],
        }
        ca = {"certificates": str(self.folder / "mesh-ca.pem"), "private_key": str(self.folder / "mesh-ca.key")}
        settings = {"mock_ca": ca, "tls": tls, "healthcheck_password": "xyzzy", "rate_limit": 1000, "timeout": 30}
        (self.folder / "est.json").write_text(json.dumps(settings))
        program = require_binary("estserver", built="signers/estserver")
        command = [str(program), "-config", str(self.folder / "est.json")]
        with (self.folder / "est.log").open("a") as log:
            self.process = await trio.lowlevel.open_process(command, stdout=log, stderr=subprocess.STDOUT, env={})
        await eventually(self._listens, what="the EST server answers")

    async def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
            self.process = None

    async def _listens(self) -> bool:
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:  # of a test's own machine
            return (await client.get(f"{self.address}/.well-known/est/cacerts")).status_code == 200


@asynccontextmanager
async def est_server(folder: Path) -> AsyncIterator[EstServer]:
    """One with an intermediate below its root; its certificates end with that, after 20 hours."""
    require_binary("estserver", built="signers/estserver")
    made = folder / "est"
    made.mkdir()
    server, client = write_certificates(made, "server"), write_certificates(made, "client")
    found = EstServer(made, free_ports(1)[0], server, client, make_ca("mesh root"))
    try:
        await found.start()
        yield found
    finally:
        with trio.CancelScope(shield=True):
            await found.stop()


def root_pem(server: EstServer) -> bytes:
    return pem(server.root.certificate)
