"""What a sidecar may reach: the services and VirtualServices behind each egress listener of its scope.

Rules: Istio's Sidecar reference, and Pilot's choice where a host is visible more than once. Without a Sidecar there
is one listener for everything that is visible to the proxy's namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.scope import Scope
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import Port, Protocol, Service
from mesh_pilot.world.names import MESH_GATEWAY, host_covers, host_matches
from mesh_pilot.world.view import View, VirtualServiceHead

ANY_NAMESPACE = "*"


@attrs.frozen(cache_hash=True)
class Egress:
    """One egress listener of a scope. ``index`` is its place in the Sidecar, -1 for the implied one for all."""

    index: int
    port: int = 0
    """0: catch-all."""
    protocol: Protocol = Protocol.AUTO
    name: str = ""
    bind: str = ""
    capture_none: bool = False
    """captureMode NONE: the application connects to the listener itself."""
    hosts: tuple[tuple[str, str], ...] = ((ANY_NAMESPACE, "*"),)
    """(namespace or ``*``, host pattern) as its ``hosts`` say, with ``.`` already the proxy's namespace."""


def egress_listeners(view: View, scope: Scope) -> tuple[Egress, ...]:
    """The egress listeners of a scope, in order."""
    config = view.config(scope.sidecar) if scope.sidecar else None
    if config is None or not config.spec.egress:
        return (Egress(-1),)
    return tuple(_egress(i, e, scope) for i, e in enumerate(config.spec.egress))


def visible_services(view: View, namespace: str) -> tuple[Service, ...]:
    """Every service that may be seen from a namespace; what is exported to it alone comes first, then by age."""
    return view.services_exported_to(namespace) + view.services_exported_to(ANY_NAMESPACE)


def visible_virtual_services(view: View, namespace: str, gateway: str) -> tuple[VirtualServiceHead, ...]:
    """VirtualServices bound to a gateway that a namespace may see, in order of precedence: private ones of the
    namespace, those exported to it by name, then public ones, each by age."""
    heads = view.virtual_services(gateway)
    private: list[VirtualServiceHead] = []
    named: list[VirtualServiceHead] = []
    public: list[VirtualServiceHead] = []
    for head in heads:
        if "*" in head.export_to:
            public.append(head)
        elif namespace in head.export_to:
            (private if head.key.namespace == namespace else named).append(head)
    return (*private, *named, *public)


def egress_services(view: View, scope: Scope, egress: Egress) -> tuple[Service, ...]:
    """The services behind one egress listener: one a host, in order; trimmed to the listener's port if it has one."""
    services = view.get(visible_services, scope.namespace)
    if egress.index < 0:
        first: dict[str, Service] = {}
        for service in services:
            first.setdefault(service.host, service)
        return tuple(first.values())
    found = [s for s in (_imported(s, egress) for s in services) if s is not None]
    chosen: dict[str, str] = {}
    for service in found:
        if service.host not in chosen or service.namespace == scope.namespace:
            chosen[service.host] = service.namespace
    return tuple(s for s in found if chosen[s.host] == s.namespace)


def egress_virtual_services(view: View, scope: Scope, egress: Egress) -> tuple[VirtualServiceHead, ...]:
    """The VirtualServices for sidecars behind one egress listener, in order of precedence."""
    heads = view.get(visible_virtual_services, scope.namespace, MESH_GATEWAY)
    if egress.index < 0:
        return tuple(h for h in heads if h.hosts)
    return tuple(h for h in heads if _imports_any(egress, h))


def scope_services(view: View, scope: Scope) -> tuple[Service, ...]:
    """Every service that a scope needs a cluster for: those of its listeners, and with a Sidecar also the
    destinations of the VirtualServices it imports."""
    listeners = view.get(egress_listeners, scope)
    if len(listeners) == 1 and listeners[0].index < 0:
        return view.get(egress_services, scope, listeners[0])
    found: dict[str, Service] = {}
    for egress in listeners:
        for service in view.get(egress_services, scope, egress):
            _add(found, service)
        for head in view.get(egress_virtual_services, scope, egress):
            for host, ports in view.get(destinations, head.key):
                named = view.services_named(host)
                if not named:
                    continue
                own = next((s for s in named if s.namespace == scope.namespace), None)
                other = own or min(named, key=lambda s: s.namespace)
                trimmed = _with_ports(other, ports)
                if trimmed is not None:
                    _add(found, trimmed)
    return tuple(found.values())


def destinations(view: View, key: ConfigKey) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The hosts that a VirtualService sends to, each with the ports it names (none: any), in order of first use."""
    config = view.config(key)
    if config is None:
        return ()
    found: dict[str, set[int]] = {}
    for destination in _destinations(config.spec):
        host = view.full_host(destination.host, key.namespace)
        ports = found.setdefault(host, set())
        if destination.port is not None and destination.port.number:
            ports.add(destination.port.number)
    return tuple((h, tuple(sorted(p))) for h, p in found.items())


def _destinations(spec: api.VirtualService) -> Iterator[api.Destination]:
    for http in spec.http:
        yield from (r.destination for r in http.route if r.destination)
        if http.mirror:
            yield http.mirror
        yield from (m.destination for m in http.mirrors if m.destination)
    for tcp in spec.tcp:
        yield from (r.destination for r in tcp.route if r.destination)
    for tls in spec.tls:
        yield from (r.destination for r in tls.route if r.destination)


def _egress(index: int, listener: api.IstioEgressListener, scope: Scope) -> Egress:
    port = listener.port
    return Egress(
        index=index,
        port=port.number if port else 0,
        protocol=Protocol.parse(port.protocol) if port else Protocol.AUTO,
        name=port.name if port else "",
        bind=listener.bind,
        capture_none=listener.capture_mode == api.CaptureMode.NONE,
        hosts=tuple(_host(h, scope.namespace) for h in listener.hosts),
    )


def _host(text: str, namespace: str) -> tuple[str, str]:
    where, _, host = text.partition("/")
    return (namespace if where == "." else where, host)


def _imported(service: Service, egress: Egress) -> Service | None:
    for namespace, pattern in egress.hosts:
        if namespace not in (service.namespace, ANY_NAMESPACE) or not host_covers(pattern, service.host):
            continue
        if not egress.port or egress.protocol is Protocol.HTTP_PROXY:
            return service
        port = service.port(egress.port)
        return _only(service, (port,)) if port else None
    return None


def _imports_any(egress: Egress, head: VirtualServiceHead) -> bool:
    return any(
        namespace in (head.key.namespace, ANY_NAMESPACE) and any(host_matches(pattern, h) for h in head.hosts)
        for namespace, pattern in egress.hosts
    )


def _with_ports(service: Service, numbers: Iterable[int]) -> Service | None:
    """A service trimmed to some ports (none named: all of it); None if it has none of them."""
    wanted = set(numbers)
    if not wanted:
        return service
    ports = tuple(p for p in service.ports if p.number in wanted)
    return _only(service, ports) if ports else None


def _only(service: Service, ports: tuple[Port, ...]) -> Service:
    return service if ports == service.ports else attrs.evolve(service, ports=ports)


def _add(found: dict[str, Service], service: Service) -> None:
    """Keep the first service of a host; another view of the same one adds its ports."""
    held = found.get(service.host)
    if held is None:
        found[service.host] = service
    elif held.namespace == service.namespace:
        more = tuple(p for p in service.ports if held.port(p.number) is None)
        if more:
            found[service.host] = attrs.evolve(held, ports=held.ports + more)
