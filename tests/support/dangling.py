"""The names for which a proxy's Envoy would wait forever: a walk over everything that it is sent."""

from __future__ import annotations

from collections.abc import Iterator

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration

from mesh_pilot.envoy.catalog.catalog import WorldResources
from mesh_pilot.envoy.refusals.waits import Wait, waits
from mesh_pilot.model.resource import CLUSTER, EXTENSION, IDENTITY_SECRET, LISTENER, ROUTE, TRUST_SECRET

MESSAGES = {CLUSTER: Cluster, LISTENER: Listener, ROUTE: RouteConfiguration, EXTENSION: TypedExtensionConfig}

_MAY_COME = ("kubernetes://", "kubernetes-gateway://", "configmap://", "invalid://", IDENTITY_SECRET, TRUST_SECRET)
"""Secrets that are somebody else's part: a credential that is missing is as in Istio, an identity is the issuer's."""


def dangling(proxy: WorldResources) -> dict[str, Wait]:
    """What a proxy is made to wait for and is never sent, by the resource that names it."""
    found: dict[str, Wait] = {}
    pending = [(type_url, name) for type_url in (CLUSTER, LISTENER) for name in _names(proxy, type_url)]
    seen = set(pending)
    while pending:
        type_url, name = pending.pop()
        body = _body(proxy, type_url, name)
        if body is None or type_url not in MESSAGES:
            continue
        for wait in waits(MESSAGES[type_url].FromString(body)):
            asked = (wait.type_url, wait.name)
            if wait.name.startswith(_MAY_COME):
                continue
            if not wait.type_url or _body(proxy, *asked) is None:
                found[f"{type_url.rpartition('.')[2]} {name}"] = wait
            elif asked not in seen:
                seen.add(asked)
                pending.append(asked)
    return found


def _names(proxy: WorldResources, type_url: str) -> Iterator[str]:
    resources = proxy.set(type_url)
    return iter(resources.snapshot().entries if resources is not None else ())


def _body(proxy: WorldResources, type_url: str, name: str) -> bytes | None:
    resources = proxy.set(type_url)
    resource = resources.get(name) if resources is not None else None
    return resource.body if resource is not None else None
