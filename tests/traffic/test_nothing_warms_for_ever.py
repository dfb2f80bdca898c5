"""A real Envoy becomes ready whatever an EnvoyFilter names, and later changes of its listeners have an effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.model.proxy import NodeType
from tests.support.backends import Backend
from tests.support.dangling_patches import DANGLING, FOREVER, WASM, discovered, envoy_filters, http, manager
from tests.support.envoy import RealEnvoy, eventually
from tests.support.fleet import Fleet, fleet
from tests.support.patching import envoy_filter, patch
from tests.support.sample import examples

pytestmark = pytest.mark.envoy

EDGE = EnvoyNode("gw-1", "shop", "127.0.0.4", type=NodeType.ROUTER, labels={"istio": "edge"})
CONFIG = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: edge, namespace: shop}}
spec:
  selector: {{istio: edge}}
  servers:
  - port: {{number: {port}, name: http, protocol: HTTP}}
    hosts: ["*"]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: app, namespace: shop}}
spec:
  hosts: [shop.example.com]
  gateways: [edge]
  http: [{{name: main, route: [{{destination: {{host: app.test}}}}]}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: app-test, namespace: shop}}
spec:
  hosts: [app.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: {backend.port}}}]
  endpoints: [{{address: {backend.host}}}]
"""
DENY = """
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: nobody, namespace: shop}
spec: {selector: {matchLabels: {istio: edge}}}
"""
REMOTE = {
    "name": "none",
    "typed_config": {
        "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
        "type_url": WASM,
        "value": {
            "config": {
                "vm_config": {
                    "vm_id": "none",
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {
                        "remote": {"http_uri": {"uri": "http://modules.example.com/plugin.wasm", "timeout": "10s"}}
                    },
                }
            }
        },
    },
}
REMOTE_CODE = {"http_uri": {"uri": "http://modules.example.com/plugin.wasm", "cluster": "none", "timeout": "10s"}}
CLOSED = {
    "name": "closed",
    "typed_config": {
        "@type": WASM,
        "config": {
            "failure_policy": "FAIL_CLOSED",
            "vm_config": {"runtime": "envoy.wasm.runtime.v8", "code": {"remote": REMOTE_CODE}},
        },
    },
}
CASES = {
    "an extension whose module has no checksum": (
        patch("EXTENSION_CONFIG", "ADD", REMOTE, context="GATEWAY"),
        http(discovered(FOREVER)),
    ),
    "a route table that nothing serves": (manager({"rds": {"route_config_name": "none"}}),),
}


async def warming(envoy: RealEnvoy) -> int:
    """The number of listeners and clusters that wait for something."""
    found = await envoy.stats("total_listeners_warming|warming_clusters")
    return sum(found.values())


async def answered(mesh: Fleet, url: str, status: int) -> None:
    async def so() -> bool:
        return (await mesh.get(url, host="shop.example.com", headers={"connection": "close"})).status_code == status

    await eventually(so, what=f"{url} answers {status}")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("delta", [False, True], ids=["SotW", "Delta"])
async def test_a_gateway_lives_on_beside_a_filter_that_names_what_nothing_serves(
    case: str, delta: bool, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    async with fleet(tmp_path, guard=None) as mesh:
        backend: Backend = await mesh.backend("app")
        await mesh.apply(CONFIG.format(port=port, backend=backend))
        running = await mesh.envoy(EDGE, delta=delta)
        await answered(mesh, url, 200)
        await mesh.apply(envoy_filter(*CASES[case]), "filter.yaml")
        found = mesh.plane.state.catalog.diagnostics().patches()
        assert any("this proxy is never sent" in problem.reason for problem in found)
        await mesh.apply(DENY, "deny.yaml")
        await answered(mesh, url, 403)
        assert await warming(running) == 0
        fresh = await mesh.envoy(EnvoyNode("gw-2", "shop", "127.0.0.5", type=NodeType.ROUTER, labels=EDGE.labels))
        assert await warming(fresh) == 0
        await mesh.assert_all_taken()


async def test_a_module_that_is_to_fail_closed_denies(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path, guard=None) as mesh:
        backend: Backend = await mesh.backend("app")
        await mesh.apply(CONFIG.format(port=port, backend=backend))
        await mesh.apply(
            envoy_filter(patch("EXTENSION_CONFIG", "ADD", CLOSED), http(discovered(FOREVER, WASM, "closed"))),
            "filter.yaml",
        )
        envoy = await mesh.envoy(EDGE)
        assert await warming(envoy) == 0
        await mesh.assert_all_taken()
        await answered(mesh, f"http://127.0.0.1:{port}/", 403)


@pytest.mark.slow
@pytest.mark.parametrize("what", DANGLING)
async def test_an_envoy_that_starts_becomes_ready_whatever_is_named(
    what: str, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    async with fleet(tmp_path, guard=None) as mesh:
        backend: Backend = await mesh.backend("app")
        await mesh.apply(CONFIG.format(port=port, backend=backend))
        await mesh.apply(envoy_filter(*DANGLING[what]).replace("api.shop.svc.cluster.local", "app.test"), "filter.yaml")
        envoy = await mesh.envoy(EDGE)
        assert await warming(envoy) == 0
        await mesh.assert_all_taken()
        await answered(mesh, f"http://127.0.0.1:{port}/", 200)
        assert mesh.plane.state.catalog.diagnostics().patches()


@pytest.mark.slow
@given(text=envoy_filters("shop"))
@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
async def test_an_envoy_becomes_ready_or_an_object_is_named(
    text: str, tmp_path_factory: pytest.TempPathFactory, free_ports: Callable[[int], list[int]]
) -> None:
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("mesh")
    async with fleet(folder, guard=None) as mesh:
        backend: Backend = await mesh.backend("app")
        await mesh.apply(CONFIG.format(port=port, backend=backend))
        mesh.write(text.replace("api.shop.svc.cluster.local", "app.test"), "filter.yaml")
        envoy = await mesh.envoy(EDGE)
        await eventually(partial(_settled, mesh, envoy), what="nothing warms, or an object is named")


async def _settled(mesh: Fleet, envoy: RealEnvoy) -> bool:
    return await warming(envoy) == 0 and (await envoy.rejected() == {} or bool(mesh.plane.state.world.rejections()))
