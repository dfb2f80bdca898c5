"""Pages stay readable whatever the mesh contains: names that are not Unicode, deep nesting, very many problems."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import httpx
import pytest
import structlog.testing
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from starlette.routing import Route

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.api.istio.networking.v1alpha3 import ServiceEntry, VirtualService
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.model.config import Config, ConfigKey, Origin, Problem
from mesh_pilot.model.events import Endpoints, Event, EventSender, Rejected, Synced, Upsert
from mesh_pilot.model.resource import ENDPOINT
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service, ServiceKey
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.app import debug_app
from mesh_pilot.sources.base.contract import SourceStatistics
from mesh_pilot.sources.files.source import FileSourceStatistics
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane, settings

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
OF_A_PROXY = ("/debug/config_dump", "/debug/edsz", "/debug/ecdsz")
LONE = "caf\ud800"
BYTES = b"caf\xe9".decode("utf-8", "surrogateescape")


class Nonsense:
    """A source of events given to it, with a name that is not Unicode."""

    def __init__(self, *events: Event) -> None:
        self.name = BYTES
        self.events = events

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        for event in (*self.events, Synced(self.name)):
            await events.send(event)
        await trio.sleep_forever()

    def statistics(self) -> SourceStatistics:
        return FileSourceStatistics(0, 0, True, LONE, 0, 0, 0, 0, f"trouble with {LONE}")


def test_a_value_of_any_size_is_quoted_in_part() -> None:
    problem = Problem(f"Meta.port_{'x' * 10**6}", f"{'9' * 10**6!r} is not a port number")
    assert (len(problem.path), len(problem.reason)) == (2000, 2000)
    assert problem.reason.startswith("'999") and problem.reason.endswith("9' is not a port number")
    assert attrs.evolve(problem, line=3) == Problem(problem.path, problem.reason, line=3)


def pages(plane: ControlPlane) -> list[str]:
    """The paths of the web port without parameters."""
    routes = (route for route in debug_app(plane.state).routes if isinstance(route, Route))
    return [route.path for route in routes if "{" not in route.path and not route.path.startswith("/api/")]


async def every_page(plane: ControlPlane, *more: str) -> dict[str, str]:
    """What all pages answer."""
    found = {}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for path in ("/", "/ready?verbose", *pages(plane), *more):
            reply = await client.get(f"http://{plane.addresses.http}{path}")
            assert reply.status_code == (404 if path in OF_A_PROXY else 200), f"{path}: {reply.text}"
            found[path] = reply.content.decode("utf-8")
            if reply.headers["content-type"] == "application/json":
                json.loads(found[path])
        for path in ("/ready", "/metrics"):
            assert (await client.get(f"http://{plane.addresses.monitoring}{path}")).status_code == 200
    assert [server.statistics().failures for server in plane.state.http_servers] == [0, 0]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder, and a file in it, whose names are not Unicode."""
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    bad = SERVICE.replace("9080", "many").replace("reviews", "bad")
    for name in (b"bad.yaml", b"bad-\xff.yaml"):
        (folder / os.fsdecode(name)).write_text(bad)
    (folder / "good.yaml").write_text(SERVICE)
    return folder


async def test_folders_and_files_whose_names_are_no_unicode(tmp_path: Path, folder: Path) -> None:
    for config_dir in (tmp_path, folder):
        async with running_plane(config_dir) as plane:
            assert plane.state.world.statistics().rejected >= 2
            found = await every_page(plane)
        assert "bad.yaml" in found["/debug/rejections"]


async def test_registries_and_sources_with_lone_surrogates(tmp_path: Path, nursery: trio.Nursery) -> None:
    (tmp_path / "a.yaml").write_text(SERVICE)
    spec = ServiceEntry(hosts=[f"{LONE}.test"], addresses=[LONE])
    key = ConfigKey("ServiceEntry", "shop", LONE)
    service = Service(f"{LONE}.test", "shop", (Port(80, "http", Protocol.HTTP),), registry=LONE)
    good = ServiceKey("reviews.test", "shop")
    endpoint = Endpoint("10.1.1.1", 80, "http", labels={LONE: LONE}, service_account=LONE)
    source = Nonsense(
        Upsert(BYTES, Config(key, spec, labels={LONE: LONE}, annotations={LONE: LONE}, origin=Origin(BYTES, LONE, 1))),
        Upsert(BYTES, service),
        Upsert(BYTES, Endpoints(ServiceKey(service.host, "shop"), (endpoint,))),
        Rejected(BYTES, Origin(BYTES, LONE, 1), (Problem(LONE, LONE),), ("config", "Gateway", LONE, LONE)),
    )
    async with control_plane(settings(tmp_path), more_sources=[source]) as plane:
        with trio.fail_after(60):
            await plane.wait_ready()
        await nursery.start(proxy, plane, (good.host, service.host))
        found = await every_page(plane, "/debug/config_dump?proxyID=web-1.shop")
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            reply = await client.get(f"http://{plane.addresses.http}/debug/config_dump?proxyID=%ff%fe")
        assert reply.status_code == 404
    assert json.loads(found["/debug/registryz"])[0]["registry"] == r"caf\ud800"
    assert r'mesh_pilot_source_synced{source="caf\\xe9"}' in found["/metrics"], "its format doubles backslashes"
    nursery.cancel_scope.cancel()


async def proxy(plane: ControlPlane, hosts: tuple[str, ...], *, task_status: trio.TaskStatus[None]) -> None:
    """A proxy that asks for the endpoints of hosts."""
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    async with open_channel(plane.addresses.grpc) as channel, channel.request(ADS, *kinds) as call:
        node = ParseDict(EnvoyNode("web-1", "shop", "10.9.9.9").to_dict(), Node())
        names = [f"outbound|9080||{host}" for host in hosts if host.isascii()]
        await call.send_message(DiscoveryRequest(node=node, type_url=ENDPOINT, resource_names=names))
        assert await call.recv_message() is not None
        task_status.started()
        await trio.sleep_forever()


def nested(depth: int) -> object:
    value: object = "deep"
    for _ in range(depth):
        value = {"a": value}
    return value


async def test_an_object_nested_deeply_costs_itself(tmp_path: Path) -> None:
    """Also where something that follows the revisions cannot take it: all others see the revision."""
    (tmp_path / "a.yaml").write_text(SERVICE)
    patch = {"applyTo": "HTTP_FILTER", "patch": {"operation": "ADD", "value": nested(300)}}
    document = {
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": {"name": "deep", "namespace": "shop"},
        "spec": {"configPatches": [patch]},
    }
    with structlog.testing.capture_logs() as logs:
        async with running_plane(tmp_path) as plane:
            (tmp_path / "b.yaml").write_text(json.dumps(document) + "\n---\n" + SERVICE.replace("reviews", "other"))
            await eventually(lambda: plane.state.world.statistics().services == 2)
            await every_page(plane)
            events = plane.state.changes.statistics().config_events
            assert events["ServiceEntry", "add"] == 2
    assert not [line for line in logs if line["event"].startswith("publish hook failed")]


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    """Very many problems in one object, and very many objects with one."""
    many = tuple(Problem(f"spec.http[{n}].route", "is missing") for n in range(300_000))
    events: list[Event] = [Rejected(BYTES, Origin(BYTES, "big.yaml", 1), many, ("config", "VirtualService", "a", "b"))]
    for number in range(2000):
        key = ConfigKey("VirtualService", "shop", f"v{number}")
        warnings = (Problem("spec.http[0]", "is never used " + "x" * 2000),)
        spec = VirtualService(hosts=[f"{number}.test"])
        events.append(Upsert(BYTES, Config(key, spec, warnings=warnings, origin=Origin(BYTES, "v.yaml", number))))
    with structlog.testing.capture_logs() as logs:
        async with control_plane(settings(tmp_path), more_sources=[Nonsense(*events)]) as plane:
            with trio.fail_after(60):
                await plane.wait_ready()
            assert sum(line["event"].startswith("refused") for line in logs) <= 20
            yield plane


@pytest.mark.slow
async def test_pages_are_bounded_and_say_how_much_they_leave_out(crowded: ControlPlane) -> None:
    found = await every_page(crowded, "/debug/rejections?limit=3")
    for path, limit in (("/debug/rejections", 1000), ("/debug/rejections?limit=3", 3)):
        listed = json.loads(found[path])
        assert (len(listed["configs"]), len(listed["warnings"])) == (limit, limit)
        assert listed["more"] == {"configs": 300_000 - limit, "warnings": 2000 - limit}
