"""The table of host names and their addresses (NDS), for the DNS proxy of Istio's agents.

It has the services that the proxy has clusters for: with their virtual addresses, or for services that clients resolve
themselves with the addresses of their endpoints in the proxy's network. It is written as bytes, shard by shard. Source:
Istio's ``nds.proto`` and its name table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from mesh_pilot.base.protowire import field
from mesh_pilot.engine import derived
from mesh_pilot.mesh.proxy.plans import Plan
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.sidecar_scope import precedence, scope_services, scope_shards
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.mesh.virtual_hosts.planned import service_addresses
from mesh_pilot.model.net import is_ip
from mesh_pilot.model.resource import NAME_TABLE, Resource, make_resource
from mesh_pilot.model.service import Endpoint, Health, Resolution, Service
from mesh_pilot.world import View

TABLE_NAME = "name-table"
"""The name of the one table. Agents read its type only; istiod gives it none."""

_TABLE = 1
_KEY, _VALUE = 1, 2
_IPS, _REGISTRY, _SHORT_NAME, _NAMESPACE = 1, 2, 3, 4
_PORT = 1000
"""``NUMBER/NAME`` of a port, repeated: ours, for SRV records of our agents. Istio's agents pass over it."""


@attrs.frozen
class _Entry:
    """A row of the table."""

    addresses: tuple[str, ...]
    registry: str
    short_name: str = ""
    namespace: str = ""
    ports: tuple[str, ...] = ()


@derived
def name_tables(view: View, scope: OutboundScope, network: str) -> Plan:
    """The plan with the one table."""
    return {TABLE_NAME: name_table.query(scope, network)}


@derived
def name_table(view: View, scope: OutboundScope, network: str) -> Resource:
    """The table for proxies of a scope in a network."""
    rows = [_shard_rows(view, scope, network, shard) for shard in scope_shards(view, scope)]
    return make_resource(TABLE_NAME, NAME_TABLE, b"".join(rows))


@derived
def _shard_rows(view: View, scope: OutboundScope, network: str, shard: int) -> bytes:
    """The encoded rows of the hosts in a shard, in order."""
    found: dict[str, _Entry] = {}
    for service in sorted(scope_services(view, scope, shard), key=lambda service: precedence(view, service)):
        target = scope_service(view, scope, service.alias_of) if service.alias_of else service
        addresses = _addresses(view, target, scope, network) if target is not None else ()
        if addresses:
            entry = _entry(service, addresses)
            found[service.host] = _merged(found[service.host], entry) if service.host in found else entry
        if service.headless:
            found.update(_workload_entries(view, service, scope.cluster_id, network))
    return b"".join(_encoded(host, entry) for host, entry in sorted(found.items()))


def _addresses(view: View, service: Service, scope: OutboundScope, network: str) -> tuple[str, ...]:
    """The addresses to which a service's name resolves."""
    own = tuple(filter(is_ip, service_addresses(service, scope)))
    return own or _endpoint_addresses(view, service, network)


def _endpoint_addresses(view: View, service: Service, network: str) -> tuple[str, ...]:
    """The addresses of a service that has no virtual one and that clients connect to as they resolve it."""
    if service.addresses or service.resolution is not Resolution.PASSTHROUGH or not service.ports:
        return ()
    found = (
        address
        for endpoint in view.endpoints(service.key)
        if _is_resolved(endpoint, network)
        for address in endpoint.addresses
    )
    return tuple(dict.fromkeys(found))


def _workload_entries(view: View, service: Service, cluster_id: str, network: str) -> Iterator[tuple[str, _Entry]]:
    """The rows of workloads that have their own host name: ``web-0.web.shop.svc.cluster.local``.

    One of the client's cluster wins over those of the same name in others, as in Istio.
    """
    domain = service.host.partition(".")[2]
    near: dict[str, dict[str, None]] = {}
    far: dict[str, dict[str, None]] = {}
    for endpoint in view.endpoints(service.key):
        if endpoint.host_name and _is_resolved(endpoint, network):
            is_near = not cluster_id or endpoint.cluster_id in ("", cluster_id)
            (near if is_near else far).setdefault(endpoint.host_name, {}).update(dict.fromkeys(endpoint.addresses))
    for name, own in (far | near).items():
        yield f"{name}.{domain}", _Entry(tuple(own), service.registry, name, service.namespace)


def _is_resolved(endpoint: Endpoint, network: str) -> bool:
    """True if clients of a network may be given an endpoint's address for a name; those of none reach all addresses."""
    is_reached = not network or endpoint.network in ("", network)
    return endpoint.health is Health.HEALTHY and is_reached and is_ip(endpoint.address)


def _entry(service: Service, addresses: tuple[str, ...]) -> _Entry:
    ports = tuple(f"{port.number}/{port.name}" for port in service.ports)
    if not service.namespaced_name:
        return _Entry(addresses, service.registry, ports=ports)
    return _Entry(addresses, service.registry, service.host.partition(".")[0], service.namespace, ports)


def _merged(first: _Entry, later: _Entry) -> _Entry:
    """Two services of one host: one with a short name wins, other addresses are joined."""
    if first.short_name or later.short_name:
        return first if first.short_name else later
    addresses = tuple(dict.fromkeys((*first.addresses, *later.addresses)))
    return attrs.evolve(first, addresses=addresses, ports=tuple(dict.fromkeys((*first.ports, *later.ports))))


def _encoded(host: str, entry: _Entry) -> bytes:
    return field(_TABLE, field(_KEY, host.encode()) + field(_VALUE, b"".join(_fields(entry))))


def _fields(entry: _Entry) -> Iterator[bytes]:
    texts: Iterable[tuple[int, str]] = (
        *((_IPS, address) for address in entry.addresses),
        (_REGISTRY, entry.registry),
        (_SHORT_NAME, entry.short_name),
        (_NAMESPACE, entry.namespace),
        *((_PORT, port) for port in entry.ports),
    )
    return (field(number, text.encode()) for number, text in texts if text)
