"""A proxy's listeners, decoded, for tests to look into."""

from __future__ import annotations

from typing import Any, TypeVar

from envoy.config.listener.v3.listener_components_pb2 import FilterChain
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.extensions.filters.network.tcp_proxy.v3.tcp_proxy_pb2 import TcpProxy

from mesh_pilot.engine import Query, Watch
from mesh_pilot.envoy.listeners.inbound import inbound_listeners
from mesh_pilot.mesh.proxy.keys import ProxyKeys, proxy_facts, proxy_keys
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import World
from tests.support.plans import outbound_listeners

T = TypeVar("T")


def target(world: World, proxy: Proxy) -> ProxyKeys:
    return proxy_keys(world.view, proxy_facts(proxy))


def resources(world: World, proxy: Proxy, watch: Watch | None = None) -> dict[str, Resource]:
    """The listeners of a sidecar, by name. What is got through a watch is remembered until the next change."""

    def get(query: Query[T]) -> T:
        return watch.get(query) if watch is not None else query.get(world.view)

    seen = get(proxy_keys.query(proxy_facts(proxy)))
    plans = (
        get(outbound_listeners.query(seen.scope, seen.workload.spans)),
        get(inbound_listeners.query(seen.workload)),
    )
    found: dict[str, Resource] = {}
    for plan in plans:
        for name, call in plan.items():
            resource = get(call)
            assert resource is not None and resource.name == name
            found[name] = resource
    return found


def listeners(world: World, proxy: Proxy) -> dict[str, Any]:
    """The listeners of a sidecar, decoded."""
    return {name: Listener.FromString(r.body) for name, r in resources(world, proxy).items()}


def manager(chain: FilterChain) -> HttpConnectionManager:
    """The HTTP connection manager of a chain."""
    return HttpConnectionManager.FromString(chain.filters[-1].typed_config.value)


def tcp(chain: FilterChain) -> TcpProxy:
    """The TCP proxy of a chain."""
    assert chain.filters[-1].name == "envoy.filters.network.tcp_proxy"
    return TcpProxy.FromString(chain.filters[-1].typed_config.value)


def is_http(chain: FilterChain) -> bool:
    return bool(chain.filters[-1].name == "envoy.filters.network.http_connection_manager")


def inspector_names(listener: Any) -> list[str]:
    return [f.name.removeprefix("envoy.filters.listener.") for f in listener.listener_filters]
