"""The content of the World as JSON for the debug pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from mesh_pilot.api.istio.networking.v1alpha3 import DestinationRule, ServiceEntry, VirtualService
from mesh_pilot.explain.analysis.object_problems import reference_lines, rejected_lines, warning_lines
from mesh_pilot.istio.kinds import written_kind
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.counts import counted
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue
from mesh_pilot.model.json import Json
from mesh_pilot.model.service import Endpoint, Service, ServiceKey
from mesh_pilot.sources.base.contract import Ignoring
from mesh_pilot.sources.base.supervisor import SupervisorStatistics
from mesh_pilot.world import World
from mesh_pilot.xds.ads.config_dump import ObjectFacts, config_dump
from mesh_pilot.xds.ads.status import TypeDump


def object_facts(world: World, key: ConfigKey) -> ObjectFacts | None:
    """The facts of an object in force. A single read of an index, which a thread may do, too."""
    config = world.config.peek(key)
    if config is None:
        return None
    return ObjectFacts(config.origin, tuple(world.full_host(host, key.namespace) for host in _hosts(config.spec)))


def registry_of(world: World, host: str) -> str:
    """The registry of a service that no object declares; empty if one does, or if there is no such service."""
    found = world.services_named.peek(host)
    return next((service.registry for service in found if service.config is None), "")


def explained_dump(world: World, dumps: tuple[TypeDump, ...]) -> Json:
    """A proxy's dump with the places of what it was made from; a thread may make it."""
    return config_dump(dumps, partial(object_facts, world), partial(registry_of, world))


def _hosts(spec: object) -> Iterable[str]:
    match spec:
        case VirtualService(hosts=hosts) | ServiceEntry(hosts=hosts):
            return hosts
        case DestinationRule(host=host):
            return (host,)
    return ()


def show_endpoints(key: ServiceKey, endpoints: Iterable[Endpoint]) -> Json:
    """The endpoints of a service."""
    return {"service": key.host, "namespace": key.namespace, "endpoints": [show_endpoint(e) for e in endpoints]}


def rejections(world: World) -> Iterator[dict[str, str]]:
    """Refused objects: an entry for each problem."""
    for rejected in world.rejections():
        for line in rejected_lines(rejected):
            yield {"source": rejected.source, **line}


def warnings(world: World) -> Iterator[dict[str, str]]:
    """Warnings about accepted configs and mesh-wide settings."""
    for item in _items_with_warnings(world):
        yield from warning_lines(item)
    yield from reference_lines(world)


def _items_with_warnings(world: World) -> list[Config | MeshConfigValue | MeshNetworksValue]:
    """Configs and settings with warnings, in order."""
    found = (config for _, config in world.config.items() if config is not None and config.warnings)
    settings = (item for item in world.mesh_settings() if item.warnings)
    return [*settings, *sorted(found, key=lambda config: config.key)]


def ignored(sources: Iterable[SupervisorStatistics]) -> list[dict[str, str]]:
    """Kinds of objects that sources ignore although users may expect them to be read, in the form of `warnings`."""
    return [
        {
            "where": kind.first,
            "object": f"{kind.api_version} {kind.kind}",
            "field": "",
            "reason": f"{counted(kind.count, 'object')} of this kind ignored: {kind.reason}",
        }
        for own in sources
        if isinstance(own.source, Ignoring)
        for kind in own.source.ignored
        if kind.reason
    ]


def show_config(config: Config) -> Json:
    """A config as in a file, with its origin."""
    metadata: dict[str, Json] = {"name": config.name, "namespace": config.namespace}
    if config.labels:
        metadata["labels"] = dict(config.labels)
    if config.annotations:
        metadata["annotations"] = dict(config.annotations)
    return {
        "apiVersion": config.api_version,
        "kind": written_kind(config.key.kind),
        "metadata": metadata,
        "spec": to_json(config.spec),
        "origin": str(config.origin),
    }


def show_service(service: Service) -> Json:
    """A service, without its endpoints."""
    return {
        "host": service.host,
        "namespace": service.namespace,
        "registry": service.registry,
        "resolution": service.resolution.value,
        "external": service.external,
        "addresses": list(service.addresses),
        "ports": [{"number": p.number, "name": p.name, "protocol": p.protocol.value} for p in service.ports],
        "exportTo": sorted(service.export_to),
        "config": str(service.config) if service.config else None,
    }


def show_endpoint(endpoint: Endpoint) -> Json:
    """An endpoint."""
    return {
        "address": endpoint.address,
        "additionalAddresses": list(endpoint.additional_addresses),
        "port": endpoint.port,
        "servicePort": endpoint.service_port,
        "labels": dict(endpoint.labels),
        "locality": str(endpoint.locality),
        "network": endpoint.network,
        "weight": endpoint.weight,
        "health": endpoint.health.value,
        "serviceAccount": endpoint.service_account,
    }
