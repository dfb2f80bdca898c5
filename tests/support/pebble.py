"""Let's Encrypt's Pebble, an issuer for tests of ACME, with a name server for which every host is this machine.

async with pebble(tmp_path, http_port=plain) as issuer:
    mesh = issuer.mesh("shop/edge")
    ...
    assert await issuer.signed() == 1
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from tests.support.binaries import require_binary
from tests.support.certificates import CertificateFiles, write_certificates
from tests.support.envoy import eventually
from tests.support.name_servers import Message, ScriptedNameServer, answer
from tests.support.ports import free_ports

FOR_YEARS = 90 * 24 * 3600


@attrs.define(eq=False)
class Pebble:
    """A Pebble that runs, or can be started again; it forgets all when it ends."""

    folder: Path
    files: CertificateFiles
    port: int
    management: int
    name_server: ScriptedNameServer
    environment: Mapping[str, str]
    process: trio.Process | None = None

    @property
    def directory(self) -> str:
        return f"https://127.0.0.1:{self.port}/dir"

    @property
    def log(self) -> str:
        return (self.folder / "pebble.log").read_text()

    def mesh(self, *credentials: str, **more: Any) -> str:
        """A mesh.yaml that has these credentials ordered here."""
        return json.dumps({"acme": self.settings(*credentials, **more)})

    def settings(self, *credentials: str, **more: Any) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "contacts": ["mailto:ops@example.com"],
            "termsOfServiceAgreed": True,
            "caCertificates": str(self.files.ca),
            "credentials": [{"name": name} for name in credentials],
            **more,
        }

    async def root(self) -> Path:
        """A file with the root that clients trust."""
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:  # of a test's own machine
            found = await client.get(f"https://127.0.0.1:{self.management}/roots/0")
        path = self.folder / "pebble-root.pem"
        path.write_bytes(found.content)
        return path

    def signed(self) -> int:
        """Certificates that it has signed since it was first started."""
        return self.log.count("Issued certificate serial")

    async def start(self) -> None:
        command = [
            str(require_binary("pebble", built="pebble/pebble")),
            *("-config", str(self.folder / "pebble.json"), "-dnsserver", self.name_server.address, "-strict=true"),
        ]
        with (self.folder / "pebble.log").open("a") as log:
            self.process = await trio.lowlevel.open_process(
                command, stdout=log, stderr=subprocess.STDOUT, env=dict(self.environment)
            )
        await eventually(self._listens, what=self.log)

    async def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
            self.process = None

    async def _listens(self) -> bool:
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:
            return (await client.get(self.directory)).status_code == 200


@asynccontextmanager
async def pebble(
    folder: Path, *, http_port: int, seconds: int = FOR_YEARS, bad_nonces: int = 0, starts: bool = True
) -> AsyncIterator[Pebble]:
    """One that asks gateways at ``http_port``; its certificates live so many ``seconds``, and so many percent of nonces
    are refused."""
    require_binary("pebble", built="pebble/pebble")
    made = folder / "pebble"
    made.mkdir()
    files = write_certificates(made, "pebble")
    port, management = free_ports(2)
    settings = {
        "listenAddress": f"127.0.0.1:{port}",
        "managementListenAddress": f"127.0.0.1:{management}",
        "certificate": str(files.certificate),
        "privateKey": str(files.key),
        "httpPort": http_port,
        "tlsPort": 1,
        "ocspResponderURL": "",
        "externalAccountBindingRequired": False,
        "keyAlgorithm": "ecdsa",
        "retryAfter": {"authz": 1, "order": 1},
        "profiles": {"default": {"description": "default", "validityPeriod": seconds}},
    }
    (made / "pebble.json").write_text(json.dumps({"pebble": settings}))
    environment = {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": str(bad_nonces), "PEBBLE_AUTHZREUSE": "0"}
    async with trio.open_nursery() as nursery:
        names = ScriptedNameServer(_here)
        await nursery.start(names.serve)
        found = Pebble(made, files, port, management, names, environment)
        try:
            if starts:
                await found.start()
            yield found
        finally:
            with trio.CancelScope(shield=True):
                await found.stop()
        nursery.cancel_scope.cancel()


def _here(query: Message) -> Message:
    is_address = query.question[0].rdtype == 1
    return answer(query, "60 A 127.0.0.1") if is_address else answer(query)
