"""The services and VirtualServices that a sidecar may reach, by the egress listeners of its scope.

Rules: Istio's Sidecar reference, and Pilot's choice if a host is visible more than once. Without a Sidecar there is
one egress listener for everything that is visible to the proxy's namespace.

Everything is derived by shard of its host (see ``world.shards``): a change costs its own shard. A scope that a Sidecar
narrows to few services has fewer, larger shards than the mesh.

Why by shard: one list for each scope would make a service that comes or goes cost the whole mesh in each namespace, and
a value for each service in each scope would be a node of the memo table for each pair of them (decision 009). Why keys
are a namespace and an egress listener, and not the scope: sidecars with other labels, metadata or Sidecars share what
the same listener imports. The price is that each question has two answers: one for shards of the mesh, which is
remembered, and one for the larger shards of a narrow scope, which is put together of those (``..._of_subshards``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

import attrs

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.ownership import first_service
from mesh_pilot.mesh.virtual_services.rules import destinations_of, http_rules
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.hosts import host_covers, host_matches
from mesh_pilot.model.net import plain_address
from mesh_pilot.model.service import Port, Protocol, Service
from mesh_pilot.world.indexes import VirtualServiceMeta
from mesh_pilot.world.names import HIDDEN, OWN_NAMESPACE, PUBLIC, export_namespaces, exported_to
from mesh_pilot.world.shards import (
    ALL_HOSTS,
    ASKING,
    HOSTS_PER_SHARD,
    WILDCARD_HOSTS,
    all_shards,
    shard_bits_for,
    shard_of,
    subshards,
)
from mesh_pilot.world.view import View

_NO_SHARDS = (WILDCARD_HOSTS, ASKING)


@attrs.frozen(cache_hash=True)
class Egress:
    """One egress listener of a scope. ``index`` is that in the Sidecar, -1 for the implicit one for all services."""

    index: int
    port: int = 0
    """0: catch-all."""
    protocol: Protocol = Protocol.AUTO
    name: str = ""
    bind: str = ""
    capture_none: bool = False
    """captureMode NONE: the application connects to the listener itself."""
    hosts: tuple[tuple[str, str], ...] = ((PUBLIC, "*"),)
    """The ``hosts`` of the listener as (namespace or ``*``, host pattern),
    with ``.`` replaced by the proxy's namespace."""
    excluded: tuple[tuple[str, str], ...] = ()
    """The same for services that are never imported (``~namespace/host``, ``~/host``)."""


@derived
def egress_listeners(view: View, scope: OutboundScope) -> tuple[Egress, ...]:
    """The egress listeners of a scope, in order."""
    config = view.config(scope.sidecar) if scope.sidecar else None
    if config is None or not config.spec.egress:
        return (Egress(-1),)
    return tuple(_egress(view, i, e, scope) for i, e in enumerate(config.spec.egress))


def scope_shard_bits(view: View, scope: OutboundScope) -> int:
    """The scope has ``1 <<`` this many shards: as many as the mesh, unless a Sidecar narrows it."""
    if is_narrowed(view, scope):
        return _narrow_shard_bits(view, scope.namespace, egress_listeners(view, scope))
    return view.shard_bits()


def scope_shards(view: View, scope: OutboundScope) -> range:
    """The shards of a scope."""
    return all_shards(scope_shard_bits(view, scope))


def visible_services(view: View, namespace: str, shard: int) -> tuple[Service, ...]:
    """The services of a shard that a namespace may see: those exported to it by name, then public ones, each by age."""
    return view.services_exported_to(namespace, shard) + view.services_exported_to(PUBLIC, shard)


Precedence = tuple[bool, datetime, str, str]


def precedence(view: View, service: Service) -> Precedence:
    """The sort key of the services of a scope."""
    public = PUBLIC in (service.export_to or default_service_export(view))
    return (public, *service.order)


@derived
def visible_virtual_services(view: View, namespace: str, gateway: str) -> tuple[VirtualServiceMeta, ...]:
    """The VirtualServices of a gateway that a namespace may see, in order of precedence: private ones of the namespace,
    those exported to it by name, public routes of the namespace, then other public ones, each by age.

    Which of them has a host is said by `mesh.reach.ownership`.
    """
    return _in_order(view.virtual_services(gateway), namespace)


def _in_order(metas: Iterable[VirtualServiceMeta], namespace: str) -> tuple[VirtualServiceMeta, ...]:
    """The VirtualServices that a namespace may see, in order of precedence; the argument is by age."""
    ranked: tuple[list[VirtualServiceMeta], ...] = ([], [], [], [])
    for meta in metas:
        if meta.visible_to(namespace):
            ranked[_rank(meta, namespace)].append(meta)
    return tuple(meta for rank in ranked for meta in rank)


def _rank(meta: VirtualServiceMeta, namespace: str) -> int:
    """0: private to the namespace, or of it; 1: exported to it by name; 2: a public route of it; 3: public."""
    if PUBLIC in meta.export_to:
        return 2 if meta.is_route and meta.key.namespace == namespace else 3
    return 0 if meta.key.namespace == namespace else 1


def egress_services(view: View, scope: OutboundScope, egress: Egress, shard: int) -> tuple[Service, ...]:
    """The services behind an egress listener with hosts in a shard of the scope: one for each host, in order. If the
    listener has a port, they are trimmed to it."""
    if shard.bit_length() == view.shard_bits() + 1:
        return _imported_services(view, scope.namespace, egress, shard)
    return _services_of_subshards(view, scope.namespace, egress, shard)


def egress_virtual_services(
    view: View, scope: OutboundScope, egress: Egress, shard: int
) -> tuple[VirtualServiceMeta, ...]:
    """The VirtualServices behind an egress listener, in order of precedence: those with a host, or a wildcard for a
    service, in a shard of the scope. For ``WILDCARD_HOSTS`` all with a wildcard host, for ``ASKING`` all that ask."""
    if shard in _NO_SHARDS or shard.bit_length() == view.shard_bits() + 1:
        return _imported_virtual_services(view, scope.namespace, egress, shard)
    return _virtual_services_of_subshards(view, scope.namespace, egress, shard)


def visible_aliases(view: View, namespace: str, egress: Egress, service: Service) -> tuple[str, ...]:
    """The hosts of the aliases of a service that a namespace may see behind an egress listener."""
    if not service.aliases:
        return ()
    default = default_service_export(view)
    return tuple(
        alias.host
        for key in service.aliases
        if (alias := view.service(key)) is not None
        and exported_to(export_namespaces(alias.export_to, default, alias.namespace), namespace)
        and (egress.index < 0 or _is_imported(alias, egress))
    )


def in_precedence(metas: Iterable[VirtualServiceMeta], namespace: str) -> tuple[VirtualServiceMeta, ...]:
    """VirtualServices without duplicates, in order of precedence for a namespace that may see them."""
    found = {meta.key: meta for meta in metas}
    return _in_order(sorted(found.values(), key=lambda meta: meta.order), namespace)


def all_egress_virtual_services(view: View, scope: OutboundScope, egress: Egress) -> tuple[VirtualServiceMeta, ...]:
    """All VirtualServices behind an egress listener, in order of precedence."""
    return _virtual_services_of_subshards(view, scope.namespace, egress, ALL_HOSTS)


def scope_services(view: View, scope: OutboundScope, shard: int) -> tuple[Service, ...]:
    """The services in a shard that a scope has clusters for: those behind its egress listeners, and with a Sidecar also
    the destinations of the VirtualServices that it imports."""
    if is_narrowed(view, scope):
        return _narrow_services(view, scope, shard)
    return egress_services(view, scope, egress_listeners(view, scope)[0], shard)


def is_narrowed(view: View, scope: OutboundScope) -> bool:
    """True if a Sidecar says what a scope may reach."""
    listeners = egress_listeners(view, scope)
    return len(listeners) != 1 or listeners[0].index >= 0


@derived
def all_services(view: View, scope: OutboundScope) -> tuple[Service, ...]:
    """All services that a scope has clusters for, in order."""
    found = (s for shard in scope_shards(view, scope) for s in scope_services(view, scope, shard))
    return tuple(sorted(found, key=lambda service: precedence(view, service)))


@derived
def default_service_export(view: View) -> frozenset[str]:
    """The mesh's default ``exportTo`` of services."""
    return frozenset(view.mesh().default_service_export_to) or frozenset((PUBLIC,))


@derived
def _imported_services(view: View, namespace: str, egress: Egress, shard: int) -> tuple[Service, ...]:
    services = visible_services(view, namespace, shard)
    if egress.index >= 0:
        services = tuple(s for s in (_imported(s, egress) for s in services) if s is not None)
    first: dict[str, Service] = {}
    several: dict[str, list[Service]] = {}
    for service in services:
        known = first.setdefault(service.host, service)
        if known is not service:
            several.setdefault(service.host, [known]).append(service)
    if not several:
        return services
    chosen = {host: first_service(view, namespace, found) for host, found in several.items()}
    return tuple(s for s in services if chosen.get(s.host, s) is s)


@derived
def _services_of_subshards(view: View, namespace: str, egress: Egress, shard: int) -> tuple[Service, ...]:
    found = (
        service
        for part in subshards(shard, view.shard_bits())
        for service in _imported_services(view, namespace, egress, part)
    )
    return tuple(sorted(found, key=lambda service: precedence(view, service)))


@derived
def _imported_virtual_services(
    view: View, namespace: str, egress: Egress, shard: int
) -> tuple[VirtualServiceMeta, ...]:
    metas = _in_order(view.mesh_virtual_services(shard), namespace)
    if egress.index >= 0:
        metas = tuple(meta for meta in metas if _imports_any(egress, meta))
    with_wildcard = (
        _imported_virtual_services(view, namespace, egress, WILDCARD_HOSTS) if shard not in _NO_SHARDS else ()
    )
    if not with_wildcard:
        return metas
    hosts = [service.host for service in _imported_services(view, namespace, egress, shard)]
    return in_precedence((*metas, *(meta for meta in with_wildcard if _covers_any(meta, hosts))), namespace)


def _covers_any(meta: VirtualServiceMeta, hosts: Iterable[str]) -> bool:
    wildcards = [pattern for pattern in meta.hosts if pattern.startswith("*")]
    return any(host_matches(pattern, host) for host in hosts for pattern in wildcards)


@derived
def _virtual_services_of_subshards(
    view: View, namespace: str, egress: Egress, shard: int
) -> tuple[VirtualServiceMeta, ...]:
    found = (_imported_virtual_services(view, namespace, egress, part) for part in subshards(shard, view.shard_bits()))
    return in_precedence((meta for metas in found for meta in metas), namespace)


@derived
def _narrow_shard_bits(view: View, namespace: str, listeners: tuple[Egress, ...]) -> int:
    """The bits for the number of services that a scope with a Sidecar imports."""
    bits = view.shard_bits()
    counts = (sum(len(_imported_services(view, namespace, e, b)) for b in all_shards(bits)) for e in listeners)
    return min(bits, shard_bits_for(max(counts)))


@derived
def _narrow_services(view: View, scope: OutboundScope, shard: int) -> tuple[Service, ...]:
    found: dict[str, Service] = {}
    for egress in egress_listeners(view, scope):
        for service in egress_services(view, scope, egress, shard):
            _add(found, service)
        for host, ports in _destinations_in(view, scope.namespace, egress, shard):
            named = view.services_named(host)
            if not named:
                continue
            trimmed = only_ports(_destination_service(view, scope.namespace, named), ports)
            if trimmed is not None:
                _add(found, trimmed)
    return tuple(found.values())


def _destination_service(view: View, namespace: str, named: Sequence[Service]) -> Service:
    """The service of a destination: as anywhere, except that without an owner the first namespace by name has it."""
    default = default_service_export(view)
    visible = [
        service
        for service in named
        if service.namespace == namespace
        or exported_to(export_namespaces(service.export_to, default, service.namespace), namespace)
    ]
    return first_service(view, namespace, sorted(visible or named, key=lambda service: service.namespace))


Destination = tuple[str, tuple[int, ...]]
"""A host, and the ports of it that are named; empty: any."""

_RankedDestination = tuple[tuple[int, datetime, str, str], int, Destination]
"""A destination of a VirtualService: the latter's precedence, the index in it, and the destination."""


@derived
def _destinations_in(view: View, namespace: str, egress: Egress, shard: int) -> tuple[Destination, ...]:
    """The destinations of the VirtualServices behind an egress listener in a shard of the scope, by precedence."""
    every = _ranked_destinations(view, namespace, egress)
    ranked = (item for part in subshards(shard, view.shard_bits()) for item in every.get(part, ()))
    return tuple(dict.fromkeys(destination for _, _, destination in sorted(ranked)))


@derived
def _ranked_destinations(view: View, namespace: str, egress: Egress) -> Mapping[int, list[_RankedDestination]]:
    """The destinations of the VirtualServices behind an egress listener, by the destination's shard."""
    every = all_shards(view.shard_bits())
    count = sum(len(_imported_virtual_services(view, namespace, egress, shard)) for shard in every)
    # To compute a few again costs less than to store the result of each shard.
    few = count <= 4 * HOSTS_PER_SHARD
    found: dict[int, list[_RankedDestination]] = {}
    for shard in every:
        args = (namespace, egress, shard)
        by_shard = _ranked_destinations_of.compute(view, *args) if few else _ranked_destinations_of(view, *args)
        for target, ranked in by_shard.items():
            found.setdefault(target, []).extend(ranked)
    return found


@derived
def _ranked_destinations_of(
    view: View, namespace: str, egress: Egress, shard: int
) -> Mapping[int, list[_RankedDestination]]:
    bits = view.shard_bits()
    found: dict[int, list[_RankedDestination]] = {}
    for meta in _imported_virtual_services(view, namespace, egress, shard):
        for index, destination in enumerate(destinations(view, meta.key)):
            found.setdefault(shard_of(destination[0], bits), []).append(
                ((_rank(meta, namespace), *meta.order), index, destination)
            )
    return found


@derived
def destinations(view: View, key: ConfigKey) -> tuple[Destination, ...]:
    """The destination hosts of a VirtualService and its delegates, each with the ports that are named, in order of
    first use. A destination without a port may mean any."""
    config = view.config(key)
    if config is None:
        return ()
    found: dict[str, set[int]] = {}
    for namespace, destination in _destinations(view, config):
        port = destination.port.number if destination.port is not None else 0
        found.setdefault(view.destination_host(destination.host, namespace), set()).add(port)
    return tuple((host, () if 0 in ports else tuple(sorted(ports))) for host, ports in found.items())


def _destinations(view: View, config: Config) -> Iterator[tuple[str, api.Destination]]:
    """The destinations of a VirtualService, each with the namespace of its short names."""
    for rule in http_rules(view, config.key):
        for destination in destinations_of(rule.spec):
            yield rule.namespace, destination
    for l4 in (*config.spec.tcp, *config.spec.tls):
        for route in l4.route:
            if route.destination is not None:
                yield config.namespace, route.destination


def _egress(view: View, index: int, listener: api.IstioEgressListener, scope: OutboundScope) -> Egress:
    port = listener.port
    return Egress(
        index=index,
        port=port.number if port else 0,
        protocol=Protocol.parse(port.protocol) if port else Protocol.AUTO,
        name=port.name if port else "",
        bind=plain_address(listener.bind),
        capture_none=listener.capture_mode == api.CaptureMode.NONE,
        hosts=tuple(_host(view, h, scope.namespace) for h in listener.hosts if not h.startswith(HIDDEN)),
        excluded=tuple(_host(view, h[1:], scope.namespace) for h in listener.hosts if h.startswith(HIDDEN)),
    )


def _host(view: View, text: str, namespace: str) -> tuple[str, str]:
    """Without a namespace, which only exclusions may be (``~/host``), it is that of all namespaces."""
    declared, _, host = text.partition("/")
    return (namespace if declared == OWN_NAMESPACE else declared or PUBLIC, view.registry_host(host))


def _imported(service: Service, egress: Egress) -> Service | None:
    if not _is_imported(service, egress):
        return None
    if not egress.port or egress.protocol is Protocol.HTTP_PROXY:
        return service
    port = service.port(egress.port)
    return _only(service, (port,)) if port else None


def _is_imported(service: Service, egress: Egress) -> bool:
    if any(_names(namespace, pattern, service) for namespace, pattern in egress.excluded):
        return False
    return any(_names(namespace, pattern, service) for namespace, pattern in egress.hosts)


def _names(namespace: str, pattern: str, service: Service) -> bool:
    return namespace in (service.namespace, PUBLIC) and host_covers(pattern, service.host)


def _imports_any(egress: Egress, meta: VirtualServiceMeta) -> bool:
    """True if an egress listener imports a VirtualService: for any of its hosts that is not excluded."""
    namespaces = (meta.key.namespace, PUBLIC)
    excluded = [pattern for namespace, pattern in egress.excluded if namespace in namespaces]
    hosts = [host for host in meta.hosts if not any(host_covers(pattern, host) for pattern in excluded)]
    return any(
        namespace in namespaces and any(host_matches(pattern, host) for host in hosts)
        for namespace, pattern in egress.hosts
    )


def only_ports(service: Service, numbers: Iterable[int]) -> Service | None:
    """A service trimmed to some ports (no numbers: all of it); None if it has none of them."""
    wanted = set(numbers)
    if not wanted:
        return service
    ports = tuple(p for p in service.ports if p.number in wanted)
    return _only(service, ports) if ports else None


def _only(service: Service, ports: tuple[Port, ...]) -> Service:
    return service if ports == service.ports else attrs.evolve(service, ports=ports)


def _add(found: dict[str, Service], service: Service) -> None:
    """Add a service. The first one of a host stays; the same service with other ports adds these."""
    first = found.get(service.host)
    if first is None:
        found[service.host] = service
    elif first.namespace == service.namespace:
        more = tuple(p for p in service.ports if first.port(p.number) is None)
        if more:
            found[service.host] = attrs.evolve(first, ports=first.ports + more)
