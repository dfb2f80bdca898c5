"""HTTPRoutes, GRPCRoutes, TLSRoutes, TCPRoutes and UDPRoutes as VirtualServices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mesh_pilot.api.istio.networking.v1alpha3 import (
    HttpMatchRequest,
    HttpRoute,
    L4MatchAttributes,
    ServiceEntry,
    TcpRoute,
    TlsRoute,
    VirtualService,
)
from mesh_pilot.istio.gateway_api.conditions import Fault
from mesh_pilot.istio.gateway_api.route_backends import SERVICE, BackendResolver, RuleError, kind_of
from mesh_pilot.istio.gateway_api.route_matches import in_order
from mesh_pilot.istio.gateway_api.route_parents import Attachment, attachments, parent_key, parent_statuses
from mesh_pilot.istio.gateway_api.route_rules import Faults, grpc_routes, http_routes, tcp_routes, tls_routes
from mesh_pilot.istio.gateway_api.values import (
    INTERNAL_SUFFIX,
    KUBERNETES_GATEWAY,
    PARENTS,
    ROUTE_SEMANTICS,
    ROUTE_SEMANTICS_GATEWAY,
    BackendObject,
    Objects,
    RouteConfig,
    RouteResult,
    joined_config,
    made_config,
)
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.hosts import host_covers, host_matches

R = TypeVar("R", HttpRoute, TcpRoute)


def convert_route(route: Config, objects: Objects) -> RouteResult:
    """The VirtualServices of a route, and its status."""
    # Rules are converted once for gateways and once for the mesh: only the former need grants for their backends.
    found = attachments(route, route.spec.parent_refs, objects)
    accepted = sorted((each for each in found if each.refused is None), key=lambda each: each.gateway)
    of_gateways = _Rules(route, objects, is_mesh=False) if any(each.listener for each in found) else None
    of_mesh = _Rules(route, objects, is_mesh=True) if any(each.listener is None for each in found) else None
    statuses = parent_statuses(
        route, found, of_gateways.fault if of_gateways else None, of_mesh.fault if of_mesh else None
    )
    parents = (parent_key(route, reference) for reference in route.spec.parent_refs)
    return RouteResult(
        configs=tuple(_configs(route, objects, accepted, of_gateways, of_mesh)),
        status={"parents": statuses},
        attachments=tuple((each.parent, each.listener.section) for each in accepted if each.listener is not None),
        gateways=tuple(dict.fromkeys(key for key in parents if key is not None and key.kind == KUBERNETES_GATEWAY)),
        backends=_backends(route),
    )


class _Rules:
    """The rules of a route, and their fault; none where the fault is such that none can be in force."""

    def __init__(self, route: Config, objects: Objects, *, is_mesh: bool) -> None:
        self.http: list[HttpRoute] = []
        self.tls: list[TlsRoute] = []
        self.tcp: list[TcpRoute] = []
        self.fault: Fault | None = None
        backends = BackendResolver(route, route.key.kind, objects, needs_grants=not is_mesh)
        faults, spec = Faults(), route.spec
        try:
            match route.key.kind:
                case "HTTPRoute":
                    self.http = in_order(http_routes(spec.rules, backends, faults))
                case "GRPCRoute":
                    self.http = in_order(grpc_routes(spec.rules, backends, faults))
                case "TLSRoute":
                    self.tls = tls_routes(spec.rules, spec.hostnames, backends, faults)
                case "TCPRoute" | "UDPRoute":
                    self.tcp = tcp_routes(spec.rules, backends, faults)
        except RuleError as error:
            self.fault = error.fault
        else:
            self.fault = next(filter(None, reversed(faults)), None)


def _configs(
    route: Config,
    objects: Objects,
    accepted: Sequence[Attachment],
    of_gateways: _Rules | None,
    of_mesh: _Rules | None,
) -> Iterator[RouteConfig]:
    """One VirtualService for each listener and host: hosts are independent of each other."""
    infix = {"TLSRoute": "~tls", "TCPRoute": "~tcp", "UDPRoute": "~udp"}.get(route.key.kind, "")
    parent = f"{route.key.kind}/{route.name}.{route.namespace}"
    annotations = {PARENTS: parent, ROUTE_SEMANTICS: ROUTE_SEMANTICS_GATEWAY}
    count = 0
    for each in accepted:
        rules = of_mesh if each.listener is None else of_gateways
        assert rules is not None
        for key, spec in _virtual_services(route, objects, each, rules):
            name = ConfigKey("VirtualService", route.namespace, f"{route.name}{infix}~{count}~{INTERNAL_SUFFIX}")
            config = made_config(name, spec, route, annotations)
            yield RouteConfig(config, key)
            count += 1


def _virtual_services(
    route: Config, objects: Objects, each: Attachment, rules: _Rules
) -> Iterator[tuple[str, VirtualService]]:
    """The VirtualServices for an attachment, each with its merge key."""
    # Of a service's port only matches can speak; and HTTP routes of one host, in the mesh of one namespace and port,
    # have a key in common, as Envoy has one virtual host for them.
    port = each.reference.port or 0 if each.listener is None else 0
    hosts = getattr(route.spec, "hostnames", None) or ["*"]
    if each.listener is None:
        hosts = _mesh_hosts(each.parent, objects)
    if rules.http:
        routes = _at_port(rules.http, port, HttpMatchRequest())
        key = each.gateway if each.listener is not None else f"{route.namespace}/{port}" if port else route.namespace
        for host in hosts:
            if each.takes(host):
                yield f"{key}/{host}", VirtualService(hosts=[host], gateways=[each.gateway], http=list(routes))
    elif rules.tls:
        yield from (("", spec) for spec in _tls_services(each, hosts, rules.tls))
    elif rules.tcp:
        tcp = _at_port(rules.tcp, port, L4MatchAttributes())
        for host in hosts:
            yield "", VirtualService(hosts=[host], gateways=[each.gateway], tcp=list(tcp))


def _mesh_hosts(parent: ConfigKey, objects: Objects) -> list[str]:
    if parent.kind == "Service":
        return [objects.service_host(parent.name, parent.namespace)]
    entry = objects.config("ServiceEntry", parent.namespace, parent.name)
    spec: ServiceEntry | None = entry.spec if entry is not None else None
    return list(spec.hosts) if spec is not None else []


def _at_port(routes: Sequence[R], port: int, any_match: Any) -> Sequence[R]:
    """Routes that are for a port alone; 0: for any."""
    if not port:
        return routes
    return [replace(each, match=[replace(match, port=port) for match in each.match or [any_match]]) for each in routes]


def _tls_services(each: Attachment, hosts: Sequence[str], routes: Sequence[TlsRoute]) -> Iterator[VirtualService]:
    if each.listener is None:
        port = each.reference.port or 0
        for host in hosts:
            yield VirtualService(
                hosts=[host], gateways=[each.gateway], tls=[_tls_in_mesh(r, host, hosts, port) for r in routes]
            )
        return
    if own := each.listener.hostname:
        hosts = _common(hosts, own)
        routes = [narrowed for r in routes if (narrowed := _tls_for_listener(r, own)) is not None]
    for host in hosts:
        yield VirtualService(hosts=[host], gateways=[each.gateway], tls=list(routes))


def _tls_in_mesh(route: TlsRoute, host: str, hosts: Sequence[str], port: int) -> TlsRoute:
    """A rule for a service: if it names no hosts, it is for those of the service."""
    match = [replace(each, port=port) for each in route.match]
    if len(match) == 1 and match[0].sni_hosts == ["*"]:
        match[0].sni_hosts = list(hosts)
    if len(match) == 1 and len(match[0].sni_hosts) > 1:
        match[0].sni_hosts = [sni for sni in match[0].sni_hosts if host_matches(host, sni)]
    return replace(route, match=match)


def _tls_for_listener(route: TlsRoute, own: str) -> TlsRoute | None:
    """A rule for what its hosts and the listener's have in common; None if that is nothing."""
    match = [replace(each, sni_hosts=_common(each.sni_hosts, own)) for each in route.match]
    return replace(route, match=match) if not match or any(each.sni_hosts for each in match) else None


def _common(hosts: Sequence[str], own: str) -> list[str]:
    """The names that hosts and a listener's host have in common."""
    found = (
        host if host_covers(own, host) else own for host in hosts if host_covers(own, host) or host_covers(host, own)
    )
    return list(dict.fromkeys(found))


def _backends(route: Config) -> tuple[BackendObject, ...]:
    found = set()
    for rule in route.spec.rules:
        filters = rule.filters if route.key.kind == "HTTPRoute" else ()
        asked = (each.external_auth.backend_ref for each in filters if each.external_auth is not None)
        for backend in (*rule.backend_refs, *(each for each in asked if each is not None)):
            kind = kind_of(backend)
            if kind == SERVICE:
                found.add(BackendObject(kind[1], backend.namespace or route.namespace, backend.name))
    return tuple(sorted(found, key=lambda each: (each.kind, each.namespace, each.name)))


def merged(key: str, configs: Sequence[Config]) -> Config:
    """VirtualServices with the same merge key, oldest first, as one: all their rules in the order of their matches."""
    rules = (rule for config in configs for rule in config.spec.http)
    return joined_config(key.replace("/", "~"), configs, in_order(rules))
