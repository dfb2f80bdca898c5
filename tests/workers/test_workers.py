"""Several workers are one control plane: real processes, and clients that talk as Envoy does."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
import yaml
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from bench.crew import Crew as Swarm
from bench.mesh import HOT_SERVICE, Mesh, edit_marker
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.discovery.worker import worker_command
from mesh_pilot.cli.lib.logs import LogFormat, LogLevels
from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.model.traffic import REPORTS_PATH
from mesh_pilot.model.traffic import Counter as TrafficCounter
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.values.traffic_rows import traffic_edges
from mesh_pilot.replicas.workers import supervisor
from mesh_pilot.replicas.workers.questions import MinutesQuestion
from mesh_pilot.replicas.workers.settings import WorkerSettings
from mesh_pilot.safety.state.reader import HistoryReader
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.traffic.memory import FoldedMinutes
from tests.support.envoy import eventually, http_client
from tests.support.plane_process import PlaneProcess
from tests.support.traffic_counts import row
from tests.traffic_reports.streams import agents, node

pytestmark = pytest.mark.process

MESH = Mesh(services=20, endpoints=2, virtual_services=5)
CLIENTS = 20
TOKEN = "a-token-that-may-operate"
SECONDS = 60
ANYWHERE = "127.0.0.1:0"


@attrs.frozen
class Running:
    """A control plane of several workers, and its clients."""

    plane: ControlPlane
    folder: Path
    client: httpx.AsyncClient
    swarm: Swarm

    async def get(self, path: str) -> Any:
        answer = await self.client.get(f"http://{self.plane.addresses.http}{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def connect(self, variant: str = "delta") -> None:
        await in_thread(self.swarm.open, CLIENTS, variant, MESH.all_namespaces)
        await self.complete()

    async def complete(self) -> None:
        assert (await in_thread(self.swarm.complete, SECONDS)).missing == 0

    async def come_back(self) -> None:
        """Have all clients connect again with what they have, each to any worker."""
        await in_thread(self.swarm.disconnect)
        await in_thread(partial(self.swarm.reconnect, keep=True))
        await in_thread(self.swarm.quiet, 0.3, SECONDS)

    async def edit(self, number: int) -> None:
        """Give the first service another endpoint, and wait until all clients have it."""
        await in_thread(self.swarm.expect, [("EDS", edit_marker(number), 1)])
        write(self.folder / HOT_SERVICE, MESH.service(0, edit=number, edited=1))
        times = await in_thread(self.swarm.collect, SECONDS)
        assert (len(times.at), times.missing) == (CLIENTS, 0)

    async def spread(self) -> Counter[int]:
        """How many clients each worker has."""
        counts = Counter({1: len(await self.get("/debug/syncz?worker=1"))})
        for number in range(2, self.plane.settings.workers.count + 1):
            counts[number] = len(await self.get(f"/debug/syncz?worker={number}"))
        return counts

    def pid(self, number: int) -> int:
        assert self.plane.workers is not None
        return self.plane.workers.pids()[number]


async def in_thread(function: Any, *arguments: Any) -> Any:
    return await trio.to_thread.run_sync(partial(function, *arguments))


def write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(text, encoding="utf-8")
    aside.rename(path)


def mesh_files(folder: Path) -> Path:
    folder.mkdir()
    for name, text in MESH.files().items():
        write(folder / name, text)
    return folder


@asynccontextmanager
async def workers(
    tmp_path: Path,
    count: int = 2,
    state: StateSettings | None = None,
    shutdown_seconds: float = 2.0,
    config_store: str = "",
    **more: Any,
) -> AsyncIterator[Running]:
    folder = mesh_files(tmp_path / "config")
    command = worker_command(LogLevels(), LogFormat.TEXT)
    (tmp_path / "tokens").write_text(f"operate {TOKEN} tests\noperate:ns0 {TOKEN}-0 of-ns0\n")
    settings = Settings(
        access=AccessSettings(token_file=tmp_path / "tokens"),
        config_dirs=(folder,),
        config_store=config_store,
        grpc_addr=ANYWHERE,
        secure_grpc_addr=ANYWHERE,
        http_addr=ANYWHERE,
        monitoring_addr=ANYWHERE,
        shutdown_seconds=shutdown_seconds,
        debounce_after=0.02,
        state=state,
        workers=WorkerSettings(count, command, **more),
    )
    async with control_plane(settings) as plane, http_client() as client:
        with trio.fail_after(SECONDS):
            await plane.wait_ready()
        with Swarm(plane.addresses.grpc) as swarm:
            yield Running(plane, folder, client, swarm)


async def test_an_edit_reaches_the_clients_of_all_workers(tmp_path: Path) -> None:
    async with workers(tmp_path) as running:
        await running.connect()
        spread = await running.spread()
        assert spread.total() == CLIENTS
        assert set(+spread) == {1, 2}
        await running.edit(1)
        assert (await in_thread(running.swarm.check))["problems"] == []


async def test_an_answer_waits_for_the_clients_of_all_workers(tmp_path: Path) -> None:
    async with workers(tmp_path, config_store=str(tmp_path / "config")) as running:
        await running.connect()
        assert set(+(await running.spread())) == {1, 2}
        object_ = yaml.safe_load(MESH.virtual_service(0, 7))
        metadata = object_["metadata"]
        answer = await running.client.put(
            f"http://{running.plane.addresses.http}/api/v1/config/vs/{metadata['namespace']}/{metadata['name']}",
            params={"wait": SECONDS},
            json=object_,
            headers={"authorization": f"Bearer {TOKEN}"},
        )
        assert answer.status_code == 200, answer.text
        delivery = answer.json()["delivery"]
        assert (delivery["complete"], delivery["proxies"], delivery["have"]) == (True, CLIENTS, CLIENTS), delivery
        assert delivery["sent"] > 0
        for number in (1, 2):
            found = await running.get(f"/api/v1/config/vs/{metadata['namespace']}/{metadata['name']}?worker={number}")
            assert found["object"]["spec"] == object_["spec"], number


async def test_history_counts_the_clients_of_all_workers(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with workers(tmp_path, state=StateSettings(folder=folder)) as running:
        await running.connect()
        assert set(+(await running.spread())) == {1, 2}
        await running.edit(1)
        edited = running.plane.state.world.revision

        def entries() -> tuple[int, int]:
            with HistoryReader.open(folder) as history:
                found = sum(each.proxies for each in history.revisions(limit=5) if each.number == edited)
                return found, sum(each.is_connected for each in history.proxies())

        async def are_all_there() -> bool:
            return await in_thread(entries) == (CLIENTS, CLIENTS)

        await eventually(are_all_there, what="all clients in the history", seconds=SECONDS)


async def test_all_workers_send_the_same_bytes_under_the_same_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOADED_AT_ONCE", 10)  # a World of several frames is one revision
    async with workers(tmp_path) as running:
        await running.connect()
        await running.edit(2)
        dumps, revisions = set(), set()
        for number in (1, 2):
            own = await running.get(f"/debug/syncz?worker={number}")
            dump = await running.get(f"/debug/config_dump?worker={number}&proxyID={own[0]['proxy']}")
            dumps.add(repr([without_times(section) for section in dump["configs"]]))
            revisions.add((await running.get(f"/debug/statistics?worker={number}"))["world"]["revision"])
        assert len(dumps) == 1
        assert revisions == {running.plane.state.world.revision}


async def test_a_client_that_comes_back_to_another_worker_is_sent_nothing(tmp_path: Path) -> None:
    async with workers(tmp_path) as running:
        await running.connect()
        await in_thread(running.swarm.quiet, 0.3, SECONDS)
        await in_thread(running.swarm.count)
        for _ in range(3):
            await running.come_back()
        assert (await in_thread(running.swarm.count)).resources == 0
        assert set(+await running.spread()) == {1, 2}


async def test_the_clients_of_a_killed_worker_are_in_sync_elsewhere_and_it_is_started_again(tmp_path: Path) -> None:
    async with workers(tmp_path) as running:
        await running.connect()
        killed = running.pid(2)
        os.kill(killed, signal.SIGKILL)
        await running.come_back()
        await running.edit(3)
        await eventually(lambda: running.pid(2) not in (0, killed), what="worker 2 is there again")
        statistics = await running.get("/debug/statistics")
        assert statistics["workers"]["2"]["world"]["revision"] == statistics["world"]["revision"]
        metrics = (await running.client.get(f"http://{running.plane.addresses.monitoring}/metrics")).text
        assert 'mesh_pilot_worker_restarts{worker="2"} 1.0' in metrics
        await running.come_back()
        await running.edit(4)


async def test_a_worker_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    async with workers(tmp_path, stuck_seconds=3.0) as running:
        stopped = running.pid(2)
        os.kill(stopped, signal.SIGSTOP)
        answer = await running.client.get(f"http://{running.plane.addresses.http}/debug/syncz")
        assert answer.headers["x-missing-workers"] == "2"
        await eventually(lambda: running.pid(2) not in (0, stopped), what="worker 2 is replaced")
        await eventually(lambda: not Path(f"/proc/{stopped}").exists(), what="the stopped one is gone")
        await running.connect()


async def test_workers_serve_on_without_their_fork_server_until_there_is_another(tmp_path: Path) -> None:
    async with workers(tmp_path) as running:
        await running.connect()
        worker = running.pid(2)
        fork_server = parent_of(worker)
        os.kill(fork_server, signal.SIGKILL)
        await running.edit(5)
        assert running.pid(2) == worker
        os.kill(worker, signal.SIGKILL)
        await eventually(lambda: running.pid(2) not in (0, worker), what="worker 2 is there again")
        await running.come_back()
        await running.edit(6)


async def test_a_worker_that_does_not_answer_is_replaced_also_after_its_fork_server(tmp_path: Path) -> None:
    async with workers(tmp_path, stuck_seconds=3.0) as running:
        stopped = running.pid(2)
        os.kill(parent_of(stopped), signal.SIGKILL)
        os.kill(stopped, signal.SIGSTOP)
        await eventually(lambda: running.pid(2) not in (0, stopped), what="worker 2 is replaced")
        await eventually(lambda: not is_running(stopped), what="the stopped one is gone")


async def test_the_drain_waits_for_no_worker_that_is_yet_to_be_started(tmp_path: Path) -> None:
    with trio.fail_after(SECONDS):
        async with workers(tmp_path, shutdown_seconds=10 * SECONDS) as running:
            worker, crew = running.pid(2), running.plane.workers
            assert crew is not None
            await eventually(lambda: 2 in crew.states(), what="the state of worker 2 is known")
            for pid in (parent_of(worker), worker):
                os.kill(pid, signal.SIGKILL)
            await eventually(lambda: 2 in crew.missing(), what="worker 2 is missed")
            assert 2 not in crew.states()


async def test_a_signal_to_all_processes_ends_them_without_a_word_of_trouble(tmp_path: Path, free_ports: Any) -> None:
    folder = mesh_files(tmp_path / "config")
    log = tmp_path / "log"
    plane = PlaneProcess(log, free_ports(3), "--workers=3", "--no-state", f"--config-dir={folder}")
    await plane.start()
    others = below(plane.pid)
    fork_server = next(pid for pid in others if parent_of(pid) == plane.pid)
    before = len(log.read_text())
    os.kill(plane.pid, signal.SIGSTOP)  # it is busy, and gets to the signal when others have ended
    for pid in others:
        os.kill(pid, signal.SIGTERM)
    await eventually(lambda: not any(is_alive(pid) for pid in others if pid != fork_server), what="workers have ended")
    os.kill(plane.pid, signal.SIGCONT)
    await plane.terminate()
    await eventually(lambda: not is_alive(fork_server), what="the fork server ended")
    assert not [line for line in log.read_text()[before:].splitlines() if "warning" in line or "error" in line]


async def test_workers_hold_the_sockets_of_proxies_and_nothing_else_of_the_first(tmp_path: Path) -> None:
    async with workers(tmp_path, state=StateSettings(folder=tmp_path / "state")) as running:
        own = open_files(os.getpid())
        worker = running.pid(2)
        fork_server = parent_of(worker)
        shared = {name for name in open_files(worker) & own if name.startswith("socket:")}
        assert len(shared) == 2  # the gRPC ports
        assert len([name for name in open_files(fork_server) if name.startswith("socket:")]) == 1
        assert not [name for pid in (worker, fork_server) for name in open_files(pid) if name.startswith(str(tmp_path))]


@pytest.mark.smoke
async def test_pages_and_metrics_show_one_control_plane(tmp_path: Path) -> None:
    async with workers(tmp_path, 3) as running:
        await running.connect("sotw")
        assert len({entry["proxy"] for entry in await running.get("/debug/syncz")}) == CLIENTS
        streams = await running.get("/debug/adsz")
        assert len({stream["node"]["id"] for stream in streams}) == CLIENTS
        versions = {tuple((name, each["acked_version"]) for name, each in s["types"].items()) for s in streams}
        assert len(versions) == 1
        for entry in await running.get("/debug/syncz"):
            assert (await running.get(f"/debug/config_dump?proxyID={entry['proxy']}"))["configs"]
        await api_shows_one_control_plane(running, {entry["proxy"] for entry in await running.get("/debug/syncz")})
        metrics = (await running.client.get(f"http://{running.plane.addresses.monitoring}/metrics")).text
        samples = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
        assert sum(float(value) for name, value in samples.items() if name.startswith("pilot_xds{")) == CLIENTS
        assert float(samples["pilot_services"]) == MESH.services
        assert float(samples['pilot_xds_pushes{type="cds"}']) >= CLIENTS
        assert float(samples["mesh_pilot_missing_metrics"]) == 0
        assert {name for name in samples if name.startswith("process_resident")} == {
            f'process_resident_memory_bytes{{worker="{number}"}}' for number in (1, 2, 3)
        }
        unknown = await running.client.get(f"http://{running.plane.addresses.http}/debug/syncz?worker=9")
        assert (unknown.status_code, unknown.text) == (404, "no worker '9'; there are 1, 2, 3\n")
        nobody = await running.client.get(f"http://{running.plane.addresses.http}/debug/config_dump?proxyID=x.y")
        assert nobody.status_code == 404
        assert nobody.text.count(".ns0") == CLIENTS


async def api_shows_one_control_plane(running: Running, proxies: set[str]) -> None:
    """Also lists in pieces; and orders reach all workers."""
    assert {entry["proxy"] for entry in await running.get("/api/v1/proxies")} == proxies
    names: list[str] = []
    while len(names) < CLIENTS:
        piece = await running.get(f"/api/v1/proxies?limit=7&offset={len(names)}")
        assert piece["total"] == CLIENTS
        names += [entry["proxy"] for entry in piece["items"]]
    assert names == sorted(proxies)
    now = await running.get("/api/v1/now")
    assert (now["totals"]["proxies"], now["plane"]["workers"]) == (len(proxies), running.plane.settings.workers.count)
    assert await running.get("/api/v1/proxies?state=gone") == []
    some = sorted(proxies)[0]
    assert [row["proxy"] for row in (await running.get(f"/api/v1/proxies/{some}"))["streams"]] == [some]
    status = await running.get("/api/v1/status")
    assert (status["counts"]["proxies"], status["workers"]) == (CLIENTS, 3)
    for name in names:
        assert (await running.get(f"/api/v1/proxies/{name}/config_dump"))["configs"]
    assert (await running.get("/debug/connections"))["totalClients"] == CLIENTS
    kinds = [each["kind"] for each in (await running.get("/api/v1/objects"))["items"]]
    origin = (await running.get(f"/api/v1/objects?kind={kinds[0]}"))["items"][0]
    one = await running.get(f"/api/v1/objects/{kinds[0]}/{origin['namespace']}/{origin['name']}")
    assert max(each["proxies"] for each in one["produces"]) > max((await running.spread()).values())
    spread = await running.spread()
    assert min(spread.values()) > 0
    token = {"authorization": f"Bearer {TOKEN}"}
    url = f"http://{running.plane.addresses.http}/api/v1"
    pushed = await running.client.post(f"{url}/push", headers=token)
    assert pushed.json() == {"streams": CLIENTS, "proxies": sorted(proxies)}
    try:
        await running.client.post(f"{url}/logs", headers=token, json={"level": "mcp:error"})
        levels = [(await running.get(f"/api/v1/logs?worker={number}"))["levels"] for number in (1, 2, 3)]
        assert set(levels) == {"info,mcp:error"}
    finally:
        await running.client.post(f"{url}/logs", headers=token, json={"reset": True})
    known = ", ".join(names[:20])
    unknown = await running.client.get(f"{url}/proxies/nobody.shop/config_dump")
    assert (unknown.status_code, unknown.json()) == (
        404,
        {"error": f"no connected proxy 'nobody.shop'; connected: {known}"},
    )
    ninth = await running.client.get(f"{url}/status?worker=9")
    assert (ninth.status_code, ninth.json()) == (404, {"error": "no worker '9'; there are 1, 2, 3"})


async def test_all_workers_hide_what_is_of_namespaces_that_a_caller_may_not_view(tmp_path: Path) -> None:
    async with workers(tmp_path) as running, AsyncExitStack() as stack:
        for number in range(2):
            for address in range(8):
                node = f"sidecar~10.9.{number}.{address}~vm{address}.ns{number}~ns{number}.svc.cluster.local"
                await stack.enter_async_context(connected(running.plane.addresses.grpc, node))
        assert set(+(await running.spread())) == {1, 2}
        url, own = f"http://{running.plane.addresses.http}/api/v1", {"authorization": f"Bearer {TOKEN}-0"}

        async def got(path: str) -> httpx.Response:
            return await running.client.get(f"{url}{path}", headers=own)

        for path in ("/proxies?limit=100", "/services?limit=100", "/objects?limit=100", "/gateways", "/endpoints"):
            for worker in ("", "worker=1", "worker=2"):
                rows = (await got(f"{path}{'&' if '?' in path else '?'}{worker}")).json()
                found = {each["namespace"] for each in (rows["items"] if isinstance(rows, dict) else rows)}
                assert found <= {"ns0"}, (path, worker)
        assert (await got("/proxies?limit=100")).json()["total"] == 8
        assert {row["namespace"] for row in (await got("/proxy-groups")).json()} <= {"ns0"}
        for address in range(8):
            assert (await got(f"/proxies/vm{address}.ns0")).status_code == 200
            assert (await got(f"/proxies/vm{address}.ns0/config_dump")).status_code == 200
            for path in ("/proxies/{}/config_dump", "/proxies/{}", "/describe/proxy/{}"):
                refused = await got(path.format(f"vm{address}.ns1"))
                assert refused.status_code == 403 and "this needs view in namespace ns1" in refused.text
        for order, status in (
            ("push", 403),
            ("push?proxy=vm*", 403),
            ("push?proxy=vm1.ns1", 403),
            ("push?proxy=vm1.ns0", 200),
        ):
            assert (await running.client.post(f"{url}/{order}", headers=own)).status_code == status, order
        ended = await running.client.post(f"{url}/proxies/vm1.ns1/disconnect", headers=own)
        assert ended.status_code == 403


async def test_proxies_of_one_name_are_found_at_all_workers(tmp_path: Path) -> None:
    async with workers(tmp_path) as running, AsyncExitStack() as stack:
        url, token = f"http://{running.plane.addresses.http}/api/v1", {"authorization": f"Bearer {TOKEN}"}
        nodes: list[str] = []
        while len(+(await running.spread())) < 2:  # the system spreads connections
            nodes.append(f"sidecar~10.9.0.{len(nodes) + 1}~vm.ns0~ns0.svc.cluster.local")
            await stack.enter_async_context(connected(running.plane.addresses.grpc, nodes[-1]))
        several = await running.client.get(f"{url}/describe/proxy/vm.ns0")
        assert several.status_code == 409
        assert sorted(each["proxy_id"] for each in several.json()["proxies"]) == sorted(nodes)
        for path in ("/debug/config_dump?proxyID=vm.ns0", "/api/v1/why?proxy=vm&to=x.test/"):
            assert (await running.client.get(f"http://{running.plane.addresses.http}{path}")).status_code == 409
        for node in nodes:
            one = await running.client.get(f"{url}/describe/proxy/{node}")
            assert (one.status_code, one.json()["name"]) == (200, "vm.ns0")
        refused = await running.client.post(f"{url}/proxies/vm.ns0/disconnect", headers=token)
        assert refused.status_code == 409
        for node in nodes:
            ended = await running.client.post(f"{url}/proxies/{node}/disconnect", headers=token)
            assert ended.json() == {"streams": 1, "proxies": ["vm.ns0"]}


@asynccontextmanager
async def connected(address: str, node: str) -> AsyncIterator[None]:
    """A proxy that was sent its clusters."""
    ads = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
    async with (
        open_channel(address) as channel,
        channel.request(ads, Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse) as stream,
    ):
        await stream.send_message(DiscoveryRequest(type_url=CLUSTER, node=Node(id=node)))
        assert await stream.recv_message() is not None
        yield


async def test_nothing_is_left_of_a_killed_control_plane_and_another_has_its_ports_at_once(
    tmp_path: Path, free_ports: Any
) -> None:
    folder = mesh_files(tmp_path / "config")
    ports = free_ports(3)
    plane = PlaneProcess(
        tmp_path / "log", ports, "--workers=2", "--trust-local", f"--config-dir={folder}", "--shutdown-duration=1s"
    )
    await plane.start()
    try:
        before = below(plane.pid)
        assert len(before) == 2
        await plane.kill()
        await plane.start()
        await eventually(lambda: not any(map(is_alive, before)), what="the others have ended")
        again = below(plane.pid)
    finally:
        await plane.terminate()
    await eventually(lambda: not any(map(is_alive, again)), what="the others have ended")
    with socket.create_server(("127.0.0.1", ports[0])):
        pass


def open_files(pid: int) -> set[str]:
    """The files, sockets and pipes that a process has open."""
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it is what lists them
            found.add(str(each.readlink()))
    return found


def is_running(pid: int) -> bool:
    """False also for a process that ended and that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def below(pid: int) -> list[int]:
    """The processes below one."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = parent_of(int(folder.name))
        except OSError:
            continue
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def without_times(section: Mapping[str, Any]) -> Any:
    """A section of a dump, without when it was sent."""
    return {key: value for key, value in section.items() if "last_updated" not in key}


async def test_traffic_is_that_of_the_proxies_of_all_workers(tmp_path: Path) -> None:
    """Each report is taken by the worker that has its connection, and the first one asks the others."""
    async with workers(tmp_path) as running, AsyncExitStack() as stack:
        state = running.plane.state
        counted: set[int] = set()
        proxies = 0
        while len(counted) < 2:  # the kernel chooses the worker of a connection
            proxies += 1
            of = node(f"web-{proxies}")
            channel = await stack.enter_async_context(open_channel(running.plane.addresses.grpc))
            stream = await stack.enter_async_context(
                channel.request(REPORTS_PATH, Cardinality.STREAM_STREAM, bytes, bytes)
            )
            await stream.send_message(agents(of=of))
            assert await stream.recv_message()
            await stream.send_message(agents(row("outbound|80||a.test", requests=10)))

            async def is_told(count: int = proxies) -> bool:
                found = await traffic_edges(state)
                return sum(each.counts[TrafficCounter.REQUESTS] for each in found) == 10 * count

            await eventually(is_told, what=f"the requests of {proxies} proxies")
            here = state.traffic.table.statistics().callers if state.traffic is not None else 0
            counted = {number for number, callers in ((1, here), (2, proxies - here)) if callers}
        assert len({each.proxy.name for each in await traffic_edges(state)}) == proxies
        assert state.others is not None
        (answer,) = (await state.others.ask(MinutesQuestion({}))).values()
        assert isinstance(answer, FoldedMinutes)
