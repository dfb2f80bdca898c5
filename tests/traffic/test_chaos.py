"""Chaos: everything in the folder changes at random while real Envoys follow and requests to one service go on.

After each pause every Envoy has exactly what a fresh process makes for it, it has refused nothing, nothing in it still
warms, and no request to the service that was left alone has failed.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from google.protobuf import json_format

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.app.settings import Settings
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.events import Replace, Synced
from mesh_pilot.model.proxy import Interception, NodeType, Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Variant
from tests.support.chaos import CONTROL, Mess, manifest
from tests.support.envoy import RealEnvoy
from tests.support.envoy_model import EnvoyModel
from tests.support.fleet import Fleet, fleet
from tests.support.golden import adsdump

pytestmark = pytest.mark.envoy

NODES = [
    EnvoyNode(f"{name}-{variant}", "shop", ip, kind, labels=labels, interception=Interception.NONE, metadata=metadata)
    for name, kind, labels, ips in (
        ("web", NodeType.SIDECAR, {"app": "web"}, ("127.0.1.1", "127.0.1.2", "127.0.1.5")),
        ("edge", NodeType.ROUTER, {"istio": "edge"}, ("127.0.1.3", "127.0.1.4", "127.0.1.6")),
    )
    for variant, metadata, ip in zip(("sotw", "delta", "split"), ({}, {}, {"VIRTUAL_HOSTS": "split"}), ips, strict=True)
]


@attrs.define
class Planes:
    """One control plane after another, at one address, over one folder."""

    settings: Settings
    nursery: trio.Nursery
    plane: ControlPlane
    _scope: trio.CancelScope
    _stop: trio.Event
    _over: trio.Event

    @classmethod
    async def start(cls, settings: Settings, nursery: trio.Nursery) -> Planes:
        planes = cls.__new__(cls)
        planes.settings, planes.nursery = settings, nursery
        await planes._start()
        return planes

    async def _start(self) -> None:
        self._scope, self._stop, self._over = trio.CancelScope(), trio.Event(), trio.Event()
        self.plane = await self.nursery.start(self._run)

    async def _run(self, *, task_status: trio.TaskStatus[ControlPlane]) -> None:
        stop, over = self._stop, self._over
        with self._scope:
            async with control_plane(self.settings) as plane:
                await plane.wait_ready()
                task_status.started(plane)
                await stop.wait()
        over.set()

    async def stop(self, *, gracefully: bool) -> None:
        if gracefully:
            self._stop.set()
        else:
            self._scope.cancel()
        await self._over.wait()

    async def restart(self, *, gracefully: bool) -> None:
        await self.stop(gracefully=gracefully)
        await self._start()


def fresh_copy(world: World) -> World:
    """A World that was told only what this one holds now."""
    fresh = World()
    for source in world.sources():
        fresh.expect(source)
    fresh.apply([Replace(s, (), tuple(world.items_of(s).values())) for s in world.sources()])
    fresh.apply([Synced(s) for s in world.sources()])
    return fresh


def expected(world: World, proxy: Proxy) -> dict[str, dict[str, Any]]:
    """By type and name, as JSON would have it, what an Envoy must end with: the same however it gets virtual hosts."""
    model = EnvoyModel(WorldCatalog(fresh_copy(world)), attrs.evolve(proxy, incremental=False), Variant.DELTA)
    model.settle()
    found: dict[str, dict[str, Any]] = {}
    for type_url in (CLUSTER, LISTENER, ROUTE):
        decode = adsdump.find_class(type_url).FromString
        found[type_url] = {n: adsdump.Expander().msg(decode(r.body)) for n, r in model.has[type_url].items()}
    return found


async def actual(envoy: RealEnvoy) -> dict[str, dict[str, Any]]:
    """What an Envoy has, in the same form; what warms or was refused stands under its own name."""
    found: dict[str, dict[str, Any]] = {CLUSTER: {}, LISTENER: {}, ROUTE: {}}

    def put(name: str, message: Mapping[str, Any]) -> None:
        type_url = message["@type"]
        plain = {k: v for k, v in message.items() if k != "@type"}
        parsed = json_format.ParseDict(plain, adsdump.find_class(type_url)())
        found[type_url][name] = adsdump.Expander().msg(parsed)

    for part in await envoy.config_dump():
        for row in part.get("dynamic_active_clusters", ()):
            put(row["cluster"]["name"], row["cluster"])
        for row in part.get("dynamic_warming_clusters", ()):
            found[CLUSTER][f"warming {row['cluster']['name']}"] = {}
        for row in part.get("dynamic_listeners", ()):
            if "active_state" in row:
                put(row["name"], row["active_state"]["listener"])
            for bad in ("warming_state", "error_state"):
                if bad in row:
                    found[LISTENER][f"{bad} {row['name']}"] = row[bad] if bad == "error_state" else {}
        for row in part.get("dynamic_route_configs", ()):
            put(row["route_config"]["name"], row["route_config"])
    return found


def together(tables: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Route tables alike, whether their virtual hosts came in them or by themselves."""
    found = {}
    for name, table in tables.items():
        hosts = [
            {**host, "name": host["name"].removeprefix(f"{name}/")}
            for host in table.get("virtual_hosts", ())
            if not host["domains"][0].endswith(".invalid")  # removed by a patch
        ]
        # A table whose hosts come by themselves allows long answers, whether a host has one or not.
        apart = ("vhds", "virtual_hosts", "max_direct_response_body_size_bytes")
        alike = {key: value for key, value in table.items() if key not in apart}
        found[name] = {**alike, "virtual_hosts": sorted(hosts, key=lambda host: host["name"])}
    return found


def difference(wanted: Mapping[str, Mapping[str, Any]], has: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for type_url, resources in wanted.items():
        kind = type_url.rpartition(".")[2]
        for name in sorted({*resources, *has[type_url]}):
            if name not in has[type_url]:
                lines.append(f"{kind} {name}: missing")
            elif name not in resources and type_url == ROUTE:
                pass  # a listener that is draining still has it
            elif name not in resources:
                lines.append(f"{kind} {name}: should not be there {has[type_url][name]}")
            elif resources[name] != has[type_url][name]:
                lines.append(f"{kind} {name}:\n  wanted {resources[name]}\n  has    {has[type_url][name]}")
    return lines


@attrs.define
class Chaos:
    mesh: Fleet
    planes: Planes
    mess: Mess
    envoys: dict[str, RealEnvoy]

    def edit(self) -> None:
        for name, text in self.mess.edit().items():
            if text is None:
                (self.folder / name).unlink()
            else:
                self.mesh.write(text, name)

    @property
    def folder(self) -> Path:
        return self.mesh.folder / "config"

    def _proxies(self) -> dict[str, Proxy]:
        rows = self.planes.plane.state.xds.status.connections()
        return {row.proxy.id: row.proxy for row in rows if row.proxy is not None}

    async def check(self) -> None:
        """Wait until every Envoy has what it should, or say what it lacks and after which edits."""
        problems: dict[str, list[str]] = {}
        with trio.move_on_after(60):
            while True:
                problems = await self._problems()
                if not problems:
                    return
                await trio.sleep(0.2)
        text = "\n".join(f"{who}: {line}" for who, lines in problems.items() for line in lines)
        raise AssertionError(f"{text}\nafter the edits\n" + "\n".join(self.mess.history[-4:]))

    async def _problems(self) -> dict[str, list[str]]:
        proxies = self._proxies()
        found: dict[str, list[str]] = {}
        for node in NODES:
            envoy = self.envoys[node.name]
            if node.id not in proxies:
                found[node.name] = ["not connected"]
                continue
            wanted = expected(self.planes.plane.state.world, proxies[node.id])
            has = await actual(envoy)
            if node.metadata.get("VIRTUAL_HOSTS") == "split":
                wanted[ROUTE], has[ROUTE] = together(wanted[ROUTE]), together(has[ROUTE])
            lines = difference(wanted, has)
            lines += [f"{name} = {count}" for name, count in (await envoy.rejected()).items()]
            if lines:
                found[node.name] = [*lines, envoy.log.read_text()[-1500:]]
        return found


@asynccontextmanager
async def chaos(tmp_path: Path, free_ports: Callable[[int], list[int]], seed: int) -> AsyncIterator[Chaos]:
    control, edge, grpc, *ports = free_ports(11)
    async with trio.open_nursery() as nursery, fleet(tmp_path) as mesh:
        backends = [await mesh.backend(f"b{n}") for n in range(3)]
        fixed = {
            "hosts": [CONTROL],
            "location": "MESH_INTERNAL",
            "resolution": "STATIC",
            "ports": [{"number": control, "name": "http", "protocol": "HTTP"}],
            "endpoints": [{"address": "127.0.0.1", "ports": {"http": b.port}} for b in backends[:2]],
        }
        server = {"port": {"number": edge, "name": "fixed", "protocol": "HTTP"}, "hosts": [CONTROL]}
        gateway = {"selector": {"istio": "edge"}, "servers": [server]}
        routes = {
            "hosts": [CONTROL],
            "gateways": ["mesh", "fixed"],
            "http": [{"route": [{"destination": {"host": CONTROL}}]}],
        }
        text = [
            manifest("ServiceEntry", "shop", "fixed", fixed),
            manifest("Gateway", "shop", "fixed", gateway),
            manifest("VirtualService", "shop", "fixed", routes),
        ]
        mesh.write("\n---\n".join(text), "fixed.yaml")
        settings = attrs.evolve(mesh.plane.settings, grpc_addr=f"127.0.0.1:{grpc}", guard=None)
        planes = await Planes.start(settings, nursery)
        mesh.plane_address = planes.plane.addresses.grpc
        envoys = {node.name: await mesh.envoy(node, delta=not node.name.endswith("sotw")) for node in NODES}
        mess = Mess(random.Random(seed), ports[:5], ports[5:], [b.port for b in backends])
        async with (
            mesh.load(f"http://127.0.0.1:{control}/", host=CONTROL) as inside,
            mesh.load(f"http://127.0.0.1:{edge}/", host=CONTROL) as outside,
        ):
            yield Chaos(mesh, planes, mess, envoys)
        assert (inside.failures, outside.failures) == ([], [])
        await planes.stop(gracefully=True)


async def _run(at: Chaos, rounds: int) -> None:
    pick = at.mess.pick
    for _ in range(rounds):
        for _ in range(pick.choice((1, 2, 5, 10))):
            at.edit()
            await trio.sleep(pick.choice((0, 0.01, 0.03, 0.1)))
        if pick.random() < 0.2:
            await at.planes.restart(gracefully=pick.random() < 0.5)
        await at.check()


@pytest.mark.parametrize("seed", [1])
async def test_envoys_follow_whatever_changes(
    tmp_path: Path, free_ports: Callable[[int], list[int]], seed: int
) -> None:
    async with chaos(tmp_path, free_ports, seed) as at:
        await _run(at, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 102))
async def test_envoys_follow_whatever_changes_for_long(
    tmp_path: Path, free_ports: Callable[[int], list[int]], seed: int
) -> None:
    async with chaos(tmp_path, free_ports, seed) as at:
        await _run(at, 40)
