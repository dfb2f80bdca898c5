"""Policy and MeshPolicy of `authentication.istio.io` in the words of today's kinds.

`peers` become the mode of a PeerAuthentication, `origins` the rules of a RequestAuthentication. Rules: Istio's
Authentication Policy reference, versions 1.1 to 1.5. What has no counterpart becomes its stricter neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mesh_pilot.api.istio.authentication import v1alpha1 as legacy
from mesh_pilot.api.istio.security import v1beta1 as api

Mode = api.PeerAuthenticationMutualTlsMode


@attrs.frozen
class PathMatch:
    """A path of a trigger rule."""

    form: str
    """``exact``, ``prefix``, ``suffix`` or ``regex``."""
    value: str


@attrs.frozen
class TriggerPaths:
    """The paths on which tokens are asked for: those included (none: all), except those excluded."""

    included: tuple[PathMatch, ...] = ()
    excluded: tuple[PathMatch, ...] = ()


EVERY_PATH = TriggerPaths()


def peer_mode(policy: legacy.Policy) -> api.PeerAuthenticationMutualTlsMode:
    """The mTLS mode of the ports that a policy is for: without peers, plaintext."""
    if not policy.peers:
        return Mode.DISABLE
    if any(method.jwt is not None or _accepts_any_tls(method) for method in policy.peers):
        return Mode.STRICT
    first = policy.peers[0].mtls
    relaxed = first is not None and first.mode == legacy.MutualTlsMode.PERMISSIVE
    return Mode.PERMISSIVE if relaxed or policy.peer_is_optional else Mode.STRICT


def token_rules(policy: legacy.Policy) -> tuple[api.JwtRule, ...]:
    """The tokens that a policy accepts. They are forwarded, as Istio did."""
    return tuple(
        api.JwtRule(
            issuer=jwt.issuer,
            audiences=list(jwt.audiences),
            jwks_uri=jwt.jwks_uri,
            jwks=jwt.jwks,
            from_headers=[api.JwtHeader(name=name) for name in jwt.jwt_headers],
            from_params=list(jwt.jwt_params),
            forward_original_token=True,
        )
        for jwt in _tokens(policy)
    )


def trigger_paths(policy: legacy.Policy) -> TriggerPaths | None:
    """The paths on which a policy asks for tokens; None if it cannot be expressed: every path then.

    Envoy asks for the same on a path whoever issued the token, so all origins have to agree, in one trigger rule.
    """
    found = {tuple(map(_paths, jwt.trigger_rules)) for jwt in _tokens(policy)}
    if len(found) > 1:
        return None
    rules = next(iter(found), ())
    if len(rules) > 1:
        return None
    return rules[0] if rules else EVERY_PATH


def _accepts_any_tls(method: legacy.PeerAuthenticationMethod) -> bool:
    return method.mtls is not None and method.mtls.allow_tls


def _tokens(policy: legacy.Policy) -> Iterator[legacy.Jwt]:
    return (origin.jwt for origin in policy.origins if origin.jwt is not None)


def _paths(rule: legacy.JwtTriggerRule) -> TriggerPaths:
    return TriggerPaths(
        tuple(path for match in rule.included_paths for path in _path(match)),
        tuple(path for match in rule.excluded_paths for path in _path(match)),
    )


def _path(match: legacy.StringMatch) -> Iterator[PathMatch]:
    for form in ("exact", "prefix", "suffix", "regex"):
        value = getattr(match, form)
        if value is not None:
            yield PathMatch(form, value)
