"""A router at the edge of the mesh: Gateways, credentials in a folder of secrets, and TLS clients to try them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from tests.support.certificates import CertificateFiles, write_certificates
from tests.support.credentials import write_credential
from tests.support.echo import Backend
from tests.support.fleet import Fleet, fleet
from tests.support.manifests import manifest, routes


def gateway(name: str, servers: str, *, namespace: str = "shop", **values: object) -> str:
    """A Gateway with these ``servers`` on the routers labelled ``istio: edge``."""
    return manifest("Gateway", name, f"selector: {{istio: edge}}\nservers:\n{servers}", namespace=namespace, **values)


def to(host: str | list[str], destination: str, *gateways: str, namespace: str = "shop", name: str = "") -> str:
    """A VirtualService that sends a host's requests at gateways to a service."""
    http = f"- route: [{{destination: {{host: {destination}}}}}]"
    return routes(host, http, gateways=gateways, namespace=namespace, name=name)


@attrs.frozen
class Secure:
    """A router with credentials, and a service behind it."""

    mesh: Fleet
    secrets: Path
    """The folder of the router's namespace."""
    made: Path
    app: Backend

    def credential(self, name: str, *hosts: str, ca: str = "ca") -> CertificateFiles:
        """A credential for these hosts in the folder of secrets, by a CA of this name."""
        files = self.certificate(name, *hosts, ca=ca)
        write_credential(self.secrets, name, files)
        return files

    def certificate(self, name: str, *hosts: str, ca: str = "ca") -> CertificateFiles:
        """A certificate for these hosts elsewhere."""
        folder = self.made / ca
        folder.mkdir(parents=True, exist_ok=True)
        return write_certificates(folder, name, dns=hosts or ("localhost",))


@asynccontextmanager
async def secure(tmp_path: Path) -> AsyncIterator[Secure]:
    """A control plane with an empty folder of secrets, and the backend ``app``."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    async with fleet(tmp_path, secrets=secrets) as mesh:
        yield Secure(mesh, secrets / "shop", tmp_path / "made", await mesh.backend("app"))
        await mesh.assert_all_taken()


async def negotiated(
    port: int,
    host: str,
    ca: Path,
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    alpn: tuple[str, ...] = ("h2", "http/1.1"),
) -> tuple[str, str, str] | None:
    """The TLS version, cipher and protocol that a server agrees to; None where it does not agree."""
    context = ssl.create_default_context(cafile=str(ca))
    context.maximum_version = newest
    context.set_alpn_protocols(alpn)
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        try:
            tls = trio.SSLStream(stream, context, server_hostname=host)
            await tls.do_handshake()
        except trio.BrokenResourceError:
            return None
        return tls.version(), tls.cipher()[0], tls.selected_alpn_protocol()
