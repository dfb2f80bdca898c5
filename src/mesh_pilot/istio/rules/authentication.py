"""Rules for RequestAuthentication."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from mesh_pilot.api.istio.security.v1beta1 import JwtRule, PeerAuthentication, RequestAuthentication
from mesh_pilot.istio.rules.common import check_match_labels, check_targets, warn_of_waypoints
from mesh_pilot.istio.rules.context import Context, check, check_parts, check_values, error, warning
from mesh_pilot.istio.rules.key_sets import key_set_reason
from mesh_pilot.istio.rules.names import empty_reason, port_reason
from mesh_pilot.istio.rules.values import duration_reason
from mesh_pilot.model.config import Problem

_NOT_IN_HEADER = re.compile(r"[\r\n\0]")
_HEADER = re.compile(r"[-_A-Za-z0-9]+")


def validate_request_authentication(spec: RequestAuthentication, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a RequestAuthentication."""
    yield from check_match_labels(spec.selector)
    yield from check_targets(spec.selector is not None, spec.target_ref, spec.target_refs, context)
    yield from warn_of_waypoints(spec.target_ref, spec.target_refs)
    yield from check_parts("spec", spec, _check_rule, "jwt_rules")


def _check_rule(path: str, rule: JwtRule) -> Iterator[Problem]:
    if not rule.issuer and not rule.jwks_uri:
        yield error(f"{path}.issuer", "is missing; only a rule with jwksUri can do without")
    lists = ("audiences", "from_params", "from_cookies", "space_delimited_claims")
    yield from check_values(path, rule, empty_reason, *lists)
    for index, header in enumerate(rule.from_headers):
        here = f"{path}.fromHeaders[{index}]"
        yield from check(f"{here}.name", line_reason(header.name) if header.name else "is missing")
        yield from check(f"{here}.prefix", line_reason(header.prefix))
    for index, claim in enumerate(rule.output_claim_to_headers):
        here = f"{path}.outputClaimToHeaders[{index}]"
        if not claim.claim:
            yield error(f"{here}.claim", "is missing")
        if not _HEADER.fullmatch(claim.header):
            reason = f'"{claim.header}" is not a header name: letters, digits, "-" and "_"'
            yield error(f"{here}.header", reason if claim.header else "is missing")
    yield from check(f"{path}.outputPayloadToHeader", line_reason(rule.output_payload_to_header))
    if rule.jwks and rule.jwks_uri:
        yield warning(f"{path}.jwksUri", "has no effect next to jwks")
    if rule.jwks_uri:
        yield from check(f"{path}.jwksUri", http_url_reason(rule.jwks_uri))
    if rule.jwks:
        yield from check(f"{path}.jwks", key_set_reason(rule.jwks))
    yield from check_values(path, rule, duration_reason, "timeout")


def http_url_reason(url: str) -> str:
    """The fault in a URL that is fetched."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        good = False
    return "" if good else f'"{url}" is not an http or https URL'


def line_reason(text: str) -> str:
    """The fault in a header's name or the start of its value: Envoy refuses what no header can have."""
    return "must not have line breaks or null characters" if _NOT_IN_HEADER.search(text) else ""


def validate_peer_authentication(spec: PeerAuthentication, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a PeerAuthentication."""
    yield from check_match_labels(spec.selector)
    if spec.port_level_mtls and (spec.selector is None or not spec.selector.match_labels):
        yield error("spec.portLevelMtls", "needs a selector: ports are those of workloads, not of a namespace")
    for port in spec.port_level_mtls:
        yield from check(f"spec.portLevelMtls[{port}]", port_reason(port))
