"""Agents' own streams at a plane: no second proxy anywhere, and the settings that they get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret

from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.resource import CLUSTER, NAME_TABLE, PROXY_CONFIG, SECRET
from mesh_pilot.ops.values.authority import rollout
from mesh_pilot.replicas.workers.questions import Rollout
from tests.support.agent_streams import AdsStream, ads_stream, node_of
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

OBJECT = """\
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: shop, namespace: shop}
spec: {concurrency: %d}
"""


async def page(plane: ControlPlane, path: str) -> Any:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.get(f"http://{plane.addresses.http}{path}")).text


async def settings_of(stream: AdsStream) -> ProxyConfig:
    (resource,) = (await stream.ask(PROXY_CONFIG)).resources
    return ProxyConfig.parse(resource.value)


def agent_of(proxy: Node) -> Node:
    node = Node()
    node.CopyFrom(proxy)
    node.metadata["AGENT"] = "1.2.3"
    return node


async def test_an_agent_beside_its_proxy_is_shown_with_it_and_counted_apart(tmp_path: Path) -> None:
    (tmp_path / "reviews.yaml").write_text(SERVICE)
    proxy = node_of(SERVICE_ACCOUNT="default")
    with trio.fail_after(20):
        async with (
            running_plane(tmp_path, trust_local=True) as plane,
            ads_stream(plane.addresses.grpc, proxy) as envoy,
            ads_stream(plane.addresses.grpc, agent_of(proxy)) as agent,
        ):
            await envoy.ask(CLUSTER)
            await agent.ask(NAME_TABLE)
            await settings_of(agent)
            await agent.request(SECRET, "default")
            figures = plane.state.xds.status.statistics()
            assert (figures.connected, dict(figures.agents_by_version)) == (1, {"1.2.3": 1})
            (entry,) = json.loads(await page(plane, "/debug/syncz"))
            assert (entry["proxy"], entry["agent"]) == ("web-1.shop", "1.2.3")
            metrics = await page(plane, "/metrics")
            assert 'mesh_pilot_agents{version="1.2.3"} 1.0' in metrics
            assert 'pilot_xds{version="unknown"} 1.0' in metrics
            assert [c.proxy.agent for c in plane.state.xds.status.proxies() if c.proxy] == [""]
            assert [proxy.agent for proxy, _ in plane.state.xds.status.accepted(SECRET)] == []
            assert plane.state.quarantine is not None
            assert len(plane.state.quarantine._memory) == 1


async def test_no_revision_waits_for_an_agent_that_does_not_answer(tmp_path: Path) -> None:
    with_address = SERVICE.replace("resolution:", "addresses: [10.9.0.1]\n  resolution:")
    (tmp_path / "reviews.yaml").write_text(with_address)
    with trio.fail_after(20):
        async with (
            running_plane(tmp_path, trust_local=True) as plane,
            ads_stream(plane.addresses.grpc, node_of(AGENT="1.2.3")) as agent,
        ):
            await agent.ask(NAME_TABLE)
            (tmp_path / "reviews.yaml").write_text(with_address.replace("reviews.test", "ratings.test"))
            await agent._call.recv_message()  # and no answer
            assert all(not outcome.waiting for outcome in plane.state.xds.status.revisions.recent())
            assert not plane.state.xds.status.revisions.recent()[-1].proxies


async def test_an_agent_gets_the_effective_proxy_config_and_istios_only_the_roots(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(OBJECT % 3)
    with trio.fail_after(20):
        async with (
            running_plane(tmp_path, trust_local=True) as plane,
            ads_stream(plane.addresses.grpc, node_of(AGENT="1.2.3")) as ours,
            ads_stream(plane.addresses.grpc, node_of()) as istios,
        ):
            found = await settings_of(ours)
            assert found.concurrency == 3
            its = await settings_of(istios)
            roots = its.ca_certificates_pem
            assert roots and found.ca_certificates_pem == roots
            assert its.concurrency is None
            (tmp_path / "config.yaml").write_text(OBJECT % 5)
            (resource,) = (await ours.answer()).resources
            changed = ProxyConfig.parse(resource.value)
            assert (changed.concurrency, changed.ca_certificates_pem) == (5, roots)


async def test_an_agent_gets_the_roots_as_proxies_do_and_nothing_is_signed_for_it(tmp_path: Path) -> None:
    """Nor for its Envoy, which says that its agent has its certificate."""
    with trio.fail_after(20):
        async with (
            running_plane(tmp_path, trust_local=True) as plane,
            ads_stream(plane.addresses.grpc, node_of(AGENT_SECRETS="true")) as envoy,
            ads_stream(plane.addresses.grpc, node_of(AGENT="1.2.3")) as agent,
        ):
            await envoy.ask(CLUSTER)
            (resource,) = (await agent.ask(SECRET, "ROOTCA", "default")).resources
            secret = Secret.FromString(resource.value)
            assert (secret.name, secret.HasField("tls_certificate")) == ("ROOTCA", False)
            assert secret.validation_context.trusted_ca.inline_bytes.startswith(b"-----BEGIN CERTIFICATE")
            assert plane.state.callers.issuer.statistics().identities == 0


async def test_a_rotation_of_the_root_waits_for_agents_to_accept_both_roots(tmp_path: Path) -> None:
    """Ours by the secret; those of Istio by the ProxyConfig. Credentials of a gateway with an agent are no matter."""
    own, its = node_of(AGENT_SECRETS="true"), node_of(PILOT_SAN=["istiod.istio-system.svc"])
    with trio.fail_after(30):
        async with (
            running_plane(tmp_path, trust_local=True) as plane,
            ads_stream(plane.addresses.grpc, own) as envoy,
            ads_stream(plane.addresses.grpc, agent_of(own)) as agent,
            ads_stream(plane.addresses.grpc, its) as istios,
        ):
            await envoy.ask(CLUSTER)
            await envoy.request(SECRET, "kubernetes://edge")
            await agent.request(SECRET, "ROOTCA")
            await istios.request(PROXY_CONFIG)
            for accepted, stream in enumerate((agent, istios)):
                expected = Rollout(proxies=2, with_roots=accepted, with_certificate=2)
                await eventually(lambda: rollout(plane.state) == expected, what=f"{accepted} have accepted")  # noqa: B023
                await stream.answer()
            await eventually(lambda: rollout(plane.state).with_roots == 2, what="both have accepted")
            assert plane.state.callers.issuer.statistics().identities == 0
