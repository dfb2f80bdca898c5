"""One mesh-pilot drinking from another, over each path, while either is stopped and started again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import StartError
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.net.rpc import CertificateFiles
from mesh_pilot.ops.metrics import Metrics
from mesh_pilot.sources.mcp.source import McpSource
from mesh_pilot.xds.mcp.collections import COLLECTIONS
from tests.support.certificates import write_certificates
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane, settings

pytestmark = pytest.mark.plane

PATHS = ["{}", "mcp://{}", "xds://{}"]

ROUTE = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.test]
  http:
  - timeout: {seconds}s
    route: [{{destination: {{host: reviews.test}}}}]
"""


def route(folder: Path, name: str, seconds: int) -> None:
    temporary = folder / f".{name}"
    temporary.write_text(ROUTE.format(name=name, seconds=seconds))
    temporary.rename(folder / f"{name}.yaml")


def seconds(plane: ControlPlane, name: str) -> float | None:
    config = plane.state.world.config.peek(ConfigKey("VirtualService", "shop", name))
    return None if config is None else config.spec.http[0].timeout.total_seconds()


def servers_of(plane: ControlPlane) -> list[McpSource]:
    """The sources that read servers of configuration."""
    return [s.source for s in plane.state.supervisors if isinstance(s.source, McpSource)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "config"
    made.mkdir()
    (made / "service.yaml").write_text(SERVICE)
    route(made, "one", 1)
    return made


@asynccontextmanager
async def drinker(address: str, path: str, **more: object) -> AsyncIterator[ControlPlane]:
    """A control plane with no other source than a server of configuration."""
    async with running_plane(mcp_servers=(path.format(address),), **more) as plane:
        yield plane


@pytest.mark.parametrize("path", PATHS)
async def test_a_second_plane_holds_what_the_first_one_does_and_follows_it(folder: Path, path: str) -> None:
    async with running_plane(folder) as first, drinker(first.addresses.grpc, path) as second:
        assert seconds(second, "one") == 1
        assert second.state.world.services.peek(ServiceKey("reviews.test", "shop")) is not None
        route(folder, "one", 2)
        route(folder, "two", 1)
        await eventually(lambda: (seconds(second, "one"), seconds(second, "two")) == (2, 1), what="the change comes")
        (folder / "two.yaml").unlink()
        await eventually(lambda: seconds(second, "two") is None, what="what is gone goes")
        assert second.state.world.rejections() == ()


@pytest.mark.parametrize("path", PATHS)
async def test_a_first_plane_that_is_stopped_takes_nothing_away_and_is_found_again(
    folder: Path, path: str, free_ports: Callable[[int], list[int]]
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    route(folder, "two", 1)
    async with trio.open_nursery() as nursery:
        with started(nursery, folder, address) as first:
            await first.wait()
            async with drinker(address, path) as second:
                first.stop()
                await first.gone.wait()
                route(folder, "one", 2)
                (folder / "two.yaml").unlink()
                route(folder, "three", 1)
                assert (seconds(second, "one"), seconds(second, "two")) == (1, 1)
                with started(nursery, folder, address) as again:
                    await eventually(
                        lambda: [seconds(second, n) for n in ("one", "two", "three")] == [2, None, 1],
                        what="it catches up",
                    )
                    again.stop()


class Started:
    """A plane in the background of a test."""

    def __init__(self) -> None:
        self.ready = trio.Event()
        self.gone = trio.Event()
        self._scope = trio.CancelScope()

    async def wait(self) -> None:
        with trio.fail_after(60):
            await self.ready.wait()

    def stop(self) -> None:
        """As if it were killed."""
        self._scope.cancel()

    async def run(self, folder: Path, address: str) -> None:
        with self._scope:
            async with control_plane(settings(folder, grpc_addr=address)) as plane:
                await plane.wait_ready()
                self.ready.set()
                await trio.sleep_forever()
        self.gone.set()


@contextmanager
def started(nursery: trio.Nursery, folder: Path, address: str) -> Iterator[Started]:
    plane = Started()
    nursery.start_soon(plane.run, folder, address)
    yield plane
    plane.stop()


async def test_a_plane_that_waits_for_its_server_says_so_and_starts_once_it_is_there(
    folder: Path, free_ports: Callable[[int], list[int]]
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with trio.open_nursery() as nursery, control_plane(settings(mcp_servers=(address,))) as second:
        source = servers_of(second)[0]
        await eventually(lambda: "cannot connect" in source.statistics().waiting_for, what="it says why it waits")
        assert not second.state.reducer.synced
        with started(nursery, folder, address):
            with trio.fail_after(60):
                await second.wait_ready()
            assert seconds(second, "one") == 1


async def test_config_sources_of_the_mesh_config_are_read(folder: Path, tmp_path: Path) -> None:
    async with running_plane(folder) as first:
        mesh = tmp_path / "mesh.yaml"
        more = tmp_path / "more"
        more.mkdir()
        route(more, "more", 3)
        mesh.write_text(f"configSources:\n- address: {first.addresses.grpc}\n- address: fs://{more}\n")
        async with running_plane(mesh_config=mesh) as second:
            assert (seconds(second, "one"), seconds(second, "more")) == (1, 3)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("k8s:///nowhere", "cannot read the kubeconfig"),
        ("k8s://name", "is the Kubernetes that"),
        ("ftp://x:1", "unknown scheme ftp"),
        ("xds://nowhere", "nowhere"),
    ],
)
async def test_a_config_source_that_can_not_be_is_refused_at_start(address: str, reason: str) -> None:
    with pytest.raises(StartError, match=reason):
        async with control_plane(settings(mcp_servers=(address,))):
            pass


async def test_config_sources_that_change_are_said_to_take_a_restart(folder: Path, tmp_path: Path) -> None:
    mesh = tmp_path / "mesh.yaml"
    text = f"configSources: [{{address: 'fs://{folder}'}}]\n"
    mesh.write_text(text)

    def told(entries: list[MutableMapping[str, Any]]) -> list[str]:
        return [entry["event"] for entry in entries if "configSources" in entry["event"]]

    with capture_logs() as entries:
        async with running_plane(mesh_config=mesh) as plane:
            assert seconds(plane, "one") == 1
            assert told(entries) == []
            mesh.write_text(text + "trustDomain: other\n")
            await eventually(lambda: plane.state.world.mesh.peek(()).trust_domain == "other", what="it is read")
            assert told(entries) == []
            mesh.write_text("configSources: [{address: 'galley:9901'}]\n")
            await eventually(lambda: bool(told(entries)), what="it is told")
            mesh.write_text(text)
            await eventually(lambda: len(told(entries)) == 2, what="it is told again")
    assert ["restart" in event for event in told(entries)] == [True, False]


async def test_configuration_is_not_served_where_that_is_switched_off(folder: Path) -> None:
    async with running_plane(folder, serve_config=False) as first:
        address = first.addresses.grpc
        async with control_plane(settings(mcp_servers=(address, f"xds://{address}"))) as second:
            sources = servers_of(second)
            await eventually(lambda: all(s.statistics().waiting_for.count(":") for s in sources), what="they say why")
            assert not second.state.reducer.synced


@pytest.mark.parametrize("path", PATHS)
async def test_a_server_that_comes_back_as_it_was_changes_nothing(
    folder: Path, path: str, free_ports: Callable[[int], list[int]]
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with trio.open_nursery() as nursery:
        with started(nursery, folder, address) as first:
            await first.wait()
            async with drinker(address, path) as second:
                source = servers_of(second)[0]
                revision = second.state.world.revision
                judged = source.statistics().judged
                first.stop()
                await first.gone.wait()
                await eventually(lambda: not source.statistics().connected, what="the loss is noticed")
                with started(nursery, folder, address) as again:
                    await again.wait()
                    await eventually(lambda: source.statistics().connected, what="it is found again")
                    route(folder, "two", 1)  # comes after whatever the reconnect brings
                    await eventually(lambda: seconds(second, "two") == 1, what="it is followed again")
                    again.stop()
                assert second.state.world.revision == revision + 1
                assert source.statistics().judged == judged + 1


async def test_a_server_is_read_over_mutual_tls(folder: Path, tmp_path: Path) -> None:
    server = write_certificates(tmp_path, "server")
    client = write_certificates(tmp_path, "client", uris=("spiffe://cluster.local/ns/istio-system/sa/plane",))
    tls = CertificateFiles(certificate=server.certificate, key=server.key, trusted=server.ca)
    async with running_plane(folder, tls=tls) as first:
        _, _, port = first.addresses.secure_grpc.rpartition(":")
        mine = f"clientCertificate: {client.certificate}, privateKey: {client.key}, caCertificates: {client.ca}"
        mesh = tmp_path / "mesh.yaml"
        address = f"127.0.0.1:{port}"
        settings_of = f"tlsSettings: {{mode: MUTUAL, {mine}, sni: localhost}}"
        for scheme in ("", "xds://"):
            mesh.write_text(f"configSources:\n- address: {scheme}{address}\n  {settings_of}\n")
            async with running_plane(mesh_config=mesh) as second:
                assert seconds(second, "one") == 1


async def test_a_dump_prints_what_a_plane_serves(folder: Path) -> None:
    async with running_plane(folder) as plane:
        address = plane.addresses.grpc
        for server in (address, f"xds://{address}"):
            done = await trio.to_thread.run_sync(mesh_pilot, "mcp", "dump", server)
            assert (done.code, done.err) == (0, "")
            found = {d["metadata"]["name"]: d for d in yaml.safe_load_all(done.out) if d and "kind" in d}
            assert found["one"]["spec"]["http"][0]["timeout"] == "1s"
            assert found["reviews"]["kind"] == "ServiceEntry"
            assert "# empty: " in done.out


def test_a_dump_of_nobody_is_one_line() -> None:
    done = mesh_pilot("mcp", "dump", "127.0.0.1:1")
    assert (done.code, done.out) == (1, "")
    assert done.err == "mesh-pilot: cannot connect to 127.0.0.1:1: Connection refused\n"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("planes", [2, 3])
async def test_planes_that_read_from_each_other_in_a_ring_do_not_keep_alive_what_is_gone(
    folder: Path, path: str, planes: int, free_ports: Callable[[int], list[int]]
) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(planes)]
    async with AsyncExitStack() as stack:
        ring = []
        for number, address in enumerate(addresses):
            reads = path.format(addresses[number - 1])
            folders = () if number else (folder,)
            # The first one can't wait for the last one, which waits for the first one.
            timeout = None if number else 0.1
            ring.append(
                await stack.enter_async_context(
                    running_plane(*folders, grpc_addr=address, mcp_servers=(reads,), sync_timeout=timeout)
                )
            )
        first, last = ring[0], ring[-1]
        source = servers_of(first)[0]
        await eventually(lambda: source.statistics().synced, what="the ring closes")
        assert seconds(last, "one") == 1
        assert source.statistics().items == 0, "what it has from us"
        route(folder, "two", 1)
        await eventually(lambda: seconds(last, "two") == 1, what="a change goes round")
        (folder / "one.yaml").unlink()
        await eventually(
            lambda: all(seconds(plane, "one") is None for plane in ring), what="what is gone is gone everywhere"
        )
        route(folder, "one", 3)
        await eventually(lambda: seconds(last, "one") == 3, what="and may come again")
        assert [plane.state.world.rejections() for plane in ring] == [()] * planes


async def test_metrics_and_statistics_tell_how_a_source_is_doing(
    folder: Path, free_ports: Callable[[int], list[int]]
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    async with trio.open_nursery() as nursery:
        with started(nursery, folder, address) as first:
            await first.wait()
            async with drinker(address, "{}") as second:
                text = ""

                def value(name: str, **labels: str) -> float | None:
                    samples = (s for f in text_string_to_metric_families(text) for s in f.samples)
                    wanted = labels.items()
                    return next((s.value for s in samples if s.name == name and wanted <= s.labels.items()), None)

                source, routes = f"mcp:{address}", "istio/networking/v1alpha3/virtualservices"

                def acknowledged() -> bool:
                    nonlocal text
                    text = Metrics(second.state).text().decode()
                    acks = "istio_mcp_request_acks_total"
                    return value(acks, source=source, collection=routes, component="pilot") == 1

                await eventually(acknowledged, what="the first picture is acknowledged")
                assert value("istio_mcp_request_nacks_total", source=source) is None
                assert value("istio_mcp_reconnections", source=source) == 1
                assert value("istio_mcp_message_sizes_bytes_count", source=source) == len(COLLECTIONS)
                assert value("mesh_pilot_mcp_connected", source=source) == 1
                assert value("mesh_pilot_mcp_resources", source=source, collection=routes) == 1
                assert value("mesh_pilot_mcp_silent_collections", source=source) == 0
                assert 0 <= (value("mesh_pilot_mcp_last_response_age_seconds", source=source) or -1) < 30
                first.stop()

                def is_lost() -> bool:
                    nonlocal text
                    text = Metrics(second.state).text().decode()
                    return value("istio_mcp_recv_failures_total", source=source) == 1

                await eventually(is_lost, what="the lost connection is counted")
                assert second.state.stale()
                assert value("mesh_pilot_mcp_connected", source=source) == 0
                assert (value("mesh_pilot_source_stale_seconds", source=source) or 0) > 0
