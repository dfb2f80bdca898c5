"""JWT authentication (RequestAuthentication): a request with an invalid token is refused, one without any passes unless
a rule requires its token.

A Policy of Istio 1.1 may require a token, on some paths or all. It stays required next to RequestAuthentications, whose
tokens are then accepted too, but are not enough.

The claims of a valid token go into dynamic metadata, where authorization finds them: one place for all issuers, that of
the token which made the request valid.

Rules: Istio's RequestAuthentication reference; Envoy's JWT authentication filter.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2
from envoy.type.matcher.v3 import metadata_pb2, string_pb2, value_pb2
from google.protobuf import any_pb2, empty_pb2

from mesh_pilot.api.istio.authentication import v1alpha1 as legacy_api
from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of_encoded, encode, regex
from mesh_pilot.envoy.filters.rbac.matchers import metadata, quoted, text_or_member
from mesh_pilot.envoy.filters.translator import FilterClass, FilterTranslator
from mesh_pilot.istio.meaning.legacy_policies import EVERY_PATH, PathMatch, token_rules, trigger_paths
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.mesh.selection.workloads import selected
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import key_set_of
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

REQUEST_AUTHENTICATION = "RequestAuthentication"

JWT_AUTHN_NAME = "envoy.filters.http.jwt_authn"
"""The filter's name; also the namespace of its dynamic metadata."""
JWT_PAYLOAD = "payload"
"""The key in that metadata under which the claims of a valid token are."""

_ANY_PATH = route_components_pb2.RouteMatch(prefix="/")

SPACE_DELIMITED_CLAIMS = ("permission", "scope")
"""Claims that are always lists with spaces between their entries."""


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    if context.side is TrafficSide.OUTBOUND:
        return None
    policies = selected(view, REQUEST_AUTHENTICATION, context.namespace, context.labels)
    legacy = context.legacy.tokens
    encoded = _jwt_config(view, policies, legacy, context.side is TrafficSide.GATEWAY) if policies or legacy else b""
    return any_of_encoded(jwt_pb2.JwtAuthentication, encoded) if encoded else None


def token_claim(
    path: tuple[str, ...], value: string_pb2.StringMatcher | None, *, invert: bool
) -> metadata_pb2.MetadataMatcher:
    """The matcher of a claim in a request's valid token: this text, or a list with this member; None: any value."""
    wanted = value_pb2.ValueMatcher(present_match=True) if value is None else text_or_member(value)
    matcher = metadata(JWT_AUTHN_NAME, (JWT_PAYLOAD, *path), wanted)
    matcher.invert = invert
    return matcher


@derived
def _jwt_config(view: View, policies: tuple[ConfigKey, ...], legacy: tuple[ConfigKey, ...], at_gateway: bool) -> bytes:
    """The encoded ``JwtAuthentication`` for these policies, current and legacy; empty if they have no rule."""
    # Of rules for one issuer those of the workload's namespace come first, as in Istio.
    narrowest_first = sorted(policies, key=lambda key: key.namespace == view.root_namespace)
    configs = (view.config(key) for key in narrowest_first)
    rules = sorted((rule for config in configs if config for rule in config.spec.jwt_rules), key=lambda r: r.issuer)
    message = jwt_pb2.JwtAuthentication(bypass_cors_preflight=True)
    required: dict[str, bool] = {}
    for index, rule in enumerate(rules):
        message.providers[f"origins-{index}"].CopyFrom(_provider(view, rule))
        required[f"origins-{index}"] = rule.presence == api.JwtRequirement.REQUIRED
    specs = [config.spec for key in legacy if (config := view.config(key)) is not None and config.spec.origins]
    for index, spec in enumerate(specs):
        for number, rule in enumerate(token_rules(spec)):
            message.providers[f"policy-{index}-{number}"].CopyFrom(_provider(view, rule))
    for name in message.providers if at_gateway else ():
        message.providers[name].clear_route_cache = True  # routes may match claims, and headers made of them
    if specs:
        message.rules.extend(_legacy_rules(specs, required))
    elif required:
        message.rules.add(match=_ANY_PATH, requires=_requirement(required))
    return encode(message) if message.providers else b""


def _legacy_rules(
    specs: Sequence[legacy_api.Policy], accepted: Mapping[str, bool]
) -> Iterator[jwt_pb2.RequirementRule]:
    """The rules where Policies ask for tokens; ``accepted`` as for ``_requirement``.

    If there are several Policies (of several services at a port), one token for each that requires one is needed, on
    every path.
    """
    requires = [
        _legacy_requirement(
            [f"policy-{index}-{n}" for n in range(len(spec.origins))], accepted, spec.origin_is_optional
        )
        for index, spec in enumerate(specs)
    ]
    requires += [_of(name) for name, required in accepted.items() if required]
    paths = trigger_paths(specs[0]) if len(specs) == 1 else None
    paths = paths or EVERY_PATH
    elsewhere = jwt_pb2.RequirementRule(match=_ANY_PATH)
    if accepted:
        elsewhere.requires.CopyFrom(_requirement(accepted))
    for path in paths.excluded:
        yield jwt_pb2.RequirementRule(match=_path_match(path), requires=elsewhere.requires if accepted else None)
    for match in map(_path_match, paths.included) if paths.included else [_ANY_PATH]:
        yield jwt_pb2.RequirementRule(match=match, requires=_all_required(requires))
    if paths.included:
        yield elsewhere


def _legacy_requirement(names: Sequence[str], accepted: Mapping[str, bool], optional: bool) -> jwt_pb2.JwtRequirement:
    """One of the providers finds its token valid. If that is optional, whatever else is valid, or nothing, passes."""
    by_name = [_of(name) for name in names]
    if not optional:
        return _any_required(*by_name) if len(by_name) > 1 else by_name[0]
    if accepted:
        return _any_required(*by_name, _requirement(accepted))
    return _any_required(*by_name, jwt_pb2.JwtRequirement(allow_missing_or_failed=empty_pb2.Empty()))


def _all_required(requirements: Sequence[jwt_pb2.JwtRequirement]) -> jwt_pb2.JwtRequirement:
    if len(requirements) == 1:
        return requirements[0]
    return jwt_pb2.JwtRequirement(requires_all=jwt_pb2.JwtRequirementAndList(requirements=requirements))


def _path_match(path: PathMatch) -> route_components_pb2.RouteMatch:
    match path.form:
        case "exact":
            return route_components_pb2.RouteMatch(path=path.value)
        case "prefix":
            return route_components_pb2.RouteMatch(prefix=path.value)
        case "suffix":
            return route_components_pb2.RouteMatch(safe_regex=regex(f".*{quoted(path.value)}").safe_regex)
        case _:
            return route_components_pb2.RouteMatch(safe_regex=regex(path.value).safe_regex)


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


def _of(name: str) -> jwt_pb2.JwtRequirement:
    return jwt_pb2.JwtRequirement(provider_name=name)


def _requirement(accepted: Mapping[str, bool]) -> jwt_pb2.JwtRequirement:
    """The requirement of these providers of RequestAuthentications; True for one whose token is required.

    Any provider finds its token valid; or each finds no token, or a valid one.
    The second alternative alone would refuse a token that lies where several providers look and only one accepts it.
    But it stands alone where a token is required, which another provider's could not replace.
    """
    missing = jwt_pb2.JwtRequirement(allow_missing=empty_pb2.Empty())
    every = _all_required(
        [_of(name) if required else _any_required(_of(name), missing) for name, required in accepted.items()]
    )
    if len(accepted) == 1 or any(accepted.values()):
        return every
    return _any_required(*map(_of, accepted), every)


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

    Anyone can repeat that, and see that the point was not chosen by its private key: to find the key would mean to
    break the curve.
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
"""A JSON Web Key Set whose private key is unknown to everyone."""
