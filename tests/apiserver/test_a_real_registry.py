"""A control plane that reads the services of a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.kubernetes.apiserver import load_access
from mesh_pilot.kubernetes.source import KubernetesRegistry
from mesh_pilot.model.service import Endpoint, ServiceKey
from tests.support.apiserver import ApiServer, Namespace, Object
from tests.support.envoy import eventually
from tests.support.planes import running_plane

pytestmark = [pytest.mark.slow, pytest.mark.process]


def pod(namespace: Namespace, number: int) -> Object:
    spec = {"serviceAccountName": "web", "automountServiceAccountToken": False}
    containers = [{"name": "c", "image": "registry.test/web", "ports": [{"name": "web", "containerPort": 8080}]}]
    return namespace.object("v1", "Pod", f"web-{number}", spec={**spec, "containers": containers})


def status(number: int, *, ready: bool) -> Object:
    ip = f"10.1.0.{number}"
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions}


def endpoint_slice(namespace: Namespace, ready: bool) -> Object:
    found = namespace.object(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "web-abcde",
        addressType="IPv4",
        ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
        endpoints=[
            {
                "addresses": [f"10.1.0.{number}"],
                "conditions": {"ready": ready or number == 1},
                "targetRef": {"kind": "Pod", "name": f"web-{number}", "namespace": namespace.name},
            }
            for number in (1, 2)
        ],
    )
    found["metadata"]["labels"] = {"kubernetes.io/service-name": "web"}
    return found


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ApiServer]:
    """One that this test may restart."""
    server = ApiServer(tmp_path / "server")
    try:
        server.start()
        yield server
    finally:
        server.kill(etcd=True)


# httpcore leaves its socket to the garbage collector where a TLS handshake is cancelled, as while the server restarts.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_services_of_a_real_api_server_are_served_and_outlive_a_restart_of_it(own_server: ApiServer) -> None:
    apiserver = own_server
    async with apiserver.namespace() as namespace:
        ports = [{"name": "http", "port": 80, "targetPort": "web"}]
        (service, *_) = await apiserver.apply(
            namespace.object("v1", "Service", "web", spec={"selector": {"app": "web"}, "ports": ports}),
            namespace.object("v1", "ServiceAccount", "web"),
            endpoint_slice(namespace, True),
        )
        for number in (1, 2):
            (made,) = await apiserver.apply(pod(namespace, number))
            await apiserver.set_status({**made, "status": status(number, ready=True)})
        registry = KubernetesRegistry(load_access(apiserver.kubeconfig()), cluster_id="real")
        async with running_plane(registries=(registry,)) as plane:
            world = plane.state.world
            key = ServiceKey(f"web.{namespace.name}.svc.cluster.local", namespace.name)

            def endpoints() -> tuple[Endpoint, ...]:
                return world.endpoints.peek(key)

            found: Any = world.services.peek(key)
            assert (found.addresses, found.cluster_id) == ((service["spec"]["clusterIP"],), "real")
            await eventually(lambda: len(endpoints()) == 2, what="both are there")
            account = f"spiffe://cluster.local/ns/{namespace.name}/sa/web"
            assert [(e.address, e.port, e.service_account) for e in endpoints()] == [
                ("10.1.0.1", 8080, account),
                ("10.1.0.2", 8080, account),
            ]
            await apiserver.apply(endpoint_slice(namespace, False))
            await eventually(lambda: len(endpoints()) == 1, what="one is not ready")
            (other,) = world.endpoints_at.peek("10.1.0.2")
            assert other[0] == key, "its own proxy serves for it"
            await trio.to_thread.run_sync(partial(apiserver.stop, etcd=False))
            await trio.to_thread.run_sync(apiserver.start)
            await apiserver.apply(endpoint_slice(namespace, True))
            await eventually(lambda: len(endpoints()) == 2, what="a restart is over")
            assert world.services.peek(key) == found
