"""The conversions of routes by kind, and of what several routes become together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from mesh_pilot.gateway_api.routes import convert_route, merged
from mesh_pilot.gateway_api.values import Objects, RouteResult
from mesh_pilot.model.config import Config

CONVERTERS: Mapping[str, Callable[[Config, Objects], RouteResult]] = MappingProxyType(
    dict.fromkeys(("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"), convert_route)
)
"""By kind."""


def merged_config(merge_key: str, configs: Sequence[Config]) -> Config:
    """The config of all those with one merge key, oldest first."""
    return merged(merge_key, configs)
