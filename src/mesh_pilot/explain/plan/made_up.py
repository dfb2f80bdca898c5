"""Proxies made up from objects, for plans without a plane: a sidecar for each kind of workload, routers for Gateways.

Workloads that differ only in their addresses get the same but for inbound traffic: one stands for all of a service.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import attrs

from mesh_pilot.explain.plan.picture import ConnectedProxy
from mesh_pilot.istio.gateway_api.values import SERVICES
from mesh_pilot.model.config import Config
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.proxy import Proxy, parse_proxy
from mesh_pilot.model.service import Endpoint
from mesh_pilot.world import World
from mesh_pilot.world.names import GATEWAY_NAME

ROUTER_ADDRESS = "192.0.2.1"
"""The address of every router (of a block for documentation)."""


def made_up_proxies(*worlds: World) -> list[ConnectedProxy]:
    """The proxies that the services and Gateways of these Worlds call for, by name."""
    found: dict[_Identity, Proxy] = {}
    for world in worlds:
        for identity, proxy in (*_sidecars(world), *_routers(world)):
            found.setdefault(identity, proxy)
    named: dict[str, Proxy] = {}
    for proxy in found.values():
        name = _free_name(proxy.name, named)
        named[name] = proxy if name == proxy.name else attrs.evolve(proxy, name=name)
    return [ConnectedProxy(named[name]) for name in sorted(named)]


_Identity = tuple[str, str, frozenset[tuple[str, str]]]
"""The workload, service or kind of a proxy, its namespace, and its labels: two of the same are one proxy."""


def _free_name(name: str, taken: Container[str]) -> str:
    """This name, or the next: ``web-2.shop`` for ``web-1.shop``."""
    stem, dot, rest = name.partition(".")
    number = 1
    while name in taken:
        number += 1
        name = f"{stem.removesuffix('-1')}-{number}{dot}{rest}"
    return name


def _sidecars(world: World) -> Iterator[tuple[_Identity, Proxy]]:
    """One for each service, or workload, and set of labels."""
    for key, endpoints in sorted(world.endpoints.items()):
        service = world.services.peek(key)
        if service is None or service.external:
            continue
        seen: set[frozenset[tuple[str, str]]] = set()
        for endpoint in endpoints:
            labels = frozenset(endpoint.labels.items())
            if is_ip(endpoint.address) and labels not in seen:
                seen.add(labels)
                namespace = endpoint.namespace or key.namespace
                identity = endpoint.workload or key.host, namespace, labels
                yield identity, _sidecar(endpoint, namespace, f"{key.host.split('.')[0]}-1")


def _sidecar(endpoint: Endpoint, namespace: str, name: str) -> Proxy:
    metadata = {"NAMESPACE": namespace, "LABELS": dict(endpoint.labels)}
    workload = (endpoint.workload or name).replace("~", "-")  # it parts the fields of an id
    node_id = f"sidecar~{endpoint.address}~{workload}.{namespace}~{namespace}.svc.cluster.local"
    return parse_proxy(node_id, metadata, locality=endpoint.locality)


def _routers(world: World) -> Iterator[tuple[_Identity, Proxy]]:
    """One for each selector of Gateways, and for each Gateway of the Gateway API."""
    gateways: list[Config] = sorted(world.configs_of.peek("Gateway"), key=lambda config: config.key)
    for config in gateways:
        labels, namespace = dict(config.spec.selector), config.namespace
        name = labels.get("istio") or labels.get("app") or config.name
        if SERVICES in config.annotations and config.made_from:
            _, namespace, name = config.made_from[-1]
            labels = {GATEWAY_NAME: name}
        metadata = {"NAMESPACE": namespace, "LABELS": labels}
        node_id = f"router~{ROUTER_ADDRESS}~{name}.{namespace}~{namespace}.svc.cluster.local"
        yield ("router", namespace, frozenset(labels.items())), parse_proxy(node_id, metadata)
