"""The services that destinations name, as far as routes need them."""

from __future__ import annotations

from mesh_pilot.model.service import Service, ServiceKey
from mesh_pilot.world import View


def visible_service(view: View, namespace: str, host: str) -> Service | None:
    """The service that a host stands for, seen from a namespace: its own, else the oldest that it may see."""
    visible = [s for s in view.services_named(host) if view.get(_exported, s.key, namespace)]
    own = next((s for s in visible if s.namespace == namespace), None)
    return own or (visible[0] if visible else None)


def service_key(view: View, namespace: str, host: str) -> ServiceKey:
    """As ``visible_service``; a host with no service has a key too, of no namespace."""
    return view.get(_service_key, namespace, host)


def only_port(view: View, namespace: str, host: str) -> int:
    """The port of a service that has just one; 0 where there is a choice, or no service."""
    service = visible_service(view, namespace, host)
    return service.ports[0].number if service is not None and len(service.ports) == 1 else 0


def _service_key(view: View, namespace: str, host: str) -> ServiceKey:
    service = visible_service(view, namespace, host)
    return service.key if service is not None else ServiceKey(host, "")


def _exported(view: View, key: ServiceKey, namespace: str) -> bool:
    service = view.service(key)
    if service is None:
        return False
    export = service.export_to or view.get(_default_export_to)
    return "*" in export or namespace in export or ("." in export and key.namespace == namespace)


def _default_export_to(view: View) -> frozenset[str]:
    return frozenset(view.mesh().default_service_export_to) or frozenset("*")
