"""A service in words: ports, endpoints, routing, mTLS, and who may reach it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from mesh_pilot.identity.trust.validity import leaf_validity
from mesh_pilot.mesh.clusters.destination_rules import destination_rule_ref, merged_rule
from mesh_pilot.mesh.policies.peer_authentication import client_mtls
from mesh_pilot.mesh.routing.origins import FieldOfObject
from mesh_pilot.mesh.selection.workloads import Labels, selects_services
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.connect import connect_leaf, parse_connect_id
from mesh_pilot.model.counts import counted
from mesh_pilot.model.service import (
    CONNECT_TLS_MODE,
    MESH_TLS_MODE,
    SERVICE_LABEL,
    Endpoint,
    Health,
    Port,
    Protocol,
    Service,
)
from mesh_pilot.ops.explain.attribution import rule_fields
from mesh_pilot.ops.explain.description import DescribedLine, Description
from mesh_pilot.ops.explain.fields import decider, service_decider
from mesh_pilot.ops.explain.owners import services_behind
from mesh_pilot.ops.explain.policy_words import mtls_lines, policy_lines
from mesh_pilot.ops.explain.precedence import leads_to, virtual_services_for
from mesh_pilot.world import View
from mesh_pilot.world.names import MESH_GATEWAY

Workloads = tuple[str, Labels]
"""Workloads of one namespace with the same labels."""

ConnectedWorkloads = Mapping[tuple[str, int], Sequence[Workloads]]
"""The workloads of connected proxies, by address and port of an endpoint that they serve."""

WORKLOADS = 5
"""Kinds of workloads, by their labels, whose policies are described."""

SHOWN_ENDPOINTS = 10

_TLS_MODES = {MESH_TLS_MODE: "accepts mTLS", CONNECT_TLS_MODE: "a proxy of Consul's mesh, mTLS of its CA"}

_RESOLUTIONS = {
    "EDS": "endpoints from the control plane",
    "STRICT_DNS": "endpoints by DNS at the proxy",
    "LOGICAL_DNS": "endpoints by DNS at the proxy, one at a time",
    "ORIGINAL_DST": "no load balancing: to the address that the client chose",
    "DYNAMIC_DNS": "each request's own host, by DNS",
}


def describe_service(view: View, service: Service, namespace: str, connected: ConnectedWorkloads) -> Description:
    """A service, as a client in a namespace sees it."""
    endpoints = view.endpoints(service.key)
    healthy = sum(endpoint.health is Health.HEALTHY for endpoint in endpoints)
    summary = f"{counted(len(service.ports), 'port')}, {healthy} of {len(endpoints)} endpoints healthy"
    found = Description("service", service.host, summary)
    found.facts = {
        "host": service.host,
        "namespace": service.namespace,
        "registry": service.registry,
        "ports": [{"number": p.number, "name": p.name, "protocol": p.protocol.value} for p in service.ports],
        "endpoints": len(endpoints),
        "healthy": healthy,
    }
    found.section("Service", list(_declaration(view, service)))
    found.section("Ports", [DescribedLine(_port_text(port)) for port in service.ports])
    found.section("Endpoints", list(_endpoint_lines(endpoints)))
    found.section(f"Routing, for clients in namespace {namespace}", list(_routing(view, service, namespace, found)))
    found.section("Traffic policy", list(_rules(view, service, namespace, endpoints, found)))
    if not service.external:
        workloads = _workloads(view, service, endpoints, connected)
        found.section("mTLS", list(_mtls(view, service, workloads)))
        for title, lines in _access(view, workloads):
            found.section(title, lines)
    found.warnings += _warnings(service, endpoints, healthy)
    for key in services_behind(view, service, namespace):
        text = f"{key} has this host, too: clients of namespace {namespace} are not given its service"
        found.warnings.append(DescribedLine(text, decider(view, FieldOfObject(key))))
    return found


def _declaration(view: View, service: Service) -> Iterator[DescribedLine]:
    where = "outside the mesh" if service.external else "in the mesh"
    text = f"{where}, namespace {service.namespace}, from {service.registry}"
    yield DescribedLine(text, service_decider(view, service))
    yield DescribedLine(_RESOLUTIONS[service.resolution.value])
    if service.alias_of:
        yield DescribedLine(f"an alias of {service.alias_of}")
    if service.aliases:
        yield DescribedLine(f"aliases {', '.join(alias.host for alias in service.aliases)}")
    if service.addresses:
        yield DescribedLine(f"addresses {', '.join(service.addresses)}")
    if service.auto_address:
        yield DescribedLine(f"address {service.auto_address} where proxies capture DNS")
    if service.export_to:
        yield DescribedLine(f"exported to {', '.join(sorted(service.export_to))}")


def _port_text(port: Port) -> str:
    target = f", at endpoints {port.target_port}" if port.target_port not in (0, port.number) else ""
    return f"{port.number} {port.name}: {_protocol_text(port)}{target}"


def _protocol_text(port: Port) -> str:
    if port.protocol is Protocol.AUTO:
        return "no protocol is known: detected by looking at the first bytes"
    return f"{port.protocol.value}, {f'by {port.said_by}' if port.said_by else 'as it is declared'}"


def _endpoint_lines(endpoints: Sequence[Endpoint]) -> Iterator[DescribedLine]:
    if not endpoints:
        yield DescribedLine("none")
        return
    for endpoint in endpoints[:SHOWN_ENDPOINTS]:
        labels = ", ".join(f"{k}={v}" for k, v in sorted(endpoint.labels.items()) if "/" not in k)
        parts = [f"{endpoint.address}:{endpoint.port} ({endpoint.service_port})", endpoint.health.value.lower()]
        parts += [f"also {address}" for address in endpoint.additional_addresses]
        parts += [text for text in (str(endpoint.locality), labels) if text]
        parts += [f"failover target {endpoint.failover_rank}"] if endpoint.failover_rank else []
        parts.append(_TLS_MODES.get(endpoint.tls_mode, "plaintext"))
        yield DescribedLine(", ".join(parts))
    if len(endpoints) > SHOWN_ENDPOINTS:
        states = Counter(endpoint.health.value.lower() for endpoint in endpoints)
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        yield DescribedLine(f"and {len(endpoints) - SHOWN_ENDPOINTS} more; in all {counts}")


# -- routing


def _routing(view: View, service: Service, namespace: str, found: Description) -> Iterator[DescribedLine]:
    metas = list(virtual_services_for(view, service.host, namespace))
    found.facts["virtual_services"] = [str(meta.key) for meta in metas]
    for number, meta in enumerate(metas):
        config = view.config(meta.key)
        rules = len(config.spec.http) if config is not None else 0
        text = f"{counted(rules, 'HTTP rule')} for {', '.join(meta.hosts)}"
        if number:
            text += "; not used where an earlier one applies"
        yield DescribedLine(text, decider(view, FieldOfObject(meta.key)))
    if not metas:
        yield DescribedLine("no VirtualService: every request goes to the service itself")
    for config in view.all_configs("Gateway"):
        name = f"{config.namespace}/{config.name}"
        for meta in view.virtual_services(name):
            if name != MESH_GATEWAY and (service.host in meta.hosts or leads_to(view, meta, service)):
                text = f"reachable through Gateway {name} as {', '.join(meta.hosts)}"
                yield DescribedLine(text, decider(view, FieldOfObject(meta.key)))


def _rules(
    view: View, service: Service, namespace: str, endpoints: Sequence[Endpoint], found: Description
) -> Iterator[DescribedLine]:
    ref = destination_rule_ref(view, namespace, frozenset(), service.key)
    found.facts["destination_rules"] = [str(key) for key in ref]
    for key in ref:
        config = view.config(key)
        if config is None:
            continue
        for field, text in rule_fields(view, key, 0, ""):
            yield DescribedLine(f"{text}: {_policy_words(config)}", decider(view, field))
        for index, subset in enumerate(config.spec.subsets):
            count = sum(subset.labels.items() <= endpoint.labels.items() for endpoint in endpoints)
            labels = ", ".join(f"{k}={v}" for k, v in subset.labels.items()) or "any labels"
            field = FieldOfObject(key, f"spec.subsets[{index}]")
            yield DescribedLine(f"subset {subset.name} ({labels}): {counted(count, 'endpoint')}", decider(view, field))
    if not ref:
        yield DescribedLine("no DestinationRule: the mesh's defaults")
    declared = set(merged_rule(view, ref).subsets)
    for meta in virtual_services_for(view, service.host, namespace):
        for config_path, name in _subsets_used(view, meta.key, service):
            if name not in declared:
                text = f"no DestinationRule for {service.host} declares subset {name}: such requests fail (503)"
                found.warnings.append(DescribedLine(text, decider(view, config_path)))


def _subsets_used(view: View, key: ConfigKey, service: Service) -> Iterator[tuple[FieldOfObject, str]]:
    config = view.config(key)
    for i, rule in enumerate(config.spec.http if config is not None else ()):
        for j, route in enumerate(rule.route):
            destination = route.destination
            if destination is None or not destination.subset:
                continue
            if view.destination_host(destination.host, key.namespace) == service.host:
                yield FieldOfObject(key, f"spec.http[{i}].route[{j}].destination.subset"), destination.subset


def _policy_words(config: Config) -> str:
    policy = config.spec.traffic_policy
    named = {
        "load balancing": policy.load_balancer,
        "connection pool": policy.connection_pool,
        "outlier detection": policy.outlier_detection,
        "TLS": policy.tls,
        "separate ports": policy.port_level_settings or None,
    }
    return ", ".join(name for name, value in named.items() if value is not None) or "empty"


# -- security


def _mtls(view: View, service: Service, workloads: Mapping[Workloads, set[int]]) -> Iterator[DescribedLine]:
    for port in service.ports:
        mode = client_mtls(view, service.key, port.name, False)
        if mode is not None:
            use = "mTLS" if mode.value != "DISABLE" else "plaintext"
            yield DescribedLine(f"clients use {use} to port {port.number} where endpoints accept it")
    if service.connect_id:
        yield from map(DescribedLine, _connect(view, service.connect_id))
    lines = (
        line
        for (namespace, labels), ports in islice(workloads.items(), WORKLOADS)
        for line in mtls_lines(view, namespace, labels, ports)
    )
    yield from dict.fromkeys(lines)


def _connect(view: View, connect_id: str) -> Iterator[str]:
    """A service's place in Consul's own mesh."""
    named = parse_connect_id(connect_id)
    leaf = view.secret("", connect_leaf(named.service)) if named is not None else None
    yield f"in Consul's mesh it is {connect_id}"
    if leaf is None:
        yield "no leaf of Consul's CA: proxies of that mesh can't call its proxies of this one"
    else:
        ends = leaf_validity(leaf.certificate_chain).ends
        yield f"the service's proxies take callers of that mesh, with a leaf of Consul's CA until {ends:%F %T} UTC"


def _access(view: View, workloads: Mapping[Workloads, set[int]]) -> Iterator[tuple[str, list[DescribedLine]]]:
    seen: dict[tuple[str, ...], str] = {}
    for namespace, labels in islice(workloads, WORKLOADS):
        lines = list(policy_lines(view, namespace, labels))
        texts = tuple(line.text for line in lines)
        if texts not in seen:
            shown = ", ".join(f"{k}={v}" for k, v in sorted(labels) if "/" not in k)
            seen[texts] = shown
            yield f"Who may reach workloads of {namespace}{f' with {shown}' if shown else ''}", lines


def _workloads(
    view: View, service: Service, endpoints: Sequence[Endpoint], connected: ConnectedWorkloads
) -> dict[Workloads, set[int]]:
    """The ports of endpoints, by namespace and labels: those of their proxies, where these are connected."""
    by_service = selects_services(view)
    found: dict[Workloads, set[int]] = {}
    for endpoint in endpoints:
        labels = frozenset(endpoint.labels.items())
        if by_service and endpoint.registration is not None:
            labels |= {(f"{SERVICE_LABEL}{endpoint.registration.service}", "true")}
        own = (endpoint.namespace or service.namespace, labels)
        for workloads in connected.get((endpoint.address, endpoint.port), (own,)):
            found.setdefault(workloads, set()).add(endpoint.port)
    return found


def _warnings(service: Service, endpoints: Sequence[Endpoint], healthy: int) -> Iterator[DescribedLine]:
    if service.resolution.value == "EDS" and not endpoints:
        yield DescribedLine("it has no endpoints: requests are answered 503")
    elif endpoints and not healthy:
        yield DescribedLine("none of its endpoints is healthy")
    for port in service.ports:
        if port.protocol is Protocol.AUTO:
            or_name = "" if service.config is not None else ", or name it http-... or tcp-..."
            text = f"port {port.number} ({port.name}) has no protocol: declare it{or_name}"
            yield DescribedLine(text)
        served = any(endpoint.service_port == port.name for endpoint in endpoints)
        if endpoints and not served and service.resolution.value == "EDS":
            yield DescribedLine(f"no endpoint serves port {port.number} ({port.name})")
