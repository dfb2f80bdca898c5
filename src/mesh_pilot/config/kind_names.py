"""The names that people give to kinds: ``VirtualService``, ``virtualservices``, ``vs``, in any case."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from mesh_pilot.config.kinds import KINDS, Kind

SHORT_NAMES: Mapping[str, str] = {
    "vs": "VirtualService",
    "dr": "DestinationRule",
    "se": "ServiceEntry",
    "we": "WorkloadEntry",
    "wg": "WorkloadGroup",
    "gw": "Gateway",
    "pa": "PeerAuthentication",
    "ra": "RequestAuthentication",
    "ap": "AuthorizationPolicy",
    "gtw": "KubernetesGateway",
    "gc": "GatewayClass",
    "lset": "ListenerSet",
    "refgrant": "ReferenceGrant",
    "btlspolicy": "BackendTLSPolicy",
    "ing": "Ingress",
    "ns": "Namespace",
    "lrl": "LocalRateLimit",
    "hc": "HealthCheck",
}
"""Short names, of kubectl where it has one."""


def kind_named(name: str) -> Kind | None:
    """The kind that is meant; None if there is none. A plural may have its group: ``gateways.networking.istio.io``."""
    return _by_name().get(name.lower())


@cache
def _by_name() -> Mapping[str, Kind]:
    found: dict[str, Kind] = {}
    for kind in KINDS.values():  # the first of two Gateways is Istio's
        for name in (kind.name, kind.plural, f"{kind.plural}.{kind.group}"):
            found.setdefault(name.lower(), kind)
    return {**found, **{short: KINDS[name] for short, name in SHORT_NAMES.items()}}
