"""The conversions of routes and Ingresses by kind, and of what several routes become together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from mesh_pilot.istio.gateway_api.ingress import MERGE_PREFIX, convert_ingress, merged_ingresses
from mesh_pilot.istio.gateway_api.routes import convert_route, merged
from mesh_pilot.istio.gateway_api.values import Objects, RouteResult
from mesh_pilot.model.config import Config

CONVERTERS: Mapping[str, Callable[[Config, Objects], RouteResult]] = MappingProxyType(
    dict.fromkeys(("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"), convert_route)
    | {"Ingress": convert_ingress}
)
"""Converters by kind."""


def merged_config(merge_key: str, configs: Sequence[Config]) -> Config:
    """The config of all those with one merge key, oldest first."""
    if merge_key.startswith(MERGE_PREFIX):
        return merged_ingresses(configs)
    return merged(merge_key, configs)
