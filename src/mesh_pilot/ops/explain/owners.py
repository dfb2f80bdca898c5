"""The owner of a host that objects of several namespaces name, and who lost it, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mesh_pilot.mesh.reach.sidecar_scope import default_service_export
from mesh_pilot.mesh.routing.origins import FieldOfObject
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.service import Service
from mesh_pilot.ops.explain.fields import Decider, decider
from mesh_pilot.ops.explain.precedence import virtual_services_for
from mesh_pilot.world import View
from mesh_pilot.world.host_owners import HostPlace, place_text
from mesh_pilot.world.names import MESH_GATEWAY, export_namespaces, exported_to


def services_behind(view: View, service: Service, namespace: str) -> list[ConfigKey]:
    """The ServiceEntries of other namespaces for a service's host, which clients of a namespace see and do not get."""
    default = default_service_export(view)
    return [
        other.config
        for other in view.services_named(service.host)
        if other.config is not None
        and other.namespace != service.namespace
        and exported_to(export_namespaces(other.export_to, default, other.namespace), namespace)
    ]


def behind_text(view: View, service: Service, namespace: str) -> str:
    """The same as the end of a sentence; empty without such ServiceEntries."""
    keys = services_behind(view, service, namespace)
    return f"; not {', '.join(map(str, keys))}, which has this host, too" if keys else ""


def routes_behind(view: View, host: str, namespace: str, used: Iterable[ConfigKey]) -> Iterator[Decider]:
    """The VirtualServices of other namespaces for a host that sidecars of a namespace see and do not use."""
    known = {key for key in used if key.kind == "VirtualService"}
    winners = {key.namespace for key in known}
    for meta in virtual_services_for(view, host, namespace):
        if winners and meta.key not in known and meta.key.namespace not in winners:
            text = f"not used: namespace {min(winners)} has this host"
            yield decider(view, FieldOfObject(meta.key), text)


def owner_lines(view: View, config: Config) -> Iterator[str]:
    """The contested hosts of an object: to whom each belongs, and who else names it."""
    for place in _places(view, config):
        order = view.host_owners(*place)
        namespaces = [*dict.fromkeys(namespace for namespace, _ in order)]
        if len(namespaces) < 2 or config.namespace not in namespaces:
            continue
        owner, where = namespaces[0], place_text(place)
        if owner == config.namespace:
            others = ", ".join(namespaces[1:])
            yield f"{place.host} of {where} belongs to this namespace; named by objects of {others}, too"
        else:
            yield f"{place.host} of {where} belongs to namespace {owner}: this object comes after its"


def _places(view: View, config: Config) -> Iterator[HostPlace]:
    if config.key.kind == "ServiceEntry":
        yield from (HostPlace("", view.registry_host(host)) for host in config.spec.hosts)
    elif config.key.kind == "VirtualService":
        for name in config.spec.gateways or [MESH_GATEWAY]:
            gateway = view.full_gateway(name, config.namespace)
            for host in config.spec.hosts:
                yield HostPlace(gateway, view.full_host(host, config.namespace))
