"""Quarantine's cost: an overlay of the World with one VirtualService withheld, in this process.

    python -m bench.overlays --services 1000 --edits 200

Two proxies take everything: one that reads the World, and one that reads the overlay where there is one. An edit is
one of another VirtualService, with what it makes both proxies take. Seconds of CPU; memory by ``tracemalloc``.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count

import attrs

from bench.wire import endpoints_name
from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.istio.reading import yaml
from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.model.config import Config, ConfigError, Origin
from mesh_pilot.model.events import Delete, Quarantine, Refusal, Synced, Upsert, Withheld
from mesh_pilot.model.proxy import parse_proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from mesh_pilot.world import World

SOURCE = "bench"
DOMAIN = "envoy 1.40.0"
SERVICE = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: s{n}, namespace: shop}}
spec:
  hosts: [s{n}.test]
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP}}]
  endpoints: [{{address: 10.0.{high}.{low}}}]
"""
ROUTES = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: s{n}, namespace: shop}}
spec:
  hosts: [s{n}.test]
  http: [{{timeout: {seconds}s, route: [{{destination: {{host: s{n}.test}}}}]}}]
"""


def decoded(text: str) -> Config:
    (document,) = yaml.load(text, Origin(SOURCE))
    assert not isinstance(document, ConfigError)
    return decode_document(document, origin=Origin(SOURCE), default_namespace="shop")


def routes(number: int, seconds: int) -> Config:
    return decoded(ROUTES.format(n=number, seconds=seconds))


class Mesh:
    """A World of services, each with a VirtualService, and two proxies."""

    def __init__(self, services: int) -> None:
        self.world = World()
        self.world.expect(SOURCE)
        found = [decoded(SERVICE.format(n=n, high=n >> 8, low=n & 255)) for n in range(services)]
        found += [routes(n, 5) for n in range(services)]
        self.world.apply([*(Upsert(SOURCE, config) for config in found), Synced(SOURCE)])
        self.catalog = WorldCatalog(self.world)
        self._seconds = count(6)
        self.proxies = [self.join("normal"), self.join("quarantined", DOMAIN)]

    def join(self, name: str, *domains: str) -> WorldResources:
        proxy = parse_proxy(f"sidecar~10.9.9.9~{name}.shop~shop.svc.cluster.local", {"NAMESPACE": "shop"})
        return self.catalog.open(attrs.evolve(proxy, domains=domains))

    def take(self, proxy: WorldResources) -> int:
        """Everything that a proxy is sent; the number of resources."""
        clusters, endpoints, listeners, tables = map(proxy.set, (CLUSTER, ENDPOINT, LISTENER, ROUTE))
        assert clusters and endpoints and listeners and tables
        found = clusters.snapshot().entries
        names = [name for name in (endpoints_name(r.body) for r in found.values()) if name]
        taken = [*(endpoints.get(name) for name in names), tables.get("80")]
        return len(found) + len(listeners.snapshot().entries) + sum(1 for r in taken if r is not None)

    def edit(self, number: int) -> None:
        self.world.apply([Upsert(SOURCE, routes(number, next(self._seconds)))])
        for proxy in self.proxies:
            self.take(proxy)

    def quarantine(self) -> None:
        """Withhold the first VirtualService, in favour of another version."""
        key = ("config", "VirtualService", "shop", "s0")
        refusal = Refusal("quarantined.shop", DOMAIN, ROUTE, ("80",), "no", datetime.now(UTC))
        withheld = Withheld(key, tuple(self.world.current(key)), (routes(0, 99),), refusal)
        self.world.apply([Upsert("quarantine", Quarantine(DOMAIN, (withheld,)))])

    def end_quarantine(self) -> None:
        self.world.apply([Delete("quarantine", ("quarantine", DOMAIN))])

    def calls(self) -> int:
        return self.world.memo.statistics().computed


def cpu_ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def edits(mesh: Mesh, most: int) -> str:
    calls = mesh.calls()
    spent = [cpu_ms(lambda n=n: mesh.edit(1 + n % 50)) for n in range(most)]  # type: ignore[misc]
    return f"{statistics.median(spent):.2f} ms, {(mesh.calls() - calls) / most:.1f} calls"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--services", type=int, default=1000)
    options.add_argument("--edits", type=int, default=200)
    given = options.parse_args()
    mesh = Mesh(given.services)
    gc.collect()
    gc.disable()
    normal, quarantined = mesh.proxies
    print(f"everything, cold: {cpu_ms(lambda: mesh.take(normal)):.1f} ms, {mesh.calls()} calls")
    print(f"everything, warm: {cpu_ms(lambda: mesh.take(quarantined)):.1f} ms")
    print(f"an edit without an overlay: {edits(mesh, given.edits)}")
    print(f"quarantine: {cpu_ms(mesh.quarantine):.1f} ms")
    calls = mesh.calls()
    print(f"everything, in the overlay: {cpu_ms(lambda: mesh.take(quarantined)):.1f} ms, {mesh.calls() - calls} calls")
    print(f"an edit with an overlay: {edits(mesh, given.edits)}")
    print(f"end: {cpu_ms(mesh.end_quarantine):.1f} ms")
    mesh.take(quarantined)
    print(f"an edit afterwards: {edits(mesh, given.edits)}")
    gc.enable()
    gc.collect()
    tracemalloc.start()
    mesh.quarantine()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    mesh.take(quarantined)
    gc.collect()
    read = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    print(f"memory of what the overlay has been asked for: {read / 1e3:.0f} KB")
    mesh.end_quarantine()
    tracemalloc.start()
    mesh.take(quarantined)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    mesh.quarantine()
    gc.collect()
    print(f"memory of the overlay itself: {(tracemalloc.get_traced_memory()[0] - before) / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
