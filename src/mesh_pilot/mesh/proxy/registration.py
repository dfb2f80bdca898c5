"""Beside which endpoints of a registry a proxy runs: those at its addresses, or those that its metadata names.

Node metadata (`REGISTRATION_METADATA`) names services and ids, each one or several with commas, and the node. They
select among several endpoints at an address. An id also finds an endpoint that is registered at another address, as
behind NAT.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import REGISTRATION_METADATA, Endpoint
from mesh_pilot.world.view import Placed, View


@attrs.frozen(cache_hash=True)
class RegistrationClaim:
    """What a proxy says beside whom it runs. Empty: whoever is at its addresses."""

    ip_addresses: tuple[str, ...]
    namespace: str
    """Of whose services alone it takes part; empty: of all. Nobody may put a service into a namespace that is not
    theirs by claiming its addresses."""
    node: str = ""
    services: frozenset[str] = frozenset()
    ids: tuple[str, ...] = ()

    def covers(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint may be meant, as far as it is registered anywhere."""
        known = endpoint.registration
        if known is None:
            return not (self.node or self.services or self.ids)
        return (
            self.node in ("", known.node)
            and (not self.services or known.service in self.services)
            and (not self.ids or known.id in self.ids)
        )


def registration_claim(proxy: Proxy) -> RegistrationClaim:
    return RegistrationClaim(
        proxy.ip_addresses,
        proxy.text("NAMESPACE"),
        _first(proxy, [names.node for names in REGISTRATION_METADATA]),
        frozenset(_listed(_first(proxy, [names.service for names in REGISTRATION_METADATA]))),
        tuple(_listed(_first(proxy, [names.id for names in REGISTRATION_METADATA]))),
    )


def _first(proxy: Proxy, names: Iterable[str]) -> str:
    return next(filter(None, map(proxy.text, names)), "")


def registered(view: View, claim: RegistrationClaim) -> tuple[Placed, ...]:
    """The endpoints that a proxy runs beside, by service, the oldest first at each address.

    An id that several nodes have, none of which has an address of the proxy, says too little: none of them counts.
    """
    found = _covered(claim, (placed for ip in claim.ip_addresses for placed in view.endpoints_at(ip)))
    if found or not claim.ids:
        return found
    found = _covered(claim, (placed for id in claim.ids for placed in view.endpoints_with_id(id)))
    nodes = {e.registration.node for _, endpoints in found for e in endpoints if e.registration}
    return found if len(nodes) == 1 else ()


def _covered(claim: RegistrationClaim, places: Iterable[Placed]) -> tuple[Placed, ...]:
    found = []
    for service, endpoints in places:
        if claim.namespace in ("", service.namespace):
            covered = tuple(e for e in endpoints if claim.covers(e))
            if covered:
                found.append((service, covered))
    return tuple(found)


def _listed(text: str) -> list[str]:
    return [part for part in map(str.strip, text.split(",")) if part]
