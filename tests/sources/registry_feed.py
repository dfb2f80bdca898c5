"""Services at the double of an API server, as the tests of sources follow them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import trio

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import Access, ApiResource, Pem
from mesh_pilot.kubernetes.source.registry import (
    ENDPOINT_SLICES,
    ENDPOINTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    KubernetesRegistrySource,
)
from mesh_pilot.model.events import Item
from mesh_pilot.model.service import Service
from tests.sources.kube_feed import KubeFeed
from tests.support.api_double import TOKEN, ApiDouble

KINDS = (SERVICES, ENDPOINT_SLICES, ENDPOINTS, PODS, NODES, NAMESPACES)

Object = dict[str, Any]


def service(name: str, *, labels: Mapping[str, str] = {}, **spec: Any) -> Object:
    spec = {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80, "targetPort": 8080}], **spec}
    return {"metadata": {"name": name, "namespace": "default", "labels": dict(labels)}, "spec": spec}


def endpoint(ip: str, pod: str = "", *, ready: bool = True, **conditions: bool) -> Object:
    target = {"kind": "Pod", "name": pod, "namespace": "default"}
    found = {"addresses": [ip], "conditions": {"ready": ready, **conditions}}
    return {**found, "targetRef": target} if pod else found


def endpoint_slice(name: str, of: str, endpoints: Iterable[Object]) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": of}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": list(endpoints),
    }


def pod(name: str, ip: str, *, labels: Mapping[str, str] = {}, node: str = "", ready: bool = True) -> Object:
    status = {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": str(ready)}]}
    spec = {"serviceAccountName": "web", "nodeName": node, "containers": [{"name": "c"}]}
    return {"metadata": {"name": name, "namespace": "default", "labels": dict(labels)}, "spec": spec, "status": status}


def node(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": {f"topology.kubernetes.io/{k}": v for k, v in labels.items()}}}


class RegistryFeed(KubeFeed):
    """The services of an API server that can be stopped and started on its port."""

    def __init__(self, nursery: trio.Nursery, port: int, kinds: Iterable[ApiResource] = KINDS) -> None:
        super().__init__(nursery, port)
        self.api = ApiDouble(kinds, largest_page=2)
        access = Access(server=f"http://127.0.0.1:{port}", token=Pem(text=TOKEN.encode()))
        backoff = partial(Backoff, first_seconds=0.01, limit_seconds=0.05)
        self.source: KubernetesRegistrySource = KubernetesRegistrySource(access, backoff=backoff)  # type: ignore[assignment]

    async def put(self, name: str, version: int) -> None:
        self.api.put(SERVICES, service(name, labels={"version": str(version)}))

    async def put_bad(self, name: str) -> None:
        self.api.put(SERVICES, service(name, clusterIP="nowhere"))

    async def remove(self, name: str) -> None:
        self.api.remove(SERVICES, name)

    def key(self, name: str) -> tuple[str, ...]:
        return ("service", f"{name}.default.svc.cluster.local", "default")

    def version(self, item: Item) -> int:
        assert isinstance(item, Service)
        return int(item.labels["version"])
