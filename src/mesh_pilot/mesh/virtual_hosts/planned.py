"""Virtual hosts as data: names, domains, and the sources of their routes. ``envoy.routes`` renders them.

Rules for domains are Pilot's: the full name, the short forms that resolve for the client (``names.hosts``), the
absolute name, and the service's addresses. The table ignores the port that a request names after its host, unless it is
for all ports: there each domain is with the port.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import attrs

from mesh_pilot.mesh.clusters.destination_rules import DestinationRuleRef
from mesh_pilot.mesh.names.hosts import in_brackets
from mesh_pilot.mesh.proxy.scope import OutboundScope
from mesh_pilot.mesh.routing.client import RouteClient
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import ChallengeAnswer
from mesh_pilot.model.service import UNSPECIFIED, Service


@attrs.frozen(cache_hash=True)
class VirtualServiceRoutes:
    """The routes of a VirtualService for a client that connects to a port."""

    virtual_service: ConfigKey
    client: RouteClient
    port: int


@attrs.frozen(cache_hash=True)
class ServiceRoutes:
    """The route to a service that no VirtualService applies to."""

    host: str
    port: int
    rule: DestinationRuleRef


RouteSource = VirtualServiceRoutes | ServiceRoutes


@attrs.frozen(cache_hash=True)
class PlannedHost:
    """One virtual host of a route table."""

    name: str
    domains: tuple[str, ...]
    routes: tuple[RouteSource, ...] = ()
    """The sources of its routes, in order."""
    answers: tuple[ChallengeAnswer, ...] = ()
    """Answers that it gives itself, before anything else."""
    https_only: bool = False
    """Plaintext requests are redirected to HTTPS."""
    misdirected: bool = False
    """Requests belong to another server of the listener: clients are told to connect there."""
    configs: tuple[ConfigKey, ...] = ()
    """The objects that define its routes."""


def service_addresses(service: Service, scope: OutboundScope) -> tuple[str, ...]:
    """The service's virtual addresses that a request can name as its host."""
    found = [a for a in scope.addresses(service) if a != UNSPECIFIED and "/" not in a]
    return (*found, *scope.auto_addresses(service))


class DomainTable:
    """Assigns domains: in a route table each may occur once, regardless of case."""

    def __init__(self, reserved: Collection[str]) -> None:
        """``reserved``: names of services, which no other service may have as a short form, regardless of case."""
        self._reserved = frozenset(name.lower() for name in reserved)
        self._taken: set[str] = set()

    def take(
        self,
        names: Iterable[str],
        short: Collection[str],
        port: int,
        *,
        without_port: bool,
        absolute: Collection[str] = (),
    ) -> tuple[str, ...]:
        """Take the free domains for these names: without a port if ``without_port``, and with the port unless it is 0.

        ``short`` are those of the names that are short forms; ``absolute`` those that clients may end with a dot.
        """
        free: list[str] = []
        for name in names:
            bracketed = in_brackets(name)
            for form in (bracketed, f"{name}.") if name in absolute and not is_address(name) else (bracketed,):
                for domain in _at_port(form, port, without_port=without_port):
                    lower = domain.lower()
                    if lower in self._taken or (name in short and lower in self._reserved):
                        continue
                    self._taken.add(lower)
                    free.append(domain)
        return tuple(free)


def token_of(domain: str) -> str:
    """The domain as hosts compete for it: in lower case, without the dot that a name may end with."""
    return domain.lower().removesuffix(".").replace(".:", ":")


def _at_port(form: str, port: int, *, without_port: bool) -> Iterator[str]:
    if without_port:
        yield form
    if port:
        yield f"{form}:{port}"


def is_address(name: str) -> bool:
    return ":" in name or name.rpartition(".")[2].isdecimal()
