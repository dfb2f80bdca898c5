"""A whole control plane with client certificates: who is let in, and who is given a private key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from envoy.config.core.v3.base_pb2 import Node
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse
from google.protobuf.json_format import ParseDict
from structlog.testing import capture_logs

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.authenticators.settings import JoinTokenSettings
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.model.resource import CLUSTER, SECRET
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import Cardinality, CertificateFiles, GRPCError, Status, client_tls, open_channel
from tests.support.certificates import write_certificates
from tests.support.credentials import write_credential
from tests.support.planes import running_plane

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
SHOP = "spiffe://cluster.local/ns/shop/sa/edge"
ASKED = ("kubernetes://edge", "default")

GATEWAY = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.test], tls: {mode: SIMPLE, credentialName: edge}}
"""


@asynccontextmanager
async def secured(folder: Path, *, trust_local: bool = True) -> AsyncIterator[ControlPlane]:
    (folder / "config").mkdir()
    (folder / "config" / "gateway.yaml").write_text(GATEWAY)
    write_credential(folder / "secrets", "shop/edge", write_certificates(folder, "edge", dns=("a.test",)))
    server = write_certificates(folder, "server")
    tls = CertificateFiles(certificate=server.certificate, key=server.key, trusted=server.ca)
    async with running_plane(
        folder / "config",
        tls=tls,
        secrets_dir=folder / "secrets",
        trust_local=trust_local,
        join_tokens=JoinTokenSettings(folder / "tokens"),
    ) as plane:
        yield plane


async def private_keys(
    plane: ControlPlane,
    folder: Path,
    names: tuple[str, ...] | None,
    *,
    namespace: str = "shop",
    kind: str = "router",
    token: str = "",
) -> list[str]:
    """The secrets with a private key that a proxy is given of ASKED.

    ``names``: the URIs in its certificate; None for plaintext. Raises GRPCError where it is not served at all.
    """
    tls, address = None, plane.addresses.grpc
    if names is not None:
        own = write_certificates(folder, "client", uris=names)
        files = CertificateFiles(certificate=own.certificate, key=own.key, trusted=own.ca)
        tls, address = client_tls(files), plane.addresses.secure_grpc
    metadata = {"authorization": f"Bearer {token}"} if token else None
    node = ParseDict(
        {
            "id": f"{kind}~10.1.1.1~edge-1.{namespace}~{namespace}.svc.cluster.local",
            "metadata": {"NAMESPACE": namespace, "LABELS": {"istio": "edge"}},
        },
        Node(),
    )
    async with (
        open_channel(address, tls=tls) as channel,
        channel.request(
            ADS, Cardinality.STREAM_STREAM, DeltaDiscoveryRequest, DeltaDiscoveryResponse, metadata=metadata
        ) as call,
    ):
        await call.send_message(DeltaDiscoveryRequest(type_url=CLUSTER, node=node))
        assert (clusters := await call.recv_message()) is not None and clusters.type_url == CLUSTER
        await call.send_message(DeltaDiscoveryRequest(type_url=SECRET, resource_names_subscribe=ASKED))
        answer = await call.recv_message()
        assert answer is not None and answer.type_url == SECRET
        found = [Secret.FromString(resource.resource.value) for resource in answer.resources]
        given = [secret.name for secret in found if secret.tls_certificate.private_key.inline_bytes]
        assert sorted([*given, *answer.removed_resources]) == sorted(ASKED)
        return given


async def test_a_gateway_gets_its_credential_by_its_certificate(tmp_path: Path) -> None:
    async with secured(tmp_path, trust_local=False) as plane:
        assert await private_keys(plane, tmp_path, (SHOP,)) == ["default", "kubernetes://edge"]


async def test_a_plaintext_gateway_on_this_machine_gets_it_while_it_is_trusted(tmp_path: Path) -> None:
    async with secured(tmp_path) as plane:
        assert await private_keys(plane, tmp_path, None) == ["default", "kubernetes://edge"]


async def test_without_that_trust_a_plaintext_peer_gets_no_key(tmp_path: Path) -> None:
    async with secured(tmp_path, trust_local=False) as plane:
        assert await private_keys(plane, tmp_path, None) == []


async def test_a_proxy_without_identity_is_a_line_of_the_log_however_often_it_connects(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with secured(tmp_path, trust_local=False) as plane:
            for _ in range(3):
                assert await private_keys(plane, tmp_path, None) == []
    (line,) = [each for each in logs if each["event"].startswith("a proxy without identity")]
    assert line["proxy"] == "router~10.1.1.1~edge-1.shop~shop.svc.cluster.local"
    assert len(" ".join(map(str, line.values())).split()) < 30


async def test_a_join_token_makes_a_gateway_of_a_plaintext_peer_on_this_machine_once(tmp_path: Path) -> None:
    async with secured(tmp_path, trust_local=False) as plane:
        tokens = JoinTokens(tmp_path / "tokens")
        made = tokens.create(Identity("cluster.local", "shop", "edge"), timedelta(hours=1), max_uses=1)
        assert await private_keys(plane, tmp_path, None, token=made.text) == ["default", "kubernetes://edge"]
        with pytest.raises(GRPCError, match="already used 1 of 1 times") as caught:
            await private_keys(plane, tmp_path, None, token=made.text)
        assert caught.value.status is Status.UNAUTHENTICATED
        other = tokens.create(Identity("cluster.local", "other", "edge"), timedelta(hours=1))
        with pytest.raises(GRPCError, match="claims namespace shop"):
            await private_keys(plane, tmp_path, None, token=other.text)


async def test_a_proxy_of_another_namespace_gets_only_its_own(tmp_path: Path) -> None:
    async with secured(tmp_path) as plane:
        other = "spiffe://cluster.local/ns/other/sa/edge"
        assert await private_keys(plane, tmp_path, (other,), namespace="other") == ["default"]
        assert await private_keys(plane, tmp_path, None, namespace="other") == ["default"]


@pytest.mark.parametrize("names", [(), (SHOP, "spiffe://cluster.local/ns/other/sa/edge"), ("https://a.test/",)])
async def test_a_certificate_without_exactly_one_spiffe_name_is_not_served_on_this_machine_either(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    async with secured(tmp_path) as plane:
        with pytest.raises(GRPCError, match="exactly one is needed"):
            await private_keys(plane, tmp_path, names)


async def test_a_certificate_of_another_trust_domain_is_not_served(tmp_path: Path) -> None:
    async with secured(tmp_path) as plane:
        with pytest.raises(GRPCError, match="not a trust domain of this mesh") as caught:
            await private_keys(plane, tmp_path, ("spiffe://evil.example/ns/shop/sa/edge",))
        assert caught.value.status is Status.UNAUTHENTICATED
