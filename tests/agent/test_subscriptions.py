"""The agent's own stream: what it asks, what it makes of the answers, what it reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot import __version__
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode, Pilot
from mesh_pilot.agent.relay.messages import write_sotw
from mesh_pilot.agent.relay.node_message import encode_node
from mesh_pilot.agent.relay.planes import Planes
from mesh_pilot.agent.relay.subscriptions import (
    HEALTH,
    NAME_TABLE,
    PROXY_CONFIG,
    ApplicationHealth,
    NameRow,
    Subscriptions,
    _keep,
    read_name_table,
)
from mesh_pilot.agent.settings import PlaneSettings
from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.base.protowire import field
from mesh_pilot.model.resource import SECRET
from mesh_pilot.model.service import NOWHERE, Locality
from mesh_pilot.net.rpc import Status
from tests.support.envoy import eventually
from tests.support.fake_plane import FakePlane, fake_plane
from tests.support.relayed import QUICK
from tests.support.sample import examples

NODE = EnvoyNode("web-1", "shop", labels={"app": "web"}, locality=Locality("eu", "eu-1"))


def any_of(type_url: str, value: bytes) -> bytes:
    return field(1, type_url.encode()) + field(2, value)


def row(name: str, *addresses: str, registry: str = "Consul", short: str = "", namespace: str = "") -> bytes:
    info = b"".join(field(1, address.encode()) for address in addresses)
    info += field(2, registry.encode()) + field(3, short.encode()) + field(4, namespace.encode())
    return field(1, field(1, name.encode()) + field(2, info))


CONFIG = bytes(ProxyConfig(concurrency=3, ca_certificates_pem=["root one", "root two"]))
TABLE = row("reviews.shop.svc.cluster.local", "240.240.0.1", short="reviews", namespace="shop") + row("x.test", "::1")
ANSWERS = {PROXY_CONFIG: CONFIG, NAME_TABLE: TABLE, SECRET: field(1, b"ROOTCA")}


def respond(request: discovery_pb2.DiscoveryRequest) -> bytes | None:
    value = ANSWERS.get(request.type_url)
    return None if value is None else write_sotw(request.type_url, "7", "n7", [any_of(request.type_url, value)])


@asynccontextmanager
async def subscribed(plane: FakePlane, folder: Path | None = None) -> AsyncIterator[Subscriptions]:
    plane.greets = False
    planes_settings = PlaneSettings((Pilot.parse(plane.address),), plaintext=True)
    planes = Planes(planes_settings, NOWHERE, lambda: None, dict, hello=(), timings=QUICK)
    subscriptions = Subscriptions(NODE, planes, names=True, folder=folder)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(planes.run)
        nursery.start_soon(subscriptions.run)
        yield subscriptions
        nursery.cancel_scope.cancel()


def read(plane: FakePlane) -> list[discovery_pb2.DiscoveryRequest]:
    return [discovery_pb2.DiscoveryRequest.FromString(data) for data in plane.requests]


async def test_it_asks_as_an_agent_and_takes_in_the_answers() -> None:
    async with fake_plane() as plane:
        plane.answers = respond
        async with subscribed(plane) as own:
            with trio.fail_after(10):
                table = await own.name_table.wait_for(lambda table: table is not None)
                await own.root_secret.wait_for(lambda body: body is not None)
                await own.is_current.wait_for(bool)
            assert table == {
                "reviews.shop.svc.cluster.local": NameRow(("240.240.0.1",), "Consul", "reviews", "shop"),
                "x.test": NameRow(("::1",), "Consul"),
            }
            assert own.proxy_config.value == CONFIG
            assert own.trust_bundle.value == ("root one", "root two")
            assert own.root_secret.value == ANSWERS[SECRET]
            await eventually(lambda: len(plane.requests) == 6, what="three requests and their ACKs")
            asked = [request for request in read(plane) if not request.response_nonce]
            assert [request.type_url for request in asked] == [PROXY_CONFIG, SECRET, NAME_TABLE]
            assert [list(request.resource_names) for request in asked] == [[], ["ROOTCA"], []]
            assert asked[0].node.metadata["AGENT"] == __version__
            assert asked[0].node.id == NODE.id
            answered = [request for request in read(plane) if request.response_nonce]
            assert {(request.version_info, request.response_nonce) for request in answered} == {("7", "n7")}
            assert not any(request.HasField("error_detail") for request in answered)


async def test_an_answer_that_cannot_be_read_is_refused_and_the_last_stays_in_force() -> None:
    async with fake_plane() as plane:
        plane.answers = respond
        async with subscribed(plane) as own:
            with trio.fail_after(10):
                await own.name_table.wait_for(lambda table: table is not None)
            before = own.name_table.value
            await plane.send(write_sotw(NAME_TABLE, "8", "n8", [any_of(NAME_TABLE, b"\x0a\x7fcut")]))
            await eventually(lambda: any(request.HasField("error_detail") for request in read(plane)))
            (refusal,) = [request for request in read(plane) if request.HasField("error_detail")]
            assert (refusal.type_url, refusal.response_nonce) == (NAME_TABLE, "n8")
            assert "NameTable is cut short" in refusal.error_detail.message
            assert own.name_table.value == before


async def test_a_stream_that_is_refused_is_a_warning_once_with_the_control_planes_reason() -> None:
    async with fake_plane() as plane:
        plane.refuses = Status.UNAUTHENTICATED
        with capture_logs() as logs:
            async with subscribed(plane) as own:
                await eventually(lambda: own._lines.suppressed > 0, what="a second refusal")
    (said,) = [line for line in logs if line["event"] == "the agent's own stream is refused"]
    assert (said["log_level"], said["reason"]) == ("warning", "not you (UNAUTHENTICATED)")


async def test_health_is_reported_as_istios_agent_does_and_again_on_each_connection() -> None:
    async with fake_plane() as plane:
        plane.answers = respond
        async with subscribed(plane) as own:
            await own.report(ApplicationHealth(False, "connection refused"))
            await eventually(lambda: len(reports(plane)) == 1)
            (unhealthy,) = reports(plane)
            assert (unhealthy.error_detail.code, unhealthy.error_detail.message) == (13, "connection refused")
            await own.report(ApplicationHealth(True))
            await own.report(ApplicationHealth(True))
            await eventually(lambda: len(reports(plane)) == 2)
            assert not reports(plane)[1].HasField("error_detail")
            assert plane.server is not None
            for connection in list(plane.server._connections):
                connection.cut()
            await eventually(lambda: len(reports(plane)) == 3, what="said again")
            assert not reports(plane)[2].HasField("error_detail")


def reports(plane: FakePlane) -> list[discovery_pb2.DiscoveryRequest]:
    return [request for request in read(plane) if request.type_url == HEALTH]


async def test_the_last_answers_are_there_at_a_start_without_a_control_plane(tmp_path: Path) -> None:
    async with fake_plane() as plane:
        plane.answers = respond
        async with subscribed(plane, tmp_path) as own:
            with trio.fail_after(10):
                await own.name_table.wait_for(lambda table: table is not None)
            await eventually((tmp_path / "name-table.pb").exists)
            table = own.name_table.value
        gone = plane
    assert modes(tmp_path) == {0o600}
    async with subscribed(gone, tmp_path) as own:
        with trio.fail_after(10):
            await own.name_table.wait_for(lambda found: found == table)
        assert own.proxy_config.value == CONFIG
        assert not own.is_current.value


@given(st.data())
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_kept_answer_that_is_damaged_in_any_byte_is_left_out(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "name-table.pb"
    _keep(path, TABLE, NODE.kept_for)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for content in (bytes(damaged), whole[:at]):
        path.write_bytes(content)
        restored, logs = restore(tmp_path)
        assert restored.name_table.value is None
        assert [line["event"] for line in logs] == ["a kept answer cannot be used and is left out"]
        assert logs[0]["file"] == str(path)


def test_kept_answers_of_another_proxy_are_left_out(tmp_path: Path) -> None:
    for name, value in (("name-table.pb", TABLE), ("proxy-config.pb", CONFIG)):
        _keep(tmp_path / name, value, NODE.kept_for)
    own, logs = restore(tmp_path)
    assert own.name_table.value is not None
    assert (own.proxy_config.value, logs) == (CONFIG, [])
    other, logs = restore(tmp_path, attrs.evolve(NODE, name="admin-1"))
    assert (other.name_table.value, other.proxy_config.value) == (None, None)
    assert other.trust_bundle.value == ()
    assert ["of another proxy" in line["reason"] for line in logs] == [True, True]


def restore(folder: Path, node: EnvoyNode = NODE) -> tuple[Subscriptions, list[MutableMapping[str, Any]]]:
    planes = Planes(PlaneSettings((), plaintext=True), NOWHERE, lambda: None, dict, hello=())
    own = Subscriptions(node, planes, names=True, folder=folder)
    with capture_logs() as logs:
        trio.run(own.restore)
    return own, logs


def modes(folder: Path) -> set[int]:
    return {file.stat().st_mode & 0o777 for file in folder.iterdir()}


async def test_a_large_name_table_lets_others_have_their_turn() -> None:
    data = b"".join(row(f"s{number}.test", f"240.240.{number >> 8}.{number & 255}") for number in range(10_000))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        table = await read_name_table(data)
        nursery.cancel_scope.cancel()
    assert len(table) == 10_000
    assert turns >= 30


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), JSON, max_size=4))
def test_a_node_is_written_as_protobuf_writes_it(metadata: dict[str, object]) -> None:
    node = EnvoyNode("web-1", "shop", labels={"app": "web"}, locality=Locality("eu", "eu-1"), metadata=metadata)  # type: ignore[arg-type]
    expected = json_format.ParseDict({**node.to_dict()}, base_pb2.Node())
    expected.metadata["AGENT"] = "1"
    assert base_pb2.Node.FromString(encode_node(node, {"AGENT": "1"})) == expected


@pytest.mark.parametrize("port", ["9" * 5000, "65536", "-1", "²", ""])
async def test_a_port_that_is_none_is_left_out_of_a_row(port: str) -> None:
    row = field(1, b"10.0.0.1") + field(1000, f"{port}/bad".encode()) + field(1000, b"80/http")
    table = await read_name_table(field(1, field(1, b"web.test") + field(2, row)))
    assert table["web.test"].ports == ((80, "http"),)
