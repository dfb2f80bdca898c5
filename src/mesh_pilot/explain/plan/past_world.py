"""The World at a past revision, and the resources that a proxy was sent then: made anew, by the code that serves.

No certificates or keys are made. Route tables come with all their virtual hosts in them, and all clusters are there,
also for proxies that request these one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.model.events import Event, Item, Replace, Synced
from mesh_pilot.model.json import Json
from mesh_pilot.model.proxy import CLUSTERS, VIRTUAL_HOSTS, Proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, NAME_TABLE, ROUTE, Resource
from mesh_pilot.world import World
from mesh_pilot.xds.ads.config_dump import resource_json

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
    """The resources that a proxy requests if it requests all that it can use; by type and name."""
    metadata = {**proxy.metadata, VIRTUAL_HOSTS: "whole", CLUSTERS: "all"}
    catalog = WorldCatalog(world)
    opened = catalog.open(attrs.evolve(proxy, metadata=metadata))
    try:
        return _of_grpc(world, opened) if proxy.is_grpc else _of_envoy(opened)
    finally:
        opened.close()


def _of_envoy(opened: WorldResources) -> dict[str, Mapping[str, Resource]]:
    clusters, listeners = _all(opened, CLUSTER), _all(opened, LISTENER)
    return {
        CLUSTER: clusters,
        ENDPOINT: _named(opened, ENDPOINT, _with_endpoints(clusters)),
        LISTENER: listeners,
        ROUTE: _named(opened, ROUTE, _texts_at(listeners, "route_config_name")),
        NAME_TABLE: _all(opened, NAME_TABLE),
    }


def _of_grpc(world: World, opened: WorldResources) -> dict[str, Mapping[str, Resource]]:
    """Of a proxyless client, as if it called every port of every service."""
    merged = [service for _, service in world.services.items() if service is not None]
    names = frozenset(f"{service.host}:{port.number}" for service in merged for port in service.ports)
    listeners = _named(opened, LISTENER, names)
    routes = _named(opened, ROUTE, _texts_at(listeners, "route_config_name"))
    clusters = _named(opened, CLUSTER, _texts_at(routes, "cluster") | _texts_at(routes, "name"))
    return {
        CLUSTER: clusters,
        ENDPOINT: _named(opened, ENDPOINT, _with_endpoints(clusters)),
        LISTENER: listeners,
        ROUTE: routes,
    }


def _all(opened: WorldResources, type_url: str) -> Mapping[str, Resource]:
    resources = opened.set(type_url)
    return resources.snapshot().entries if resources is not None else {}


def _named(opened: WorldResources, type_url: str, names: frozenset[str]) -> Mapping[str, Resource]:
    resources = opened.set(type_url)
    return resources.select(names).entries if resources is not None and names else {}


def _with_endpoints(clusters: Mapping[str, Resource]) -> frozenset[str]:
    """The names by which clusters request their endpoints."""
    found = set()
    for resource in clusters.values():
        cluster = Cluster.FromString(resource.body)
        if cluster.type == Cluster.EDS:
            found.add(cluster.eds_cluster_config.service_name or cluster.name)
    return frozenset(found)


def _texts_at(resources: Mapping[str, Resource], field: str) -> frozenset[str]:
    """The texts of a field, anywhere in resources."""
    return frozenset(text for resource in resources.values() for text in _texts(resource_json(resource), field))


def _texts(value: Json, field: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, member in value.items():
            if name == field and isinstance(member, str):
                yield member
            else:
                yield from _texts(member, field)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member, field)


def resource_lines(resource: Resource | None) -> list[str]:
    """A resource as lines of JSON with sorted fields; none for one that is not there."""
    if resource is None:
        return []
    return json.dumps(resource_json(resource), indent=2, sort_keys=True, ensure_ascii=False).splitlines()
