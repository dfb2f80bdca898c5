"""What mesh-pilot leaves to others on Kubernetes: for each Gateway a router and its Service, which has an address.

The Deployment, Service and account have the names that Istio gives them, and end with the Gateway.
"""

from __future__ import annotations

from functools import partial

import attrs
import httpx
import trio

from tests.conformance.pods import follow
from tests.support.apiserver import ApiServer, Object

CLASS = "istio"
_API = "gateway.networking.k8s.io/v1"
_LABEL = "gateway.networking.k8s.io/gateway-name"
_HEALTH = 15021
"""A Service needs a port, and a Gateway may have none that is valid."""


@attrs.define(eq=False)
class Routers:
    """State: the Gateways and ListenerSets that there are, by kind, namespace and name."""

    server: ApiServer
    _objects: dict[tuple[str, str, str], Object] = attrs.field(factory=dict, init=False)
    _turn: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    """Held while objects are written, so that the newer of two is written last."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for kind in ("gateways", "listenersets"):
                nursery.start_soon(follow, self.server, f"/apis/{_API}/{kind}", self._changed)
            changed = partial(follow, self.server, "/api/v1/pods", self._pod_changed, labelSelector=_LABEL)
            nursery.start_soon(changed)

    async def _changed(self, event: str, found: Object) -> None:
        metadata = found["metadata"]
        key = found["kind"], metadata["namespace"], metadata["name"]
        before = self._objects.pop(key, None)
        if event != "DELETED":
            self._objects[key] = found
        if event == "MODIFIED" and before is not None and before["spec"] == found["spec"]:
            return  # its status
        ref = found["spec"].get("parentRef")
        parent = key if ref is None else ("Gateway", ref.get("namespace", metadata["namespace"]), ref["name"])
        async with self._turn:
            gateway = self._objects.get(parent)
            if gateway is not None and gateway["spec"]["gatewayClassName"] == CLASS:
                await self._deploy(gateway)

    async def _deploy(self, gateway: Object) -> None:
        for path, body in _deployed(gateway, self._ports(gateway)):
            reply = await self.server.request("PATCH", path, body, fieldManager="routers", force="true")
            # A namespace that ends takes no new objects.
            assert reply.is_success or reply.status_code == httpx.codes.FORBIDDEN, reply.text

    def _ports(self, gateway: Object) -> list[tuple[int, str]]:
        """Numbers and protocols of its listeners, and of those of its ListenerSets."""
        own = gateway["metadata"]["namespace"], gateway["metadata"]["name"]
        ports = {(_HEALTH, "TCP"), *_listened(gateway)}
        for (kind, namespace, _), found in self._objects.items():
            if kind == "ListenerSet":
                ref = found["spec"]["parentRef"]
                if (ref.get("namespace", namespace), ref["name"]) == own:
                    ports |= _listened(found)
        return sorted(ports)

    async def _pod_changed(self, event: str, pod: Object) -> None:
        """The address of a Gateway's Service is that of its Pod."""
        address = pod["status"].get("podIP")
        if event == "DELETED" or not address:
            return
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["labels"][_LABEL]
        status = {"loadBalancer": {"ingress": [{"ip": address}]}}
        path = f"/api/v1/namespaces/{namespace}/services/{name}-{CLASS}/status"
        await self.server.request("PATCH", path, {"status": status})  # which may be gone


def _listened(found: Object) -> set[tuple[int, str]]:
    listeners = found["spec"].get("listeners", ())
    return {(each["port"], "UDP" if each["protocol"] == "UDP" else "TCP") for each in listeners}


def _deployed(gateway: Object, ports: list[tuple[int, str]]) -> list[tuple[str, Object]]:
    """Objects, with their paths."""
    name, own = f"{gateway['metadata']['name']}-{CLASS}", gateway["metadata"]["name"]
    owner = {"apiVersion": _API, "kind": "Gateway", "name": own, "uid": gateway["metadata"]["uid"]}
    labels = {_LABEL: own}
    namespace = gateway["metadata"]["namespace"]
    metadata = {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [owner]}
    injected = {
        "labels": {**labels, "sidecar.istio.io/inject": "true"},
        "annotations": {"inject.istio.io/templates": "gateway"},
    }
    pod = {"serviceAccountName": name, "containers": [{"name": "istio-proxy", "image": "auto"}]}
    deployment = {"selector": {"matchLabels": labels}, "template": {"metadata": injected, "spec": pod}}
    service = {
        "type": "LoadBalancer",
        "selector": labels,
        "ports": [
            {"name": f"{protocol.lower()}-port-{port}", "port": port, "targetPort": port, "protocol": protocol}
            for port, protocol in ports
        ],
    }
    return [
        (
            f"{root}/namespaces/{namespace}/{kind.lower()}s/{name}",
            {"apiVersion": version, "kind": kind, "metadata": metadata, **spec},
        )
        for root, version, kind, spec in (
            ("/api/v1", "v1", "ServiceAccount", {}),
            ("/apis/apps/v1", "apps/v1", "Deployment", {"spec": deployment}),
            ("/api/v1", "v1", "Service", {"spec": service}),
        )
    ]
