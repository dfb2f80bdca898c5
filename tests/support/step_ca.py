"""Smallstep's step-ca, a CA for tests of signers, with a JWK provisioner whose key it has, encrypted.

async with step_ca(tmp_path) as ca:
    named = read_signer(ca.signer_file(), KINDS)
    ...
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
from joserfc import jwe
from joserfc.jwk import ECKey, OctKey

from mesh_pilot.identity.authority.material import KeyPair, joined, key_pem, pem
from tests.support.authorities import make_ca
from tests.support.binaries import require_binary
from tests.support.envoy import eventually
from tests.support.ports import free_ports

PASSWORD = "of-the-provisioner"
PROVISIONER = "mesh"


@attrs.define(eq=False)
class StepCaServer:
    """A step-ca that runs, or can be started again."""

    folder: Path
    port: int
    roots: list[KeyPair]
    """Those that it names; the last one is above the intermediate."""
    options: Mapping[str, Any]
    """More of the provisioner: ``claims``, ``options``."""
    key: ECKey = attrs.field(factory=lambda: ECKey.generate_key("P-256"))
    """The provisioner's."""
    process: trio.Process | None = None

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "step-ca.log").read_text()

    @property
    def root_pems(self) -> tuple[bytes, ...]:
        return tuple(sorted(pem(each.certificate) for each in self.roots))

    def signer_file(self, name: str = "signer.yaml", **more: object) -> Path:
        """A file for ``--ca-signer``."""
        (self.folder / "password").write_text(PASSWORD + "\n")
        (self.folder / "roots.pem").write_bytes(joined([each.certificate for each in self.roots]))
        settings = {
            "kind": "stepCA",
            "address": self.address,
            "caCertificates": "roots.pem",
            "provisioner": PROVISIONER,
            "passwordFile": "password",
            **more,
        }
        path = self.folder / name
        path.write_text(json.dumps(settings))
        return path

    def replace_key(self) -> None:
        """Another key for the provisioner, from the next start on."""
        self.key = ECKey.generate_key("P-256")

    def add_root(self, name: str) -> None:
        """One more root, which signs from the next start on."""
        self.roots.append(make_ca(name))

    def encrypted_key(self) -> str:
        header = {"alg": "PBES2-HS256+A128KW", "enc": "A256GCM", "cty": "jwk+json"}
        registry = jwe.JWERegistry(algorithms=[header["alg"], header["enc"]])
        secret = OctKey.import_key(PASSWORD.encode())
        return jwe.encrypt_compact(
            header, json.dumps(self.key.as_dict(private=True)).encode(), secret, registry=registry
        )

    async def start(self) -> None:
        made = self.folder
        middle = make_ca("intermediate", self.roots[-1])
        (made / "intermediate.pem").write_bytes(pem(middle.certificate))
        (made / "intermediate.key").write_bytes(key_pem(middle.key))
        for number, root in enumerate(self.roots):
            (made / f"root-{number}.pem").write_bytes(pem(root.certificate))
        kid = self.key.thumbprint()
        public = {**self.key.as_dict(private=False), "kid": kid, "alg": "ES256", "use": "sig"}
        provisioner = {"type": "JWK", "name": PROVISIONER, "key": public, "encryptedKey": self.encrypted_key()}
        settings = {
            "root": [str(made / f"root-{number}.pem") for number in range(len(self.roots))],
            "crt": str(made / "intermediate.pem"),
            "key": str(made / "intermediate.key"),
            "address": f"127.0.0.1:{self.port}",
            "dnsNames": ["127.0.0.1", "localhost"],
            "logger": {"format": "json"},
            "authority": {"provisioners": [{**provisioner, **self.options}], "disableIssuedAtCheck": True},
        }
        (made / "ca.json").write_text(json.dumps(settings))
        command = [str(require_binary("step-ca", "STEP_CA", built="signers/step-ca")), str(made / "ca.json")]
        with (made / "step-ca.log").open("a") as log:
            self.process = await trio.lowlevel.open_process(
                command, stdout=log, stderr=subprocess.STDOUT, env={"HOME": str(made), "STEPPATH": str(made)}
            )
        await eventually(self._listens, what="step-ca answers")

    async def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
            self.process = None

    async def _listens(self) -> bool:
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:  # of a test's own machine
            return (await client.get(f"{self.address}/health")).status_code == 200


@asynccontextmanager
async def step_ca(folder: Path, *, starts: bool = True, **options: Any) -> AsyncIterator[StepCaServer]:
    """One with an intermediate below its root. ``options``: more of its provisioner."""
    require_binary("step-ca", "STEP_CA", built="signers/step-ca")
    made = folder / "step-ca"
    made.mkdir()
    found = StepCaServer(made, free_ports(1)[0], [make_ca("mesh root")], options)
    try:
        if starts:
            await found.start()
        yield found
    finally:
        with trio.CancelScope(shield=True):
            await found.stop()
