"""What a sidecar may reach: the services and VirtualServices behind each egress listener of its scope.

Rules: Istio's Sidecar reference, and Pilot's choice where a host is visible more than once. Without a Sidecar there
is one listener for everything that is visible to the proxy's namespace.

Everything is kept by bucket of its host (see ``world.buckets``): what comes or goes costs its own bucket. A scope that
a Sidecar narrows to few services has coarser buckets than the mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfigOutboundTrafficPolicyMode as MeshMode
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import PASSTHROUGH, outbound
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import Port, Protocol, Service
from mesh_pilot.world.buckets import ALL, FULL, bits_for, bucket_of, buckets, parts
from mesh_pilot.world.configs import WILD
from mesh_pilot.world.names import host_covers, host_matches
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
    excluded: tuple[tuple[str, str], ...] = ()
    """The same, of the services that are not imported whatever ``hosts`` has."""


@derived
def egress_listeners(view: View, scope: OutboundScope) -> tuple[Egress, ...]:
    """The egress listeners of a scope, in order."""
    config = view.config(scope.sidecar) if scope.sidecar else None
    if config is None or not config.spec.egress:
        return (Egress(-1),)
    return tuple(_egress(view, i, e, scope) for i, e in enumerate(config.spec.egress))


def scope_bits(view: View, scope: OutboundScope) -> int:
    """How finely what a scope may reach is parted: as finely as the mesh, unless a Sidecar narrows it."""
    listeners = egress_listeners(view, scope)
    if len(listeners) == 1 and listeners[0].index < 0:
        return view.bits()
    return _narrow_bits(view, scope.namespace, listeners)


def scope_buckets(view: View, scope: OutboundScope) -> range:
    """The buckets of what a scope may reach."""
    return buckets(scope_bits(view, scope))


def visible_services(view: View, namespace: str, bucket: int) -> tuple[Service, ...]:
    """Every service of a bucket that may be seen from a namespace; what is exported to it alone comes first, then by
    age."""
    return view.services_exported_to(namespace, bucket) + view.services_exported_to(ANY_NAMESPACE, bucket)


Precedence = tuple[bool, datetime, str, str]


def precedence(view: View, service: Service) -> Precedence:
    """By which the services that a scope may reach are in order."""
    public = ANY_NAMESPACE in (service.export_to or default_service_export(view))
    return (public, *service.order)


@derived
def visible_virtual_services(view: View, namespace: str, gateway: str) -> tuple[VirtualServiceHead, ...]:
    """VirtualServices bound to a gateway that a namespace may see, in order of precedence: private ones of the
    namespace, those exported to it by name, then public ones, each by age."""
    return _in_order(view.virtual_services(gateway), namespace)


def _in_order(heads: Iterable[VirtualServiceHead], namespace: str) -> tuple[VirtualServiceHead, ...]:
    """Those that a namespace may see of heads by age, in order of precedence."""
    ranked: tuple[list[VirtualServiceHead], ...] = ([], [], [])
    for head in heads:
        if head.visible_to(namespace):
            ranked[_rank(head, namespace)].append(head)
    return tuple(head for held in ranked for head in held)


def _rank(head: VirtualServiceHead, namespace: str) -> int:
    """Private ones of the namespace, those exported to it by name, public ones."""
    if "*" in head.export_to:
        return 2
    return 0 if head.key.namespace == namespace else 1


def egress_services(view: View, scope: OutboundScope, egress: Egress, bucket: int) -> tuple[Service, ...]:
    """The services behind one egress listener whose hosts are in a bucket of the scope: one a host, in order; trimmed
    to the listener's port if it has one."""
    if bucket.bit_length() == view.bits() + 1:
        return _imported_services(view, scope.namespace, egress, bucket)
    return _joined_services(view, scope.namespace, egress, bucket)


def egress_virtual_services(
    view: View, scope: OutboundScope, egress: Egress, bucket: int
) -> tuple[VirtualServiceHead, ...]:
    """The VirtualServices for sidecars behind one egress listener that have a host in a bucket of the scope, or are for
    services there by a wildcard, in order of precedence. For ``WILD`` all that have a wildcard for a host."""
    if bucket == WILD or bucket.bit_length() == view.bits() + 1:
        return _imported_heads(view, scope.namespace, egress, bucket)
    return _joined_heads(view, scope.namespace, egress, bucket)


def in_precedence(heads: Iterable[VirtualServiceHead], namespace: str) -> tuple[VirtualServiceHead, ...]:
    """Each once, in order of precedence for a namespace that may see them."""
    found = {head.key: head for head in heads}
    return _in_order(sorted(found.values(), key=lambda head: head.order), namespace)


def all_egress_virtual_services(view: View, scope: OutboundScope, egress: Egress) -> tuple[VirtualServiceHead, ...]:
    """All VirtualServices for sidecars behind one egress listener, in order of precedence."""
    return _joined_heads(view, scope.namespace, egress, ALL)


def scope_services(view: View, scope: OutboundScope, bucket: int) -> tuple[Service, ...]:
    """Every service in a bucket of a scope that it needs a cluster for: those of its listeners, and with a Sidecar
    also the destinations of the VirtualServices it imports."""
    listeners = egress_listeners(view, scope)
    if len(listeners) == 1 and listeners[0].index < 0:
        return egress_services(view, scope, listeners[0], bucket)
    return _narrow_services(view, scope, bucket)


@derived
def all_services(view: View, scope: OutboundScope) -> tuple[Service, ...]:
    """Every service that a scope needs a cluster for, in order."""
    found = (s for bucket in scope_buckets(view, scope) for s in scope_services(view, scope, bucket))
    return tuple(sorted(found, key=lambda service: precedence(view, service)))


@derived
def unknown_destination(view: View, sidecar: ConfigKey | None) -> str:
    """The cluster for traffic to undeclared hosts; empty where the policy is REGISTRY_ONLY."""
    config = view.config(sidecar) if sidecar is not None else None
    policy = config.spec.outbound_traffic_policy if config is not None else None
    if config is None or policy is None:
        mesh = view.mesh().outbound_traffic_policy
        return "" if mesh is not None and mesh.mode is MeshMode.REGISTRY_ONLY else PASSTHROUGH
    if policy.mode is not api.OutboundTrafficPolicyMode.ALLOW_ANY:
        return ""
    proxy = policy.egress_proxy
    if proxy is None:
        return PASSTHROUGH
    port = proxy.port.number if proxy.port is not None else 0
    return outbound(view.full_host(proxy.host, config.namespace), port, proxy.subset)


@derived
def default_service_export(view: View) -> frozenset[str]:
    """To whom services are exported that do not say it: namespaces, ``*``, ``.``, ``~``."""
    return frozenset(view.mesh().default_service_export_to) or frozenset((ANY_NAMESPACE,))


@derived
def _imported_services(view: View, namespace: str, egress: Egress, bucket: int) -> tuple[Service, ...]:
    services = visible_services(view, namespace, bucket)
    if egress.index < 0:
        first: dict[str, Service] = {}
        for service in services:
            first.setdefault(service.host, service)
        return tuple(first.values())
    found = [s for s in (_imported(s, egress) for s in services) if s is not None]
    chosen: dict[str, str] = {}
    for service in found:
        if service.host not in chosen or service.namespace == namespace:
            chosen[service.host] = service.namespace
    return tuple(s for s in found if chosen[s.host] == s.namespace)


@derived
def _joined_services(view: View, namespace: str, egress: Egress, bucket: int) -> tuple[Service, ...]:
    found = (
        service for part in parts(bucket, view.bits()) for service in _imported_services(view, namespace, egress, part)
    )
    return tuple(sorted(found, key=lambda service: precedence(view, service)))


@derived
def _imported_heads(view: View, namespace: str, egress: Egress, bucket: int) -> tuple[VirtualServiceHead, ...]:
    heads = _in_order(view.mesh_virtual_services(bucket), namespace)
    if egress.index >= 0:
        heads = tuple(h for h in heads if _imports_any(egress, h))
    wild = _imported_heads(view, namespace, egress, WILD) if bucket != WILD else ()
    if not wild:
        return heads
    hosts = [service.host for service in _imported_services(view, namespace, egress, bucket)]
    return in_precedence((*heads, *(h for h in wild if _is_for_any(h, hosts))), namespace)


def _is_for_any(head: VirtualServiceHead, hosts: Iterable[str]) -> bool:
    wildcards = [pattern for pattern in head.hosts if pattern.startswith("*")]
    return any(host_matches(pattern, host) for host in hosts for pattern in wildcards)


@derived
def _joined_heads(view: View, namespace: str, egress: Egress, bucket: int) -> tuple[VirtualServiceHead, ...]:
    found = (_imported_heads(view, namespace, egress, part) for part in parts(bucket, view.bits()))
    return in_precedence((head for heads in found for head in heads), namespace)


@derived
def _narrow_bits(view: View, namespace: str, listeners: tuple[Egress, ...]) -> int:
    """For a scope with a Sidecar: by how many services it imports."""
    bits = view.bits()
    counts = (sum(len(_imported_services(view, namespace, e, b)) for b in buckets(bits)) for e in listeners)
    return min(bits, bits_for(max(counts)))


@derived
def _narrow_services(view: View, scope: OutboundScope, bucket: int) -> tuple[Service, ...]:
    found: dict[str, Service] = {}
    for egress in egress_listeners(view, scope):
        for service in egress_services(view, scope, egress, bucket):
            _add(found, service)
        for host, ports in _destinations_in(view, scope.namespace, egress, bucket):
            named = view.services_named(host)
            if not named:
                continue
            own = next((s for s in named if s.namespace == scope.namespace), None)
            other = own or min(named, key=lambda s: s.namespace)
            trimmed = _with_ports(other, ports)
            if trimmed is not None:
                _add(found, trimmed)
    return tuple(found.values())


Destination = tuple[str, tuple[int, ...]]
"""A host and the ports of it that are named; none: any."""

_Sent = tuple[tuple[int, datetime, str, str], int, Destination]
"""Where a VirtualService sends to: its precedence, the place of the destination in it, and the destination."""


@derived
def _destinations_in(view: View, namespace: str, egress: Egress, bucket: int) -> tuple[Destination, ...]:
    """Where the VirtualServices behind an egress listener send to in a bucket of the scope, in order of precedence."""
    every = _sent_to(view, namespace, egress)
    sent = (sent for part in parts(bucket, view.bits()) for sent in every.get(part, ()))
    return tuple(dict.fromkeys(destination for _, _, destination in sorted(sent)))


@derived
def _sent_to(view: View, namespace: str, egress: Egress) -> Mapping[int, list[_Sent]]:
    """Where the VirtualServices behind an egress listener send to, by bucket of the destination."""
    every = buckets(view.bits())
    heads = sum(len(_imported_heads(view, namespace, egress, bucket)) for bucket in every)
    # Where there are few they are looked at together: it takes less than to remember what was found in each bucket.
    few = heads <= 4 * FULL
    found: dict[int, list[_Sent]] = {}
    for bucket in every:
        where = (namespace, egress, bucket)
        for to, sent in (_sent_from.compute(view, *where) if few else _sent_from(view, *where)).items():
            found.setdefault(to, []).extend(sent)
    return found


@derived
def _sent_from(view: View, namespace: str, egress: Egress, bucket: int) -> Mapping[int, list[_Sent]]:
    bits = view.bits()
    found: dict[int, list[_Sent]] = {}
    for head in _imported_heads(view, namespace, egress, bucket):
        for place, destination in enumerate(destinations(view, head.key)):
            found.setdefault(bucket_of(destination[0], bits), []).append(
                ((_rank(head, namespace), *head.order), place, destination)
            )
    return found


@derived
def destinations(view: View, key: ConfigKey) -> tuple[Destination, ...]:
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


def _egress(view: View, index: int, listener: api.IstioEgressListener, scope: OutboundScope) -> Egress:
    port = listener.port
    return Egress(
        index=index,
        port=port.number if port else 0,
        protocol=Protocol.parse(port.protocol) if port else Protocol.AUTO,
        name=port.name if port else "",
        bind=listener.bind,
        capture_none=listener.capture_mode == api.CaptureMode.NONE,
        hosts=tuple(_host(view, h, scope.namespace) for h in listener.hosts if not _is_exclusion(h)),
        excluded=tuple(_host(view, h[1:], scope.namespace) for h in listener.hosts if _is_exclusion(h)),
    )


def _is_exclusion(host: str) -> bool:
    """``~ns/host``; ``~/host`` is an import of nothing."""
    return host.startswith("~") and not host.startswith("~/")


def _host(view: View, text: str, namespace: str) -> tuple[str, str]:
    where, _, host = text.partition("/")
    return (namespace if where == "." else where, view.registry_host(host))


def _imported(service: Service, egress: Egress) -> Service | None:
    if any(_names(where, pattern, service) for where, pattern in egress.excluded):
        return None
    for namespace, pattern in egress.hosts:
        if not _names(namespace, pattern, service):
            continue
        if not egress.port or egress.protocol is Protocol.HTTP_PROXY:
            return service
        port = service.port(egress.port)
        return _only(service, (port,)) if port else None
    return None


def _names(namespace: str, pattern: str, service: Service) -> bool:
    return namespace in (service.namespace, ANY_NAMESPACE) and host_covers(pattern, service.host)


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
