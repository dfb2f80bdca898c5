"""A small mesh with a proxy of each kind, and all that these are sent: what a field changes is its effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.health.probe import readiness_probe
from mesh_pilot.agent.run.bootstrap import agent_bootstrap, envoy_settings, termination_drain_seconds
from mesh_pilot.agent.settings import AgentFolders, AgentSettings, PlaneSettings
from mesh_pilot.engine.snapshots import Snapshot
from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.istio.meaning import wasm
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Delete, Event, Item, Synced, Upsert, WasmModule, item_key
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, NAME_TABLE, PROXY_CONFIG, ROUTE
from mesh_pilot.world import World
from mesh_pilot.world.names import GATEWAY_NAME
from tests.fields.more import more_items
from tests.support.envoy_model import names_in
from tests.support.worlds import SOURCE, sidecar

GRPC_HOSTS = ("reviews.shop.svc.cluster.local", "ratings.other.svc.cluster.local")

AGENT = "agent.shop"
"""The agent of `web`: how it starts its Envoy, and which probe it runs."""

Seen = Mapping[tuple[str, str, str], str]
"""By proxy, type and name: the version of a resource."""


def proxies() -> tuple[Proxy, ...]:
    dns = {"DNS_CAPTURE": "true", "DNS_AUTO_ALLOCATE": "true"}
    return (
        _current(
            "127.0.1.1",
            name="web",
            namespace="shop",
            labels={"app": "web", "version": "v1"},
            locality="region/zone/sub",
            NETWORK="net1",
            ISTIO_VERSION="1.30.0",
            KIND="a",
            **dns,
        ),
        _current(
            "127.0.7.3",
            name="ratings",
            namespace="other",
            labels={"app": "ratings", "version": "v1"},
            locality="r2/z",
            INTERCEPTION_MODE="NONE",
            NETWORK="net2",
            PILOT_SAN=["istiod.istio-system.svc"],
        ),
        _current(
            "127.0.1.2",
            name="edge",
            namespace="shop",
            labels={"istio": "edge", GATEWAY_NAME: "kube"},
            node_type="router",
            locality="region",
        ),
        sidecar("127.0.1.1", name="grpc", namespace="shop", labels={"app": "web"}, GENERATOR="grpc"),
        sidecar(
            "127.0.1.1", name="agent", namespace="shop", labels={"app": "web"}, AGENT="1.0", AUTO_REGISTER_GROUP="group"
        ),
    )


def _current(ip: str, **more: Any) -> Proxy:
    """A sidecar whose Envoy can do all that a current one can."""
    return attrs.evolve(sidecar(ip, **more), version="1.40.0")


class Mesh:
    """The World with fixed objects, and its proxies. State: the objects over the fixed ones."""

    def __init__(self, fixed: Iterable[Item]) -> None:
        """With the fixed objects of `tests.door`."""
        items = [*fixed, *more_items()]
        self._fixed = {item_key(item): item for item in items}
        self._held: dict[tuple[str, ...], Item] = dict(self._fixed)
        self.world = World()
        self.world.expect(SOURCE)
        self.world.apply([*(Upsert(SOURCE, item) for item in items), Synced(SOURCE)])
        catalog = WorldCatalog(self.world)
        self._opened = [(proxy.name, catalog.open(proxy)) for proxy in proxies()]

    def seen_with(self, items: Iterable[Item]) -> Seen:
        """What the proxies are sent with these objects over the fixed ones, and no others."""
        self._apply(list(items))
        return dict(self._seen())

    def differs_with(self, items: Iterable[Item], base: Seen) -> bool:
        """True if they are sent something else with these objects."""
        self._apply(list(items))
        count = 0
        for key, version in self._seen():
            if base.get(key) != version:
                return True
            count += 1
        return count != len(base)

    def _apply(self, items: list[Item]) -> None:
        items = [*items, *_modules(items)]
        wanted = {**self._fixed, **{item_key(item): item for item in items}}
        events: list[Event] = [Delete(SOURCE, key) for key in self._held if key not in wanted]
        events += [Upsert(SOURCE, item) for key, item in wanted.items() if self._held.get(key) is not item]
        self._held = wanted
        self.world.apply(events)

    def _seen(self) -> Iterator[tuple[tuple[str, str, str], str]]:
        for item in self._held.values():
            if isinstance(item, Config) and (status := self.world.object_status(item.key)) is not None:
                yield ("status", item.key.kind, f"{item.key.namespace}/{item.key.name}"), repr(status)
        for name, opened in self._opened:
            yield from _sent(name, opened)


def _modules(items: Iterable[Item]) -> Iterator[Item]:
    """The modules that objects ask for: those at `absent.test` could not be fetched."""
    for item in items:
        if isinstance(item, Config) and item.key.kind in wasm.KINDS:
            asked = wasm.wasm_of(item.spec)
            if asked is not None:
                ref = wasm.module_ref(asked, item.key.namespace)
                is_there = "absent.test" not in ref.url
                yield WasmModule(
                    ref, sha256=(ref.sha256 or "1" * 64) if is_there else "", trouble="" if is_there else "away"
                )


def _sent(proxy: str, opened: WorldResources) -> Iterable[tuple[tuple[str, str, str], str]]:
    if proxy == AGENT:
        for resource in opened.set(PROXY_CONFIG).snapshot().entries.values():  # type: ignore[union-attr]
            yield (proxy, "agent", ""), _started(resource.body)
        return
    if opened.target.scope.grpc:
        places = [f"{host}:{port}" for host in GRPC_HOSTS for port in (80, 9080)]
        listeners = _named(opened, LISTENER, {"xds.istio.io/grpc/lds/inbound/127.0.1.1:8080", *places})
        routes = _named(opened, ROUTE, _routes(listeners))
        clusters = _named(
            opened, CLUSTER, {name for each in routes.entries.values() for name in names_in(each).clusters}
        )
        for type_url, snapshot in ((LISTENER, listeners), (ROUTE, routes), (CLUSTER, clusters)):
            yield from _versions(proxy, type_url, snapshot)
    else:
        found = {}
        for type_url in (CLUSTER, LISTENER, EXTENSION, NAME_TABLE):
            found[type_url] = opened.set(type_url).snapshot()  # type: ignore[union-attr]
            yield from _versions(proxy, type_url, found[type_url])
        routes, clusters = _named(opened, ROUTE, _routes(found[LISTENER])), found[CLUSTER]
        yield from _versions(proxy, ROUTE, routes)
    eds = {name for each in clusters.entries.values() for name in names_in(each).endpoints}
    yield from _versions(proxy, ENDPOINT, _named(opened, ENDPOINT, eds))


def _versions(proxy: str, type_url: str, snapshot: Snapshot) -> Iterator[tuple[tuple[str, str, str], str]]:
    for name, resource in snapshot.entries.items():
        yield (proxy, type_url, name), resource.version


def _started(proxy_config: bytes) -> str:
    """What an agent does with its ProxyConfig."""
    folders = AgentFolders(state=Path("/state"), run=Path("/run"))
    settings = AgentSettings(EnvoyNode("web", "shop", "127.0.1.1", labels={"app": "web"}), folders, PlaneSettings(()))
    parts = (agent_bootstrap, envoy_settings, termination_drain_seconds)
    return repr([*(part(settings, proxy_config) for part in parts), readiness_probe(proxy_config)])


def _routes(listeners: Snapshot) -> set[str]:
    return {name for each in listeners.entries.values() for name in names_in(each).routes}


def _named(opened: WorldResources, type_url: str, names: Iterable[str]) -> Snapshot:
    resources = opened.set(type_url)
    assert resources is not None
    return resources.select(frozenset(names))
