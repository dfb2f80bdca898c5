"""JWT authentication (RequestAuthentication): a request with an invalid token is refused, one without any passes.

The claims of a valid token go into dynamic metadata, where authorization finds them: one place for all issuers, that of
the token which made the request valid.

Rules: Istio's RequestAuthentication reference; Envoy's JWT authentication filter.
"""

from __future__ import annotations

import base64
import hashlib
import json

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2
from google.protobuf import any_pb2, empty_pb2

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.envoy.core.protobuf import any_of_encoded, encode
from mesh_pilot.envoy.filters.translator import FilterClass, FilterTranslator
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.selection import selected
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import key_set_of
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

REQUEST_AUTHENTICATION = "RequestAuthentication"

JWT_AUTHN_NAME = "envoy.filters.http.jwt_authn"
"""The filter's name; also the namespace of its dynamic metadata."""
JWT_PAYLOAD = "payload"
"""The key in that metadata under which the claims of a valid token are."""

SPACE_DELIMITED_CLAIMS = ("permission", "scope")
"""Claims that are always lists with spaces between their entries."""


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    if context.side is TrafficSide.OUTBOUND:
        return None
    policies = selected(view, REQUEST_AUTHENTICATION, context.namespace, context.labels)
    encoded = _jwt_config(view, policies) if policies else b""
    return any_of_encoded(jwt_pb2.JwtAuthentication, encoded) if encoded else None


@derived
def _jwt_config(view: View, policies: tuple[ConfigKey, ...]) -> bytes:
    """The encoded ``JwtAuthentication`` for proxies with these policies; empty if they have no rule."""
    configs = (view.config(key) for key in policies)
    rules = sorted((rule for config in configs if config for rule in config.spec.jwt_rules), key=lambda r: r.issuer)
    if not rules:
        return b""
    message = jwt_pb2.JwtAuthentication(bypass_cors_preflight=True)
    for index, rule in enumerate(rules):
        message.providers[f"origins-{index}"].CopyFrom(_provider(view, rule))
    message.rules.add(match=route_components_pb2.RouteMatch(prefix="/"), requires=_requirement(list(message.providers)))
    return encode(message)


def _provider(view: View, rule: api.JwtRule) -> jwt_pb2.JwtProvider:
    jwks = rule.jwks or view.key_set(*key_set_of(rule.issuer, rule.jwks_uri)) or UNUSABLE_JWKS
    space_delimited = sorted({*SPACE_DELIMITED_CLAIMS, *rule.space_delimited_claims})
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
        normalize_payload_in_metadata=jwt_pb2.JwtProvider.NormalizePayload(space_delimited_claims=space_delimited),
    )


def _requirement(names: list[str]) -> jwt_pb2.JwtRequirement:
    """Any provider finds its token valid; or each finds no token, or a valid one.

    The second alternative alone would refuse a token that lies where several providers look and only one accepts it.
    """
    names = sorted(names, key=lambda name: (len(name), name))
    by_name = [jwt_pb2.JwtRequirement(provider_name=name) for name in names]
    missing = jwt_pb2.JwtRequirement(allow_missing=empty_pb2.Empty())
    lenient = [_any_required(provider, missing) for provider in by_name]
    if len(lenient) == 1:
        return lenient[0]
    every = jwt_pb2.JwtRequirement(requires_all=jwt_pb2.JwtRequirementAndList(requirements=lenient))
    return _any_required(*by_name, every)


def _any_required(*requirements: jwt_pb2.JwtRequirement) -> jwt_pb2.JwtRequirement:
    return jwt_pb2.JwtRequirement(requires_any=jwt_pb2.JwtRequirementOrList(requirements=requirements))


JWT_AUTHN = FilterTranslator(
    name=JWT_AUTHN_NAME, config=jwt_pb2.JwtAuthentication, hcm=_hcm, filter_class=FilterClass.AUTHN
)


# -- a key set that no token is valid under, for issuers whose keys are not known

_KEY_SEED = b"mesh-pilot: the key that nobody has"
_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B


def _p256_point() -> tuple[int, int]:
    """A point of the curve P-256 found by hashing a sentence.

    Anyone can repeat that, and see that nobody chose the point by its private key: to find the key would mean to break
    the curve.
    """
    x = int.from_bytes(hashlib.sha256(_KEY_SEED).digest(), "big") % _P
    while True:
        square = (x**3 - 3 * x + _B) % _P
        y = pow(square, (_P + 1) // 4, _P)
        if y * y % _P == square:
            return x, y
        x += 1


def _unusable_jwks() -> str:
    x, y = (base64.urlsafe_b64encode(n.to_bytes(32, "big")).rstrip(b"=").decode() for n in _p256_point())
    key = {"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "nobody", "x": x, "y": y}
    return json.dumps({"keys": [key]}, separators=(",", ":"))


UNUSABLE_JWKS = _unusable_jwks()
"""A JSON Web Key Set whose private key nobody has."""
