"""The debug pages over xDS: what ``istioctl`` requests, for callers of the root namespace only."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from envoy.admin.v3.config_dump_shared_pb2 import ClustersConfigDump
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from envoy.service.status.v3.csds_pb2 import ERROR, NOT_SENT, STALE, SYNCED, ClientConfig

from mesh_pilot import __version__
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.authenticators.settings import JoinTokenSettings
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import Cardinality, GRPCError, Status, open_channel
from mesh_pilot.ops.istiod.streams import CONFIG_DUMP, DEBUG, SYNCZ
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"
MADE_UP = "2026-11-28 19:03:11.184 +0000 UTC m=+0.093"
WEB = "sidecar~10.0.0.1~web-1.shop~shop.svc.cluster.local"
ISTIOCTL = "sidecar~10.0.0.2~istioctl.istio-system~istio-system.svc.cluster.local"


@asynccontextmanager
async def with_a_proxy(folder: Path, **more: Any) -> AsyncIterator[ControlPlane]:
    """A plane with one proxy, which has accepted its clusters."""
    (folder / "a.yaml").write_text(SERVICE)
    with trio.fail_after(60):
        async with (
            running_plane(folder, **{"trust_local": True, **more}) as plane,
            open_channel(plane.addresses.grpc) as channel,
            channel.request(
                f"{ADS}StreamAggregatedResources", Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse
            ) as proxy,
        ):
            await proxy.send_message(DiscoveryRequest(type_url=CLUSTER, node=Node(id=WEB)))
            clusters = await proxy.recv_message()
            assert clusters is not None
            await proxy.send_message(
                DiscoveryRequest(type_url=CLUSTER, response_nonce=clusters.nonce, version_info=clusters.version_info)
            )
            yield plane


async def ask(plane: ControlPlane, type_url: str, *names: str, node: str = ISTIOCTL) -> DiscoveryResponse:
    async with (
        open_channel(plane.addresses.grpc) as channel,
        channel.request(
            f"{ADS}StreamAggregatedResources", Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse
        ) as stream,
    ):
        await stream.send_message(DiscoveryRequest(type_url=type_url, node=Node(id=node), resource_names=names))
        answer = await stream.recv_message()
        assert answer is not None
        await stream.send_message(DiscoveryRequest(type_url=type_url, response_nonce=answer.nonce))
        return answer


async def test_a_page_is_what_the_web_port_serves(tmp_path: Path) -> None:
    async with with_a_proxy(tmp_path) as plane:
        (found,) = (await ask(plane, DEBUG, "syncz")).resources
        assert found.type_url == DEBUG
        assert [entry["proxy"] for entry in json.loads(found.value)] == ["web-1.shop"]
        (dump,) = (await ask(plane, DEBUG, "config_dump?proxyID=web-1.shop")).resources
        assert "outbound|9080||reviews.test" in dump.value.decode()
        (unknown,) = (await ask(plane, DEBUG, "nothing")).resources
        assert unknown.value == b"there is no such page; see /debug\n"


async def test_the_state_of_each_proxy_is_in_envoys_own_messages(tmp_path: Path) -> None:
    async with with_a_proxy(tmp_path) as plane:
        (found,) = (await ask(plane, SYNCZ)).resources
        client = ClientConfig.FromString(found.value)
        assert client.node.id == "web-1.shop", "as istiod names it"
        assert dict(client.node.metadata) == {"NAMESPACE": "shop"}
        (clusters,) = client.generic_xds_configs
        assert clusters.type_url == CLUSTER and clusters.config_status in (SYNCED, STALE)
        assert clusters.last_updated.seconds
        assert {each.WhichOneof("per_xds_config") for each in client.xds_config if each.status == NOT_SENT} == {
            "listener_config",
            "route_config",
            "endpoint_config",
        }
        assert ERROR not in {each.status for each in client.xds_config}


async def test_a_refusal_is_shown_with_its_reason(tmp_path: Path) -> None:
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    async with (
        with_a_proxy(tmp_path) as plane,
        open_channel(plane.addresses.grpc) as channel,
        channel.request(f"{ADS}StreamAggregatedResources", *kinds) as proxy,
    ):
        await proxy.send_message(DiscoveryRequest(type_url=CLUSTER, node=Node(id=WEB.replace("web-1", "bad"))))
        clusters = await proxy.recv_message()
        assert clusters is not None
        refusal = DiscoveryRequest(type_url=CLUSTER, response_nonce=clusters.nonce)
        refusal.error_detail.message = "no such filter"
        await proxy.send_message(refusal)

        async def refused() -> bool:
            found = [ClientConfig.FromString(each.value) for each in (await ask(plane, SYNCZ)).resources]
            (bad,) = (each.generic_xds_configs[0] for each in found if each.node.id == "bad.shop")
            return bad.config_status == ERROR and "no such filter" in bad.error_state.details

        await eventually(refused, what="the refusal shows")


async def test_a_dump_has_envoys_sections(tmp_path: Path) -> None:
    async with with_a_proxy(tmp_path) as plane:
        found = (await ask(plane, CONFIG_DUMP, WEB)).resources
        dump = ClustersConfigDump()
        assert [each.Unpack(dump) for each in found] == [False, False, True]
        assert len(dump.dynamic_active_clusters) > 1
        names = {each.type_url.rpartition(".")[2] for each in found}
        assert names == {"ListenersConfigDump", "RoutesConfigDump", "ClustersConfigDump"}, "istioctl needs the three"
        assert list((await ask(plane, CONFIG_DUMP, "nobody")).resources) == []


async def test_a_delta_client_is_answered_too(tmp_path: Path) -> None:
    async with (
        with_a_proxy(tmp_path) as plane,
        open_channel(plane.addresses.grpc) as channel,
        channel.request(
            f"{ADS}DeltaAggregatedResources", Cardinality.STREAM_STREAM, DeltaDiscoveryRequest, DeltaDiscoveryResponse
        ) as stream,
    ):
        request = DeltaDiscoveryRequest(type_url=DEBUG, node=Node(id=ISTIOCTL), resource_names_subscribe=["configz"])
        await stream.send_message(request)
        answer = await stream.recv_message()
        assert answer is not None
        (found,) = answer.resources
        assert found.name == "configz" and "reviews.test" in found.resource.value.decode()


@pytest.mark.parametrize(
    ("node", "names", "trust_local", "status"),
    [
        (WEB, ("syncz",), True, Status.PERMISSION_DENIED),
        (ISTIOCTL, ("syncz",), False, Status.UNAUTHENTICATED),
        (ISTIOCTL, (), True, Status.INVALID_ARGUMENT),
        (ISTIOCTL, ("syncz", "configz"), True, Status.INVALID_ARGUMENT),
        (ISTIOCTL, ("../metrics",), True, Status.INVALID_ARGUMENT),
        (ISTIOCTL, ("syncz\n",), True, Status.INVALID_ARGUMENT),
        ("somebody", ("syncz",), True, Status.INVALID_ARGUMENT),
        ("", ("syncz",), True, Status.INVALID_ARGUMENT),
    ],
)
async def test_others_are_refused(
    tmp_path: Path, node: str, names: tuple[str, ...], trust_local: bool, status: Status
) -> None:
    async with with_a_proxy(tmp_path, trust_local=trust_local) as plane:
        with pytest.raises(GRPCError) as raised:
            await ask(plane, DEBUG, *names, node=node)
        assert raised.value.status is status


@pytest.mark.parametrize(
    ("type_url", "names"),
    [
        (SYNCZ, ()),
        (CONFIG_DUMP, ("web-1.shop",)),
        (DEBUG, ("syncz",)),
        (DEBUG, ("config_dump?proxyID=web-1.shop",)),
    ],
)
async def test_istioctl_is_answered_though_it_makes_up_the_first_nonce(
    tmp_path: Path, type_url: str, names: tuple[str, ...]
) -> None:
    """As istioctl 1.29.1 sends it (``adsc.Send``), acknowledges it, and what it reads of the answer."""
    async with (
        with_a_proxy(tmp_path) as plane,
        open_channel(plane.addresses.grpc) as channel,
        channel.request(
            f"{ADS}StreamAggregatedResources", Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse
        ) as stream,
    ):
        node = Node(id=ISTIOCTL)
        asked = DiscoveryRequest(type_url=type_url, node=node, resource_names=names, response_nonce=MADE_UP)
        await stream.send_message(asked)
        answer = await stream.recv_message()
        assert answer is not None and answer.resources
        instance = json.loads(answer.control_plane.identifier)
        assert instance["ID"] == socket.gethostname() and instance["Info"]["version"] == __version__
        acked = DiscoveryRequest(
            type_url=type_url, node=node, response_nonce=answer.nonce, version_info=answer.version_info
        )
        acked.resource_names.extend(names)
        await stream.send_message(acked)
        asked.response_nonce = "another, as if a watch had ended"
        await stream.send_message(asked)
        again = await stream.recv_message()
        assert again is not None and again.nonce not in ("", answer.nonce), "the ACK was answered"
        await stream.end()
        assert await stream.recv_message() is None, "only requests are answered"


async def test_a_client_that_was_known_before_is_authenticated_once(tmp_path: Path) -> None:
    """Its first request names a response of another control plane; the second costs no further use of a token."""
    tokens = JoinTokens(tmp_path / "tokens")
    root = Identity("cluster.local", "istio-system", "istioctl")
    made = tokens.create(root, timedelta(hours=1), max_uses=1)
    config = tmp_path / "config"
    config.mkdir()
    async with (
        with_a_proxy(config, join_tokens=JoinTokenSettings(tmp_path / "tokens")) as plane,
        open_channel(plane.addresses.grpc) as channel,
        channel.request(
            f"{ADS}StreamAggregatedResources",
            Cardinality.STREAM_STREAM,
            DiscoveryRequest,
            DiscoveryResponse,
            metadata={"authorization": f"Bearer {made.text}"},
        ) as stream,
    ):
        asked = DiscoveryRequest(type_url=SYNCZ, node=Node(id=ISTIOCTL), response_nonce="7")
        await stream.send_message(asked)
        asked.response_nonce = ""
        await stream.send_message(asked)
        assert await stream.recv_message() is not None
        assert await stream.recv_message() is not None
        assert [record.uses for record in tokens.records()] == [1]
