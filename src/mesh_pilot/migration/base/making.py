"""Objects that a migration makes: services of a registry as ServiceEntries, and the check that all are valid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.migration.base.record import MadeObject, MigrationRecord, Spec, document
from mesh_pilot.model.config import ConfigError, Origin, Severity
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.service import Endpoint, Health, Port, Protocol, Service
from mesh_pilot.model.spiffe import SCHEME

NETWORKING, SECURITY, OWN = "networking.istio.io/v1", "security.istio.io/v1", "policy.mesh-pilot.io/v1alpha1"

_IN_MESH, _OUTSIDE = "MESH_INTERNAL", "MESH_EXTERNAL"


def make(record: MigrationRecord, made: Spec, made_from: Sequence[str], where: str) -> bool:
    """Add an object to the result. One that would not be valid is listed, and False."""
    made = _copied(made)
    name = f"{made['kind']}/{made['metadata']['name']}"
    try:
        config = decode(made, origin=Origin("migration"))
    except ConfigError as error:
        wrong = [problem for problem in error.problems if problem.severity is Severity.ERROR]
        for problem in wrong:
            reason = f"{name} made of it would not be valid: {problem}"
            record.leave(where, ", ".join(made_from), "", reason, "fix it there, or write the object yourself")
        return False
    for problem in config.warnings:
        record.change(", ".join(made_from), f"{name}: {problem}")
    first = record.add(MadeObject(made, tuple(made_from)))
    if first is not None and first.document != made:
        reason = f"there is another {name} already, made of {', '.join(first.made_from) or 'an object of that name'}"
        record.leave(where, ", ".join(made_from), "", reason, "rename one of them")
        return False
    return True


def _copied(value: Any) -> Any:
    """A value of which no part is in it twice, so that YAML names none of it by an alias."""
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def service_entry(
    service: Service, endpoints: Iterable[Endpoint], name: str, *, selector: dict[str, str] | None = None
) -> Spec:
    """The ServiceEntry that a service is. ``selector``: the labels of its WorkloadEntries, in place of endpoints."""
    found = sorted(endpoints, key=lambda e: (e.address, e.service_port, e.port))
    targets = common_targets(found)
    spec: Spec = {"hosts": [service.host]}
    if service.addresses:
        spec["addresses"] = list(service.addresses)
    spec["location"] = _OUTSIDE if service.external else _IN_MESH
    spec["ports"] = [entry_port(port, targets.get(port.name, 0)) for port in service.ports]
    is_static = all(is_ip(endpoint.address) for endpoint in found)
    spec["resolution"] = "STATIC" if is_static else "DNS"
    if selector is not None:
        spec["workloadSelector"] = {"labels": dict(sorted(selector.items()))}
    elif found:
        spec["endpoints"] = _endpoints(found, service.ports, targets)
    if service.export_to:
        own = {service.namespace: "."}
        spec["exportTo"] = sorted(own.get(each, each) for each in service.export_to)
    if service.subject_alt_names:
        spec["subjectAltNames"] = [
            each if each.startswith(SCHEME) else f"{SCHEME}cluster.local/{each}" for each in service.subject_alt_names
        ]
    return document(NETWORKING, "ServiceEntry", service.namespace, name, spec, service.labels)


def port_name(port: Port) -> str:
    """The name of a port in a ServiceEntry, which has to have one."""
    return port.name or f"port-{port.number}"


def entry_port(port: Port, target: int = 0) -> Spec:
    """A port of a ServiceEntry; without a protocol, proxies look at the bytes."""
    spec: Spec = {"number": port.number, "name": port_name(port)}
    if port.protocol is not Protocol.AUTO:
        spec["protocol"] = port.protocol.value
    return spec | ({"targetPort": target} if target not in (0, port.number) else {})


def common_targets(endpoints: Iterable[Endpoint]) -> dict[str, int]:
    """The target of each port of a service: the one that most of its endpoints have."""
    votes: dict[str, Counter[int]] = {}
    for endpoint in endpoints:
        votes.setdefault(endpoint.service_port, Counter())[endpoint.port] += 1
    return {name: min(found, key=lambda port: (-found[port], port)) for name, found in votes.items()}


def _endpoints(endpoints: Sequence[Endpoint], ports: Iterable[Port], targets: dict[str, int]) -> list[Spec]:
    names = {port.name: port_name(port) for port in ports}
    made: dict[tuple[str, int], Spec] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for endpoint in endpoints:
        if endpoint.service_port not in names or endpoint.health is Health.UNLISTED:
            continue
        # An address that serves one port several times is several endpoints.
        place = (endpoint.address, endpoint.service_port)
        key = (endpoint.address, seen[place])
        seen[place] += 1
        spec = made.setdefault(key, {"address": endpoint.address, **endpoint_facts(endpoint)})
        if endpoint.port != targets.get(endpoint.service_port):
            spec.setdefault("ports", {})[names[endpoint.service_port]] = endpoint.port
    return list(made.values())


def endpoint_facts(endpoint: Endpoint) -> Spec:
    """The fields of an endpoint, or a WorkloadEntry, besides its address."""
    account = endpoint.service_account.rpartition("/sa/")[2] if "/sa/" in endpoint.service_account else ""
    facts: Spec = {
        "labels": dict(sorted(endpoint.labels.items())),
        "network": endpoint.network,
        "locality": str(endpoint.locality),
        "serviceAccount": account,
        "weight": endpoint.weight if endpoint.weight != 1 else 0,
    }
    return {name: value for name, value in facts.items() if value}
