"""CORS: a corsPolicy as configuration of Envoy's CORS filter for one route."""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.cors.v3 import cors_pb2
from envoy.type.v3 import percent_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import boolean, exact
from mesh_pilot.envoy.routes.match import string_match

FILTER = "envoy.filters.http.cors"


def cors_config(policy: api.CorsPolicy) -> cors_pb2.CorsPolicy:
    """The CORS policy of a route; ``allowOrigin`` is the older way to write exact ``allowOrigins``."""
    origins = [string_match(origin) for origin in policy.allow_origins]
    result = cors_pb2.CorsPolicy(
        allow_origin_string_match=[o for o in origins if o is not None] or map(exact, policy.allow_origin),
        allow_methods=",".join(policy.allow_methods),
        allow_headers=",".join(policy.allow_headers),
        expose_headers=",".join(policy.expose_headers),
        filter_enabled=base_pb2.RuntimeFractionalPercent(default_value=percent_pb2.FractionalPercent(numerator=100)),
    )
    if policy.max_age is not None:
        result.max_age = str(int(policy.max_age.total_seconds()))
    if policy.allow_credentials is not None:
        result.allow_credentials.CopyFrom(boolean(policy.allow_credentials))
    if policy.unmatched_preflights is not api.CorsPolicyUnmatchedPreflights.UNSPECIFIED:
        forward = policy.unmatched_preflights is api.CorsPolicyUnmatchedPreflights.FORWARD
        result.forward_not_matching_preflights.CopyFrom(boolean(forward))
    return result
