"""Route tables for tests: small worlds in, Envoy's messages out."""

from __future__ import annotations

from typing import Any

from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.config.route.v3 import route_pb2
from google.protobuf import json_format

from mesh_pilot.envoy.gateway.listeners import gateway_route
from mesh_pilot.envoy.routes.tables import route_configuration
from mesh_pilot.mesh.proxy.keys import ProxyKeys, proxy_facts, proxy_keys
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import World
from tests.support.worlds import sidecar, world_of


def config(kind: str, name: str, spec: str, *, namespace: str = "shop", age: int = 0) -> str:
    """One config as a YAML document; a greater ``age`` is younger."""
    return (
        f"---\napiVersion: networking.istio.io/v1\nkind: {kind}\n"
        f"metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: '2024-01-01T00:{age:02}:00Z'}}\n"
        f"spec: {spec}\n"
    )


def service(
    host: str, *, namespace: str = "shop", ports: str = "80 http HTTP", addresses: str = "", age: int = 0
) -> str:
    """A service with ports ``number name [protocol], ...``; a host without dots is one of the namespace."""
    host = host if "." in host else f"{host}.{namespace}.svc.cluster.local"
    parted = (f"{port} ''".split()[:3] for port in ports.split(","))
    listed = ", ".join(f"{{number: {n}, name: {name}, protocol: {protocol}}}" for n, name, protocol in parted)
    return config(
        "ServiceEntry",
        host.replace("*", "any").lower(),
        f"{{hosts: ['{host}'], addresses: [{addresses}], location: MESH_INTERNAL, resolution: STATIC, "
        f"ports: [{listed}], endpoints: [{{address: 127.0.0.1}}]}}",
        namespace=namespace,
        age=age,
    )


def virtual_service(name: str, spec: str, *, namespace: str = "shop", age: int = 0) -> str:
    return config("VirtualService", name, spec, namespace=namespace, age=age)


def target(world: World, proxy: Proxy | None = None) -> ProxyKeys:
    """A proxy as translators see it; a sidecar in ``shop`` if not said."""
    return proxy_keys(world.view, proxy_facts(proxy or sidecar(namespace="shop")))


def resource(world: World, name: str, proxy: Proxy | None = None) -> Resource | None:
    """A sidecar's route table, as sent."""
    return route_configuration(world.view, target(world, proxy).scope, name)


def table(world: World, name: str = "80", proxy: Proxy | None = None) -> dict[str, rc.VirtualHost]:
    """A sidecar's route table: its virtual hosts by name, in order."""
    return _hosts(resource(world, name, proxy))


def gateway_table(world: World, name: str = "http.80", proxy: Proxy | None = None) -> dict[str, rc.VirtualHost]:
    """A router's route table: its virtual hosts by name, in order."""
    return _hosts(gateway_route(world.view, target(world, proxy or router()).workload, name))


def router(**given: Any) -> Proxy:
    """A router that Gateways select by ``istio: edge``."""
    return sidecar(
        **{"namespace": "edge", "node_type": "router", "labels": {"istio": "edge"}, "ip": "10.9.9.9", **given}
    )


def plain(message: Any) -> Any:
    """A message as JSON, with fields named as in proto files."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def clusters(host: rc.VirtualHost) -> list[str]:
    """Where each route of a virtual host leads; several destinations joined by ``+``."""
    return [
        route.route.cluster or "+".join(c.name for c in route.route.weighted_clusters.clusters) for route in host.routes
    ]


WEB = "web.shop.svc.cluster.local"
TO_WEB = "route: [{destination: {host: web}}]"


def routes(*rules: str, more: str = "", mesh: str = "", **proxy: Any) -> list[dict[str, Any]]:
    """The routes, as JSON, of a VirtualService with these rules for service ``web``, for a sidecar."""
    text = service("web") + virtual_service("vs", f"{{hosts: [web], http: [{', '.join(rules)}]}}") + more
    found = table(world_of(text, mesh=mesh), "80", sidecar(**{"namespace": "shop", **proxy}))
    return [plain(route) for route in found[f"{WEB}:80"].routes]


def route(rule: str, **given: Any) -> dict[str, Any]:
    """The one route of a rule that is written without its braces."""
    (found,) = routes(f"{{{rule}}}", **given)
    return found


def _hosts(found: Resource | None) -> dict[str, rc.VirtualHost]:
    assert found is not None
    message = route_pb2.RouteConfiguration.FromString(found.body)
    hosts = {host.name: host for host in message.virtual_hosts}
    assert len(hosts) == len(message.virtual_hosts)
    domains = [domain.lower() for host in message.virtual_hosts for domain in host.domains]
    assert len(set(domains)) == len(domains), "Envoy refuses a table in which a domain stands twice"
    return hosts
