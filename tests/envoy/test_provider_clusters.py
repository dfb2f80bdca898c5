"""A proxy has clusters for the extension providers that it calls itself, whatever its Sidecar imports."""

from __future__ import annotations

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.resource import ENDPOINT, LISTENER
from mesh_pilot.world import World
from tests.envoy.test_on_demand import clusters, on_demand
from tests.support.telemetry import PROVIDERS, SERVICES, telemetry
from tests.support.worlds import sidecar, world_of

COLLECTOR = {"outbound|4317||collector.example", "outbound|9411||collector.example"}
PROXY = sidecar("10.9.9.9", namespace="shop", labels={"app": "web"})


def narrowed(egress: str, *, mesh: str = PROVIDERS) -> World:
    only = f"""---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: shop}}
spec: {{egress: [{egress}]}}
"""
    traced = telemetry("t", "shop", "tracing: [{providers: [{name: zipkin}]}]")
    return world_of(SERVICES + only + traced, mesh=mesh)


def services(world: World) -> set[str]:
    return {name for name in clusters(WorldCatalog(world).open(PROXY)) if name.startswith("outbound|")}


def test_a_sidecar_that_imports_no_collector_has_its_clusters_and_no_listener_for_them() -> None:
    world = narrowed("{hosts: ['./web.example']}")
    assert services(world) == {"outbound|80||web.example", *COLLECTOR}
    resources = WorldCatalog(world).open(PROXY)
    listeners, endpoints = resources.set(LISTENER), resources.set(ENDPOINT)
    assert listeners is not None and endpoints is not None
    assert not {name for name in listeners.snapshot().entries if name.endswith(("_4317", "_9411"))}
    assert all(endpoints.get(name) is not None for name in COLLECTOR)


def test_a_port_that_is_imported_is_there_once_and_the_others_are_added() -> None:
    assert services(narrowed("{port: {number: 9411, name: a, protocol: HTTP}, hosts: ['tools/*']}")) == COLLECTOR
    assert services(narrowed("{hosts: ['tools/*']}")) == COLLECTOR
    assert services(narrowed("{hosts: ['~/*']}", mesh="{}")) == set()


def test_clusters_of_providers_never_come_on_demand() -> None:
    resources = WorldCatalog(narrowed("{hosts: ['~/*']}")).open(on_demand(PROXY))
    assert clusters(resources).keys() >= COLLECTOR
