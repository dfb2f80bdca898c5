"""A small shop whose proxies have EnvoyFilters: what they are sent, decoded, and the problems of the patches."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

import yaml
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.envoy.envoy_filter.parse import Parsed, parse_filter
from mesh_pilot.envoy.envoy_filter.patch import PatchProblem
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE, Resource
from mesh_pilot.world import World
from tests.support.worlds import configs, sidecar, world_of

HCM = "envoy.filters.network.http_connection_manager"
LUA = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"

SHOP = """
apiVersion: networking.istio.io/v1beta1
kind: ServiceEntry
metadata: {name: api, namespace: shop, creationTimestamp: "2024-03-01T00:00:00Z"}
spec:
  hosts: [api.shop.svc.cluster.local]
  addresses: [10.9.1.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, targetPort: 8080, name: http, protocol: HTTP}
  - {number: 9000, name: tcp, protocol: TCP}
  endpoints:
  - {address: 10.1.1.1, labels: {app: api}, serviceAccount: api}
---
apiVersion: networking.istio.io/v1beta1
kind: VirtualService
metadata: {name: api, namespace: shop, creationTimestamp: "2024-03-01T00:00:00Z"}
spec:
  hosts: [api]
  http:
  - {name: slow, match: [{uri: {prefix: /slow}}], route: [{destination: {host: api}}]}
  - {name: gone, match: [{uri: {prefix: /gone}}], redirect: {uri: /}}
  - {name: rest, route: [{destination: {host: api}}]}
---
apiVersion: networking.istio.io/v1beta1
kind: Gateway
metadata: {name: edge, namespace: istio-system, creationTimestamp: "2024-03-01T00:00:00Z"}
spec:
  selector: {gateway: edge}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["shop.example.com"]}
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: ["shop.example.com"]
    tls: {mode: SIMPLE, serverCertificate: /c.pem, privateKey: /k.pem}
---
apiVersion: networking.istio.io/v1beta1
kind: VirtualService
metadata: {name: shop, namespace: shop, creationTimestamp: "2024-03-01T00:00:00Z"}
spec:
  hosts: [shop.example.com]
  gateways: [istio-system/edge]
  http: [{name: shop, route: [{destination: {host: api}}]}]
---
apiVersion: networking.istio.io/v1beta1
kind: ServiceEntry
metadata: {name: edge, namespace: istio-system, creationTimestamp: "2024-03-01T00:00:00Z"}
spec:
  hosts: [edge.istio-system.svc.cluster.local]
  addresses: [10.9.1.2]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, targetPort: 8081, name: http, protocol: HTTP}]
  endpoints: [{address: 10.1.9.9, labels: {app: edge}}]
"""
API = sidecar("10.1.1.1", name="api", namespace="shop", labels={"app": "api"}, ISTIO_VERSION="1.14.6", ZONE="a")
OTHER = sidecar("10.1.7.7", name="other", namespace="shop", labels={"app": "other"})
EDGE = sidecar("10.1.9.9", name="edge", namespace="istio-system", labels={"gateway": "edge"}, node_type="router")


def envoy_filter(*patches: dict[str, Any], name: str = "f", namespace: str = "shop", day: int = 1, **spec: Any) -> str:
    """The YAML of an EnvoyFilter with these patches."""
    document = {
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": f"2024-04-{day:02}T00:00:00Z"},
        "spec": {**spec, "configPatches": list(patches)},
    }
    return "---\n" + yaml.safe_dump(document)


def patch(apply_to: str, operation: str, value: str | dict[str, Any] | None = None, /, **match: Any) -> dict[str, Any]:
    """One patch; its value in YAML, its match by fields."""
    what = yaml.safe_load(textwrap.dedent(value)) if isinstance(value, str) else value
    change: dict[str, Any] = {"operation": operation} | ({"value": what} if what is not None else {})
    return {"applyTo": apply_to, "patch": change} | ({"match": match} if match else {})


def in_filter(name: str, **listener: Any) -> dict[str, Any]:
    """A listener match that selects a network filter."""
    return {**listener, "filterChain": {**listener.get("filterChain", {}), "filter": {"name": name}}}


def in_http_filter(name: str, **listener: Any) -> dict[str, Any]:
    """A listener match that selects an HTTP filter."""
    match = in_filter(HCM, **listener)
    match["filterChain"]["filter"]["subFilter"] = {"name": name}
    return match


def parse(*patches: dict[str, Any]) -> Parsed:
    """An EnvoyFilter of these patches, parsed."""
    (config,) = configs(envoy_filter(*patches))
    return parse_filter(config)


class Shop:
    """The shop with EnvoyFilters, as one proxy sees it."""

    def __init__(self, *filters: str, proxy: Proxy = API) -> None:
        self.world: World = world_of(SHOP + "".join(filters))
        self.catalog = WorldCatalog(self.world)
        self.resources = self.catalog.open(proxy)

    def resource(self, type_url: str, name: str) -> Resource | None:
        resources = self.resources.set(type_url)
        assert resources is not None
        return resources.get(name)

    def names(self, type_url: str) -> list[str]:
        resources = self.resources.set(type_url)
        assert resources is not None
        return list(resources.snapshot().entries)

    def cluster(self, name: str) -> Cluster:
        return Cluster.FromString(self._body(CLUSTER, name))

    def listener(self, name: str) -> Listener:
        return Listener.FromString(self._body(LISTENER, name))

    def table(self, name: str) -> RouteConfiguration:
        return RouteConfiguration.FromString(self._body(ROUTE, name))

    def http_filters(self, name: str) -> list[list[str]]:
        """The names of the HTTP filters of each HTTP connection manager of a listener."""
        return [[f.name for f in manager.http_filters] for manager in managers(self.listener(name))]

    @property
    def problems(self) -> tuple[PatchProblem, ...]:
        return self.resources.patch_problems()

    def problem_texts(self) -> list[str]:
        return [f"{p.resource}: {p.reason}" if p.resource else p.reason for p in self.problems]

    def _body(self, type_url: str, name: str) -> bytes:
        found = self.resource(type_url, name)
        assert found is not None, f"no {name}; there are {self.names(type_url)}"
        return found.body


def managers(listener: Listener) -> list[HttpConnectionManager]:
    """The HTTP connection managers of a listener, in the order of its chains."""
    return [
        HttpConnectionManager.FromString(filter_.typed_config.value)
        for chain in listener.filter_chains
        for filter_ in chain.filters
        if filter_.typed_config.type_url.endswith(".HttpConnectionManager")
    ]


def filter_names(listener: Listener) -> list[list[str]]:
    """The names of the network filters of each chain."""
    return [names(chain.filters) for chain in listener.filter_chains]


def names(items: Iterable[Any]) -> list[str]:
    return [item.name for item in items]
