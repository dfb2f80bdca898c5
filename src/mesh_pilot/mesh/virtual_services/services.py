"""The services that destinations name, as far as routes need them: the same that clusters are made for."""

from __future__ import annotations

from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.visibility import scope_service
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world import View


def service_key(view: View, scope: OutboundScope, host: str) -> ServiceKey:
    """The key of the service that a host means in a scope; a host with no service has a key too, of no namespace."""
    return _service_key(view, scope, host)


def only_port(view: View, scope: OutboundScope, host: str) -> int:
    """The port of a service that has just one; 0 where there is a choice, or no service."""
    return _only_port(view, scope, host)


@derived
def _service_key(view: View, scope: OutboundScope, host: str) -> ServiceKey:
    service = scope_service(view, scope, host)
    return service.key if service is not None else ServiceKey(host, "")


@derived
def _only_port(view: View, scope: OutboundScope, host: str) -> int:
    service = scope_service(view, scope, host)
    return service.ports[0].number if service is not None and len(service.ports) == 1 else 0
