"""Rules for the `http` routes of a VirtualService."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.istio.rules.context import check, error, warning
from mesh_pilot.istio.rules.http_policies import check_cors, check_fault, check_retries
from mesh_pilot.istio.rules.names import check_labels, dns_label_reason, port_reason, wildcard_host_reason
from mesh_pilot.istio.rules.regex import regex_reason, rewrite_reason
from mesh_pilot.istio.rules.values import (
    changed_header_reason,
    duration_or_zero_reason,
    header_text_reason,
    header_value_reason,
    is_authority,
    matched_header_reason,
    percent_reason,
    percentage_reason,
    string_match_reason,
)
from mesh_pilot.model.config import Problem

REDIRECT_CODES = (301, 302, 303, 307, 308)
"""Status codes that Envoy accepts for a redirect."""

MAX_BODY = 1024 * 1024
"""Bytes of a direct response's body."""


MAX_QUERY_NAME = 1024
"""Envoy's limit of the bytes of a query parameter's name."""


def check_http_route(path: str, route: api.HttpRoute, *, delegate: bool) -> Iterator[Problem]:
    """One route; `delegate`: its VirtualService is a delegate."""
    yield from _check_action(path, route, delegate)
    for index, match in enumerate(route.match):
        yield from _check_match(f"{path}.match[{index}]", match)
    yield from check_headers(f"{path}.headers", route.headers)
    yield from _check_one_authority(path, route)
    yield from check_cors(f"{path}.corsPolicy", route.cors_policy)
    yield from check_fault(f"{path}.fault", route.fault)
    yield from check_retries(f"{path}.retries", route.retries)
    yield from _check_mirrors(path, route)
    yield from _check_redirect(f"{path}.redirect", route.redirect, route.match)
    yield from _check_direct_response(f"{path}.directResponse", route.direct_response)
    yield from _check_rewrite(f"{path}.rewrite", route.rewrite)
    for index, destination in enumerate(route.route):
        here = f"{path}.route[{index}]"
        yield from check_destination(f"{here}.destination", destination.destination)
        yield from check_headers(f"{here}.headers", destination.headers)
    yield from check_weights(f"{path}.route", [destination.weight for destination in route.route])
    if route.session is not None:
        yield error(
            f"{path}.session", "is set by rules of the Gateway API alone: use sessionPersistence of an HTTPRoute"
        )
    if route.timeout is not None:
        yield from check(f"{path}.timeout", duration_or_zero_reason(route.timeout))
    if route.external_auth:
        text = "is for what is made of HTTPRoutes; use an AuthorizationPolicy with action CUSTOM, or an HTTPRoute"
        yield error(f"{path}.externalAuth", text)


def _check_action(path: str, route: api.HttpRoute, delegate: bool) -> Iterator[Problem]:
    """A route has exactly one action: delegate, redirect, direct response or destinations."""
    if route.delegate is not None:
        if delegate:
            yield error(f"{path}.delegate", "a delegate can't delegate again")
        if not route.delegate.name:
            yield error(f"{path}.delegate.name", "is missing")
        if route.delegate.namespace:
            yield from check(f"{path}.delegate.namespace", dns_label_reason(route.delegate.namespace))
    given = [
        name
        for name, there in (
            ("delegate", route.delegate is not None),
            ("redirect", route.redirect is not None),
            ("directResponse", route.direct_response is not None),
            ("route", bool(route.route)),
        )
        if there
    ]
    if not given:
        yield error(path, "one of route, redirect, directResponse and delegate is required")
        return
    for extra in given[1:]:
        yield error(f"{path}.{extra}", f"{given[0]} and {extra} exclude each other")
    if given[0] in ("redirect", "directResponse"):
        for name, value in (("fault", route.fault), ("rewrite", route.rewrite)):
            if value is not None:
                yield error(f"{path}.{name}", f"{given[0]} and {name} exclude each other")


def _check_match(path: str, match: api.HttpMatchRequest) -> Iterator[Problem]:
    if match.uri is not None:
        yield from check(f"{path}.uri", string_match_reason(match.uri, empty_prefix=True))
    for name, value in (("scheme", match.scheme), ("method", match.method), ("authority", match.authority)):
        if value is not None:
            yield from check(f"{path}.{name}", string_match_reason(value))
    for name, value in match.headers.items():
        yield from _check_header_match(f"{path}.headers[{name}]", name, value)
    for name, value in match.without_headers.items():
        yield from _check_header_match(f"{path}.withoutHeaders[{name}]", name, value)
    for name, value in match.query_params.items():
        here = f"{path}.queryParams[{name[:MAX_QUERY_NAME]}]"
        if not 0 < len(name.encode()) <= MAX_QUERY_NAME:
            yield error(here, f"the name of a parameter has 1 to {MAX_QUERY_NAME} bytes, this has {len(name.encode())}")
        yield from check(here, string_match_reason(value))
    if match.port:
        yield from check(f"{path}.port", port_reason(match.port))
    yield from check_labels(f"{path}.sourceLabels", match.source_labels)
    if match.source_namespace:
        yield from check(f"{path}.sourceNamespace", dns_label_reason(match.source_namespace))


def _check_header_match(path: str, name: str, value: api.StringMatch) -> Iterator[Problem]:
    yield from check(path, matched_header_reason(name))
    if value.regex != "*":  # "*" is not a regular expression, but users write it for "any value"
        yield from check(path, string_match_reason(value))


def check_headers(path: str, headers: api.Headers | None) -> Iterator[Problem]:
    """Changes of headers; the host may only be changed on requests, and not removed."""
    if headers is None:
        return
    for direction, operations in (("request", headers.request), ("response", headers.response)):
        if operations is None:
            continue
        for operation, values in (("set", operations.set), ("add", operations.add)):
            for name, value in values.items():
                here = f"{path}.{direction}.{operation}[{name}]"
                yield from check(here, changed_header_reason(name, authority=direction == "request"))
                yield from check(here, (header_text_reason if is_authority(name) else header_value_reason)(value))
        for index, name in enumerate(operations.remove):
            yield from check(f"{path}.{direction}.remove[{index}]", changed_header_reason(name))


def _check_one_authority(path: str, route: api.HttpRoute) -> Iterator[Problem]:
    current = "rewrite.authority" if route.rewrite is not None and route.rewrite.authority else ""
    request = route.headers.request if route.headers is not None else None
    if request is None:
        return
    for operation, values in (("set", request.set), ("add", request.add)):
        for name in values:
            if is_authority(name):
                here = f"headers.request.{operation}[{name}]"
                if current:
                    yield error(f"{path}.{here}", f"the host is changed by {current} already")
                current = current or here


def _check_mirrors(path: str, route: api.HttpRoute) -> Iterator[Problem]:
    if route.mirror is not None:
        yield from check_destination(f"{path}.mirror", route.mirror)
        if route.mirrors:
            yield error(f"{path}.mirrors", "mirror and mirrors exclude each other")
    if route.mirror_percent is not None:
        yield from check(f"{path}.mirrorPercent", percent_reason(route.mirror_percent))
    if route.mirror_percentage is not None:
        yield from check(f"{path}.mirrorPercentage.value", percent_reason(route.mirror_percentage.value))
    for index, mirror in enumerate(route.mirrors):
        here = f"{path}.mirrors[{index}]"
        yield from check_destination(f"{here}.destination", mirror.destination)
        if mirror.percentage is not None:
            yield from check(f"{here}.percentage.value", percentage_reason(mirror.percentage))


def _check_redirect(
    path: str, redirect: api.HttpRedirect | None, matches: Sequence[api.HttpMatchRequest]
) -> Iterator[Problem]:
    if redirect is None:
        return
    # As in Istio, any of the fields makes a redirect; a prefix can only be replaced where every match is by a prefix.
    port = redirect.port is not None or redirect.derive_port is not None
    if not (redirect.uri or redirect.authority or redirect.scheme or redirect.prefix_rewrite or port):
        yield error(path, "needs at least one of uri, prefixRewrite, authority, scheme and port")
    if redirect.uri and redirect.prefix_rewrite:
        yield error(f"{path}.prefixRewrite", "uri and prefixRewrite exclude each other")
    if redirect.prefix_rewrite and any(match.uri is not None and match.uri.prefix is None for match in matches):
        yield error(f"{path}.prefixRewrite", "needs matches by a prefix of the uri, not by all of it or a regex")
    if redirect.scheme and redirect.scheme not in ("http", "https"):
        yield error(f"{path}.scheme", f'"{redirect.scheme}" is not allowed; http or https')
    for name, text in (
        ("uri", redirect.uri),
        ("prefixRewrite", redirect.prefix_rewrite),
        ("authority", redirect.authority),
    ):
        yield from check(f"{path}.{name}", header_text_reason(text))
    if redirect.port is not None:
        yield from check(f"{path}.port", port_reason(redirect.port))
    if redirect.redirect_code and redirect.redirect_code not in REDIRECT_CODES:
        allowed = ", ".join(map(str, REDIRECT_CODES))
        yield error(f"{path}.redirectCode", f"{redirect.redirect_code} is not allowed; one of {allowed}")


def _check_direct_response(path: str, response: api.HttpDirectResponse | None) -> Iterator[Problem]:
    if response is None:
        return
    if not 200 <= response.status <= 599:
        reason = f"{response.status} is not a status to answer with, allowed are 200 to 599"
        yield error(f"{path}.status", reason if response.status else "is missing")
    if response.body is None:
        return
    text, data = response.body.string, response.body.bytes
    size = len(text.encode()) if text is not None else len(data or b"")
    if size > MAX_BODY:
        yield error(f"{path}.body", f"has {size} bytes, allowed are {MAX_BODY}")
    elif size > MAX_BODY // 10:
        yield warning(f"{path}.body", f"has {size} bytes, which every proxy keeps in memory")


def _check_rewrite(path: str, rewrite: api.HttpRewrite | None) -> Iterator[Problem]:
    if rewrite is None:
        return
    regex = rewrite.uri_regex_rewrite
    if not rewrite.uri and not rewrite.authority and regex is None:
        yield error(path, "needs at least one of uri, uriRegexRewrite and authority")
    for name, text in (("uri", rewrite.uri), ("authority", rewrite.authority)):
        yield from check(f"{path}.{name}", header_text_reason(text))
    if regex is None:
        return
    if rewrite.uri:
        yield error(f"{path}.uriRegexRewrite", "uri and uriRegexRewrite exclude each other")
    for name, value in (("match", regex.match), ("rewrite", regex.rewrite)):
        if not value:
            yield error(f"{path}.uriRegexRewrite.{name}", "is missing")
    if reason := regex_reason(regex.match):
        yield error(f"{path}.uriRegexRewrite.match", reason)
    elif reason := rewrite_reason(regex.match, regex.rewrite):
        yield warning(f"{path}.uriRegexRewrite.rewrite", f"Envoy leaves the path as it is: {reason}")
    yield from check(f"{path}.uriRegexRewrite.rewrite", header_text_reason(regex.rewrite))


MAX_TOTAL_WEIGHT = 2**32 - 1
"""The largest sum of weights that Envoy accepts."""


def check_destination(path: str, destination: api.Destination | None) -> Iterator[Problem]:
    """A required destination."""
    if destination is None:
        yield error(path, "is missing")
        return
    if destination.host == "*":
        yield error(f"{path}.host", '"*" is not a host to send traffic to')
    else:
        yield from check(f"{path}.host", wildcard_host_reason(destination.host) if destination.host else "is missing")
    if destination.subset:
        yield from check(f"{path}.subset", dns_label_reason(destination.subset))
    if destination.port is not None:
        yield from check(f"{path}.port.number", port_reason(destination.port.number))


def check_weights(path: str, weights: Sequence[int]) -> Iterator[Problem]:
    """The weights of the destinations listed at `path`."""
    for index, weight in enumerate(weights):
        if weight < 0:
            yield error(f"{path}[{index}].weight", f"{weight} is negative")
    if len(weights) > 1 and not any(weights):
        yield error(path, "all weights are 0: of several destinations at least one must have a weight")
    if sum(weights) > MAX_TOTAL_WEIGHT:
        yield error(path, f"the weights add up to more than {MAX_TOTAL_WEIGHT}")
