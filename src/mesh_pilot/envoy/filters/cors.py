"""CORS (``VirtualService.http.corsPolicy``): routes have the policy; it has no effect without the filter.

Rules: Istio's CorsPolicy reference; Envoy's CORS filter.
"""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.cors.v3 import cors_pb2
from envoy.type.v3 import percent_pb2
from google.protobuf import any_pb2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import any_of, boolean, exact, string_match
from mesh_pilot.envoy.filters.translator import FilterTranslator
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any:
    return any_of(cors_pb2.Cors())


def _per_route(spec: api.HttpRoute) -> any_pb2.Any | None:
    return any_of(_cors_policy(spec.cors_policy)) if spec.cors_policy is not None else None


def _cors_policy(policy: api.CorsPolicy) -> cors_pb2.CorsPolicy:
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
    forward = policy.unmatched_preflights is not api.CorsPolicyUnmatchedPreflights.IGNORE
    result.forward_not_matching_preflights.CopyFrom(boolean(forward))
    return result


CORS = FilterTranslator(
    name="envoy.filters.http.cors",
    config=cors_pb2.Cors,
    hcm=_hcm,
    per_route=_per_route,
)
