"""Proxies made up from objects, for plans without a plane: a sidecar for each kind of workload, routers for Gateways.

Workloads that differ only in their addresses get the same but for inbound traffic: one stands for all of a service.
"""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.model.config import Config
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.proxy import Proxy, parse_proxy
from mesh_pilot.model.service import Endpoint
from mesh_pilot.plan.picture import ConnectedProxy
from mesh_pilot.world import World

ROUTER_ADDRESS = "192.0.2.1"
"""The address of every router (of a block for documentation)."""


def made_up_proxies(*worlds: World) -> list[ConnectedProxy]:
    """The proxies that the services and Gateways of these Worlds call for, by name."""
    found: dict[str, ConnectedProxy] = {}
    for world in worlds:
        for proxy in (*_sidecars(world), *_routers(world)):
            found.setdefault(proxy.name, ConnectedProxy(proxy))
    return [found[name] for name in sorted(found)]


def _sidecars(world: World) -> Iterator[Proxy]:
    """One for each service and set of labels."""
    for key, endpoints in sorted(world.endpoints.items()):
        service = world.services.peek(key)
        if service is None or service.external:
            continue
        seen: set[tuple[tuple[str, str], ...]] = set()
        for endpoint in endpoints:
            labels = tuple(sorted(endpoint.labels.items()))
            if is_ip(endpoint.address) and labels not in seen:
                seen.add(labels)
                yield _sidecar(endpoint, endpoint.namespace or key.namespace, f"{key.host.split('.')[0]}-{len(seen)}")


def _sidecar(endpoint: Endpoint, namespace: str, name: str) -> Proxy:
    metadata = {"NAMESPACE": namespace, "LABELS": dict(endpoint.labels)}
    domain = f"{namespace}.svc.cluster.local"
    node_id = f"sidecar~{endpoint.address}~{endpoint.workload or name}.{namespace}~{domain}"
    return parse_proxy(node_id, metadata, locality=endpoint.locality)


def _routers(world: World) -> Iterator[Proxy]:
    """One for each selector of Gateways."""
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    gateways: list[Config] = sorted(world.configs_of.peek("Gateway"), key=lambda config: config.key)
    for config in gateways:
        labels = dict(config.spec.selector)
        kind = config.namespace, tuple(sorted(labels.items()))
        if kind in seen:
            continue
        seen.add(kind)
        name = f"{labels.get('istio') or labels.get('app') or config.name}.{config.namespace}"
        metadata = {"NAMESPACE": config.namespace, "LABELS": labels}
        yield parse_proxy(f"router~{ROUTER_ADDRESS}~{name}~{config.namespace}.svc.cluster.local", metadata)
