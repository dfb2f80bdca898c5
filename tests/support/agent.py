"""A workload's agent: makes keys, has them signed by the plane, and keeps them in files from which Envoy reads them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import trio

from mesh_pilot.api.istio.v1.auth import IstioCertificateRequest, IstioCertificateResponse
from mesh_pilot.identity.certificates.service import PATH
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import CertificateFiles, client_tls, open_channel
from tests.support.forgery import csr_of, key_pem, new_key


class Agent:
    """The files of one workload: ``cert-chain.pem``, ``key.pem`` and ``root-cert.pem`` in its own folder."""

    def __init__(self, folder: Path, identity: Identity, roots: Path) -> None:
        folder.mkdir()
        self.identity = identity
        self.chain, self.key, self.roots = (folder / f"{name}.pem" for name in ("cert-chain", "key", "root-cert"))
        _replace(self.roots, roots.read_bytes())

    def metadata(self, side: str) -> dict[str, str]:
        """The metadata of a node whose Envoy uses the files as CLIENT or SERVER."""
        files = {"CERT_CHAIN": self.chain, "KEY": self.key, "ROOT_CERT": self.roots}
        return {f"TLS_{side}_{name}": str(file) for name, file in files.items()}

    async def renew(self, address: str, lifetime: timedelta, *, token: str = "") -> None:
        """Get a certificate for a new key. ``token``: the evidence without one; else the certificate that there is."""
        key = new_key()
        request = IstioCertificateRequest(
            csr=csr_of(key, uris=[str(self.identity)]).decode(), validity_duration=int(lifetime.total_seconds())
        )
        own = CertificateFiles(trusted=self.roots)
        if not token:
            own = CertificateFiles(certificate=self.chain, key=self.key, trusted=self.roots)
        metadata = {"authorization": f"Bearer {token}"} if token else None
        async with open_channel(address, tls=client_tls(own, check_hostname=False)) as channel:
            answer = await channel.unary(PATH, request, IstioCertificateResponse, metadata=metadata)
        _replace(self.key, key_pem(key))
        _replace(self.chain, "".join(answer.cert_chain[:-1]).encode())
        _replace(self.roots, answer.cert_chain[-1].encode())

    async def keep(self, address: str, lifetime: timedelta) -> None:
        """Renew forever, each time after a third of the lifetime."""
        while True:
            await trio.sleep(lifetime.total_seconds() / 3)
            await self.renew(address, lifetime)


def _replace(file: Path, content: bytes) -> None:
    new = file.with_name(f".{file.name}")
    new.write_bytes(content)
    new.rename(file)
