"""Telemetry objects that apply to a side of a proxy's connections, and the extension providers that they name.

Rules: Istio's Telemetry reference. Of several objects of one namespace without a selector the oldest counts; of those
that select a workload the younger override the older.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from mesh_pilot.api.istio.mesh import v1alpha1 as mesh_api
from mesh_pilot.api.istio.telemetry import v1alpha1 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.names.resources import outbound
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.policies.rate_limits import rate_limit_servers
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.sidecar_scope import is_narrowed, only_ports, scope_services
from mesh_pilot.mesh.reach.visibility import scope_service, visible_service
from mesh_pilot.mesh.selection.workloads import Labels, oldest_general, selecting
from mesh_pilot.model.service import Service
from mesh_pilot.world.shards import shard_of, subshards
from mesh_pilot.world.view import View

Provider = mesh_api.MeshConfigExtensionProvider

ENVOY = "envoy"
"""The provider of access logs on standard output, in the format of the mesh's own log file."""

BUILT_IN = {
    ENVOY: Provider(
        name=ENVOY,
        envoy_file_access_log=mesh_api.MeshConfigExtensionProviderEnvoyFileAccessLogProvider(path="/dev/stdout"),
    )
}
"""Providers that exist without a declaration."""


@derived
def extension_provider(view: View, name: str) -> Provider | None:
    """The provider of this name, else of one that differs in case alone; None if the mesh config lacks both."""
    named = [p for p in view.mesh().extension_providers if p.name.lower() == name.lower()]
    return next((p for p in named if p.name == name), named[0] if named else BUILT_IN.get(name.lower()))


def provider_cluster(view: View, namespace: str, service: str, port: int) -> tuple[str, str] | None:
    """The cluster and host of a provider's service (``host`` or ``namespace/host``), as seen from a namespace.

    None if there is no such service or port: Envoy rejects resources that name an unknown cluster.
    """
    host = service.rpartition("/")[2]
    found = visible_service(view, namespace, host)
    if found is None or found.port(port) is None:
        return None
    return outbound(found.host, port), found.host


@derived
def provider_ports(view: View) -> Mapping[str, tuple[int, ...]]:
    """The services that proxies themselves call, by host, each with the ports that are called: those of extension
    providers and of rate limit servers."""
    found: dict[str, set[int]] = {host: set(ports) for host, ports in rate_limit_servers(view).items()}
    for provider in view.mesh().extension_providers:
        kinds = [getattr(provider, field.name) for field in dataclasses.fields(provider)]
        sampler = provider.opentelemetry.dynatrace_sampler if provider.opentelemetry is not None else None
        for called in (*kinds, sampler.http_service if sampler is not None else None):
            service, port = getattr(called, "service", ""), getattr(called, "port", 0)
            if isinstance(service, str) and service:
                found.setdefault(service.rpartition("/")[2].lower(), set()).add(port)
    return {host: tuple(sorted(ports)) for host, ports in sorted(found.items())}


def provider_services(view: View, scope: OutboundScope, shard: int) -> tuple[Service, ...]:
    """The services of extension providers in a shard that a Sidecar does not import, with the ports that are called.

    The proxy itself calls them, so it has clusters for them, but no listeners and routes for its application.
    """
    # Not derived where there is nothing to find: that would be a value for each shard of each scope.
    if not provider_ports(view) or not is_narrowed(view, scope):
        return ()
    return _services_beyond_sidecar(view, scope, shard)


@derived
def _services_beyond_sidecar(view: View, scope: OutboundScope, shard: int) -> tuple[Service, ...]:
    bits = view.shard_bits()
    shards = subshards(shard, bits)
    called = {host: ports for host, ports in provider_ports(view).items() if shard_of(host, bits) in shards}
    imported = {service.host: service for service in scope_services(view, scope, shard)} if called else {}
    found = []
    for host, ports in called.items():
        had = imported.get(host)
        wanted = [port for port in ports if had is None or had.port(port) is None]
        service = visible_service(view, scope.namespace, host) if wanted else None
        missing = only_ports(service, wanted) if service is not None else None
        if missing is not None:
            found.append(missing)
    return tuple(found)


def called_service(view: View, scope: OutboundScope, host: str, port: int) -> Service | None:
    """The service of a scope's cluster for a host and port: one in the scope, else an extension provider's."""
    service = scope_service(view, scope, host)
    if (service is not None and service.port(port) is not None) or host not in provider_ports(view):
        return service
    shard = shard_of(host, view.shard_bits())
    return next((found for found in provider_services(view, scope, shard) if found.host == host), service)


Mode = api.WorkloadMode


@derived
def telemetry_for(view: View, namespace: str, labels: Labels) -> tuple[api.Telemetry, ...]:
    """The Telemetry objects that apply to a proxy, the widest first: mesh, namespace, workload."""
    root = view.root_namespace
    general = (oldest_general(view, "Telemetry", level) for level in dict.fromkeys((root, namespace)))
    return tuple(
        config.spec for config in (*general, *selecting(view, "Telemetry", namespace, labels)) if config is not None
    )


def is_for_side(
    match: api.AccessLoggingLogSelector | api.TracingTracingSelector | None, context: PolicyContext
) -> bool:
    """True if an entry with this match applies to a context's side; a gateway is a client."""
    mode = match.mode if match else Mode.CLIENT_AND_SERVER
    if mode == Mode.CLIENT_AND_SERVER:
        return True
    return mode == (Mode.SERVER if context.side is TrafficSide.INBOUND else Mode.CLIENT)


def provider_names(providers: list[api.ProviderRef]) -> tuple[str, ...]:
    return tuple(p.name for p in providers)
