"""A real Envoy that two tenants share: one whose requests and edits never stop, and one who makes mistakes.

    async with quarantined(tmp_path, free_ports(3), NodeType.ROUTER, delta=True) as world:
        keys = world.put(unchecked(manifests))
        await world.edit_arrives()
        await world.until_decided()
        assert world.withheld() == keys

Objects get past validation, as those of a validation that knows less than Envoy. Leaving the block asserts that no
request of the good tenant failed.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import httpx
import trio

from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.istio.kinds import lookup
from mesh_pilot.istio.reading import yaml
from mesh_pilot.istio.reading.decode_json import read_message
from mesh_pilot.istio.reading.problems import Problems
from mesh_pilot.model.config import Config, ConfigError, ConfigKey, Origin
from mesh_pilot.model.events import Event, EventSender, Item, Replace, Synced, item_key
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.quarantine.options import QuarantineOptions
from tests.support.echo import Backend, http_backend
from tests.support.envoy import RealEnvoy, eventually, real_envoy
from tests.support.hitless import PAUSE_SECONDS
from tests.support.manifests import at, manifest, routes, service
from tests.support.planes import settings
from tests.support.shop import CLIENT, EDGE

GOOD, BAD = "good.test", "bad.test"

Key = tuple[str, ...]


def unchecked(text: str) -> list[Config]:
    """The configs of a YAML text, whatever validation says of them."""
    found = []
    for document in yaml.load(text, Origin("memory")):
        assert not isinstance(document, ConfigError), document
        data = document.data
        kind = lookup(data["apiVersion"], data["kind"])
        assert kind is not None, data
        key = ConfigKey(kind.name, data["metadata"]["namespace"], data["metadata"]["name"])
        problems = Problems()
        spec = read_message(kind.message, data["spec"], "spec", problems)
        assert not problems.errors, [*problems]
        found.append(Config(key, spec, api_version=data["apiVersion"], origin=Origin("memory", line=document.line)))
    return found


@attrs.frozen
class MemoryStatistics:
    items: int = 0
    rejected: int = 0
    synced: bool = True
    waiting_for: str = ""


class MemorySource:
    """Sends what a test puts and deletes, each time at once."""

    name = "memory"

    def __init__(self) -> None:
        self._items: dict[Key, Item] = {}
        self._events, self._inbox = trio.open_memory_channel[Event](math.inf)

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await events.send(Synced(self.name))
        async for event in self._inbox:
            await events.send(event)

    def statistics(self) -> MemoryStatistics:
        return MemoryStatistics()

    def put(self, items: Iterable[Item], delete: Iterable[Key] = ()) -> None:
        for key in delete:
            del self._items[key]
        self._items |= {item_key(item): item for item in items}
        self._events.send_nowait(Replace(self.name, (), tuple(self._items.values())))


@attrs.define
class Quarantined:
    """What runs, what was asked, and what came of it."""

    folder: Path
    plane: ControlPlane
    source: MemorySource
    kind: NodeType
    delta: bool
    port: int
    """HTTP, of all tenants."""
    tcp_port: int
    spare_port: int
    """For mistakes to listen on."""
    backend: Backend
    failures: list[str] = attrs.field(factory=list)
    requests: int = 0
    edits: int = 0
    seconds: list[float] = attrs.field(factory=list)
    """How long each edit of the good tenant took to arrive."""
    _version: str = ""
    """That answered the good tenant's last request."""
    _in_flight: int = 0
    _gate: trio.Event = attrs.field(factory=trio.Event)
    _stack: AsyncExitStack = attrs.field(factory=AsyncExitStack)
    _envoy: RealEnvoy | None = None

    @property
    def envoy(self) -> RealEnvoy:
        assert self._envoy is not None
        return self._envoy

    # -- configuration

    def put(self, items: Iterable[Item], delete: Iterable[Key] = ()) -> set[Key]:
        """Objects are new, changed or gone, at once; returns the keys of the first."""
        items = list(items)
        self.source.put(items, delete)
        return {item_key(item) for item in items}

    def edit(self) -> None:
        """The good tenant's next edit: its own service, the routes to it, and the listener that leads to it."""
        self.edits += 1
        target = f"good-{self.edits}.test"
        http = f"""
        - headers: {{response: {{set: {{x-version: "{self.edits}"}}}}}}
          retries: {{attempts: 0}}
          route: [{{destination: {{host: {target}}}}}]
        """
        tcp = {
            "hosts": ["tcp.test"],
            "gateways": ["mesh", "edge"],
            "tcp": [{"route": [{"destination": {"host": target, "port": {"number": self.port}}}]}],
        }
        text = (
            service(target, self.port, at(self.backend), name="good-target")
            + routes(GOOD, http, gateways=("mesh", "edge"))
            + manifest("VirtualService", "tcp", tcp)
        )
        self.put(unchecked(text))

    async def edit_arrives(self) -> None:
        """The good tenant edits; its requests and listeners follow."""
        began = trio.current_time()
        self.edit()
        await self._until_arrived()
        self.seconds.append(trio.current_time() - began)

    async def _until_arrived(self) -> None:
        await eventually(
            lambda: self._version == str(self.edits),
            seconds=10,
            what=f"edit {self.edits} answers; {self._version} does, {self.failures[-3:]} {self.state()}",
        )
        await eventually(self._listener_has_arrived, seconds=10, what=f"listener of edit {self.edits}; {self.state()}")

    async def _listener_has_arrived(self) -> bool:
        reply = await self.envoy.get("/config_dump?resource=dynamic_listeners")
        return f"outbound|{self.port}||good-{self.edits}.test" in reply.text

    # -- quarantine

    @property
    def quarantine(self) -> QuarantineController:
        assert self.plane.state.quarantine is not None
        return self.plane.state.quarantine

    def withheld(self) -> set[Key]:
        """The keys of what is withheld, by verdict."""
        return {
            w.key for quarantine in self.quarantine.withheld() if not quarantine.is_trial for w in quarantine.withheld
        }

    async def until_decided(self) -> None:
        """Wait until Envoy has answered everything, and no trial continues."""
        await eventually(self._is_decided, seconds=20, what=f"decided: {self.state()}")

    def _is_decided(self) -> bool:
        keeper = self.quarantine
        (connection,) = self.plane.state.xds.status.connections()
        is_quiet = not connection.waiting.acks and not connection.waiting.endpoints
        trials = any(quarantine.is_trial for quarantine in keeper.withheld())
        is_told = len(self.withheld()) == keeper.statistics().objects
        return is_quiet and is_told and not trials and math.isinf(keeper.deadline)

    def rejects(self) -> int:
        """What Envoys have refused since the start."""
        return sum(self.plane.state.xds.status.totals.rejects.values())

    def state(self) -> str:
        """For messages."""
        nacks = [c.nacks[-1].nack.reason[:300] for c in self.plane.state.xds.status.connections() if c.nacks]
        return f"{self.quarantine} withholds {self.withheld()} holds {self.quarantine.held()} after {nacks}"

    # -- Envoy

    async def start(self) -> None:
        """A new Envoy, and then load through it."""
        node = EDGE if self.kind is NodeType.ROUTER else CLIENT
        name = f"envoy-{self.edits}"
        self._envoy = await self._stack.enter_async_context(
            real_envoy(self.plane.addresses.grpc, self.folder, node, delta=self.delta, name=name)
        )
        with trio.fail_after(60):
            await self.envoy.wait_live()
        await eventually(self.envoy.takes_traffic, what="Envoy's workers run")
        await eventually(self.serves, what=f"Envoy serves; {self.state()}")
        self._gate.set()

    async def stop(self) -> None:
        """Load pauses, then Envoy ends."""
        self._gate = trio.Event()
        await eventually(lambda: self._in_flight == 0, what="requests are answered")
        await self._stack.aclose()
        self._version = ""

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def serves(self) -> bool:
        return (await self.ask(GOOD))[0] == 200

    async def ask(self, host: str) -> tuple[int, str]:
        """Status and version."""
        try:
            async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
                reply = await client.get(f"http://127.0.0.1:{self.port}/", headers={"host": host})
        except httpx.HTTPError as error:
            return (0, repr(error))
        return (reply.status_code, reply.headers.get("x-version", ""))

    async def load(self, *, fresh: bool) -> None:
        """Requests of the good tenant, on a connection that is kept or on new ones."""
        more = {"connection": "close"} if fresh else {}
        while True:
            await self._gate.wait()
            async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
                while self._gate.is_set():
                    await trio.sleep(PAUSE_SECONDS)
                    await self._one(client, more)

    async def _one(self, client: httpx.AsyncClient, more: dict[str, str]) -> None:
        if not self._gate.is_set():
            return
        self._in_flight += 1
        try:
            reply = await client.get(f"http://127.0.0.1:{self.port}/", headers={"host": GOOD, **more})
            self.requests += 1
            self._version = reply.headers.get("x-version", "")
            if reply.status_code != 200:
                self.failures.append(f"edit {self.edits}: {reply.status_code} {reply.text[:200]}")
        except httpx.HTTPError as error:
            self.failures.append(f"edit {self.edits}: {error!r}")
        finally:
            self._in_flight -= 1


@asynccontextmanager
async def quarantined(
    folder: Path,
    ports: list[int],
    kind: NodeType,
    *,
    delta: bool,
    before: str = "",
    started: bool = True,
    **more: object,
) -> AsyncIterator[Quarantined]:
    """A control plane, an Envoy, a backend and load. ``before`` are manifests that are there before Envoy is."""
    source = MemorySource()
    limits = QuarantineOptions(trials_per_minute=10_000)  # a day's mistakes in a minute
    given = settings(debounce_after=0.02, shutdown_seconds=0.5, quarantine=limits)
    async with control_plane(given, more_sources=[source]) as plane, http_backend("app") as backend:
        with trio.fail_after(60):
            await plane.wait_ready()
        port, tcp_port, spare = ports
        running = Quarantined(folder, plane, source, kind, delta, port, tcp_port, spare, backend)
        async with trio.open_nursery() as nursery:
            running.put(unchecked(base(running) + before))
            running.edit()
            try:
                await running.start()
                nursery.start_soon(partial(running.load, fresh=False))
                nursery.start_soon(partial(running.load, fresh=True))
                yield running
                assert not running.failures, f"{len(running.failures)} failed: {running.failures[:5]}"
            finally:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await running._stack.aclose()


def base(world: Quarantined) -> str:
    """What both tenants begin with."""
    servers = [
        {"port": {"number": world.port, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]},
        {"port": {"number": world.tcp_port, "name": "tcp", "protocol": "TCP"}, "hosts": ["tcp.test"]},
    ]
    gateway = manifest("Gateway", "edge", {"selector": {"istio": "edge"}, "servers": servers})
    tcp = service("tcp.test", world.tcp_port, at(world.backend), protocol="TCP")
    hosts = service(GOOD, world.port, at(world.backend)) + service(BAD, world.port, at(world.backend))
    return hosts + tcp + gateway + bad_route("bad-1")


def bad_route(version: str, http: str = "") -> str:
    """The mistaken tenant's VirtualService; ``http`` instead of its usual rule."""
    usual = f"""
    - headers: {{response: {{set: {{x-version: "{version}"}}}}}}
      route: [{{destination: {{host: {BAD}}}}}]
    """
    return routes(BAD, http or usual, gateways=("mesh", "edge"))
