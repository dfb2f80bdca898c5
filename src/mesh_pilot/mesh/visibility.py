"""Which services a scope has clusters for, and how a cluster finds its endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.sidecar_scope import ANY_NAMESPACE, default_service_export, egress_listeners, scope_services
from mesh_pilot.model.proxy import Interception, NodeType
from mesh_pilot.model.service import Resolution, Service
from mesh_pilot.world.buckets import bucket_of, buckets
from mesh_pilot.world.view import View


class Discovery(Enum):
    """How a cluster finds its endpoints."""

    EDS = "we say"
    STRICT_DNS = "all addresses of names"
    LOGICAL_DNS = "an address of a name at a time"
    ORIGINAL_DST = "where the client was going"
    DYNAMIC_DNS = "the name that the client asked for"


BY_DNS = (Discovery.STRICT_DNS, Discovery.LOGICAL_DNS)
"""Endpoints are names, and come with the cluster."""

_BY_RESOLUTION = {
    Resolution.CLIENT_SIDE: Discovery.EDS,
    Resolution.DNS: Discovery.STRICT_DNS,
    Resolution.DNS_ROUND_ROBIN: Discovery.LOGICAL_DNS,
    Resolution.PASSTHROUGH: Discovery.ORIGINAL_DST,
    Resolution.DYNAMIC_DNS: Discovery.DYNAMIC_DNS,
}


def discovery_of(scope: OutboundScope, service: Service, through: bool) -> Discovery:
    """How the clusters of a service find endpoints; ``through``: a rule turns load balancing off (PASSTHROUGH).

    Only where traffic is redirected to the proxy does it know where a client was going: elsewhere (routers, sidecars
    without interception) the endpoints that we know serve instead.
    """
    knows_target = scope.type is NodeType.SIDECAR and scope.interception is not Interception.NONE and not scope.grpc
    found = _BY_RESOLUTION[service.resolution]
    if knows_target:
        return Discovery.ORIGINAL_DST if through else found
    return Discovery.EDS if found is Discovery.ORIGINAL_DST else found


def scope_service(view: View, scope: OutboundScope, host: str) -> Service | None:
    """The service that a host means in a scope, with the ports that the scope may use; None where it has none.

    The same choice as ``scope_services`` makes, but where no Sidecar narrows it without a look at other hosts: that
    costs too little to be remembered, so this is called as it is.
    """
    listeners = egress_listeners(view, scope)
    if len(listeners) == 1 and listeners[0].index < 0:
        return visible_service(view, scope.namespace, host)
    return _narrowed_service(view, scope, host)


@derived
def any_dynamic(view: View, namespace: str) -> bool:
    """Whether a namespace may see any service whose hosts are resolved as requests ask for them."""
    return any(
        _any_dynamic(view.services_exported_to(namespace, bucket)) or _any_dynamic_public(view, bucket)
        for bucket in buckets(view.bits())
    )


def visible_service(view: View, namespace: str, host: str) -> Service | None:
    """The oldest service of a host that is exported to a namespace by name, else the oldest that is public.

    What a host means where no Sidecar narrows it.
    """
    default = default_service_export(view)
    public: Service | None = None
    for service in view.services_named(host):
        export = service.export_to or default
        if "~" in export:
            continue
        if "*" in export:
            public = public or service
        elif namespace in export or ("." in export and service.namespace == namespace):
            return service
    return public


@derived
def _narrowed_service(view: View, scope: OutboundScope, host: str) -> Service | None:
    services = scope_services(view, scope, bucket_of(host, view.bits()))
    return next((service for service in services if service.host == host), None)


@derived
def _any_dynamic_public(view: View, bucket: int) -> bool:
    return _any_dynamic(view.services_exported_to(ANY_NAMESPACE, bucket))


def _any_dynamic(services: Iterable[Service]) -> bool:
    return any(service.resolution is Resolution.DYNAMIC_DNS for service in services)
