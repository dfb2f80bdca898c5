"""Consul's catalog: services as ServiceEntries, if they are to leave Consul, and upstreams of proxies as Sidecars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from mesh_pilot.base.reading import as_object
from mesh_pilot.consul.client.settings import ConsulSettings
from mesh_pilot.consul.mesh import ConsulMesh, ServiceFacts
from mesh_pilot.consul.mesh.fields import Fields
from mesh_pilot.consul.mesh.values import object_name, selecting_labels
from mesh_pilot.consul.source.instance import SERVED_KINDS, ConsulInstance, is_entry, read_instance
from mesh_pilot.consul.source.mapping import MappedService, read_service
from mesh_pilot.migration.base.making import NETWORKING, make, service_entry
from mesh_pilot.migration.base.reading import ForeignObject
from mesh_pilot.migration.base.record import MigrationRecord, document
from mesh_pilot.migration.consul.values import ConsulOptions, leave_problems
from mesh_pilot.model.config import Problem
from mesh_pilot.model.service import Protocol

PROXY_KIND = "connect-proxy"
_OWN = "consul"
"""Consul's own servers, as a service."""

_LIST_ONLY = "names of services, without their instances"
_DUMP_HEALTH = "dump /v1/health/service/NAME of each"
_UPSTREAM_REASONS: Mapping[str, str | None] = {
    "localbindport": "clients call the service's host, not a local port",
    "localbindaddress": "clients call the service's host, not a local port",
    "localbindsocketpath": "clients call the service's host, not a local socket",
    "destinationtype": None,
    "config": "set it in a DestinationRule of the upstream, with a workloadSelector",
    "meshgateway": "gateways between networks are those of meshNetworks",
}


class ConsulCatalog:
    """State: the instances of services, and the upstreams of their proxies, with where each was read."""

    def __init__(self, record: MigrationRecord, options: ConsulOptions) -> None:
        self._record = record
        self._options = options
        self._instances: dict[str, list[tuple[ConsulInstance, ForeignObject]]] = {}
        self._upstreams: dict[str, dict[str, ForeignObject]] = {}
        self._read: dict[str, MappedService] = {}

    def put(self, found: ForeignObject) -> bool:
        """Take an instance, or a service's definition; False: it is neither."""
        data = found.data
        if is_entry(data):
            self._put_instance(found, read_instance(data), data["Service"])
            return True
        if isinstance(data.get("ServiceName"), str) and "ServiceID" in data:
            entry = _of_catalog(data)
            self._put_instance(found, read_instance(entry), entry["Service"])
            return True
        definitions = _definitions(data)
        if definitions is not None:
            self._put_definitions(found, definitions)
            return True
        if data and all(isinstance(value, list) for value in data.values()) and "Sources" not in data:
            for name in data:
                if name != _OWN:
                    self._record.leave(found.where_of(str(name)), f"service/{name}", "", _LIST_ONLY, _DUMP_HEALTH)
            return True
        return False

    def facts(self) -> Iterator[tuple[str, ServiceFacts]]:
        """The facts of each service that conversions depend on."""
        settings = ConsulSettings(
            domain=self._options.domain, datacenter=self._options.datacenter, namespace=self._options.namespace
        )
        for name, instances in sorted(self._instances.items()):
            reading = read_service(name, [instance for instance, _ in instances], settings)
            self._read[name] = reading
            if reading.service is None or reading.endpoints is None:
                continue
            endpoints = reading.endpoints.endpoints
            accounts = tuple(sorted({e.service_account for e in endpoints if e.service_account}))
            ports = tuple(sorted({e.port for e in endpoints if e.port}))
            yield name, ServiceFacts(reading.service.namespace, accounts, ports)

    def finish(self, mesh: ConsulMesh) -> None:
        """Make what is to be made of the services."""
        for name, reading in sorted(self._read.items()):
            found = self._instances[name][0][1]
            self._finish_service(name, reading, found, mesh)
        for name, upstreams in sorted(self._upstreams.items()):
            self._sidecar(name, upstreams, mesh)

    # -- inside

    def _put_instance(self, found: ForeignObject, instance: ConsulInstance, service: object) -> None:
        name = str(service.get("Service", "")) if isinstance(service, Mapping) else ""
        if instance.kind == PROXY_KIND:
            self._record.take("proxy of a service")
            proxy = service.get("Proxy") if isinstance(service, Mapping) else None
            self._put_upstreams(found, instance.proxied, proxy, "Service.Proxy")
        elif instance.kind not in SERVED_KINDS:
            reason = f"is a {instance.kind} of Consul's own mesh"
            self._record.leave_object(found, reason, "run mesh-pilot proxy router, and write a Gateway")
        elif name == _OWN or not name:
            self._record.leave_object(found, "is of Consul itself", is_needless=True)
        else:
            self._instances.setdefault(name, []).append((instance, found))

    def _put_definitions(self, found: ForeignObject, definitions: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        for path, definition in definitions:
            problems: list[Problem] = []
            fields = Fields(definition, path, problems)
            name = fields.text("Name")
            sidecar = (connect := fields.part("Connect")) and connect.part("SidecarService")
            proxy = sidecar.part("Proxy") if sidecar else None
            if proxy is None or not name:
                reason = "a service is registered by its agent, as before"
                self._record.leave_object(found, reason, path=path, is_needless=True)
                continue
            self._record.take("definition of a service")
            self._take_upstreams(found, name, proxy)
            leave_problems(self._record, found, proxy, (), _UPSTREAM_REASONS)

    def _put_upstreams(self, found: ForeignObject, owner: str, proxy: object, path: str) -> None:
        fields = Fields(as_object(proxy), path, [])
        for name in ("DestinationServiceName", "DestinationServiceID", "LocalServiceAddress"):
            fields.text(name)
        fields.integer("LocalServicePort")
        if owner:
            self._take_upstreams(found, owner, fields)
        reasons = {**_UPSTREAM_REASONS, "mode": "interception is a setting of the machine: mesh-pilot iptables"}
        leave_problems(self._record, found, fields, (), reasons)

    def _take_upstreams(self, found: ForeignObject, owner: str, proxy: Fields) -> None:
        taken = self._upstreams.setdefault(owner, {})
        for upstream in proxy.parts("Upstreams"):
            name, datacenter = upstream.text("DestinationName"), upstream.text("Datacenter")
            if tenant := upstream.other_tenant() or upstream.text("DestinationNamespace").replace("default", ""):
                upstream.problem("", f"names {tenant}; it is not taken")
            elif upstream.text("DestinationType") == "prepared_query" or not name:
                upstream.problem("DestinationName", "is not a service: prepared queries have no counterpart")
            else:
                where = f"{datacenter}." if datacenter not in ("", self._options.datacenter) else ""
                taken[f"{name}.service.{where}{self._options.domain}".lower()] = found

    def _finish_service(self, name: str, reading: MappedService, found: ForeignObject, mesh: ConsulMesh) -> None:
        for problem in reading.problems:
            self._record.leave_object(found, problem.reason, path=problem.path)
        if not self._options.services:
            self._record.take("service, which stays in Consul")
            return
        if reading.service is None or reading.endpoints is None:
            return
        service = reading.service
        said = Protocol.parse(mesh.protocol(name))
        if said is not Protocol.AUTO:
            ports = tuple(
                attrs.evolve(port, protocol=said) if port.protocol is Protocol.AUTO else port for port in service.ports
            )
            service = attrs.evolve(service, ports=ports)
        own = selecting_labels(name) or {}
        endpoints = [attrs.evolve(each, labels={**each.labels, **own}) for each in reading.endpoints.endpoints]
        made = service_entry(service, endpoints, object_name(name))
        if make(self._record, made, (f"service/{name}",), found.where):
            self._record.take("service")
            labels = ", ".join(f"{key}={value}" for key, value in own.items())
            reason = f"the ServiceEntry has the instances of now; give their proxies the label {labels}"
            self._record.change(f"service/{name}", reason)

    def _sidecar(self, name: str, upstreams: Mapping[str, ForeignObject], mesh: ConsulMesh) -> None:
        if not upstreams:
            return
        labels = selecting_labels(name)
        (found, *_) = upstreams.values()
        if labels is None:
            self._record.leave(found.where, name, "", f"the name {name!r} is too long for a label")
            return
        facts = mesh.facts(name)
        namespace = facts.namespace if facts is not None and facts.namespace else self._options.namespace
        hosts = [f"*/{host}" for host in sorted(upstreams)]
        spec = {"workloadSelector": {"labels": labels}, "egress": [{"hosts": hosts}]}
        made = document(NETWORKING, "Sidecar", namespace, object_name(name), spec)
        make(self._record, made, (f"upstreams of {name}",), found.where)


def _of_catalog(data: Mapping[str, object]) -> dict[str, Any]:
    """An instance of ``/v1/catalog/service/NAME`` as a health entry, without checks."""
    service = {
        "ID": data.get("ServiceID"),
        "Service": data.get("ServiceName"),
        "Kind": data.get("ServiceKind"),
        "Tags": data.get("ServiceTags"),
        "Meta": data.get("ServiceMeta"),
        "Address": data.get("ServiceAddress"),
        "Port": data.get("ServicePort"),
        "TaggedAddresses": data.get("ServiceTaggedAddresses"),
        "Weights": data.get("ServiceWeights"),
        "Proxy": data.get("ServiceProxy"),
        "Connect": data.get("ServiceConnect"),
    }
    node = {
        "Node": data.get("Node"),
        "Address": data.get("Address"),
        "Datacenter": data.get("Datacenter"),
        "Meta": data.get("NodeMeta"),
        "TaggedAddresses": data.get("TaggedAddresses"),
    }
    return {"Node": node, "Service": service, "Checks": []}


def _definitions(data: Mapping[str, object]) -> Sequence[tuple[str, Mapping[str, Any]]] | None:
    """The services of a definition file of an agent; None if the file is not one."""
    for name in ("service", "services"):
        value = data.get(name)
        if isinstance(value, Mapping):
            return [(name, value)]
        if isinstance(value, list):
            return [(f"{name}[{i}]", each) for i, each in enumerate(value) if isinstance(each, Mapping)]
    return None
