"""Two real sidecars with mutual TLS between them, under load: a connection for each request, and no retry.

    async with mutual(tmp_path, free_ports, ca_dir=folder) as running:
        await running.until_shown(by=new_root)

Leaving the block asserts that no request failed, and that nothing was refused.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import Interception
from mesh_pilot.model.resource import IDENTITY_SECRET, TRUST_SECRET
from mesh_pilot.net.rpc import CertificateFiles
from tests.support.echo import Backend
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, Load, fleet

HOST = "reviews.example.com"

STRICT = """
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---"""

ONE_REQUEST_A_CONNECTION = """
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: shop}
spec:
  host: reviews.example.com
  trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec:
  hosts: [reviews.example.com]
  http: [{retries: {attempts: 0}, route: [{destination: {host: reviews.example.com}}]}]
"""


def served_by_sidecar(port: int, target: int, app: Backend) -> str:
    """The service at a workload with its own sidecar, which hands on to the app."""
    return f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: reviews, namespace: shop}}
spec:
  hosts: [{HOST}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: http, protocol: HTTP, targetPort: {target}}}]
  endpoints: [{{address: 127.0.0.4, labels: {{app: reviews}}, serviceAccount: reviews}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: reviews, namespace: shop}}
spec:
  workloadSelector: {{labels: {{app: reviews}}}}
  ingress:
  - port: {{number: {target}, name: http, protocol: HTTP}}
    defaultEndpoint: {app.host}:{app.port}
  egress: [{{hosts: ["~/*"]}}]
---"""


def sidecar_node(account: str, ip: str) -> EnvoyNode:
    """The node of a workload of the shop, called as its service account is."""
    metadata = {"SERVICE_ACCOUNT": account}
    return EnvoyNode(account, "shop", ip, labels={"app": account}, interception=Interception.NONE, metadata=metadata)


def with_metadata(node: EnvoyNode, more: Mapping[str, str]) -> EnvoyNode:
    return attrs.evolve(node, metadata={**node.metadata, **more})


WEB, REVIEWS = sidecar_node("web", "127.0.0.2"), sidecar_node("reviews", "127.0.0.4")


@attrs.frozen
class Mutual:
    """A client's and a server's Envoy, and the app behind the latter."""

    mesh: Fleet
    client: RealEnvoy
    server: RealEnvoy
    app: Backend
    load: Load
    target: int
    """The port of the server's Envoy."""

    def shown(self) -> list[str]:
        """The SHA-256 of the client certificates with which requests were made so far, in order of their first."""
        headers = dict.fromkeys(seen["headers"]["x-forwarded-client-cert"] for seen in self.app.seen)
        found = (re.search(r"Hash=(\w+)", header) for header in headers)
        return list(dict.fromkeys(match[1] for match in found if match))

    async def until_renewed(self, times: int) -> None:
        """Wait until requests were made with so many further certificates of both sides."""
        known = len(self.shown()), await self._server_contexts()

        async def renewed() -> bool:
            now = len(self.shown()), await self._server_contexts()
            return all(new - old >= times for new, old in zip(now, known, strict=True))

        await eventually(renewed, seconds=120, what=f"{times} more certificates; {self.load.failures[:3]}")

    async def until_trusted(self, *roots: x509.Certificate) -> None:
        """Wait until both sides trust exactly these."""

        async def trusted() -> bool:
            return [set(await trusted_by(envoy)) for envoy in (self.client, self.server)] == [set(roots)] * 2

        await eventually(trusted, what=f"both trust {len(roots)} roots; {self.load.failures[:3]}")

    async def until_signed_by(self, issuer: x509.Certificate) -> None:
        """Wait until both sides have certificates by this issuer, and requests were made with them."""

        async def signed() -> bool:
            client, server = [(await own_chain(envoy))[0] for envoy in (self.client, self.server)]
            used = client.fingerprint(SHA256()).hex() in self.shown()
            return used and is_signed_by(client, issuer) and is_signed_by(server, issuer)

        await eventually(signed, what=f"certificates by {issuer.subject} are in use; {self.load.failures[:3]}")
        answered = sum(self.load.answers.values())
        await eventually(lambda: sum(self.load.answers.values()) > answered + 20, what="requests go on")

    async def ask_as(self, files: CertificateFiles) -> None:
        """Make a request with a client certificate, on its own connection. Raises httpx.TransportError."""
        assert files.certificate is not None
        context = ssl.create_default_context(cafile=str(files.trusted))
        context.check_hostname = False
        context.load_cert_chain(files.certificate, files.key)
        async with httpx.AsyncClient(verify=context, timeout=30, trust_env=False) as client:
            reply = await client.get(f"https://{REVIEWS.ip}:{self.target}/", headers={"host": HOST})
            assert reply.status_code == 200, reply.text

    async def _server_contexts(self) -> int:
        return await self.server.counted("server_ssl_socket_factory.ssl_context_update_by_sds")


async def trusted_by(envoy: RealEnvoy) -> Sequence[x509.Certificate]:
    """The roots that an Envoy was sent."""
    secret = (await envoy.dynamic("Secret"))[TRUST_SECRET]
    return _inline(secret["validation_context"]["trusted_ca"])


async def own_chain(envoy: RealEnvoy) -> Sequence[x509.Certificate]:
    """The certificate that an Envoy was sent for itself, leaf first."""
    secret = (await envoy.dynamic("Secret"))[IDENTITY_SECRET]
    return _inline(secret["tls_certificate"]["certificate_chain"])


def _inline(source: dict[str, Any]) -> Sequence[x509.Certificate]:
    return x509.load_pem_x509_certificates(base64.b64decode(source["inline_bytes"]))


def is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, InvalidSignature):
        return False
    return True


@asynccontextmanager
async def mutual(
    folder: Path,
    free_ports: Callable[[int], list[int]],
    *,
    delta: bool = False,
    keys: Callable[[Fleet], Awaitable[tuple[Mapping[str, str], Mapping[str, str]]]] | None = None,
    agents: Callable[[Fleet], Awaitable[tuple[Path, Path]]] | None = None,
    **more: Any,
) -> AsyncIterator[Mutual]:
    """Both under load for the length of the block. ``more`` are Settings.

    ``keys`` makes those of the client and of the server, and gives the metadata with which their nodes name them.
    ``agents`` starts those of both, and gives the sockets of their SDS.
    """
    port, target = free_ports(2)
    async with fleet(folder, **more) as mesh:
        of_client, of_server = await keys(mesh) if keys is not None else ({}, {})
        client_sds, server_sds = await agents(mesh) if agents is not None else (None, None)
        if agents is not None:
            of_client = of_server = {"AGENT_SECRETS": "true"}
        app = await mesh.backend("app")
        mesh.write(served_by_sidecar(port, target, app) + STRICT + ONE_REQUEST_A_CONNECTION)
        server = await mesh.envoy(with_metadata(REVIEWS, of_server), delta=delta, sds=server_sds)
        client = await mesh.envoy(with_metadata(WEB, of_client), delta=delta, sds=client_sds)
        url = f"http://127.0.0.1:{port}/"
        await mesh.until_answered_by({"app"}, url, host=HOST)
        async with mesh.load(url, host=HOST) as load:
            yield Mutual(mesh, client, server, app, load, target)
        assert load.failures == []
        await mesh.assert_all_taken()
