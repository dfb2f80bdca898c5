"""Routes in words: what they do next to forwarding, where they redirect to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mesh_pilot.explain.inspection.why.matchers import Message, percentage, shown_percentage
from mesh_pilot.explain.inspection.why.request import WhyRequest


def route_extras(route: Message) -> Iterator[str]:
    """The other settings of a route, a few words each."""
    # The fields of Envoy's RouteAction that change what a request or its answer is; those that choose where it goes are
    # steps of the story, and are not told twice.
    action = route.get("route", {})
    for field, words in (("prefix_rewrite", "path rewritten to {}"), ("host_rewrite_literal", "host rewritten to {}")):
        if field in action:
            yield words.format(action[field])
    if "regex_rewrite" in action:
        yield "path rewritten by a regular expression"
    if str(action.get("timeout", "0s")) not in ("0s", "0"):
        yield f"timeout {action['timeout']}"
    retries = action.get("retry_policy", {})
    if int(retries.get("num_retries", 1 if retries else 0)):
        yield f"{int(retries.get('num_retries', 1))} retries"
    if action.get("hash_policy"):
        yield "consistent hashing"
    for name, config in route.get("typed_per_filter_config", {}).items():
        if name.endswith("fault"):
            yield from _faults(config)
        elif "ext_authz/" in name:
            yield f"{name.partition('ext_authz/')[2].rpartition('/')[0]} is asked whether it may pass"
        else:
            yield name.rpartition(".")[2]
    if any(field in route for field in ("request_headers_to_add", "request_headers_to_remove")):
        yield "request headers changed"
    if any(field in route for field in ("response_headers_to_add", "response_headers_to_remove")):
        yield "response headers changed"


def _faults(config: Mapping[str, Any]) -> Iterator[str]:
    if "delay" in config:
        share = shown_percentage(percentage(config["delay"].get("percentage")))
        yield f"{share} delayed by {config['delay'].get('fixed_delay', '?')}"
    if "abort" in config:
        abort = config["abort"]
        status = abort.get("http_status") or f"gRPC status {abort.get('grpc_status', '?')}"
        yield f"{shown_percentage(percentage(abort.get('percentage')))} aborted with {status}"


def abort_of(route: Message) -> tuple[float, str]:
    """The percentage of requests that a fault of the route aborts, and with what; not one that depends on headers."""
    for name, config in route.get("typed_per_filter_config", {}).items():
        abort = config.get("abort", {}) if name.endswith("fault") and not config.get("headers") else {}
        status = abort.get("http_status") or (f"gRPC status {abort['grpc_status']}" if "grpc_status" in abort else "")
        if status:
            return percentage(abort.get("percentage")), str(status)
    return 0.0, ""


def rewritten_path(route: Message, path: str) -> str:
    """The path as it is forwarded. A rewrite by a regular expression is left out."""
    new, match = route.get("route", {}).get("prefix_rewrite"), route.get("match", {})
    old = match.get("prefix", match.get("path", match.get("path_separated_prefix")))
    if not new or old is None or not path.lower().startswith(str(old).lower()):
        return path
    return f"{new}{path[len(old) :]}"


_REDIRECT_CODES = {
    "MOVED_PERMANENTLY": 301,
    "FOUND": 302,
    "SEE_OTHER": 303,
    "TEMPORARY_REDIRECT": 307,
    "PERMANENT_REDIRECT": 308,
}


def redirect_target(redirect: Message, request: WhyRequest) -> tuple[int, str]:
    """The status and location of a redirect."""
    scheme = redirect.get("scheme_redirect") or ("https" if redirect.get("https_redirect") else request.scheme)
    host = str(redirect.get("host_redirect") or (request.host if "port_redirect" in redirect else request.authority))
    port = redirect.get("port_redirect")
    path = str(redirect.get("path_redirect") or request.path)
    if "prefix_rewrite" in redirect:
        path = f"{redirect['prefix_rewrite']}..."
    status = _REDIRECT_CODES.get(str(redirect.get("response_code", "MOVED_PERMANENTLY")), 301)
    return status, f"{scheme}://{host}{f':{port}' if port else ''}{path}"
