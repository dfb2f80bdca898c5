"""A Gateway with its ListenerSets, as Istio Gateways: one for each listener, so that routes can bind to it alone.

The result has statuses as far as the object itself decides them. ``gateway_status`` adds what depends on the services
of the Gateway and on the routes that are attached to it.

Why Istio's objects and not an intermediate form for the Gateway API: the rules of listeners, routes and TLS would be
written twice, and EnvoyFilters, ``why`` and pages would have to know both. What Istio's objects cannot say is in
annotations, as in istiod. Why one Gateway for each listener: a VirtualService binds to a Gateway as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as networking
from mesh_pilot.api.k8s.io.gateway_api import v1 as api
from mesh_pilot.istio.gateway_api.classes import is_served
from mesh_pilot.istio.gateway_api.conditions import Conditions, Fault, human_join
from mesh_pilot.istio.gateway_api.conflicts import Place, conflicts, listener_port, overlaps
from mesh_pilot.istio.gateway_api.listener_tls import (
    CredentialRefs,
    frontend_validation,
    is_auto_passthrough,
    server_tls,
)
from mesh_pilot.istio.gateway_api.selectors import selects
from mesh_pilot.istio.gateway_api.values import (
    BACKEND_CERTIFICATE,
    GROUP,
    INTERNAL_SUFFIX,
    PARENT_NAMESPACE,
    PARENTS,
    SEMANTICS,
    SERVICE_ACCOUNT,
    SERVICES,
    Objects,
    ParentListener,
    StatusCondition,
    made_config,
)
from mesh_pilot.model.config import Config, ConfigKey

NAME_OVERRIDE = "gateway.istio.io/name-override"
ACCOUNT_OVERRIDE = "gateway.istio.io/service-account"
SERVICE_TYPE = "networking.istio.io/service-type"
"""Annotations of a Gateway."""

HOSTNAME, IP_ADDRESS = "Hostname", "IPAddress"
"""Types of a Gateway's addresses."""

_ROUTE_KINDS: Mapping[str, tuple[str, ...]] = {
    "HTTP": ("HTTPRoute", "GRPCRoute"),
    "HTTPS": ("HTTPRoute", "GRPCRoute"),
    "TCP": ("TCPRoute",),
    "TLS": ("TLSRoute",),
    "UDP": ("UDPRoute",),
}
_PROTOCOLS = frozenset(_ROUTE_KINDS)


@attrs.frozen
class ListenerReport:
    """The status of a listener but for the number of its routes."""

    name: str
    kinds: tuple[tuple[str, str], ...]
    conditions: tuple[StatusCondition, ...]


@attrs.frozen
class PartialStatus:
    """The status of a Gateway or ListenerSet but for its services and routes."""

    listeners: tuple[ListenerReport, ...] = ()
    services: tuple[str, ...] = ()
    """Full host names of the services whose proxies serve it."""
    ports: frozenset[int] = frozenset()
    """The ports of its servers."""
    valid: int = 0
    """The number of its valid listeners."""
    fault: Fault | None = None
    """The fault of the Gateway."""
    client_fault: Fault | None = None
    """The fault of the certificate for backends."""
    sets: int = 0
    """The number of ListenerSets attached to it."""
    refused: str = ""
    """The reason why a ListenerSet is not allowed at all."""
    is_remote: bool = False


@attrs.frozen
class GatewayResult:
    """The outcome of a Gateway and its ListenerSets."""

    configs: tuple[Config, ...] = ()
    """Istio's Gateways."""
    listeners: Mapping[ConfigKey, tuple[ParentListener, ...]] = attrs.field(factory=dict)
    """The listeners to which routes may attach, by Gateway and ListenerSet."""
    statuses: Mapping[ConfigKey, PartialStatus] = attrs.field(factory=dict)
    granted: frozenset[tuple[str, str]] = frozenset()
    """Namespaces and names of credentials that it refers to, and may have."""


@attrs.define
class _Build:
    """A conversion in progress."""

    gateway: Config
    objects: Objects
    services: tuple[str, ...]
    account: str
    lost: Mapping[Place, str]
    overlapping: Mapping[Place, tuple[str, ...]]
    configs: list[Config] = attrs.field(factory=list)
    listeners: dict[ConfigKey, tuple[ParentListener, ...]] = attrs.field(factory=dict)
    statuses: dict[ConfigKey, PartialStatus] = attrs.field(factory=dict)
    certificate: str = ""
    """The credential that its proxies show to backends; empty: none."""
    granted: set[tuple[str, str]] = attrs.field(factory=set)
    set_ports: set[int] = attrs.field(factory=set)
    """The ports of valid listeners of ListenerSets."""


def convert_gateway(gateway: Config, objects: Objects) -> GatewayResult:
    """The outcome of a Gateway and its ListenerSets. Empty if its class is of another controller."""
    spec: api.GatewaySpec = gateway.spec
    served = is_served(spec.gateway_class_name, objects)
    if served is None:
        return GatewayResult()
    sets = objects.listener_sets(gateway.key)
    if not served:
        text = f'The "{spec.gateway_class_name}" GatewayClass does not support ListenerSet'
        refused = {s.key: PartialStatus(refused=text) for s in sets}
        return GatewayResult(statuses={gateway.key: PartialStatus(is_remote=True), **refused})
    allowed = [s for s in sets if _lets_in(spec, gateway.namespace, s.namespace, objects)]
    statuses = {s.key: PartialStatus(refused=_NOT_ALLOWED) for s in sets if s not in allowed}
    services, fault = _services(gateway, objects)
    refs = CredentialRefs(gateway, "Gateway", objects)
    certificate = _client_certificate(gateway.spec, refs)
    client_fault = certificate if isinstance(certificate, Fault) else None
    if fault is not None and not services:
        statuses |= {s.key: PartialStatus(fault=fault, valid=1) for s in allowed}
        return GatewayResult(statuses={gateway.key: PartialStatus(fault=fault, client_fault=client_fault), **statuses})
    build = _begun(gateway, objects, services, allowed, statuses)
    build.certificate = certificate if isinstance(certificate, str) else ""
    build.granted |= refs.granted
    attached = sum(_convert_listeners(build, config, fault) for config in allowed)
    _convert_listeners(build, gateway, fault or _parameters_fault(spec))
    own = build.statuses[gateway.key]
    ports = own.ports | build.set_ports
    build.statuses[gateway.key] = attrs.evolve(own, ports=ports, sets=attached, client_fault=client_fault)
    return GatewayResult(tuple(build.configs), build.listeners, build.statuses, frozenset(build.granted))


def _begun(
    gateway: Config,
    objects: Objects,
    services: tuple[str, ...],
    sets: Sequence[Config],
    statuses: dict[ConfigKey, PartialStatus],
) -> _Build:
    """The conversion of a Gateway with the ListenerSets that it lets in, before that of its listeners."""
    managed = is_managed(gateway.spec)
    account = gateway.annotations.get(ACCOUNT_OVERRIDE) or _default_name(gateway) if managed else ""
    lost = conflicts(gateway, sets)
    return _Build(gateway, objects, services, account, lost, overlaps(gateway, sets, lost), statuses=statuses)


_NOT_ALLOWED = "The parent Gateway does not allow this reference; check the 'spec.allowedRoutes'"


def _convert_listeners(build: _Build, config: Config, fault: Fault | None) -> bool:
    """Convert the listeners of the Gateway itself or of one of its ListenerSets. True if any is valid."""
    is_set = config is not build.gateway
    refs = CredentialRefs(config, "ListenerSet" if is_set else "Gateway", build.objects)
    reports: list[ListenerReport] = []
    parents: list[ParentListener] = []
    ports: set[int] = set()
    valid = 0
    for listener in config.spec.listeners:
        if (reason := build.lost.get((config.key, listener.name))) is not None:
            reports.append(_conflicted(listener, reason))
            continue
        port = listener_port(listener) if is_set else listener.port
        server, report, is_valid = _convert_listener(build, config, listener, port, refs)
        reports.append(report)
        valid += is_valid and (server is not None or not is_set)
        if server is None:
            continue
        ports.add(port)
        istio = _istio_gateway(build, config, listener.name, server)
        if is_valid:
            build.configs.append(istio)
            if is_set:
                build.set_ports.add(port)
        if is_valid or not is_set:
            parents.append(
                ParentListener(
                    gateway=f"{istio.namespace}/{istio.name}",
                    section=listener.name,
                    port=port,
                    protocol=listener.protocol,
                    hostname=listener.hostname or "",
                    hosts=tuple(server.hosts),
                    kinds=report.kinds,
                )
            )
    build.listeners[config.key] = tuple(parents)
    build.granted |= refs.granted
    build.statuses[config.key] = PartialStatus(tuple(reports), build.services, frozenset(ports), valid, fault)
    return valid > 0


def _convert_listener(
    build: _Build, owner: Config, listener: api.Listener, port: int, refs: CredentialRefs
) -> tuple[networking.Server | None, ListenerReport, bool]:
    """The server of a listener, its report, and whether it is valid."""
    conditions = Conditions.fine(_FINE, "Accepted", "Programmed", "ResolvedRefs")
    conditions.put(StatusCondition("Conflicted", False, "NoConflicts", _FINE))
    if others := build.overlapping.get((owner.key, listener.name)):
        text = f"The hostname overlaps with that of {human_join(list(others))}"
        conditions.put(StatusCondition("OverlappingTLSConfig", True, "OverlappingHostnames", text))
    is_set, is_valid, tls = owner is not build.gateway, True, None
    if listener.tls is not None:
        validation = frontend_validation(build.gateway.spec, port)
        auto = is_auto_passthrough(owner, listener)
        tls, fault = server_tls(listener.tls, validation, refs, auto=auto)
        if fault is not None:
            conditions.fail("ResolvedRefs", fault)
            conditions.fail("Programmed", _BAD_TLS)
            if tls.credential_name or tls.credential_names:  # the fault is of the roots for clients
                conditions.fail("Accepted", Fault("NoValidCACertificate", fault.message))
            is_valid = False
    if not port:
        conditions.fail("Accepted", _unsupported_protocol(f"protocol {listener.protocol} requires a port to be set"))
        is_valid = False
    if listener.protocol not in _PROTOCOLS:
        conditions.fail("Accepted", _unsupported_protocol(_protocol_problem(listener.protocol)))
        is_valid = False
    host = "*" if listener.hostname is None else listener.hostname
    server: networking.Server | None = networking.Server(
        port=networking.Port(
            name="default", number=port, protocol=listener.protocol if listener.protocol in _PROTOCOLS else ""
        ),
        hosts=[f"{namespace}/{host}" for namespace in _route_namespaces(build, owner, listener)] or [f"~/{host}"],
        tls=tls,
    )
    if tls is None and listener.protocol in ("HTTPS", "TLS"):
        server = None
        if is_set:
            text = f"protocol is {listener.protocol} but no TLS section is defined"
            conditions.fail("Accepted", _unsupported_protocol(text))
            conditions.fail("Programmed", _BAD_TLS)
            is_valid = False
    return server, _report(listener, conditions), is_valid


_FINE = "No errors found"
_BAD_TLS = Fault("Invalid", "Bad TLS configuration")


def _unsupported_protocol(message: str) -> Fault:
    return Fault("UnsupportedProtocol", message)


def _protocol_problem(protocol: str) -> str:
    if protocol == "HBONE":
        return 'protocol "HBONE" is only supported for waypoint proxies'
    upper = protocol.upper()
    hint = f'. hint: "{upper}" (uppercase) may be supported' if upper in _PROTOCOLS else ""
    return f'protocol "{protocol}" is unsupported{hint}'


def _conflicted(listener: api.Listener, reason: str) -> ListenerReport:
    text = "Listener has a conflict with another listener attached to the same Gateway"
    types = {"Accepted": False, "Programmed": False, "Conflicted": True}
    return _report(listener, Conditions(StatusCondition(type, status, reason, text) for type, status in types.items()))


def _report(listener: api.Listener, conditions: Conditions) -> ListenerReport:
    kinds, are_valid = _kinds(listener)
    if not are_valid:
        conditions.put(StatusCondition("ResolvedRefs", False, "InvalidRouteKinds", "Invalid route kinds"))
    return ListenerReport(listener.name, kinds, conditions.all())


def _kinds(listener: api.Listener) -> tuple[tuple[tuple[str, str], ...], bool]:
    """The kinds of routes, group and kind, that a listener takes; and whether it names no other."""
    names = _ROUTE_KINDS.get(listener.protocol, ())
    if listener.protocol == "TLS" and listener.tls is not None and listener.tls.mode == "Terminate":
        names = (*names, "TCPRoute")
    wanted = listener.allowed_routes.kinds if listener.allowed_routes is not None else []
    supported = tuple((GROUP, name) for name in names)
    if not wanted:
        return supported, True
    asked = [(GROUP if kind.group is None else kind.group, kind.kind) for kind in wanted]
    both = tuple(kind for kind in supported if kind in asked)
    return both, len(both) == len(asked)


def _route_namespaces(build: _Build, owner: Config, listener: api.Listener) -> Iterator[str]:
    """The namespaces whose routes may attach; ``*`` for all."""
    rule = listener.allowed_routes.namespaces if listener.allowed_routes is not None else None
    if rule is None or rule.from_ is None or rule.from_ == "Same":
        yield owner.namespace
    elif rule.from_ == "All" or rule.selector is None:
        yield "*"
    else:
        found = build.objects.namespaces()
        yield from (name for name in sorted(found) if selects(rule.selector, found[name]))


def _lets_in(spec: api.GatewaySpec, own: str, namespace: str, objects: Objects) -> bool:
    """True if a Gateway lets ListenerSets of a namespace attach to it."""
    rule = spec.allowed_listeners.namespaces if spec.allowed_listeners is not None else None
    if rule is None:
        return False
    match rule.from_:
        case "All":
            return True
        case "Same":
            return namespace == own
        case None | "Selector" if rule.selector is not None:
            labels = objects.namespaces().get(namespace)
            return labels is not None and selects(rule.selector, labels)
        case _:
            return False


def is_managed(spec: api.GatewaySpec) -> bool:
    """True if the proxies of a Gateway are known by its name, False if it names its own services."""
    if len(spec.addresses) != 1:
        return not spec.addresses
    return spec.addresses[0].type in (None, IP_ADDRESS)


def _default_name(gateway: Config) -> str:
    return f"{gateway.name}-{gateway.spec.gateway_class_name}"


def _services(gateway: Config, objects: Objects) -> tuple[tuple[str, ...], Fault | None]:
    """The hosts of the services of a Gateway, and what is wrong with its addresses."""
    spec: api.GatewaySpec = gateway.spec
    if is_managed(spec):
        name = gateway.annotations.get(NAME_OVERRIDE) or _default_name(gateway)
        return (f"{name}.{gateway.namespace}.svc.{objects.domain}",), None
    usable = [a.value for a in spec.addresses if a.type == HOSTNAME]
    skipped = [a.value or "" for a in spec.addresses if a.type != HOSTNAME]
    hosts = tuple(host if "." in host else objects.service_host(host, gateway.namespace) for host in usable)
    if skipped:
        return hosts, Fault("UnsupportedAddress", f"only Hostname is supported, ignoring [{' '.join(skipped)}]")
    if SERVICE_TYPE in gateway.annotations:
        text = f"annotation {SERVICE_TYPE} is deprecated, use Spec.Infrastructure.Routeability"
        return hosts, Fault("DeprecatedField", text)
    return hosts, None


def _parameters_fault(spec: api.GatewaySpec) -> Fault | None:
    ref = spec.infrastructure.parameters_ref if spec.infrastructure is not None else None
    if ref is None or (ref.group or "", ref.kind) == ("", "ConfigMap"):
        return None
    text = f"Unsupported parametersRef group/kind {ref.group or ''}/{ref.kind}, only ConfigMap is supported"
    return Fault("InvalidParameters", text)


def _client_certificate(spec: api.GatewaySpec, refs: CredentialRefs) -> str | Fault:
    """The credential that a Gateway shows to backends; empty: none."""
    backend = spec.tls.backend if spec.tls is not None else None
    if backend is None or backend.client_certificate_ref is None:
        return ""
    return refs.client_certificate(backend.client_certificate_ref)


def _istio_gateway(build: _Build, owner: Config, section: str, server: networking.Server) -> Config:
    """The Istio Gateway of a listener."""
    is_set = owner is not build.gateway
    kind = "ListenerSet" if is_set else "Gateway"
    annotations = {
        PARENTS: f"{kind}/{owner.name}/{section}.{owner.namespace}",
        SEMANTICS: "gateway",
        SERVICES: ",".join(build.services),
        SERVICE_ACCOUNT: build.account,
    }
    if build.certificate:
        annotations[BACKEND_CERTIFICATE] = build.certificate
    if is_set:
        annotations[PARENT_NAMESPACE] = build.gateway.namespace
    key = ConfigKey("Gateway", owner.namespace, f"{owner.name}~{INTERNAL_SUFFIX}~{section}")
    spec = networking.Gateway(servers=[server])
    return made_config(key, spec, owner, annotations, (owner.key, build.gateway.key))
