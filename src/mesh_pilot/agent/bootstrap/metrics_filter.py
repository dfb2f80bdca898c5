"""Which of Envoy's statistics are metrics: all that the bootstrap asks for, but those that only the agent reads.

The agent's reports need statistics of each cluster and listener. In metrics each would be a series for each cluster of
each proxy, unasked for. Envoy itself leaves them out: its admin interface takes a filter, a regular
expression of the names to show. Source: Envoy, "Administration interface", ``/stats/prometheus``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Json
from mesh_pilot.agent.bootstrap.static_resources import ADMIN_CLUSTER
from mesh_pilot.agent.bootstrap.statistics_config import TRAFFIC

PATH = "/stats/prometheus"


def metrics_filter(bootstrap: Mapping[str, Any]) -> str:
    """The regular expression of the statistics that are metrics; empty where all are."""
    matcher: Mapping[str, Any] = bootstrap.get("stats_config", {}).get("stats_matcher", {})
    patterns = matcher.get("inclusion_list", {}).get("patterns", ())
    if TRAFFIC not in patterns:
        return ""
    return "|".join(_expression(pattern) for pattern in patterns if pattern != TRAFFIC)


def _expression(pattern: Mapping[str, Any]) -> str:
    """A regular expression for what Envoy's StringMatcher finds."""
    match pattern:
        case {"prefix": text}:
            return f"^{re.escape(text)}"
        case {"suffix": text}:
            return f"{re.escape(text)}$"
        case {"contains": text}:
            return f"{re.escape(text)}"
        case {"exact": text}:
            return f"^{re.escape(text)}$"
        case {"safe_regex": {"regex": regex}}:
            return f"^(?:{regex})$"
    return ".*"


def with_filtered_metrics(bootstrap: Mapping[str, Any]) -> dict[str, Any]:
    """The bootstrap in which the listener of metrics has Envoy's admin interface filter them."""
    regex = metrics_filter(bootstrap)
    return {name: _filtered(part, regex) for name, part in bootstrap.items()} if regex else dict(bootstrap)


def _filtered(part: Any, regex: str) -> Any:
    """A part of the bootstrap, with each route to the metrics replaced."""
    if isinstance(part, Mapping):
        return {name: _filtered(value, regex) for name, value in part.items()}
    if isinstance(part, list):
        found: list[Any] = []
        for each in part:
            found += _routes(each, regex) if _is_route(each) else [_filtered(each, regex)]
        return found
    return part


def _is_route(part: Any) -> bool:
    is_one = isinstance(part, Mapping) and part.get("match") == {"prefix": PATH}
    return is_one and part.get("route", {}).get("cluster") == ADMIN_CLUSTER


def _routes(route: Mapping[str, Any], regex: str) -> list[Json]:
    """The route, for requests with their own filter, with ``usedonly``, and without.

    Envoy replaces a path and not its query, which is appended: so what is put in its place ends with a parameter
    without meaning, and the parameters that count are repeated.
    """
    rewritten = f"{PATH}?filter={quote(regex, safe='')}&"
    return [
        {**route, "match": {"prefix": PATH, "query_parameters": [_present("filter")]}},
        {
            **route,
            "match": {"prefix": PATH, "query_parameters": [_present("usedonly")]},
            "route": {**route["route"], "prefix_rewrite": f"{rewritten}usedonly&given="},
        },
        {**route, "route": {**route["route"], "prefix_rewrite": f"{rewritten}given="}},
    ]


def _present(name: str) -> Json:
    return {"name": name, "present_match": True}
