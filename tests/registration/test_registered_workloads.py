"""Workloads that register themselves, over real connections: what other proxies are sent, and what is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryResponse

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.cli.discovery.worker import worker_command
from mesh_pilot.cli.lib.logs import LogFormat, LogLevels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, NAME_TABLE
from mesh_pilot.net.rpc import GRPCError, Status, StreamTerminatedError
from mesh_pilot.replicas.registration.settings import RegistrationSettings
from mesh_pilot.replicas.workers.settings import WorkerSettings
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.agent_streams import ENDPOINTS, AdsStream, ads_stream, node_of
from tests.support.envoy import eventually
from tests.support.planes import running_plane

pytestmark = pytest.mark.plane

SERVICE = """\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
  workloadSelector: {labels: {app: web}}
"""
GROUP = """\
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: shop}
spec:
  metadata: {labels: {app: web}}
  template: {serviceAccount: web, ports: {http: 8081}, weight: 3, labels: {version: v1}}
"""
PROBE = "  probe: {httpGet: {port: 8080}}\n"
EDS = "outbound|80||web.test"
QUICK = RegistrationSettings(grace_seconds=0.2)
WORKLOAD = {"AUTO_REGISTER_GROUP": "web", "SERVICE_ACCOUNT": "web"}


def entry(plane: ControlPlane, name: str = "web-127.0.0.1") -> Any:
    return plane.state.world.config.peek(ConfigKey("WorkloadEntry", "shop", name))


@attrs.frozen
class Caller:
    """Another proxy, which watches the endpoints of the service."""

    stream: AdsStream

    async def begin(self) -> list[str]:
        return endpoints(await self.stream.ask(ENDPOINT, EDS))

    async def until(self, *addresses: str) -> None:
        """Wait until exactly these endpoints are sent."""
        while self.addresses() != [*addresses]:
            await self.stream.answer()

    def addresses(self) -> list[str]:
        return endpoints(self.stream.last[ENDPOINT])


@asynccontextmanager
async def caller_of(plane: ControlPlane) -> AsyncIterator[Caller]:
    node = node_of("caller", ip="127.0.0.9")
    async with ads_stream(plane.addresses.grpc, node, method=ENDPOINTS) as stream:
        yield Caller(stream)


def endpoints(answer: DiscoveryResponse) -> list[str]:
    return [f"{e.address}:{e.port_value}" for e in _sockets(answer)]


def _sockets(answer: DiscoveryResponse) -> Iterator[Any]:
    for resource in answer.resources:
        for locality in ClusterLoadAssignment.FromString(resource.value).endpoints:
            for endpoint in locality.lb_endpoints:
                yield endpoint.endpoint.address.socket_address


def config(folder: Path, *documents: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("---\n".join(documents))
    return folder


async def test_a_workload_is_an_endpoint_while_it_is_connected_and_for_the_grace_period(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP)
    with trio.fail_after(6):
        async with (
            running_plane(folder, trust_local=True, registration=QUICK) as plane,
            caller_of(plane) as caller,
        ):
            assert await caller.begin() == []
            node = node_of(labels={"tier": "front"}, locality="eu/one", NETWORK="", **WORKLOAD)
            async with ads_stream(plane.addresses.grpc, node) as workload:
                await workload.ask(CLUSTER)
                await caller.until("127.0.0.1:8081")
                found = entry(plane)
                assert found.labels == {"tier": "front"} and found.spec.locality == "eu/one"
                (merged,) = plane.state.world.workload_entries("shop", "127.0.0.1")
                assert merged.spec.labels == {"tier": "front", "app": "web", "version": "v1"}
                assert (merged.spec.weight, merged.spec.service_account) == (3, "web")
                assert merged.annotations["istio.io/autoRegistrationGroup"] == "web"
            await caller.until()
            assert entry(plane) is None


async def test_a_reconnect_within_the_grace_period_changes_nothing_for_callers(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP)
    with trio.fail_after(6):
        async with (
            running_plane(folder, trust_local=True, registration=RegistrationSettings(grace_seconds=60)) as plane,
            caller_of(plane) as caller,
        ):
            await caller.begin()
            registrar = next(s.source for s in plane.state.supervisors if s.source.name == "auto-registration")
            for _ in range(3):
                async with ads_stream(plane.addresses.grpc, node_of(**WORKLOAD)) as workload:
                    await workload.ask(CLUSTER)
                    await caller.until("127.0.0.1:8081")
                while registrar.records()[0].is_connected:  # type: ignore[attr-defined]  # noqa: ASYNC110
                    await trio.sleep(0.005)
            figures: Any = registrar.statistics()
            assert (figures.registered, figures.updated, figures.deleted) == (1, 2, 0)
            pushes = [t.pushes for c in plane.state.xds.status.connections() for t in c.types if t.type_url == ENDPOINT]
            assert pushes == [2]


async def test_an_ill_workload_gets_no_requests_until_it_is_well(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP + PROBE)
    with trio.fail_after(6):
        async with (
            running_plane(folder, trust_local=True, registration=QUICK) as plane,
            caller_of(plane) as caller,
            ads_stream(plane.addresses.grpc, node_of(AGENT="1", **WORKLOAD)) as agent,
            ads_stream(plane.addresses.grpc, node_of(**WORKLOAD)) as workload,
        ):
            assert await caller.begin() == []
            await agent.request(NAME_TABLE)
            await workload.ask(CLUSTER)
            while entry(plane) is None:  # noqa: ASYNC110
                await trio.sleep(0.005)
            assert caller.addresses() == []
            await agent.report(None)
            await caller.until("127.0.0.1:8081")
            await agent.report("GET /ready: 503")
            await caller.until()
            await agent.report(None)
            await caller.until("127.0.0.1:8081")


async def test_an_agent_alone_registers_nothing(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP)
    with trio.fail_after(6):
        async with (
            running_plane(folder, trust_local=True, registration=QUICK) as plane,
            ads_stream(plane.addresses.grpc, node_of(AGENT="1", **WORKLOAD)) as agent,
        ):
            await agent.report(None)
            await agent.ask(CLUSTER)
            assert entry(plane) is None


async def test_istios_agent_reports_on_its_only_stream(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP)
    with trio.fail_after(6):
        async with (
            running_plane(folder, trust_local=True, registration=QUICK) as plane,
            caller_of(plane) as caller,
            ads_stream(
                plane.addresses.grpc,
                node_of(PROXY_CONFIG={"readinessProbe": {"httpGet": {"port": 8080}}}, **WORKLOAD),
            ) as workload,
        ):
            assert await caller.begin() == []
            await workload.ask(CLUSTER)
            await workload.report(None)
            await caller.until("127.0.0.1:8081")
            await workload.report("connection refused")
            await caller.until()


WRITTEN = """\
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: by-hand, namespace: shop}
spec: {address: 127.0.0.1, serviceAccount: web, labels: {app: web}}
"""


async def test_reports_count_for_an_entry_that_somebody_has_written(tmp_path: Path) -> None:
    folder = config(
        tmp_path / "config", SERVICE, WRITTEN, WRITTEN.replace("by-hand", "other").replace("0.0.1", "0.0.2")
    )
    with trio.fail_after(6):
        async with (
            running_plane(folder, trust_local=True, registration=QUICK) as plane,
            caller_of(plane) as caller,
        ):
            assert await caller.begin() == ["127.0.0.1:8080", "127.0.0.2:8080"]
            async with (
                ads_stream(plane.addresses.grpc, node_of(SERVICE_ACCOUNT="web")) as workload,
                ads_stream(plane.addresses.grpc, node_of("x", SERVICE_ACCOUNT="other")) as stranger,
            ):
                await workload.ask(CLUSTER)
                await stranger.report("not mine")
                await workload.report("ill")
                await caller.until("127.0.0.2:8080")
                await stranger.report(None)
                await stranger.ask(CLUSTER)
                assert caller.addresses() == ["127.0.0.2:8080"]
            # Nobody stands by the report any more.
            await caller.until("127.0.0.1:8080", "127.0.0.2:8080")


async def test_a_restart_of_the_plane_keeps_entries_for_workloads_to_come_back_to(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP)
    kept: dict[str, Any] = {
        "trust_local": True,
        "registration": QUICK,
        "state": StateSettings(folder=tmp_path / "state"),
    }
    with trio.fail_after(30):
        async with (
            running_plane(folder, **kept) as plane,
            ads_stream(plane.addresses.grpc, node_of(**WORKLOAD)) as workload,
        ):
            await workload.ask(CLUSTER)
            while entry(plane) is None:  # noqa: ASYNC110
                await trio.sleep(0.005)
            before = entry(plane)
            recorder = plane.state.recorder
            assert recorder is not None
            while recorder.store.revision < plane.state.world.revision:  # noqa: ASYNC110
                await trio.sleep(0.01)
        async with (
            running_plane(folder, **kept) as plane,
            caller_of(plane) as caller,
        ):
            assert entry(plane) == before
            assert await caller.begin() == ["127.0.0.1:8081"]


@pytest.mark.parametrize(
    ("metadata", "documents", "status", "reason"),
    [
        ({"AUTO_REGISTER_GROUP": "db"}, [], Status.FAILED_PRECONDITION, "there is no such WorkloadGroup"),
        ({"SERVICE_ACCOUNT": "thief"}, [], Status.PERMISSION_DENIED, "is for service account web"),
        ({"NETWORK": "../../x"}, [], Status.PERMISSION_DENIED, "is not a name of a network"),
        (
            {},
            [WRITTEN.replace("serviceAccount: web", "serviceAccount: owner")],
            Status.PERMISSION_DENIED,
            "for spiffe://cluster.local/ns/shop/sa/owner",
        ),
    ],
)
async def test_what_must_not_be_registered_is_refused_with_one_line(
    tmp_path: Path, metadata: dict[str, str], documents: list[str], status: Status, reason: str
) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP, *documents)
    with trio.fail_after(6):
        async with running_plane(folder, trust_local=True, registration=QUICK) as plane:
            with pytest.raises(GRPCError) as refused:
                async with ads_stream(plane.addresses.grpc, node_of(**{**WORKLOAD, **metadata})) as workload:
                    await workload.ask(CLUSTER)
            assert refused.value.status is status
            assert reason in str(refused.value.message) and "\n" not in str(refused.value.message)
            assert entry(plane) is None


@pytest.mark.process
async def test_workloads_of_other_workers_count_until_their_worker_is_killed(tmp_path: Path) -> None:
    folder = config(tmp_path / "config", SERVICE, GROUP)
    workers = WorkerSettings(2, worker_command(LogLevels(), LogFormat.TEXT))
    names = {f"127.0.1.{number}" for number in range(1, 13)}
    with trio.fail_after(60):
        async with (
            running_plane(folder, trust_local=True, registration=QUICK, workers=workers) as plane,
            trio.open_nursery() as nursery,
        ):
            assert plane.registrar is not None and plane.workers is not None
            registrar = plane.registrar

            async def stay(ip: str) -> None:
                with suppress(GRPCError, StreamTerminatedError):
                    async with ads_stream(plane.addresses.grpc, node_of(f"web-{ip}", ip=ip, **WORKLOAD)) as workload:
                        await workload.ask(CLUSTER)
                        await trio.sleep_forever()

            def here() -> set[str]:
                return {record.workload.address for record in registrar.records()}

            async def all_here() -> bool:
                return here() == names

            for ip in names:
                nursery.start_soon(stay, ip)
            await eventually(all_here, what="all workloads")
            of_first = {c.proxy.ip_addresses[0] for c in plane.state.xds.status.connections() if c.proxy is not None}
            assert of_first != names, "all streams came to one worker"
            (pid,) = plane.workers.pids().values()
            os.kill(pid, signal.SIGKILL)

            async def rest_gone() -> bool:
                return here() == of_first

            await eventually(rest_gone, what="the end of the workloads of the killed worker")
            nursery.cancel_scope.cancel()
