"""Which objects of the World claim which hosts: ServiceEntries, VirtualServices, and routes of the Gateway API.

What the plane makes of Consul's entries or of an Ingress, and what a registry has, claims nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from mesh_pilot.model.config import Config
from mesh_pilot.model.service import Service
from mesh_pilot.world.configs import meta_of
from mesh_pilot.world.entry_visibility import seen_services
from mesh_pilot.world.host_owners import Claim, HostPlace
from mesh_pilot.world.indexes import Indexes
from mesh_pilot.world.names import export_namespaces
from mesh_pilot.world.tables import Tables

KINDS = frozenset(("ServiceEntry", "VirtualService"))
"""The kinds of objects that claim hosts."""


def claims_of(config: Config | None, indexes: Indexes) -> dict[HostPlace, Claim]:
    """The hosts that an object claims; none without an object."""
    if config is None:
        return {}
    if config.key.kind == "ServiceEntry":
        default = indexes.mesh.peek(()).default_service_export_to
        return {
            HostPlace("", indexes.registry_host(service.host)): Claim(
                config.key, export_namespaces(service.export_to, default, config.namespace), config.created
            )
            for service in (() if config.made_from else seen_services(config, indexes))
        }
    meta = meta_of(config, indexes)
    if meta.is_made:
        return {}
    claim = Claim(config.key, meta.export_to, config.created)
    return {HostPlace(gateway, host): claim for gateway in meta.gateways for host in meta.hosts}


def claims_at(places: Iterable[HostPlace], tables: Tables) -> Mapping[HostPlace, list[Claim]]:
    """All claims to some places."""
    found: dict[HostPlace, list[Claim]] = defaultdict(list)
    at_gateways: dict[str, set[str]] = defaultdict(set)
    for place in places:
        if place.gateway:
            at_gateways[place.gateway].add(place.host)
        else:
            found[place] = [*_of_services(tables.services.entries.declared(place.host), tables.indexes)]
    for gateway, hosts in at_gateways.items():
        for meta in tables.configs.virtual_services(gateway):
            for host in hosts.intersection(meta.hosts):
                if not meta.is_made:
                    found[HostPlace(gateway, host)].append(Claim(meta.key, meta.export_to, meta.created))
    return found


def contested_places(tables: Tables) -> Iterator[HostPlace]:
    """The places that several namespaces claim. Looks at all objects."""
    for host in tables.services.entries.contested():
        yield HostPlace("", host)
    for gateway in tables.configs.gateways():
        by_host: dict[str, set[str]] = defaultdict(set)
        for meta in tables.configs.virtual_services(gateway):
            for host in meta.hosts:
                by_host[host].add(meta.key.namespace)
        yield from (HostPlace(gateway, host) for host, namespaces in by_host.items() if len(namespaces) > 1)


def _of_services(services: Iterable[Service], indexes: Indexes) -> Iterator[Claim]:
    default = indexes.mesh.peek(()).default_service_export_to
    for service in services:
        if service.config is not None:
            to = export_namespaces(service.export_to, default, service.namespace)
            yield Claim(service.config, to, service.created)
