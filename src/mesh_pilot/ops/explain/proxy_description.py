"""A proxy in words: what it serves, what it sees, and which objects apply to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mesh_pilot.mesh.listeners.gateway_servers import GatewayListener, merged_servers, target_ports
from mesh_pilot.mesh.listeners.inbound import merged_inbound_ports, workload_instances
from mesh_pilot.mesh.proxy.keys import ProxyKeys
from mesh_pilot.mesh.reach.sidecar_scope import egress_listeners
from mesh_pilot.mesh.reach.unknown_hosts import unknown_host
from mesh_pilot.mesh.routing.origins import FieldOfObject
from mesh_pilot.mesh.selection.workloads import selected
from mesh_pilot.model.proxy import NodeType, Proxy
from mesh_pilot.ops.explain.description import DescribedLine, Description
from mesh_pilot.ops.explain.fields import decider, service_decider
from mesh_pilot.ops.explain.policy_words import mtls_lines, policy_lines
from mesh_pilot.world import View

SELECTED = (
    "RequestAuthentication",
    "Telemetry",
    "WasmPlugin",
    "TrafficExtension",
    "LocalRateLimit",
    "GlobalRateLimit",
)
"""Kinds that combine: all that select a workload apply."""


def describe_proxy(view: View, proxy: Proxy, keys: ProxyKeys) -> Description:
    """A connected proxy."""
    is_router = proxy.type is NodeType.ROUTER
    kind = "gateway" if is_router else "proxyless gRPC client" if proxy.is_grpc else "sidecar"
    found = Description("proxy", proxy.name, f"{kind} at {', '.join(proxy.ip_addresses)}")
    labels = keys.workload.labels
    found.facts = {
        "name": proxy.name,
        "id": proxy.id,
        "type": proxy.type.value,
        "namespace": proxy.namespace,
        "labels": dict(labels),
        "identity": proxy.identity,
    }
    found.section("Proxy", list(_about(proxy, keys)))
    found.section("Serves", list(_served(view, keys)))
    if is_router:
        found.section("Gateways", list(_gateways(view, keys, found)))
    else:
        found.section("Sees", list(_egress(view, keys)))
        ports = [port.number for port in merged_inbound_ports(view, keys.workload).ports]
        found.section("mTLS", list(mtls_lines(view, proxy.namespace, labels, ports)))
    found.section("Who may reach it", list(policy_lines(view, proxy.namespace, labels)))
    found.section("Other objects", list(_others(view, keys)))
    for conflict in merged_inbound_ports(view, keys.workload).conflicts if not is_router else ():
        found.warnings.append(DescribedLine(f"{conflict.listener}: {conflict.reason}"))
    return found


def _about(proxy: Proxy, keys: ProxyKeys) -> Iterator[DescribedLine]:
    labels = ", ".join(f"{k}={v}" for k, v in sorted(keys.workload.labels))
    yield DescribedLine(f"namespace {proxy.namespace}" + (f", labels {labels}" if labels else ", no labels"))
    yield DescribedLine(f"identity {proxy.identity}" if proxy.identity else "no certificate of the mesh: plaintext")
    if place := str(keys.locality.locality):
        yield DescribedLine(f"locality {place}")
    if proxy.type is NodeType.SIDECAR:
        taken = proxy.interception.value
        text = "connections are not captured: applications connect to it" if taken == "NONE" else f"captured by {taken}"
        yield DescribedLine(text)


def _served(view: View, keys: ProxyKeys) -> Iterator[DescribedLine]:
    for instance in workload_instances(view, keys.workload):
        service, port, endpoint = instance.service, instance.port, instance.endpoint
        text = f"{service.host}:{port.number} ({port.protocol.value}) at {endpoint.address}:{endpoint.port}"
        yield DescribedLine(f"{text}, {endpoint.health.value.lower()}", service_decider(view, service))


def _egress(view: View, keys: ProxyKeys) -> Iterator[DescribedLine]:
    scope = keys.scope
    if scope.sidecar is None:
        yield DescribedLine("all services exported to its namespace: no Sidecar applies")
    else:
        for egress in egress_listeners(view, scope):
            hosts = ", ".join(f"{namespace}/{host}" for namespace, host in egress.hosts)
            where = f"on port {egress.port}: " if egress.port else ""
            path = f"spec.egress[{egress.index}]" if egress.index >= 0 else ""
            yield DescribedLine(f"{where}{hosts}", decider(view, FieldOfObject(scope.sidecar, path)))
    cluster = unknown_host(view, scope.sidecar)
    yield DescribedLine(f"undeclared hosts: {f'to {cluster}' if cluster else 'refused (REGISTRY_ONLY)'}")


def _gateways(view: View, keys: ProxyKeys, found: Description) -> Iterator[DescribedLine]:
    merged = merged_servers(view, keys.scope, target_ports(view, keys.workload))
    for listener in merged.listeners:
        for server in listener.servers:
            text = f"{server.bind}:{server.bound} {server.kind.value} for {', '.join(server.server_names)}"
            yield DescribedLine(text, decider(view, FieldOfObject(server.gateway, f"spec.servers[{server.index}]")))
    found.warnings += _without_policies(view, keys, merged.listeners)
    for skipped in merged.skipped:
        field = FieldOfObject(skipped.server.gateway, f"spec.servers[{skipped.server.index}]")
        found.warnings.append(DescribedLine(f"left out: {skipped.reason}", decider(view, field)))
    if not keys.scope.gateways:
        found.warnings.append(DescribedLine("no Gateway selects it: it has no listeners"))


def _without_policies(view: View, keys: ProxyKeys, listeners: Iterable[GatewayListener]) -> Iterator[DescribedLine]:
    """The policies that a router's UDP listeners do not have: Envoy applies none to datagrams."""
    workload, ports = keys.workload, [str(each.port) for each in listeners if each.is_udp]
    for kind in ("AuthorizationPolicy", "LocalRateLimit") if ports else ():
        for key in selected(view, kind, workload.scope.namespace, workload.labels):
            text = f"{kind} does not apply to datagrams: UDP port {', '.join(ports)}"
            yield DescribedLine(text, decider(view, FieldOfObject(key)))


def _others(view: View, keys: ProxyKeys) -> Iterator[DescribedLine]:
    workload = keys.workload
    for kind in SELECTED:
        for key in selected(view, kind, workload.scope.namespace, workload.labels):
            yield DescribedLine(f"{kind} applies", decider(view, FieldOfObject(key)))
    for ref in keys.filters:
        yield DescribedLine("EnvoyFilter applies", decider(view, FieldOfObject(ref.config)))
