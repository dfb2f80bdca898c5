"""Two control planes, one of which trusts the other's roots: the bundle endpoint, and what agents are sent."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.trust.spiffe_bundles import read_bundle
from mesh_pilot.model.resource import PROXY_CONFIG
from mesh_pilot.net.rpc import Cardinality, open_channel
from tests.support.planes import running_plane

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


def folder(parent: Path, name: str, mesh: str) -> tuple[Path, Path]:
    config, mesh_config = parent / name, parent / f"{name}.yaml"
    config.mkdir()
    mesh_config.write_text(mesh)
    return config, mesh_config


async def page(address: str, path: str) -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.get(f"http://{address}{path}")).text


async def bundle(address: str) -> tuple[bytes, ...]:
    return read_bundle(json.loads(await page(address, "/spiffe/bundle"))).roots


async def agent_roots(plane: ControlPlane) -> list[str]:
    """What an agent of Istio's is sent on PCDS."""
    async with (
        open_channel(plane.addresses.grpc) as channel,
        channel.request(ADS, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse) as stream,
    ):
        node = Node(id="sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local")
        await stream.send_message(DiscoveryRequest(type_url=PROXY_CONFIG, node=node))
        answer = await stream.recv_message()
    assert answer is not None
    (resource,) = answer.resources
    assert resource.type_url == PROXY_CONFIG
    return ProxyConfig.parse(resource.value).ca_certificates_pem


async def test_a_plane_trusts_the_roots_of_another_and_serves_only_its_own(tmp_path: Path) -> None:
    east_config, east_mesh = folder(tmp_path, "east", "trustDomain: east.test")
    with trio.fail_after(60):
        async with running_plane(east_config, mesh_config=east_mesh) as east:
            (east_root,) = await bundle(east.addresses.http)
            assert await bundle(east.addresses.monitoring) == (east_root,)
            url = f"http://{east.addresses.http}/spiffe/bundle"
            west_config, west_mesh = folder(
                tmp_path,
                "west",
                f"trustDomain: west.test\ncaCertificates: [{{spiffeBundleUrl: '{url}', trustDomains: [east.test]}}]",
            )
            async with running_plane(west_config, mesh_config=west_mesh) as west:
                (west_root,) = await bundle(west.addresses.http)
                assert await agent_roots(west) == sorted(root.decode() for root in (east_root, west_root))
                assert await agent_roots(east) == [east_root.decode()]
                metrics = await page(west.addresses.monitoring, "/metrics")
                for domain in ("east.test", "west.test"):
                    assert f'mesh_pilot_trust_roots{{trust_domain="{domain}"}} 1.0' in metrics
