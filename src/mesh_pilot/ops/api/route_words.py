"""Matches and actions of routes in words, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.model.redaction import redacted

MOST = 50
"""Matches of a rule that are shown."""


def http_matches(rule: api.HttpRoute) -> list[str]:
    """An entry for each match, such as ``path begins with /api``; one of them must hold. Empty: any request."""
    return ["; ".join(_http_match(match)) or "any request" for match in rule.match[:MOST]]


def l4_matches(rule: api.TlsRoute | api.TcpRoute) -> list[str]:
    """The same for connections."""
    return ["; ".join(_l4_match(match)) or "any connection" for match in rule.match[:MOST]]


def http_actions(rule: api.HttpRoute) -> list[str]:
    """The treatment of a request besides its being sent on, such as ``timeout 5 s``."""
    return list(_actions(rule))


def _http_match(match: api.HttpMatchRequest) -> Iterator[str]:
    if match.uri is not None:
        case = " (any case)" if match.ignore_uri_case else ""
        yield f"path {_text(match.uri)}{case}"
    for name, value in (("method", match.method), ("authority", match.authority), ("scheme", match.scheme)):
        if value is not None:
            yield f"{name} {_text(value)}"
    yield from _values("header", match.headers)
    yield from _values("not header", match.without_headers)
    yield from _values("query parameter", match.query_params)
    yield from _client(match)


def _l4_match(match: api.TlsMatchAttributes | api.L4MatchAttributes) -> Iterator[str]:
    if isinstance(match, api.TlsMatchAttributes):
        yield f"SNI {' or '.join(match.sni_hosts)}"
    elif match.source_subnet:
        yield f"source in {match.source_subnet}"
    if match.destination_subnets:
        yield f"destination in {' or '.join(match.destination_subnets)}"
    yield from _client(match)


def _client(match: api.HttpMatchRequest | api.TlsMatchAttributes | api.L4MatchAttributes) -> Iterator[str]:
    if match.port:
        yield f"port {match.port}"
    if match.gateways:
        yield f"at gateway {' or '.join(match.gateways)}"
    if match.source_namespace:
        yield f"from namespace {match.source_namespace}"
    if match.source_labels:
        yield "from " + ", ".join(f"{name}={value}" for name, value in match.source_labels.items())


def _values(what: str, values: Mapping[str, api.StringMatch]) -> Iterator[str]:
    return (f"{what} {name} {_text(value)}" for name, value in redacted(values).items())


def _text(match: api.StringMatch) -> str:
    if match.exact is not None:
        return f"is {match.exact}"
    if match.prefix is not None:
        return f"begins with {match.prefix}"
    return "is there" if match.regex is None else f"matches {match.regex}"


def _actions(rule: api.HttpRoute) -> Iterator[str]:
    # A word for each field that Envoy acts on, in the order in which it does: a redirect or an answer ends the request,
    # so the rest of such a rule never runs.
    yield from (f"ask {auth.destination.host}" for auth in rule.external_auth if auth.destination is not None)
    if (redirect := rule.redirect) is not None:
        place = (redirect.scheme and f"{redirect.scheme}://") + redirect.authority + (redirect.uri or "")
        yield f"redirect ({redirect.redirect_code or 301}) to {place or redirect.prefix_rewrite or 'the same place'}"
    if (answer := rule.direct_response) is not None:
        yield f"answer {answer.status}"
    if (rewrite := rule.rewrite) is not None:
        if rewrite.uri or rewrite.uri_regex_rewrite is not None:
            yield f"rewrite the path to {rewrite.uri or rewrite.uri_regex_rewrite.rewrite}"  # type: ignore[union-attr]
        if rewrite.authority:
            yield f"rewrite the host to {rewrite.authority}"
    if rule.timeout is not None:
        yield f"timeout {rule.timeout.total_seconds():g} s"
    if rule.retries is not None:
        yield f"{rule.retries.attempts} retries" if rule.retries.attempts else "no retries"
    if rule.fault is not None:
        parts = [name for name, part in (("delay", rule.fault.delay), ("abort", rule.fault.abort)) if part is not None]
        yield f"fault: {' and '.join(parts)}"
    mirrored = [rule.mirror, *(each.destination for each in rule.mirrors)]
    yield from (f"mirror to {each.host}" + f" {each.subset}" * bool(each.subset) for each in mirrored if each)
    if rule.cors_policy is not None:
        yield "CORS"
    if rule.headers is not None:
        yield "headers are changed"
