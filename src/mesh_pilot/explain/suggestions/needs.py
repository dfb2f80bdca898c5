"""The hosts that a workload must import so that every call that it made keeps working.

What is counted are clusters, and a cluster says where a request went, not which host it asked for. A workload
needs the hosts of its clusters, all that may have led there, and what nothing counts:

- the hosts of VirtualServices that route to a called host, be it by HTTP, TLS or TCP, by a delegate, or as a mirror;
- the aliases of a called service, since requests may have named those;
- the hosts of VirtualServices that answer by a redirect or with a body: no cluster counts those;
- for hosts of VirtualServices that no service has, a service with HTTP at port 80: the listener there is theirs, too.

An imported VirtualService brings its other destinations: a backup that was never used stays reachable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from mesh_pilot.istio.rules.names import is_dns_label, scoped_host_reason
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.reach.sidecar_scope import (
    Egress,
    all_egress_virtual_services,
    all_services,
    destinations,
    egress_listeners,
    egress_virtual_services,
    visible_aliases,
)
from mesh_pilot.mesh.reach.visibility import scope_service
from mesh_pilot.mesh.virtual_hosts.host_candidates import HTTP_PORT
from mesh_pilot.mesh.virtual_services.rules import http_rules
from mesh_pilot.model.service import Service
from mesh_pilot.world.indexes import VirtualServiceMeta
from mesh_pilot.world.shards import WILDCARD_HOSTS
from mesh_pilot.world.view import View

Needed = tuple[str, str]
"""A namespace and a host, as a Sidecar imports them."""

CALLED = ""
"""The reason of a host that was called itself."""


class Needs:
    """Finds what scopes need. Mutable state: the VirtualServices of each namespace and egress listener, once read."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._routing: dict[tuple[str, Egress], _Routing] = {}

    def of(self, scope: OutboundScope, hosts: Iterable[str]) -> Mapping[Needed, str]:
        """The hosts to import for calls of these hosts, each with its reason; hosts that are gone are left out."""
        found: dict[Needed, str] = {}
        services: list[Service] = []
        called = sorted(set(hosts))
        for host in called:
            services += self._add(found, scope, host, CALLED)
        without_service = []
        for egress in egress_listeners(self._view, scope):
            routing = self._routing_of(scope, egress)
            metas = {meta.key: (meta, f"{meta.key} routes to {host}") for host in called for meta in routing.to(host)}
            metas |= {meta.key: (meta, f"{meta.key} answers without a destination") for meta in routing.answering}
            for meta, why in metas.values():
                for host in meta.hosts:
                    found.setdefault(_named(meta.key.namespace, host), why)
                    own = self._add(found, scope, host, why)
                    services += own
                    without_service += [] if own else [host]
        if without_service and not any(map(_has_listener, services)):
            there = [service for service in all_services(self._view, scope) if _has_listener(service)]
            least = min(there, key=lambda each: (len(each.ports), each.order), default=None)
            if least is not None:
                why = f"no service has the host {without_service[0]}: this one keeps the listener of port {HTTP_PORT}"
                found[_named(least.namespace, least.host)] = why
        return found

    def _add(self, found: dict[Needed, str], scope: OutboundScope, host: str, why: str) -> list[Service]:
        """Add the service of a host with all names that lead to it; none where no service has the host."""
        service = scope_service(self._view, scope, host)
        if service is None:
            return []
        target = scope_service(self._view, scope, service.alias_of) if service.alias_of else None
        services = [each for each in (service, target) if each is not None]
        for each in services:
            found.setdefault(_named(each.namespace, each.host), why)
            visible = {
                host for egress in egress_listeners(self._view, scope) for host in self._aliases(scope, egress, each)
            }
            for alias in each.aliases:
                if alias.host in visible:
                    found.setdefault(_named(alias.namespace, alias.host), f"it is an alias of {each.host}")
        return services

    def _aliases(self, scope: OutboundScope, egress: Egress, service: Service) -> tuple[str, ...]:
        return visible_aliases(self._view, scope.namespace, egress, service)

    def _routing_of(self, scope: OutboundScope, egress: Egress) -> _Routing:
        key = scope.namespace, egress
        if key not in self._routing:
            exact = all_egress_virtual_services(self._view, scope, egress)
            wide = egress_virtual_services(self._view, scope, egress, WILDCARD_HOSTS)
            self._routing[key] = _Routing(self._view, {meta.key: meta for meta in (*exact, *wide)}.values())
        return self._routing[key]


class _Routing:
    """VirtualServices by where they lead."""

    def __init__(self, view: View, metas: Iterable[VirtualServiceMeta]) -> None:
        self._to: defaultdict[str, list[VirtualServiceMeta]] = defaultdict(list)
        self.answering: list[VirtualServiceMeta] = []
        for meta in metas:
            for host, _ in destinations(view, meta.key):
                self._to[host].append(meta)
            if any(rule.spec.redirect or rule.spec.direct_response for rule in http_rules(view, meta.key)):
                self.answering.append(meta)

    def to(self, host: str) -> Iterator[VirtualServiceMeta]:
        return iter(self._to.get(host, ()))


def _named(namespace: str, host: str) -> Needed:
    """A host as a Sidecar may name it. Of an address only all hosts of its namespace can be."""
    is_host = is_dns_label(host) or not scoped_host_reason(f"{namespace}/{host}", gateway=False)
    return (namespace, host if is_host else "*")


def _has_listener(service: Service) -> bool:
    """True if a service gives its clients the HTTP listener of port 80."""
    port = service.port(HTTP_PORT)
    return port is not None and port.protocol.is_http
