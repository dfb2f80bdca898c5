"""The VirtualServices for a host, in the order in which they count."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.mesh.reach.ownership import for_host
from mesh_pilot.model.hosts import host_covers
from mesh_pilot.model.service import Service
from mesh_pilot.world import View
from mesh_pilot.world.indexes import VirtualServiceMeta
from mesh_pilot.world.names import MESH_GATEWAY
from mesh_pilot.world.shards import WILDCARD_HOSTS, shard_of


def virtual_services_for(view: View, host: str, namespace: str) -> Iterator[VirtualServiceMeta]:
    """The VirtualServices for requests to a host from a namespace's sidecars, in order of precedence."""
    every = (
        *view.mesh_virtual_services(shard_of(host, view.shard_bits())),
        *view.mesh_virtual_services(WILDCARD_HOSTS),
    )
    found = {meta.key: meta for meta in every if any(host_covers(h, host) for h in meta.hosts)}
    visible = [meta for meta in found.values() if meta.visible_to(namespace)]

    def rank(meta: VirtualServiceMeta) -> int:
        own = meta.key.namespace == namespace
        if "*" in meta.export_to:
            return 2 if own and meta.is_route else 3
        return 0 if own else 1

    ordered = sorted(visible, key=lambda meta: (rank(meta), meta.order))
    yield from (ordered[number] for number in for_host(view, MESH_GATEWAY, namespace, host, ordered))


def leads_to(view: View, meta: VirtualServiceMeta, service: Service) -> bool:
    """True if an HTTP rule of a VirtualService has a service as its destination."""
    config = view.config(meta.key)
    if config is None:
        return False
    destinations = (route.destination for rule in config.spec.http for route in rule.route)
    return any(
        d is not None and view.destination_host(d.host, meta.key.namespace) == service.host for d in destinations
    )
