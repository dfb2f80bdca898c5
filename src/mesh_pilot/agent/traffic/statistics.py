"""Envoy's statistics as rows of a report: which counter each is, and of what.

Names are those of a stock Envoy 1.40, of which this was tried:

- ``upstream_rq_completed`` and its classes count what callers saw; ``retry.upstream_rq_5xx`` counts attempts. The same
  numbers come a second time for the origin of requests (``external.``, ``canary.``, ``zone.A.B.``).
- ``rbac.allowed`` and ``rbac.denied`` count for each filter, and a listener may have four: a request that passes two is
  allowed twice. So listeners have denials only.
- A rule of a policy has ``rbac.policy.NAME.allowed``. No rule is named for what no rule of ALLOW matched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mesh_pilot.agent.bootstrap.static_resources import OWN_CLUSTERS
from mesh_pilot.agent.bootstrap.statistics_config import OF_CLUSTERS, OF_LISTENERS, OF_RULES
from mesh_pilot.model.traffic import Counter, RowKind

Subject = tuple[RowKind, str]
"""The subject of a row: a cluster, a listener, or a rule."""

COUNTERS: Mapping[str, Counter] = {
    "upstream_rq_completed": Counter.REQUESTS,
    "upstream_rq_5xx": Counter.ERRORS,
    "upstream_rq_4xx": Counter.CLIENT_ERRORS,
    "upstream_rq_timeout": Counter.TIMEOUTS,
    "upstream_rq_retry": Counter.RETRIES,
    "upstream_rq_active": Counter.IN_FLIGHT,
    "upstream_cx_total": Counter.CONNECTIONS,
    "upstream_cx_connect_fail": Counter.CONNECT_FAILURES,
    "upstream_cx_none_healthy": Counter.NONE_HEALTHY,
    "downstream_rq_completed": Counter.REQUESTS,
    "downstream_rq_5xx": Counter.ERRORS,
    "downstream_rq_4xx": Counter.CLIENT_ERRORS,
    "no_route": Counter.NO_ROUTE,
    "no_cluster": Counter.NO_CLUSTER,
}
ACTIONS: Mapping[str, Counter] = {"allowed": Counter.ALLOWED, "denied": Counter.DENIED}

TCP = "tcp"
"""The listener of all connections without requests: their policies have one counter together."""

_RBAC, _POLICY = ".rbac", ".rbac.policy."
_TWICE = frozenset(("upstream_rq_completed", "upstream_rq_5xx", "upstream_rq_4xx"))
"""Statistics that come a second time under a longer name."""
_GROUP = re.compile(r"\.(?:canary|external|internal|retry|zone\.[^.]+\.[^.]+)$")
_SURE = ("upstream_cx_total", "upstream_cx_none_healthy")
"""Statistics of clusters alone. One of them counts before the first request is answered."""
_OWN_LISTENERS = frozenset(("admin", "agent", "stats", "async-client"))

FILTER = (
    rf"^(cluster\..+\.({'|'.join(OF_CLUSTERS)})|http\..+\.({'|'.join(OF_LISTENERS)}|rbac\.denied|{OF_RULES})"
    r"|tcp\.rbac\.denied)$"
)
"""The regular expression of the statistics."""


def subject_of(name: str) -> tuple[Subject, Counter] | None:
    """The subject and the counter of a statistic; None for one that is not in reports."""
    start, _, rest = name.partition(".")
    before, _, last = rest.rpartition(".")
    if start == "cluster" and last in COUNTERS:
        cluster = before.removesuffix(";")
        return None if cluster in OWN_CLUSTERS else ((RowKind.CLUSTER, cluster), COUNTERS[last])
    if start == "tcp" and rest == "rbac.denied":
        return (RowKind.LISTENER, TCP), Counter.DENIED
    if start == "http":
        listener, is_rule, rule = before.partition(_POLICY)
        if is_rule and last in ACTIONS:
            return (RowKind.POLICY, rule), ACTIONS[last]
        counter = Counter.DENIED if before.endswith(_RBAC) and last == "denied" else COUNTERS.get(last)
        listener = before.removesuffix(_RBAC).removesuffix(";")
        if counter is not None and listener not in _OWN_LISTENERS:
            return (RowKind.LISTENER, listener), counter
    return None


def is_repeated(name: str, values: Mapping[str, int]) -> bool:
    """True for a statistic that has the numbers of another. ``values``: all that there are, by name.

    The end of its cluster's name tells, unless there is a cluster of that name: hosts may end in ``.internal``.
    """
    cluster, _, last = name.rpartition(".")
    if last not in _TWICE or not _GROUP.search(cluster):
        return False
    return not any(f"{cluster}.{each}" in values for each in _SURE)


def denials_of(name: str) -> str:
    """The prefix that the denials of a listener and those of its rules share; empty for other statistics."""
    if not (name.startswith("http.") and name.endswith(".denied")):
        return ""
    listener, is_rule, _ = name.partition(_POLICY)
    return listener if is_rule else name.removesuffix(f"{_RBAC}.denied")
