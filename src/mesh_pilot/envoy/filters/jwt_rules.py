"""The filter ``jwt_authn``: a request with a bad token is refused, one without any goes on as nobody.

What a good token says is left for authorization. All issuers' claims are left in the same place: that of the token
which made the request good.
"""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2
from google.protobuf import empty_pb2

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.envoy.core.protobuf import encode
from mesh_pilot.envoy.filters.unusable_jwks import NOBODYS_KEYS
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import JWT_PAYLOAD
from mesh_pilot.mesh.proxy.scope import Labels
from mesh_pilot.mesh.selection import selected
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import key_set_of
from mesh_pilot.world.view import View

KIND = "RequestAuthentication"

SPACED_CLAIMS = ("permission", "scope")
"""Claims that are lists with spaces between their entries, whatever a policy says."""


@derived
def token_filter(view: View, namespace: str, labels: Labels) -> bytes:
    """The filter's encoded configuration for a proxy; empty where no tokens are looked at."""
    keys = selected(view, KIND, namespace, labels)
    return _filter(view, keys) if keys else b""


@derived
def _filter(view: View, policies: tuple[ConfigKey, ...]) -> bytes:
    found = (view.config(key) for key in policies)
    rules = sorted((rule for config in found if config for rule in config.spec.jwt_rules), key=lambda r: r.issuer)
    if not rules:
        return b""
    message = jwt_pb2.JwtAuthentication(bypass_cors_preflight=True)
    for index, rule in enumerate(rules):
        message.providers[f"origins-{index}"].CopyFrom(_provider(view, rule))
    message.rules.add(match=route_components_pb2.RouteMatch(prefix="/"), requires=_requirement(list(message.providers)))
    return encode(message)


def _provider(view: View, rule: api.JwtRule) -> jwt_pb2.JwtProvider:
    jwks = rule.jwks or view.key_set(*key_set_of(rule.issuer, rule.jwks_uri)) or NOBODYS_KEYS
    spaced = sorted({*SPACED_CLAIMS, *rule.space_delimited_claims})
    return jwt_pb2.JwtProvider(
        issuer=rule.issuer,
        audiences=rule.audiences,
        local_jwks=base_pb2.DataSource(inline_string=jwks),
        forward=rule.forward_original_token,
        from_headers=[jwt_pb2.JwtHeader(name=h.name, value_prefix=h.prefix) for h in rule.from_headers],
        from_params=rule.from_params,
        from_cookies=rule.from_cookies,
        forward_payload_header=rule.output_payload_to_header,
        claim_to_headers=[
            jwt_pb2.JwtClaimToHeader(header_name=c.header, claim_name=c.claim) for c in rule.output_claim_to_headers
        ],
        payload_in_metadata=JWT_PAYLOAD,
        normalize_payload_in_metadata=jwt_pb2.JwtProvider.NormalizePayload(space_delimited_claims=spaced),
    )


def _requirement(names: list[str]) -> jwt_pb2.JwtRequirement:
    """Any provider finds its token good; or each finds none, or a good one.

    The second alone would refuse a token that lies where several providers look, and only one knows.
    """
    names = sorted(names, key=lambda name: (len(name), name))
    by_name = [jwt_pb2.JwtRequirement(provider_name=name) for name in names]
    missing = jwt_pb2.JwtRequirement(allow_missing=empty_pb2.Empty())
    lenient = [_any(provider, missing) for provider in by_name]
    if len(lenient) == 1:
        return lenient[0]
    every = jwt_pb2.JwtRequirement(requires_all=jwt_pb2.JwtRequirementAndList(requirements=lenient))
    return _any(*by_name, every)


def _any(*requirements: jwt_pb2.JwtRequirement) -> jwt_pb2.JwtRequirement:
    return jwt_pb2.JwtRequirement(requires_any=jwt_pb2.JwtRequirementOrList(requirements=requirements))
