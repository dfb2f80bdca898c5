"""The registered endpoints that a proxy belongs to: those at its addresses, or those that its metadata names.

Node metadata (`REGISTRATION_METADATA`) names the node, and one or several services and ids, separated by commas. They
select among several endpoints at an address. An id also finds an endpoint that is registered at another address, as
behind NAT.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mesh_pilot.engine.snapshots import NO_NAMES
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import REGISTRATION_METADATA, Endpoint
from mesh_pilot.world.indexes import ServiceEndpoints
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class RegistrationClaim:
    """How a proxy identifies its endpoints. Without node, services and ids: all endpoints at its addresses."""

    ip_addresses: tuple[str, ...]
    namespace: str
    """Only endpoints of services in this namespace count, so that a service of another namespace cannot take over a
    proxy by registering its address. Empty (the node has no NAMESPACE): any namespace."""
    node: str = ""
    services: frozenset[str] = frozenset()
    ids: tuple[str, ...] = ()

    @property
    def has_names(self) -> bool:
        """True if it names its registration, so that not every endpoint at its addresses is its own."""
        return bool(self.node or self.services or self.ids)

    def without_names(self) -> RegistrationClaim:
        return attrs.evolve(self, node="", services=frozenset(), ids=())

    def covers(self, endpoint: Endpoint) -> bool:
        """True if the claim matches an endpoint. Endpoints without a registration only match claims without names."""
        registration = endpoint.registration
        if registration is None:
            return not self.has_names
        return (
            self.node in ("", registration.node)
            and (not self.services or registration.service in self.services)
            and (not self.ids or registration.id in self.ids)
        )


def registration_claim(proxy: Proxy) -> RegistrationClaim:
    return RegistrationClaim(
        proxy.ip_addresses,
        proxy.text("NAMESPACE"),
        _first(proxy, [names.node for names in REGISTRATION_METADATA]),
        frozenset(_comma_separated(_first(proxy, [names.service for names in REGISTRATION_METADATA]))) or NO_NAMES,
        tuple(_comma_separated(_first(proxy, [names.id for names in REGISTRATION_METADATA]))),
    )


def _first(proxy: Proxy, names: Iterable[str]) -> str:
    return next(filter(None, map(proxy.text, names)), "")


def registered(view: View, claim: RegistrationClaim) -> tuple[ServiceEndpoints, ...]:
    """The endpoints of a proxy by service, oldest first at each address.

    An id that is registered on several nodes, none of them at an address of the proxy, is ambiguous: it is ignored.
    """
    found = _covered(claim, (found for ip in claim.ip_addresses for found in view.endpoints_at(ip)))
    if found or not claim.ids:
        return found
    found = _covered(claim, (found for id in claim.ids for found in view.endpoints_with_id(id)))
    nodes = {e.registration.node for _, endpoints in found for e in endpoints if e.registration}
    return found if len(nodes) == 1 else ()


def _covered(claim: RegistrationClaim, addresses: Iterable[ServiceEndpoints]) -> tuple[ServiceEndpoints, ...]:
    found = []
    for service, endpoints in addresses:
        if claim.namespace in ("", service.namespace):
            covered = tuple(e for e in endpoints if claim.covers(e))
            if covered:
                found.append((service, covered))
    return tuple(dict.fromkeys(found))  # one with several addresses is at each of them


def _comma_separated(text: str) -> list[str]:
    return [part for part in map(str.strip, text.split(",")) if part]
