"""Clusters made of doubles of API servers, with their Services, pods and kubeconfigs."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import attrs
import trio
import yaml

from mesh_pilot.kubernetes.apiserver import Access, ApiResource, Pem
from mesh_pilot.kubernetes.source.kubeconfigs import SECRETS
from mesh_pilot.kubernetes.source.registry import ENDPOINT_SLICES, NAMESPACES, NODES, PODS, SERVICES
from tests.support.api_double import TOKEN, ApiDouble
from tests.support.api_double_http import serve_double

KINDS: tuple[ApiResource, ...] = (SERVICES, ENDPOINT_SLICES, PODS, NODES, NAMESPACES, SECRETS)
NAMESPACE = "shop"


@attrs.define(eq=False)
class ClusterDouble:
    """A cluster on a port, that can be killed and started again."""

    id: str
    nursery: trio.Nursery
    port: int = 0
    """Chosen at the first start."""
    api: ApiDouble = attrs.field(factory=lambda: ApiDouble(KINDS))
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def access(self) -> Access:
        return Access(server=f"http://127.0.0.1:{self.port}", token=Pem(text=TOKEN.encode()))

    async def start(self) -> None:
        self.scope = trio.CancelScope()
        started = trio.Event()
        self.nursery.start_soon(self._serve, self.scope, started)
        await started.wait()

    def kill(self) -> None:
        self.scope.cancel()

    async def _serve(self, scope: trio.CancelScope, started: trio.Event) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                self.port = await nursery.start(serve_double, self.api.answer, self.port)
                started.set()
                await trio.sleep_forever()

    def kubeconfig(self, **user: Any) -> bytes:
        document = {
            "current-context": self.id,
            "contexts": [{"name": self.id, "context": {"cluster": self.id, "user": self.id}}],
            "clusters": [{"name": self.id, "cluster": {"server": self.access.server}}],
            "users": [{"name": self.id, "user": {"token": TOKEN, **user}}],
        }
        return yaml.safe_dump(document).encode()

    def secret(self, *others: ClusterDouble, name: str = "remote") -> None:
        """Put a Secret with the kubeconfigs of other clusters, or take it away if there are none."""
        if not others:
            self.api.remove(SECRETS, name, "istio-system")
            return
        data = {each.id: base64.b64encode(each.kubeconfig()).decode() for each in others}
        labels = {"istio/multiCluster": "true"}
        self.api.put(SECRETS, {"metadata": {"name": name, "namespace": "istio-system", "labels": labels}, "data": data})

    def network(self, name: str) -> None:
        labels = {"topology.istio.io/network": name}
        self.api.put(NAMESPACES, {"metadata": {"name": "istio-system", "labels": labels}})

    def service(self, name: str, vip: str, port: int = 80, **more: Any) -> None:
        ports = [{"name": "http", "port": port, "targetPort": port, "protocol": "TCP"}]
        spec = {"clusterIP": vip, "clusterIPs": [vip], "ports": ports, "selector": {"app": name}}
        self.api.put(SERVICES, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {**spec, **more}})

    def gateway(self, network: str, address: str, port: int = 15443) -> None:
        """The Service of a gateway between networks, at the address of a load balancer."""
        labels = {"topology.istio.io/network": network, "networking.istio.io/gatewayPort": str(port)}
        spec = {"clusterIP": "10.99.0.1", "type": "LoadBalancer", "ports": [{"name": "tls", "port": port}]}
        metadata = {"name": "eastwest", "namespace": "istio-system", "labels": labels}
        status = {"loadBalancer": {"ingress": [{"ip": address}]}}
        self.api.put(SERVICES, {"metadata": metadata, "spec": spec, "status": status})

    def endpoints(self, name: str, *at: str, port: int = 80, labels: Mapping[str, str] | None = None) -> None:
        """The pods of a service, whose proxies accept mesh mTLS."""
        found = []
        for number, address in enumerate(at):
            pod = f"{name}-{self.id}-{number}"
            labelled = {"app": name, "security.istio.io/tlsMode": "istio", **(labels or {})}
            metadata = {"name": pod, "namespace": NAMESPACE, "labels": labelled}
            status = {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}
            spec = {"serviceAccountName": name, "containers": [{"name": "c"}]}
            self.api.put(PODS, {"metadata": metadata, "spec": spec, "status": status})
            target = {"kind": "Pod", "name": pod, "namespace": NAMESPACE}
            found.append({"addresses": [address], "conditions": {"ready": True}, "targetRef": target})
        self.api.put(
            ENDPOINT_SLICES,
            {
                "metadata": {
                    "name": f"{name}-1",
                    "namespace": NAMESPACE,
                    "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
                "endpoints": found,
            },
        )
