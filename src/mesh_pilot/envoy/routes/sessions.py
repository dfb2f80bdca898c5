"""Sessions of routes: a request that has one goes to its endpoint, as a rule says, or else a policy of the service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envoy.config.route.v3 import route_components_pb2 as rc

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.filters.stateful_session import STATEFUL_SESSION, session_config, session_match
from mesh_pilot.mesh.clusters.destination_rules import DestinationRuleRef, traffic_policy
from mesh_pilot.world import View

_HEADER_FIELDS = (
    "request_headers_to_add",
    "request_headers_to_remove",
    "response_headers_to_add",
    "response_headers_to_remove",
)
"""The fields that a cluster of several has as a route has them."""


def policy_session(view: View, ref: DestinationRuleRef, port: int, subset: str = "") -> api.HttpSession | None:
    """The session that a policy of a service keeps."""
    return traffic_policy(view, ref, port, subset).session if ref else None


def keep_sessions(
    route: rc.Route, spec: api.HttpRoute, clusters: Sequence[str], policies: Sequence[api.HttpSession | None]
) -> None:
    """Bind the sessions of a rule's route to endpoints: by the rule, or else by the policy of each of its clusters."""
    is_single = len(spec.route) == 1
    for index, (cluster, policy) in enumerate(zip(clusters, policies, strict=True)):
        session = spec.session or policy
        if session is not None:
            suffix = "" if is_single or spec.session is None else cluster
            owner = route if is_single else route.route.weighted_clusters.clusters[index]
            owner.typed_per_filter_config[STATEFUL_SESSION.name].CopyFrom(session_config(session, suffix))


def session_routes(route: rc.Route, session: api.HttpSession) -> Iterator[rc.Route]:
    """The routes of requests that have a session at one of several clusters, whatever their weights."""
    for weighted in route.route.weighted_clusters.clusters:
        kept = rc.Route()
        kept.CopyFrom(route)
        kept.match.headers.append(session_match(session, weighted.name))
        kept.route.cluster = weighted.name
        if weighted.host_rewrite_literal:
            kept.route.host_rewrite_literal = weighted.host_rewrite_literal
        for name in _HEADER_FIELDS:
            getattr(kept, name).extend(getattr(weighted, name))
        kept.typed_per_filter_config.MergeFrom(weighted.typed_per_filter_config)
        yield kept
