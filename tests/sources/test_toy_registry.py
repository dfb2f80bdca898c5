"""A toy registry, added by following `docs/architecture.md` ("To add a registry") alone: the seam stays open.

A file has a line an instance, ``web.toy 10.0.0.1:80``. All that a registry is made of is in this module, between the
two rules: its source, its settings, its flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

import attrs
import pytest
import structlog
import trio

from mesh_pilot.app.settings import Settings, StartError
from mesh_pilot.cli.discovery.registries import RegistryOptions
from mesh_pilot.model.config import Problem
from mesh_pilot.model.events import Endpoints, Event, EventSender, Item, Synced
from mesh_pilot.model.flags import built, flag
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service, ServiceKey
from mesh_pilot.sources.base.contract import Registry, SourceError
from mesh_pilot.sources.base.published import Precedence, PublishedState
from tests.sources.conformance import Feed, RereadingSourceConformance
from tests.support.envoy import eventually
from tests.support.planes import running_plane

# -- sources/toy/__init__.py ------------------------------------------------------------------------------------------

log = structlog.get_logger(scope="sources")


@attrs.frozen
class ToyStatistics:
    items: int
    rejected: int
    synced: bool
    waiting_for: str


class ToySource:
    """Sends the services of a hosts file. State: `_state`, what was published; `_trouble`, why it can't be read."""

    def __init__(self, path: Path, poll_seconds: float) -> None:
        self.name = "toy"
        self._path = path
        self._poll_seconds = poll_seconds
        self._state = PublishedState[str](self.name, Precedence.FIRST)
        self._trouble = "not read yet"

    def statistics(self) -> ToyStatistics:
        state = self._state
        waiting_for = "" if state.is_announced else self._trouble
        return ToyStatistics(len(state), len(state.rejections()), state.is_announced, waiting_for)

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._state.restart()
        task_status.started()
        while True:
            for event in self._read():
                await events.send(event)
            await trio.sleep(self._poll_seconds)

    def _read(self) -> Sequence[Event]:
        try:
            text = self._path.read_text()
        except OSError as error:
            self._trouble = f"{self._path}: {error.strerror}"
            return ()
        instances: dict[str, list[str]] = {}
        for line in filter(None, text.splitlines()):
            host, _, address = line.partition(" ")
            instances.setdefault(host, []).append(address)
        events: list[Event] = []
        for location in [location for location in self._state.locations if self._host(location) not in instances]:
            events += self._state.drop(location)
        for host, addresses in instances.items():
            try:
                events += self._state.put(f"{self._path} {host}", _items(host, addresses))
            except ValueError as error:
                events += self._state.refuse(f"{self._path} {host}", [Problem("", str(error))])
        if self._state.is_announced:
            return events
        log.info("initial sync complete", source=self.name, services=len(instances))
        return [*self._state.announce(), Synced(self.name)]

    def _host(self, location: str) -> str:
        return location.removeprefix(f"{self._path} ")


def _items(host: str, addresses: Sequence[str]) -> Sequence[Item]:
    key = ServiceKey(host, "toys")
    parts = [address.rpartition(":") for address in addresses]
    endpoints = tuple(Endpoint(str(ip_address(ip)), int(port), "http") for ip, _, port in parts)
    ports = (Port(endpoints[0].port, "http", Protocol.HTTP),)
    return [Endpoints(key, endpoints), Service(*key, ports=ports, registry="Toy", declared_by_users=False)]


@attrs.frozen
class ToyRegistry:
    path: Path
    poll_seconds: float = 1.0

    def check(self) -> None:
        if not self.path.exists():
            raise SourceError(f"there is no hosts file {self.path}")

    def sources(self) -> Sequence[ToySource]:
        return [ToySource(self.path, self.poll_seconds)]

    def origins(self) -> Sequence[str]:
        return [f"toys in {self.path}"]

    def short_name_domain(self, *, is_alone: bool) -> str:
        return "toy" if is_alone else ""


# -- cli/registries/toy.py --------------------------------------------------------------------------------------------


@attrs.frozen
class ToyFlags:
    hosts: Path | None = flag("--toy-hosts", section="Toys", help="A hosts file of toys.")

    def registry(self, environment: Mapping[str, str], is_named: bool | None, mesh: Settings) -> Registry | None:
        return ToyRegistry(self.hosts) if self.hosts else None


OPTIONS = RegistryOptions("Toys", ToyFlags, "a hosts file with --toy-hosts")

# -- its tests --------------------------------------------------------------------------------------------------------


class ToyFeed:
    """A service an object; its version is the port of its only instance."""

    def __init__(self, folder: Path) -> None:
        self._lines: dict[str, str] = {}
        self._path = folder / "hosts"
        self._away = folder / "away"
        self._write()
        (self.source,) = ToyRegistry(self._path, poll_seconds=0.005).sources()

    async def put(self, name: str, version: int) -> None:
        self._lines[name] = f"{name}.toy 10.0.0.1:{version}"
        self._write()

    async def put_bad(self, name: str) -> None:
        self._lines[name] = f"{name}.toy nowhere:1"
        self._write()

    async def remove(self, name: str) -> None:
        del self._lines[name]
        self._write()

    async def break_off(self) -> None:
        self._path.rename(self._away)

    async def restore(self) -> None:
        self._away.rename(self._path)

    def key(self, name: str) -> tuple[str, ...]:
        return ("service", f"{name}.toy", "toys")

    def version(self, item: Item) -> int:
        assert isinstance(item, Service)
        return item.ports[0].number

    def _write(self) -> None:
        """Whole, or not at all: a new file takes the place of the old one."""
        path = self._away if self._away.exists() else self._path
        fresh = path.with_suffix(".new")
        fresh.write_text("\n".join(self._lines.values()))
        fresh.rename(path)


class TestToy(RereadingSourceConformance):
    @pytest.fixture
    def feed(self, tmp_path: Path) -> Feed:
        return ToyFeed(tmp_path)


@pytest.mark.plane
async def test_a_control_plane_serves_it(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("web.toy 10.0.0.1:80\nweb.toy 10.0.0.2:80\n")
    async with running_plane(registries=(ToyRegistry(hosts, 0.01),)) as plane:
        world = plane.state.world
        key = ServiceKey("web.toy", "toys")
        assert [endpoint.address for endpoint in world.endpoints.peek(key)] == ["10.0.0.1", "10.0.0.2"]
        assert world.full_host("web", "shop") == "web.toy"
        hosts.write_text("")
        await eventually(lambda: world.services.peek(key) is None, what="it follows")


async def test_what_is_wrong_with_it_at_start_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="there is no hosts file"):
        async with running_plane(registries=(ToyRegistry(tmp_path / "nowhere"),)):
            pass


def test_its_flags_make_it(tmp_path: Path) -> None:
    assert built(OPTIONS.flags, {"toy_hosts": None}).registry({}, None, Settings()) is None
    registry = built(OPTIONS.flags, {"toy_hosts": tmp_path}).registry({}, None, Settings())
    assert registry is not None
    assert Settings(registries=(registry,)).registries[0].origins() == [f"toys in {tmp_path}"]
