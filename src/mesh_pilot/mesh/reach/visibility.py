"""Which service a host means, for a namespace or scope."""

from __future__ import annotations

from collections.abc import Iterable

from mesh_pilot.engine import derived
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.ownership import first_service
from mesh_pilot.mesh.reach.sidecar_scope import default_service_export, is_narrowed, scope_services
from mesh_pilot.model.service import Resolution, Service
from mesh_pilot.world.names import PUBLIC, export_namespaces
from mesh_pilot.world.shards import all_shards, shard_of
from mesh_pilot.world.view import View


def scope_service(view: View, scope: OutboundScope, host: str) -> Service | None:
    """The service that a host means in a scope, with the ports that the scope may use; None if there is none.

    The choice is that of ``scope_services``. Not derived: without a Sidecar no other hosts are read, which costs less
    than to remember the result.
    """
    if is_narrowed(view, scope):
        return _narrowed_service(view, scope, host)
    return visible_service(view, scope.namespace, host)


@derived
def any_dynamic(view: View, namespace: str) -> bool:
    """True if a namespace may see any service with dynamic DNS, which resolves the host of each request."""
    return any(
        _any_dynamic(view.services_exported_to(namespace, shard)) or _any_dynamic_public(view, shard)
        for shard in all_shards(view.shard_bits())
    )


def visible_service(view: View, namespace: str, host: str) -> Service | None:
    """The service that a host means if no Sidecar narrows a namespace's view: its own, else the owner's; without one
    the oldest that is exported to it by name, else the oldest public one."""
    default = default_service_export(view)
    public, by_name = [], []
    for service in view.services_named(host):
        namespaces = export_namespaces(service.export_to, default, service.namespace)
        if PUBLIC in namespaces:
            public.append(service)
        elif namespace in namespaces:
            by_name.append(service)
    return first_service(view, namespace, by_name + public) if by_name or public else None


@derived
def _narrowed_service(view: View, scope: OutboundScope, host: str) -> Service | None:
    services = scope_services(view, scope, shard_of(host, view.shard_bits()))
    return next((service for service in services if service.host == host), None)


@derived
def _any_dynamic_public(view: View, shard: int) -> bool:
    return _any_dynamic(view.services_exported_to(PUBLIC, shard))


def _any_dynamic(services: Iterable[Service]) -> bool:
    return any(service.resolution is Resolution.DYNAMIC_DNS for service in services)
