"""Actions: what becomes of a request that matched: it is forwarded, redirected, or answered."""

from __future__ import annotations

from datetime import timedelta

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.type.matcher.v3 import regex_pb2

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import duration
from mesh_pilot.envoy.routes.destination import hash_policies, shares, weighted_clusters
from mesh_pilot.envoy.routes.mirror import mirror_policies
from mesh_pilot.envoy.routes.retry import retry_policy
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.proxy.proxy_config import forwards_host
from mesh_pilot.mesh.virtual_services.client import RouteClient
from mesh_pilot.mesh.virtual_services.rules import HttpRule
from mesh_pilot.world import View

REDIRECT_CODES = {
    0: rc.RedirectAction.MOVED_PERMANENTLY,
    301: rc.RedirectAction.MOVED_PERMANENTLY,
    302: rc.RedirectAction.FOUND,
    303: rc.RedirectAction.SEE_OTHER,
    307: rc.RedirectAction.TEMPORARY_REDIRECT,
    308: rc.RedirectAction.PERMANENT_REDIRECT,
}


def forward(view: View, route: rc.Route, rule: HttpRule, client: RouteClient, port: int, authority: str) -> None:
    """Send to the rule's destinations. Header operations of a single destination are those of the route.

    ``authority``: the host that the rule's own header operations give a request.
    """
    spec = rule.spec
    action = route.route
    parts = shares(view, spec.route, rule.namespace, client, port)
    if len(parts) == 1:
        action.cluster = parts[0].target.cluster
        parts[0].headers.write_to(route)
        authority = authority or parts[0].headers.authority
    else:
        action.weighted_clusters.CopyFrom(weighted_clusters(parts))
    _rewrite(action, spec.rewrite, authority)
    action.append_x_forwarded_host = forwards_host(view, "") and _rewrites_host(action)
    action.hash_policy.extend(hash_policies(view, parts, client))
    action.request_mirror_policies.extend(mirror_policies(view, spec, rule.namespace, client, port))
    retries = default_retries(view) if spec.retries is None else retry_policy(spec.retries)
    if retries is not None:
        action.retry_policy.CopyFrom(retries)
    _limit(action, spec.timeout or timedelta(0), grpc=client.grpc)


def redirect(route: rc.Route, spec: api.HttpRedirect, port: int) -> None:
    """Send the client elsewhere. A port derived from the request is the one that the route table is for."""
    action = route.redirect
    action.host_redirect = spec.authority
    if spec.prefix_rewrite:
        action.prefix_rewrite = spec.prefix_rewrite
    elif spec.uri:
        action.path_redirect = spec.uri
    if spec.scheme:
        action.scheme_redirect = spec.scheme
    if spec.port is not None:
        action.port_redirect = spec.port
    elif spec.derive_port is api.HttpRedirectRedirectPortSelection.FROM_REQUEST_PORT:
        action.port_redirect = port
    action.response_code = REDIRECT_CODES[spec.redirect_code]


def respond(route: rc.Route, spec: api.HttpDirectResponse) -> None:
    """Answer at once."""
    route.direct_response.status = spec.status
    if spec.body is not None and spec.body.string is not None:
        route.direct_response.body.CopyFrom(base_pb2.DataSource(inline_string=spec.body.string))
    elif spec.body is not None and spec.body.bytes is not None:
        route.direct_response.body.CopyFrom(base_pb2.DataSource(inline_bytes=spec.body.bytes))


@derived
def default_retries(view: View) -> rc.RetryPolicy | None:
    """How routes are retried that say nothing about it. Shared: not to be changed."""
    mesh: MeshConfig = view.mesh()
    return retry_policy(mesh.default_http_retry_policy)


def _limit(action: rc.RouteAction, timeout: timedelta, *, grpc: bool) -> None:
    """Set how long a request may take (0: as long as it likes); clients that speak gRPC may ask for less.

    ``max_grpc_timeout`` is deprecated, but what replaces it makes Envoy's router ignore ``timeout`` altogether: so
    the new field only stands where there is no limit. gRPC's own xDS client only knows the new one (gRFC A31).
    """
    limit = duration(timeout)
    action.timeout.CopyFrom(limit)
    if grpc:
        action.max_stream_duration.max_stream_duration.CopyFrom(limit)
    elif timeout:
        action.max_grpc_timeout.CopyFrom(limit)
    else:
        action.max_stream_duration.grpc_timeout_header_max.CopyFrom(limit)


def _rewrites_host(action: rc.RouteAction) -> bool:
    shared = (part.host_rewrite_literal for part in action.weighted_clusters.clusters)
    return bool(action.host_rewrite_literal) or any(shared)


def _rewrite(action: rc.RouteAction, rewrite: api.HttpRewrite | None, authority: str) -> None:
    if rewrite is not None:
        authority = rewrite.authority or authority
        if rewrite.uri_regex_rewrite is not None:
            action.regex_rewrite.pattern.CopyFrom(regex_pb2.RegexMatcher(regex=rewrite.uri_regex_rewrite.match))
            action.regex_rewrite.substitution = rewrite.uri_regex_rewrite.rewrite
        elif rewrite.uri:
            action.prefix_rewrite = rewrite.uri
    if authority:
        action.host_rewrite_literal = authority
