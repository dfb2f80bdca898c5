"""The SPIFFE ids of endpoints whose registry gives them without a trust domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import attrs

from mesh_pilot.model.service import Endpoint, ServiceKey
from mesh_pilot.model.spiffe import qualified


class EndpointIdentities:
    """Gives endpoints full SPIFFE ids, and the same object for the same again: one that flaps does not cost the others.

    State: by service, the trust domain, the endpoints as registries have them, and the same with full ids.
    """

    def __init__(self) -> None:
        self._given: dict[ServiceKey, tuple[str, tuple[Endpoint, ...], tuple[Endpoint, ...]]] = {}

    def __repr__(self) -> str:
        return f"<EndpointIdentities of {len(self._given)} services>"

    def full(
        self, key: ServiceKey, sets: Sequence[tuple[Endpoint, ...]], trust_domain: str
    ) -> list[tuple[Endpoint, ...]]:
        """The endpoint sets of a service, with full ids."""
        if not any(lacks_trust_domain(endpoint) for each in sets for endpoint in each):
            self._given.pop(key, None)
            return list(sets)
        domain, before, after = self._given.get(key, ("", (), ()))
        known = dict(zip(map(id, before), after, strict=True)) if domain == trust_domain else {}
        full = [tuple([known.get(id(e)) or _with_trust_domain(e, trust_domain) for e in each]) for each in sets]
        self._given[key] = (trust_domain, _joined(sets), _joined(full))
        return full


def lacks_trust_domain(endpoint: Endpoint) -> bool:
    """True if the endpoint's identity is a path in the mesh's trust domain, ``ns/shop/sa/web``."""
    return endpoint.service_account.startswith("ns/")


def _with_trust_domain(endpoint: Endpoint, trust_domain: str) -> Endpoint:
    if not lacks_trust_domain(endpoint):
        return endpoint
    return attrs.evolve(endpoint, service_account=qualified(endpoint.service_account, trust_domain))


def _joined(sets: Iterable[tuple[Endpoint, ...]]) -> tuple[Endpoint, ...]:
    return tuple(chain.from_iterable(sets))
