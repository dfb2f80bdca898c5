"""The World at a past revision, and the resources that a proxy was sent then: made again, by the code that serves.

No certificates or keys are made. Route tables come with all their virtual hosts in them, and all clusters are there,
also for proxies that request these one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.explain.plan.client import PlannedClient
from mesh_pilot.explain.plan.picture import ConnectedProxy
from mesh_pilot.model.events import Event, Item, Replace, Synced
from mesh_pilot.model.proxy import CLUSTERS, VIRTUAL_HOSTS, Proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, NAME_TABLE, ROUTE, Resource
from mesh_pilot.world import World
from mesh_pilot.xds.ads.config_dump import resource_json
from mesh_pilot.xds.ads.references import references_of

Key = tuple[str, ...]


def past_world(items: Mapping[str, Mapping[Key, Item]], settings: Mapping[str, str]) -> World:
    """A World of the pictures of sources, in order of precedence; `settings`: the `World.settings`."""
    world = World(**settings)
    events: list[Event] = []
    for source, of in items.items():
        world.expect(source)
        events += [Replace(source, (), tuple(of.values())), Synced(source)]
    world.apply(events)
    return world


def resources_of(world: World, proxy: Proxy) -> dict[str, Mapping[str, Resource]]:
    """The resources that a proxy requests if it requests all that it can use; by type and name.

    A proxyless client counts as if it called every port of every service.
    """
    metadata = {**proxy.metadata, VIRTUAL_HOSTS: "whole", CLUSTERS: "all"}
    called: list[str] = []
    if proxy.is_grpc:
        merged = [service for _, service in world.services.items() if service is not None]
        called = [f"{service.host}:{port.number}" for service in merged for port in service.ports]
    connected = ConnectedProxy(attrs.evolve(proxy, metadata=metadata), types=(NAME_TABLE,), listeners=tuple(called))
    client = PlannedClient(WorldCatalog(world), connected, references_of, lambda _: 0)
    try:
        client.connect()
        client.settle()
        return {type_url: client.has[type_url] for type_url in (CLUSTER, ENDPOINT, LISTENER, ROUTE, NAME_TABLE)}
    finally:
        client.close()


def resource_lines(resource: Resource | None) -> list[str]:
    """A resource as lines of JSON with sorted fields; none for one that is not there."""
    if resource is None:
        return []
    return json.dumps(resource_json(resource), indent=2, sort_keys=True, ensure_ascii=False).splitlines()
