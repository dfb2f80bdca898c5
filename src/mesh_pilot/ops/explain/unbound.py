"""The objects that have a host which a proxy does not route, and why they are not bound there.

A configuration is silent about what it lacks. So the objects that name the host are asked, in the order in which
people forget: the Gateway that a VirtualService names, its port, its hosts, exports, imports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mesh_pilot.explain.inspection.why.answer import WhyAnswer
from mesh_pilot.explain.inspection.why.clusters import cluster_parts
from mesh_pilot.explain.inspection.why.request import WhyRequest
from mesh_pilot.mesh.listeners.gateway_servers import GatewayServer, merged_servers, target_ports
from mesh_pilot.mesh.proxy.keys import ProxyKeys
from mesh_pilot.mesh.reach.sidecar_scope import default_service_export
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.mesh.routing.origins import FieldOfObject
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.hosts import host_covers
from mesh_pilot.model.proxy import NodeType
from mesh_pilot.model.service import Service
from mesh_pilot.ops.explain.attribution import CATCH_ALL, service_host
from mesh_pilot.ops.explain.fields import Decider, decider, service_decider
from mesh_pilot.world import View
from mesh_pilot.world.names import MESH_GATEWAY, export_namespaces, exported_to

Reason = tuple[str, Decider]
"""Why an object that has the host does not count, and the object."""


def is_unbound(answer: WhyAnswer) -> bool:
    """True if nothing in the proxy's configuration is for the request's host."""
    if answer.request.inbound or "denied" in answer.result:
        return False
    for step in answer.steps:
        if step.step == "virtual host" and step.name.rpartition("/")[2] not in CATCH_ALL:
            return bool(step.details["domain"] == "*" and answer.result.get("status") == 404)
        parts = cluster_parts(step.name) if step.step == "cluster" else None
        if parts is not None and parts[0]:
            return False
    return True


def holders(view: View, keys: ProxyKeys, request: WhyRequest, virtual_services: Iterable[Config]) -> Iterator[Reason]:
    """The objects that have the request's host, and why they are not bound at a proxy."""
    host = request.authority.partition(":")[0].lower() if request.is_http else request.server_name or request.host
    if keys.scope.type is NodeType.ROUTER:
        yield from _at_gateway(view, keys, host, request.port, [*_of_host(view, virtual_services, host)])
        return
    full = service_host(view, keys, host)
    yield from _service_reasons(view, keys, host, full, request.port)
    if scope_service(view, keys.scope, full) is None:
        yield from _at_sidecar(view, keys, _of_host(view, virtual_services, full))


# -- sidecars


def _service_reasons(view: View, keys: ProxyKeys, host: str, full: str, port: int) -> Iterator[Reason]:
    scope = keys.scope
    names = (full, view.full_host(host, scope.namespace), f"{host}.{scope.dns_domain}")
    for service in dict.fromkeys(service for name in names for service in view.services_named(name)):
        if reason := _service_reason(view, keys, service, port):
            yield reason, service_decider(view, service)


def _at_sidecar(view: View, keys: ProxyKeys, virtual_services: Iterable[Config]) -> Iterator[Reason]:
    for config in virtual_services:
        gateways = _gateways_of(view, config)
        if MESH_GATEWAY not in gateways:
            text = f"has the host for {_listed(gateways)} alone, not for sidecars (gateway mesh)"
        elif not _is_exported(view, config, keys.scope.namespace):
            text = f"has the host, and is exported to {_listed(config.spec.export_to)} only"
        else:
            continue
        yield text, decider(view, FieldOfObject(config.key, "spec.gateways" if config.spec.gateways else ""))


def _service_reason(view: View, keys: ProxyKeys, service: Service, port: int) -> str:
    scope = keys.scope
    exported = export_namespaces(service.export_to, default_service_export(view), service.namespace)
    if not exported_to(exported, scope.namespace):
        return f"has the host, and is exported to {_listed(sorted(exported)) or 'no namespace'} only"
    numbers = [each.number for each in service.ports]
    if port not in numbers:
        return f"has the host, with {_listed(numbers, 'port')}, not {port}"
    if scope_service(view, scope, service.host) is None:
        return f"has the host, and {scope.sidecar or 'the Sidecar'} does not import it"
    return ""


# -- gateways


def _at_gateway(view: View, keys: ProxyKeys, host: str, port: int, routed: Sequence[Config]) -> Iterator[Reason]:
    merged = merged_servers(view, keys.scope, target_ports(view, keys.workload))
    servers = [server for listener in merged.listeners for server in listener.servers]
    for config in routed:
        if not _is_exported(view, config, keys.scope.namespace):
            text = f"has the host, and is exported to {_listed(config.spec.export_to)} only"
            yield text, decider(view, FieldOfObject(config.key, "spec.exportTo"))
            continue
        names = _gateways_of(view, config)
        # That it is for sidecars, too, is no reason where it is for a Gateway as well.
        for name in [each for each in names if each != MESH_GATEWAY] or names:
            text = _gateway_reason(view, keys, servers, name, host, port, config)
            yield f"has the host for {text}", decider(view, FieldOfObject(config.key, "spec.gateways"))
    for server in servers if not routed else ():
        if any(host_covers(each, host) for each in server.server_names):
            text = f"has the host at port {server.bound}"
            text += ", and no VirtualService routes it" if server.bound == port else f", not at {port}"
            yield text, decider(view, FieldOfObject(server.gateway, f"spec.servers[{server.index}]"))


def _gateway_reason(
    view: View, keys: ProxyKeys, servers: Iterable[GatewayServer], name: str, host: str, port: int, config: Config
) -> str:
    """Why a VirtualService does not count at a gateway by one of the Gateways that it names."""
    # In the order in which a request fails: the Gateway is there, has proxies, this one among them, and a server with
    # the port and the host, which lets the VirtualService's namespace have it.
    if name == MESH_GATEWAY:
        return "sidecars alone (gateway mesh)"
    namespace, _, plain = name.partition("/")
    key = ConfigKey("Gateway", namespace, plain)
    gateway = view.config(key)
    if gateway is None:
        return f"{key}, which does not exist"
    if key not in keys.scope.gateways:
        labels = ",".join(f"{k}={v}" for k, v in sorted(gateway.spec.selector.items()))
        return f"{key}, which does not select this proxy (selector {labels or 'none'})"
    own = [server for server in servers if server.gateway == key]
    at_port = [server for server in own if server.bound == port]
    if not at_port:
        return f"{key}, which has {_listed(sorted({server.bound for server in own}), 'port') or 'no port'}, not {port}"
    if not any(host_covers(each, host) for server in at_port for each in server.server_names):
        return f"{key}, whose server at port {port} has other hosts: {_listed(at_port[0].server_names)}"
    if not any(host_covers(each, host) for server in at_port for each in server.hosts_for(config.namespace)):
        return f"{key}, which lets other namespaces than {config.namespace} have it"
    return f"{key}, and its routes are not for this request"


# -- both


def _of_host(view: View, virtual_services: Iterable[Config], host: str) -> Iterator[Config]:
    for config in virtual_services:
        hosts = (view.full_host(each, config.namespace) for each in config.spec.hosts)
        if any(host_covers(each, host) for each in hosts):
            yield config


def _gateways_of(view: View, config: Config) -> list[str]:
    return [view.full_gateway(each, config.namespace) for each in config.spec.gateways] or [MESH_GATEWAY]


def _is_exported(view: View, config: Config, namespace: str) -> bool:
    default = view.mesh().default_virtual_service_export_to
    return exported_to(export_namespaces(config.spec.export_to, default, config.namespace), namespace)


def _listed(names: Iterable[object], what: str = "") -> str:
    found = [str(name) for name in names]
    return f"{what}{'s' if what and len(found) > 1 else ''} {', '.join(found)}".strip() if found else ""
