"""Rules for Policy and MeshPolicy of `authentication.istio.io`.

What has no counterpart today is a warning, and its stricter neighbour is in force (see
`istio.meaning.legacy_policies`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.api.istio.authentication.v1alpha1 import Jwt, Policy, StringMatch, TargetSelector
from mesh_pilot.istio.meaning.legacy_policies import trigger_paths
from mesh_pilot.istio.rules.authentication import http_url_reason, line_reason
from mesh_pilot.istio.rules.context import Context, check, check_parts, error, warning
from mesh_pilot.istio.rules.key_sets import key_set_reason
from mesh_pilot.istio.rules.names import fqdn_reason, port_reason
from mesh_pilot.istio.rules.regex import regex_reason
from mesh_pilot.model.config import Problem

GENERAL = "default"
"""The name of a policy for all services of its namespace, or of the mesh."""

_DEPRECATED = "is deprecated: Istio removed this kind in 1.6; write PeerAuthentication and RequestAuthentication"
_STRICTER = "is not supported; STRICT is in force in its place"


def validate_policy(spec: Policy, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a Policy."""
    yield warning("", _DEPRECATED)
    if spec.targets and context.name == GENERAL:
        yield error("spec.targets", f'a Policy named "{GENERAL}" is for the whole namespace and has no targets')
    if not spec.targets and context.name != GENERAL:
        yield error("spec.targets", f'is missing: only a Policy named "{GENERAL}" is for the whole namespace')
    yield from check_parts("spec", spec, _check_target, "targets")
    yield from _check_methods(spec)


def validate_mesh_policy(spec: Policy, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a MeshPolicy."""
    yield warning("", _DEPRECATED)
    if context.name != GENERAL:
        yield error("metadata.name", f'must be "{GENERAL}": there is one MeshPolicy')
    if spec.targets:
        yield error("spec.targets", "must be empty: a MeshPolicy is for all services")
    yield from _check_methods(spec)


def _check_target(path: str, target: TargetSelector) -> Iterator[Problem]:
    yield from check(f"{path}.name", fqdn_reason(target.name) if target.name else "is missing")
    if target.labels:
        yield error(f"{path}.labels", "is not supported: a Policy is for all workloads of a service")
    for index, port in enumerate(target.ports):
        here = f"{path}.ports[{index}]"
        if port.number is not None:
            yield from check(f"{here}.number", port_reason(port.number))
        elif not port.name:
            yield error(here, "needs a number or a name")


def _check_methods(spec: Policy) -> Iterator[Problem]:
    for index, method in enumerate(spec.peers):
        if method.jwt is not None:
            yield warning(f"spec.peers[{index}].jwt", f"{_STRICTER}: tokens belong to origins")
        elif method.mtls is not None and method.mtls.allow_tls:
            yield warning(f"spec.peers[{index}].mtls.allowTls", f"{_STRICTER}: TLS without a client certificate")
        elif index:
            yield warning(f"spec.peers[{index}]", "has no effect: the first method counts")
    for index, origin in enumerate(spec.origins):
        here = f"spec.origins[{index}].jwt"
        if origin.jwt is None:
            yield error(here, "is missing")
        else:
            yield from _check_token(here, origin.jwt)
    if spec.origins and trigger_paths(spec) is None:
        reason = "one rule for all origins is supported; tokens are asked for on every path in its place"
        yield warning("spec.origins[0].jwt.triggerRules", reason)


def _check_token(path: str, jwt: Jwt) -> Iterator[Problem]:
    if not jwt.issuer:
        yield error(f"{path}.issuer", "is missing")
    for name, values in (("audiences", jwt.audiences), ("jwtHeaders", jwt.jwt_headers), ("jwtParams", jwt.jwt_params)):
        for index, value in enumerate(values):
            reason = line_reason(value) if name == "jwtHeaders" else ""
            yield from check(f"{path}.{name}[{index}]", reason if value else "must not be empty")
    if jwt.jwks_uri:
        yield from check(f"{path}.jwksUri", http_url_reason(jwt.jwks_uri))
    if jwt.jwks:
        yield from check(f"{path}.jwks", key_set_reason(jwt.jwks))
    for index, rule in enumerate(jwt.trigger_rules):
        here = f"{path}.triggerRules[{index}]"
        yield from check_parts(here, rule, _check_match, "excluded_paths", "included_paths")


def _check_match(path: str, match: StringMatch) -> Iterator[Problem]:
    if not (match.exact or match.prefix or match.suffix or match.regex):
        yield error(path, "needs one of exact, prefix, suffix, regex")
    elif match.regex:
        yield from check(f"{path}.regex", regex_reason(match.regex))
