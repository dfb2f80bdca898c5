"""Gateways of Consul: an ingress gateway is a Gateway with VirtualServices, a terminating gateway is the TLS of a
DestinationRule, and a destination outside is a ServiceEntry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from mesh_pilot.consul.mesh import ConsulMesh
from mesh_pilot.consul.mesh.entries import REASONS, header_changes
from mesh_pilot.consul.mesh.fields import Fields
from mesh_pilot.consul.mesh.routes import merged_headers
from mesh_pilot.consul.mesh.values import EntryRef, object_name
from mesh_pilot.migration.base.making import NETWORKING
from mesh_pilot.migration.base.reading import ForeignObject
from mesh_pilot.migration.base.record import MigrationRecord, Spec, document
from mesh_pilot.migration.consul.values import ConsulOptions, leave_problems
from mesh_pilot.model.config import Problem
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.service import Protocol

GATEWAY_LABEL = "gateway"
"""The label of the routers that a Gateway made of an ingress gateway selects."""

_TLS_REASON = "the certificate is of Consul's CA; the listener is not taken, as it would be in plain text"
_REASONS: Mapping[str, str | None] = {
    **REASONS,
    "maxconnections": "set it in a DestinationRule: connectionPool",
    "maxpendingrequests": "set it in a DestinationRule: connectionPool",
    "maxconcurrentrequests": "set it in a DestinationRule: connectionPool",
    "passivehealthcheck": "set it in a DestinationRule: outlierDetection",
    "tls": _TLS_REASON,
    "disableautohostrewrite": "write a VirtualService with rewrite.authority",
}

Made = tuple[Spec, tuple[EntryRef, ...]]
RoutesOf = Callable[[str], Spec | None]
"""The spec of the VirtualService of a service's router, splitter and resolver; None without any."""


@attrs.frozen
class IngressRule:
    """The VirtualService of a service at a listener, without its routes."""

    ref: EntryRef
    """The gateway."""
    name: str
    service: str
    spec: Spec
    match: Spec
    """The condition that all of its requests meet."""
    headers: Spec
    is_http: bool


class ConsulGateways:
    """State: the objects made so far."""

    def __init__(self, record: MigrationRecord, options: ConsulOptions, mesh: ConsulMesh) -> None:
        self._record = record
        self._options = options
        self._mesh = mesh
        self._made: list[Made] = []
        self._rules: list[IngressRule] = []

    def objects(self, routes_of: RoutesOf) -> Iterator[Made]:
        """The objects made, each with its entries.

        The chain of a service (router, splitter, resolver) holds for whoever calls it, so a listener has its routes.
        """
        yield from self._made
        for rule in self._rules:
            found = routes_of(rule.service) or {}
            kind = "http" if rule.is_http else "tcp"
            plain = {"route": [{"destination": {"host": self._host(rule.service)}}]}
            routes = [_at_listener(route, rule) for route in found.get(kind) or [plain]]
            namespace = self._options.namespace
            spec = {**rule.spec, kind: routes}
            yield document(NETWORKING, "VirtualService", namespace, object_name(rule.name), spec), (rule.ref,)

    def put(self, ref: EntryRef, entry: ForeignObject) -> None:
        """Take an entry of a gateway."""
        problems: list[Problem] = []
        fields = Fields(entry.data, "", problems)
        if tenant := fields.other_tenant():
            self._record.leave_object(entry, f"is of {tenant}, which is not read")
            return
        if ref.kind == "ingress-gateway":
            self._ingress(ref, fields)
        else:
            self._terminating(ref, fields)
        leave_problems(self._record, entry, fields, (), _REASONS)

    def without_destination(self, ref: EntryRef, entry: ForeignObject) -> Mapping[str, object]:
        """An entry without its ``Destination``, which becomes a ServiceEntry."""
        found = [name for name in entry.data if name.replace("_", "").lower() == "destination"]
        if ref.kind != "service-defaults" or not found:
            return entry.data
        problems: list[Problem] = []
        destination = Fields(entry.data[found[0]], found[0], problems)
        addresses, port = destination.strings("Addresses"), destination.integer("Port")
        protocol = Protocol.parse(str(entry.data.get("Protocol") or entry.data.get("protocol") or "tcp"))
        leave_problems(self._record, entry, destination, (), _REASONS)
        # IP addresses are endpoints of the service's own host; names are hosts that clients call themselves.
        if addresses and port:
            spec: Spec = {
                "hosts": addresses if not all(map(is_ip, addresses)) else [self._host(ref.name)],
                **({"addresses": addresses} if all(map(is_ip, addresses)) else {}),
                "location": "MESH_EXTERNAL",
                "ports": [{"number": port, "name": f"port-{port}", "protocol": _written(protocol)}],
                "resolution": "STATIC" if all(map(is_ip, addresses)) else "DNS",
            }
            if all(map(is_ip, addresses)):
                spec["endpoints"] = [{"address": address} for address in addresses]
            self._add("ServiceEntry", ref, spec)
        return {name: value for name, value in entry.data.items() if name not in found}

    # -- inside

    def _ingress(self, ref: EntryRef, fields: Fields) -> None:
        servers: list[Spec] = []
        rules: list[IngressRule] = []
        has_tls = _is_tls(fields)
        defaults = fields.part("Defaults")
        if defaults is not None:
            defaults.warn("", "limits of upstreams are said by the DestinationRule of each")
        for listener in fields.parts("Listeners"):
            port, written = listener.integer("Port"), listener.text("Protocol") or "tcp"
            protocol = Protocol.parse(written)
            listener_has_tls = _is_tls(listener)
            services = listener.parts("Services")
            routed = [self._service(ref, service, port, protocol, len(services)) for service in services]
            made = [each for each in routed if each is not None]
            # Services are read first, so that what they say is not listed as unread where the listener is not taken.
            if has_tls or listener_has_tls:
                listener.warn("", f"{_TLS_REASON}: write the server with tls.credentialName")
                continue
            if not port or not made:
                listener.problem("", "has no port, or no service that can be said")
                continue
            hosts = sorted({host for rule in made for host in rule.spec["hosts"]})
            name = f"{written.lower()}-{port}"
            servers.append(
                {"port": {"number": port, "name": name, "protocol": _written(protocol)}, "hosts": hosts or ["*"]}
            )
            rules += [attrs.evolve(rule, name=f"{ref.name}-{port}-{index}") for index, rule in enumerate(made)]
        if not servers:
            return
        spec = {"selector": {GATEWAY_LABEL: object_name(ref.name)}, "servers": servers}
        self._add("Gateway", ref, spec)
        reason = f"the Gateway selects routers with the label {GATEWAY_LABEL}={object_name(ref.name)}"
        self._record.change(str(ref), reason)
        self._rules += rules

    def _service(self, ref: EntryRef, fields: Fields, port: int, protocol: Protocol, count: int) -> IngressRule | None:
        """The VirtualService of a service of a listener; None if it can't be said."""
        name = fields.text("Name")
        hosts = fields.strings("Hosts")
        headers = header_changes(fields)
        if tenant := fields.other_tenant():
            fields.problem("", f"names {tenant}; it is not taken")
            return None
        if name in ("", "*"):
            fields.problem("Name", "all services at once can't be said: name each that is to be reached from outside")
            return None
        gateway = f"{self._options.namespace}/{object_name(ref.name)}"
        if not protocol.is_http:
            if count > 1:
                fields.problem("", "a listener of TCP has one service")
                return None
            spec: Spec = {"hosts": ["*"], "gateways": [gateway]}
            return IngressRule(ref, "", name, spec, {"port": port}, {}, is_http=False)
        if not hosts:
            hosts = [f"{name}.ingress.{self._options.domain}".lower()]
            fields.warn("Hosts", f"says none; {hosts[0]} is taken, Consul also serves {name}.ingress.*")
        hosts = [host for host in hosts if not _has_port(host)]
        if not hosts:
            fields.problem("Hosts", "has no host without a port")
            return None
        spec = {"hosts": hosts, "gateways": [gateway]}
        return IngressRule(ref, "", name, spec, {"port": port}, headers, is_http=True)

    def _terminating(self, ref: EntryRef, fields: Fields) -> None:
        for service in fields.parts("Services"):
            name = service.text("Name")
            files = {
                "caCertificates": service.text("CAFile"),
                "clientCertificate": service.text("CertFile"),
                "privateKey": service.text("KeyFile"),
                "sni": service.text("SNI"),
            }
            if tenant := service.other_tenant():
                service.problem("", f"names {tenant}; it is not taken")
                continue
            if name in ("", "*"):
                service.problem("Name", "all services at once can't be said: name each")
                continue
            if not any(files.values()):
                self._record.change(str(ref), f"clients call {self._host(name)} themselves, without a gateway between")
                continue
            mode = "MUTUAL" if files["clientCertificate"] and files["privateKey"] else "SIMPLE"
            tls = {"mode": mode, **{field: value for field, value in files.items() if value}}
            spec = {"host": self._host(name), "trafficPolicy": {"tls": tls}}
            self._add("DestinationRule", EntryRef(ref.kind, name), spec, (ref,))
            if not files["sni"]:
                reason = (
                    f"the certificate of {self._host(name)} has to be for that name: else set sni or subjectAltNames"
                )
                self._record.change(str(ref), reason)
            paths = ", ".join(value for field, value in files.items() if value and field != "sni")
            if paths:
                reason = f"clients call {self._host(name)} themselves: {paths} have to be on their machines"
                self._record.change(str(ref), reason)

    def _host(self, service: str) -> str:
        return f"{service}.service.{self._options.domain}".lower()

    def _add(self, kind: str, ref: EntryRef, spec: Spec, entries: Sequence[EntryRef] = ()) -> None:
        name = object_name(ref.name)
        namespace = self._options.namespace
        facts = self._mesh.facts(ref.name)
        if kind == "DestinationRule" and facts is not None and facts.namespace:
            namespace = facts.namespace
        if kind == "Gateway":
            name = object_name(ref.name)
        self._made.append((document(NETWORKING, kind, namespace, name, spec), tuple(entries) or (ref,)))


def _at_listener(route: Spec, rule: IngressRule) -> Spec:
    """A route of a service as it is for requests that come by a listener."""
    matches = [{**match, **rule.match} for match in route.get("match") or [{}]]
    headers = merged_headers(rule.headers, route.get("headers", {}))
    return {**route, "match": matches, **({"headers": headers} if headers else {})}


def _is_tls(fields: Fields) -> bool:
    tls = fields.part("TLS")
    if tls is None:
        return False
    found = tls.flag("Enabled")
    sds = tls.has("SDS")
    return found or sds


def _has_port(host: str) -> bool:
    return ":" in host


def _written(protocol: Protocol) -> str:
    return "TCP" if protocol is Protocol.AUTO else protocol.value
