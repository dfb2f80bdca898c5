"""Dataplanes and external services: the services of a mesh, and where they run.

A service is called at ``NAME.mesh``, port 80, as Kuma's own DNS and virtual addresses have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from mesh_pilot.migration.base.fields import ForeignFields
from mesh_pilot.migration.base.left import reasons
from mesh_pilot.migration.base.making import NETWORKING, make
from mesh_pilot.migration.base.names import namespace_name, object_name
from mesh_pilot.migration.base.record import MigrationRecord, Spec, document
from mesh_pilot.migration.kuma.resources import PROTOCOL_TAG, SERVICE_TAG, ZONE_TAG, KumaResource
from mesh_pilot.model.net import is_ip

PORT = 80
"""The port of every service of tags in Kuma."""

_PROTOCOLS: Mapping[str, str] = {"http": "HTTP", "http2": "HTTP2", "grpc": "GRPC", "tcp": "TCP", "kafka": "TCP"}
HTTP_PROTOCOLS = frozenset(("HTTP", "HTTP2", "GRPC"))
_HOST = re.compile(r"[^a-z0-9.-]+")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_DATAPLANE_REASONS = reasons("kuma_dataplane_fields")
_EXTERNAL_REASONS = reasons("kuma_external_fields")


@attrs.define
class MeshedService:
    """A service of a mesh. State: what its instances say."""

    name: str
    host: str
    protocol: str = ""
    port: int = PORT
    selector: dict[str, str] = attrs.field(factory=dict)
    targets: list[int] = attrs.field(factory=list)
    instances: list[Mapping[str, str]] = attrs.field(factory=list)
    """The tags of each."""
    made_from: list[KumaResource] = attrs.field(factory=list)

    @property
    def is_http(self) -> bool:
        return self.protocol in HTTP_PROTOCOLS

    @property
    def target(self) -> int:
        """The port that most instances listen at."""
        counts = {port: self.targets.count(port) for port in self.targets}
        return min(counts, key=lambda port: (-counts[port], port), default=0)


class MeshServices:
    """The services of one mesh. State: the services by name; WorkloadEntries that wait for the ports of theirs."""

    def __init__(self, record: MigrationRecord, mesh: str, *, is_alone: bool) -> None:
        """``is_alone``: there is no other mesh, from which this one is to be hidden."""
        self._record = record
        self.mesh = mesh
        self.namespace = namespace_name(mesh)
        self._scope: Spec = {} if is_alone else {"exportTo": ["."]}
        self.services: dict[str, MeshedService] = {}
        self._entries: list[tuple[Spec, str, int, KumaResource]] = []
        self._labels: list[tuple[Mapping[str, str], str]] = []
        """The labels of Dataplanes, each with the service."""
        self.tls_of: dict[str, tuple[Spec, KumaResource]] = {}
        """The TLS towards external services, for their DestinationRules."""

    # -- questions

    def host(self, name: str) -> str:
        """The host of a service, known or not."""
        found = self.services.get(name)
        return found.host if found is not None else mesh_host(name)

    def with_labels(self, labels: Mapping[str, str]) -> tuple[set[str], set[str]]:
        """The services of which some instances, and those of which all instances have these labels or tags."""
        some = {service for found, service in self._labels if labels.items() <= found.items()}
        others = {service for found, service in self._labels if not labels.items() <= found.items()}
        return some, some - others

    def names(self) -> list[str]:
        return sorted(self.services)

    # -- what is read

    def put_dataplane(self, resource: KumaResource) -> None:
        """Take a Dataplane."""
        networking = resource.fields.part("networking")
        address = networking.text("address")
        gateway = networking.part("gateway")
        if gateway:
            gateway.text_map("tags")
            gateway.text("type")
            reason = "a gateway of Kuma's"
            resource.fields.leave("networking", reason, "run mesh-pilot proxy router, and write a Gateway")
        inbounds = networking.parts("inbound")
        services: dict[str, None] = {}
        for inbound in inbounds:
            self._put_inbound(resource, inbound, address, services)
        if not inbounds and not gateway:
            networking.leave("inbound", "it serves nothing: a client, which needs no WorkloadEntry")
        resource.fields.finish(_DATAPLANE_REASONS)

    def _put_inbound(
        self, resource: KumaResource, inbound: ForeignFields, address: str, taken: dict[str, None]
    ) -> None:
        # Every field is read before the first return: what is not read is listed as not taken. Kuma's newer resources
        # have the service as a label of the Dataplane, those of Kubernetes as the Pod's label "app".
        tags = inbound.text_map("tags")
        name = tags.get(SERVICE_TAG) or resource.labels.get(SERVICE_TAG, "") or resource.labels.get("app", "")
        port = inbound.integer("port") or 0
        own_port = inbound.integer("servicePort") or 0
        own_address = inbound.text("address") or address
        inbound.text("name")
        state = inbound.text("state")
        protocol = self._protocol(inbound, tags.get(PROTOCOL_TAG) or inbound.text("protocol"))
        if not name or not 0 < port < 65536 or not own_address:
            reason = f"has no address, no port, or no tag {SERVICE_TAG}"
            inbound.leave("", reason, "write a WorkloadEntry and a ServiceEntry")
            return
        if state == "Ignored":
            inbound.leave("state", "an inbound that is ignored", "")
            return
        if name in taken:
            inbound.leave("", f"another inbound of {name}; the first one is taken", "write a second WorkloadEntry")
            return
        taken[name] = None
        if own_port and own_port != port:
            do = f"let the application listen on {port}, or write a Sidecar: ingress with defaultEndpoint"
            inbound.leave("servicePort", f"the application listens on {own_port}, clients connect to {port}", do)
        service = self.services.setdefault(
            name, MeshedService(name, mesh_host(name), selector={SERVICE_TAG: label_value(name)})
        )
        if service.protocol and service.protocol != protocol:
            inbound.leave("tags", f"instances of {name} say several protocols; {service.protocol} is taken")
        service.protocol = service.protocol or protocol
        service.targets.append(port)
        service.instances.append(tags)
        service.made_from.append(resource)
        labels = {key: value for key, value in {**resource.labels, **tags}.items() if _is_label(value)}
        for key in sorted({**resource.labels, **tags}.keys() - labels.keys() - {SERVICE_TAG}):
            inbound.leave("tags", f"the value of {key} can't be that of a label")
        labels[SERVICE_TAG] = label_value(name)
        self._labels.append((labels, name))
        spec: Spec = {"address": own_address, "labels": dict(sorted(labels.items())), "serviceAccount": name}
        if zone := tags.get(ZONE_TAG) or resource.labels.get(ZONE_TAG):
            spec["locality"] = zone
        entry = object_name(resource.name) if len(taken) == 1 else object_name(resource.name, name)
        made = document(NETWORKING, "WorkloadEntry", self.namespace, entry, spec, spec["labels"])
        self._entries.append((made, name, port, resource))

    def put_external(self, resource: KumaResource) -> None:
        """Take an ExternalService."""
        tags = resource.fields.text_map("tags")
        name = tags.get(SERVICE_TAG, "")
        networking = resource.fields.part("networking")
        address, _, port = networking.text("address").rpartition(":")
        if not name or not address or not port.isdecimal() or not 0 < int(port) < 65536:
            reason = f"has no tag {SERVICE_TAG}, or no address with a port"
            resource.fields.leave("networking", reason, "write a ServiceEntry")
            resource.fields.finish(_EXTERNAL_REASONS)
            return
        address = address.strip("[]")
        protocol = self._protocol(resource.fields, tags.get(PROTOCOL_TAG, ""))
        labels = {key: value for key, value in tags.items() if key != SERVICE_TAG and _is_label(value)}
        endpoint = {"address": address, **({"labels": labels} if labels else {})}
        self._external(resource, name, mesh_host(name), PORT, int(port), protocol, [endpoint])
        self._external_tls(resource, name, networking.part("tls"))
        resource.fields.finish(_EXTERNAL_REASONS)

    def put_mesh_external(self, resource: KumaResource) -> None:
        """Take a MeshExternalService."""
        match = resource.fields.part("match")
        match.text("type")
        port = match.integer("port") or 0
        protocol = self._protocol(match, match.text("protocol"))
        endpoints = []
        targets = []
        for endpoint in resource.fields.parts("endpoints"):
            address, number = endpoint.text("address"), endpoint.integer("port") or 0
            if not address or not number:
                endpoint.leave("", "has no address or no port")
                continue
            targets.append(number)
            endpoints.append({"address": address, "port": number})
        host = f"{_host_label(resource.name)}.extsvc.mesh.local"
        if not port or not endpoints:
            resource.fields.leave("", "has no port, or no endpoints", "write a ServiceEntry")
            resource.fields.finish(_EXTERNAL_REASONS)
            return
        target = max(set(targets), key=lambda each: (targets.count(each), -each))
        named = [
            {"address": e["address"], **({"ports": {f"port-{port}": e["port"]}} if e["port"] != target else {})}
            for e in endpoints
        ]
        self._external(resource, resource.name, host, port, target, protocol, named)
        self._external_tls(resource, resource.name, resource.fields.part("tls"))
        resource.fields.finish(_EXTERNAL_REASONS)

    def put_mesh_service(self, resource: KumaResource) -> None:
        """Take a MeshService: more ports, and its own host, for Dataplanes that it selects."""
        selector = resource.fields.part("selector")
        tags = selector.text_map("dataplaneTags") or selector.part("dataplaneLabels").text_map("matchLabels")
        ports: list[Spec] = []
        for port in resource.fields.parts("ports"):
            number, target = port.integer("port") or 0, port.integer("targetPort") or 0
            name = port.text("name")
            protocol = self._protocol(port, port.text("appProtocol"))
            if not number:
                port.leave("", "has no port")
                continue
            said: Spec = {"number": number, "name": name or f"port-{number}", "protocol": protocol}
            ports.append(said | ({"targetPort": target} if target not in (0, number) else {}))
        resource.fields.pass_over("state", "identities")
        if not tags or not ports:
            resource.fields.leave("selector", "selects no Dataplanes by tags or labels", "write a ServiceEntry")
        else:
            host = f"{_host_label(resource.name)}.svc.mesh.local"
            spec: Spec = {"hosts": [host], "location": "MESH_INTERNAL", "ports": ports, "resolution": "STATIC"}
            spec |= {"workloadSelector": {"labels": dict(sorted(tags.items()))}, **self._scope}
            name = object_name("meshservice", resource.name)
            made = document(NETWORKING, "ServiceEntry", self.namespace, name, spec)
            if make(self._record, made, (resource.object,), resource.where):
                known = MeshedService(resource.name, host, ports[0]["protocol"], ports[0]["number"], dict(tags))
                self.services.setdefault(resource.name, known)
        resource.fields.finish({})

    # -- what is made

    def finish(self) -> None:
        """Make the ServiceEntries and WorkloadEntries of Dataplanes."""
        for name, service in sorted(self.services.items()):
            if not service.made_from:
                continue
            spec: Spec = {
                "hosts": [service.host],
                "location": "MESH_INTERNAL",
                "ports": [
                    {
                        "number": PORT,
                        "name": port_name(service.protocol),
                        "protocol": service.protocol,
                        **({"targetPort": service.target} if service.target != PORT else {}),
                    }
                ],
                "resolution": "STATIC" if self._is_static(name) else "DNS",
                "workloadSelector": {"labels": {SERVICE_TAG: label_value(name)}},
                **self._scope,
            }
            made = document(NETWORKING, "ServiceEntry", self.namespace, object_name(name), spec)
            make(self._record, made, tuple(each.object for each in service.made_from), service.made_from[0].where)
        for made, name, port, resource in self._entries:
            service = self.services[name]
            if port != service.target:
                made["spec"]["ports"] = {port_name(service.protocol): port}
            make(self._record, made, (resource.object,), resource.where)

    # -- inside

    def _is_static(self, name: str) -> bool:
        return all(is_ip(made["spec"]["address"]) for made, service, _, _ in self._entries if service == name)

    def _protocol(self, fields: ForeignFields, said: str) -> str:
        found = _PROTOCOLS.get(said.lower(), "")
        if said and (not found or said.lower() == "kafka"):
            fields.leave("protocol", f"the protocol {said!r} is TCP here")
        return found or "TCP"

    def _external(
        self, resource: KumaResource, name: str, host: str, port: int, target: int, protocol: str, endpoints: list[Spec]
    ) -> None:
        static = all(is_ip(each["address"]) for each in endpoints)
        known = self.services.get(name)
        if known is not None:
            reason = f"there is another service {name}; its endpoint is not taken"
            self._record.leave(resource.where, resource.object, "", reason, "add it to the ServiceEntry")
            return
        self.services[name] = MeshedService(name, host, protocol, port)
        spec: Spec = {
            "hosts": [host],
            "location": "MESH_EXTERNAL",
            "ports": [
                {
                    "number": port,
                    "name": f"port-{port}",
                    "protocol": protocol,
                    **({"targetPort": target} if target != port else {}),
                }
            ],
            "resolution": "STATIC" if static else "DNS",
            "endpoints": endpoints,
            **self._scope,
        }
        make(
            self._record,
            document(NETWORKING, "ServiceEntry", self.namespace, object_name(name), spec),
            (resource.object,),
            resource.where,
        )

    def _external_tls(self, resource: KumaResource, name: str, tls: ForeignFields) -> None:
        if not tls.flag("enabled"):
            return
        verification = tls.part("verification")
        mode = verification.text("mode")
        sni = tls.text("serverName") or verification.text("serverName")
        spec: Spec = {"mode": "SIMPLE", **({"sni": sni} if sni else {})}
        names = [each.text("value") for each in verification.parts("subjectAltNames") if each.text("type") != "Prefix"]
        if names:
            spec["subjectAltNames"] = names
        if mode in ("SkipCA", "SkipAll"):
            spec["insecureSkipVerify"] = True
        self.tls_of[name] = (spec, resource)


def mesh_host(name: str) -> str:
    """The host of a service of tags: ``web_shop_svc_80`` is ``web.shop.svc.80.mesh``."""
    return f"{_host_label(name.replace('_', '.'))}.mesh"


def label_value(name: str) -> str:
    """A service's name as the value of a label."""
    return name if _is_label(name) else object_name(name)[:63].rstrip(".-")


def port_name(protocol: str) -> str:
    return protocol.lower()


def _host_label(name: str) -> str:
    return ".".join(part.strip("-") for part in _HOST.sub("-", name.lower()).split(".") if part.strip("-")) or "unnamed"


def _is_label(value: str) -> bool:
    return _LABEL_VALUE.fullmatch(value) is not None
