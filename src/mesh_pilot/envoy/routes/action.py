"""Route actions: forwarding to clusters (with hash policies and mirrors), redirects and direct responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import attrs
from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2
from envoy.extensions.retry.priority.previous_priorities.v3 import previous_priorities_config_pb2
from envoy.type.matcher.v3 import regex_pb2, string_pb2
from envoy.type.v3 import percent_pb2

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, boolean, duration, fractional_percent, regex, uint32
from mesh_pilot.envoy.filters.ext_authz import EXT_AUTHZ
from mesh_pilot.envoy.filters.jwt_authn import JWT_AUTHN
from mesh_pilot.envoy.routes.headers import HeaderOperations, header_operations
from mesh_pilot.envoy.routes.sessions import keep_sessions, policy_session
from mesh_pilot.istio.gateway_api.values import ROUTE_SEMANTICS_GATEWAY
from mesh_pilot.istio.rules.regex import quoted
from mesh_pilot.mesh.clusters.destination_rules import DestinationRuleRef, traffic_policy
from mesh_pilot.mesh.names.resources import HTTP_RBAC, outbound
from mesh_pilot.mesh.proxy.proxy_config import forwards_host
from mesh_pilot.mesh.routing.client import RouteClient
from mesh_pilot.mesh.virtual_services.redirects import DEFAULT_PORTS
from mesh_pilot.mesh.virtual_services.rules import HttpRule
from mesh_pilot.model.events import ChallengeAnswer
from mesh_pilot.world import View

_Hash = rc.RouteAction.HashPolicy

HTTPS_REDIRECT = "https-redirect"
CHALLENGE = "acme-challenge"

_UNGUARDED = {
    EXT_AUTHZ.name: ext_authz_pb2.ExtAuthzPerRoute(disabled=True),
    JWT_AUTHN.name: jwt_pb2.PerRouteConfig(disabled=True),
    HTTP_RBAC: rbac_pb2.RBACPerRoute(),
}
"""Settings that turn off the filters that refuse callers, by name."""

REDIRECT_CODES = {
    301: rc.RedirectAction.MOVED_PERMANENTLY,
    302: rc.RedirectAction.FOUND,
    303: rc.RedirectAction.SEE_OTHER,
    307: rc.RedirectAction.TEMPORARY_REDIRECT,
    308: rc.RedirectAction.PERMANENT_REDIRECT,
}


def forward(view: View, route: rc.Route, rule: HttpRule, client: RouteClient, port: int, authority: str) -> None:
    """Forward to the rule's destinations. The header operations of a single destination are set on the route itself.

    ``authority``: the host that the rule's header operations set on requests.
    """
    spec = rule.spec
    action = route.route
    weighted = _weighted_destinations(view, spec.route, rule.namespace, client, port)
    if len(spec.route) == 1:
        action.cluster = weighted[0].target.cluster
        weighted[0].headers.write_to(route)
        authority = authority or weighted[0].headers.authority
    else:
        action.weighted_clusters.CopyFrom(rc.WeightedCluster(clusters=map(_cluster_weight, weighted)))
    if not client.grpc:
        targets = [destination.target for destination in weighted]
        policies = [policy_session(view, client.rule(each.host), each.port, each.subset) for each in targets]
        keep_sessions(route, spec, [each.cluster for each in targets], policies)
    if rule.semantics == ROUTE_SEMANTICS_GATEWAY:
        action.cluster_not_found_response_code = rc.RouteAction.INTERNAL_SERVER_ERROR
    if rule.semantics == ROUTE_SEMANTICS_GATEWAY and spec.rewrite is not None and spec.rewrite.uri:
        _replace_prefix(action, route.match, spec.rewrite.uri)
    _rewrite(action, spec.rewrite, authority)
    action.append_x_forwarded_host = forwards_host(view, "") and _rewrites_host(action)
    action.hash_policy.extend(_hash_policies(view, weighted, client))
    action.request_mirror_policies.extend(_mirror_policies(view, spec, rule.namespace, client, port))
    hashed = len(spec.route) == 1 and bool(action.hash_policy)
    retries = default_retries(view, hashed) if spec.retries is None else retry_policy(spec.retries, hashed=hashed)
    if retries is not None:
        action.retry_policy.CopyFrom(retries)
        if rule.semantics == ROUTE_SEMANTICS_GATEWAY and spec.retries is not None:
            # The Gateway API's retries are for broken connections and for tries that took too long, too.
            action.retry_policy.retry_on += ",reset"
    _set_timeouts(action, spec.timeout or timedelta(0), grpc=client.grpc)


def redirect(route: rc.Route, rule: HttpRule, port: int) -> None:
    """Redirect the client. A port derived from the request is that of the route table."""
    spec = rule.spec.redirect
    assert spec is not None
    action = route.redirect
    action.host_redirect = spec.authority
    if spec.prefix_rewrite and rule.semantics == ROUTE_SEMANTICS_GATEWAY:
        _replace_prefix(action, route.match, spec.prefix_rewrite)
    elif spec.prefix_rewrite:
        action.prefix_rewrite = spec.prefix_rewrite
    elif spec.uri:
        action.path_redirect = spec.uri
    if spec.scheme:
        action.scheme_redirect = spec.scheme
    if spec.port is not None:
        action.port_redirect = spec.port
    elif spec.derive_port is api.HttpRedirectRedirectPortSelection.FROM_REQUEST_PORT:
        action.port_redirect = port
    default = 302 if rule.semantics == ROUTE_SEMANTICS_GATEWAY else 301
    action.response_code = REDIRECT_CODES[spec.redirect_code or default]


def redirect_from_port(route: rc.Route, scheme: str, port: int) -> rc.Route:
    """The redirect of a route for requests, of this scheme if any, whose Host has another port than 80 and 443."""
    result = rc.Route()
    result.CopyFrom(route)
    result.redirect.port_redirect = port
    host = ":authority"
    result.match.headers.append(rc.HeaderMatcher(name=host, string_match=regex(".*:[0-9]+")))
    result.match.headers.append(rc.HeaderMatcher(name=host, string_match=regex(".*:(80|443)"), invert_match=True))
    if scheme:
        result.match.headers.append(_forwarded_as(scheme))
    return result


def https_redirects() -> tuple[rc.Route, rc.Route]:
    """The routes of a virtual host that redirects plaintext to HTTPS: as Envoy's ``require_tls``, but to port 443."""
    route = rc.Route(
        name=HTTPS_REDIRECT, match=rc.RouteMatch(prefix=""), redirect=rc.RedirectAction(https_redirect=True)
    )
    route.match.headers.append(_forwarded_as("http"))
    return redirect_from_port(route, "", DEFAULT_PORTS["https"]), route


def challenge_route(answer: ChallengeAnswer) -> rc.Route:
    """The route by which a gateway answers an issuer of certificates, whatever its policies ask of callers."""
    route = rc.Route(name=CHALLENGE, match=rc.RouteMatch(path=answer.path))
    route.direct_response.status = 200
    route.direct_response.body.inline_string = answer.text
    for name, config in _UNGUARDED.items():
        route.typed_per_filter_config[name].CopyFrom(any_of(config))
    return route


def _forwarded_as(scheme: str) -> rc.HeaderMatcher:
    """A request came by this scheme, to Envoy or to a trusted proxy in front of it."""
    return rc.HeaderMatcher(
        name="x-forwarded-proto", string_match=string_pb2.StringMatcher(exact=scheme, ignore_case=True)
    )


def respond(route: rc.Route, spec: api.HttpDirectResponse) -> None:
    """Answer directly, without an upstream."""
    route.direct_response.status = spec.status
    if spec.body is not None and spec.body.string is not None:
        route.direct_response.body.CopyFrom(base_pb2.DataSource(inline_string=spec.body.string))
    elif spec.body is not None and spec.body.bytes is not None:
        route.direct_response.body.CopyFrom(base_pb2.DataSource(inline_bytes=spec.body.bytes))


@derived
def default_retries(view: View, hashed: bool = False) -> rc.RetryPolicy | None:
    """The retry policy of routes that set none; None without retries. It is shared: callers must not change it."""
    mesh: MeshConfig = view.mesh()
    return retry_policy(mesh.default_http_retry_policy, hashed=hashed)


def _set_timeouts(action: rc.RouteAction, timeout: timedelta, *, grpc: bool) -> None:
    """Set the timeout of requests, 0 for none. gRPC clients may ask for a shorter one in a header.

    ``max_grpc_timeout`` is deprecated, but its replacement makes Envoy's router ignore ``timeout``: so the new field is
    set only if there is no timeout. gRPC's own xDS client (``grpc``) knows only the new one (gRFC A31).
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
    of_clusters = (cluster.host_rewrite_literal for cluster in action.weighted_clusters.clusters)
    return bool(action.host_rewrite_literal) or any(of_clusters)


def _rewrite(action: rc.RouteAction, rewrite: api.HttpRewrite | None, authority: str) -> None:
    if rewrite is not None:
        authority = rewrite.authority or authority
        if rewrite.uri_regex_rewrite is not None:
            action.regex_rewrite.pattern.CopyFrom(regex_pb2.RegexMatcher(regex=rewrite.uri_regex_rewrite.match))
            action.regex_rewrite.substitution = rewrite.uri_regex_rewrite.rewrite
        elif rewrite.uri and not action.prefix_rewrite and not action.HasField("regex_rewrite"):
            action.prefix_rewrite = rewrite.uri
    if authority:
        action.host_rewrite_literal = authority


def _replace_prefix(action: rc.RouteAction | rc.RedirectAction, match: rc.RouteMatch, replacement: str) -> None:
    """Replace the elements of a path that a rule of the Gateway API matches; one slash comes before the others."""
    text, prefix = replacement.removesuffix("/"), match.path_separated_prefix
    if text:
        action.prefix_rewrite = text if prefix else f"{text}/"  # without elements, the slash itself is the prefix
    else:
        action.regex_rewrite.pattern.CopyFrom(regex_pb2.RegexMatcher(regex=f"^{quoted(prefix)}(/?)(.*)"))
        action.regex_rewrite.substitution = r"/\2"


# -- destinations


@attrs.frozen
class RouteDestination:
    """The service port and subset that a destination refers to."""

    host: str
    """Full name."""
    port: int
    subset: str = ""

    @property
    def cluster(self) -> str:
        return outbound(self.host, self.port, self.subset)


@attrs.frozen
class WeightedDestination:
    """A destination with its weight among those of a route, and its header operations."""

    target: RouteDestination
    weight: int
    headers: HeaderOperations


def _route_destination(
    view: View, destination: api.Destination, namespace: str, client: RouteClient, port: int
) -> RouteDestination:
    """The target of a destination in a namespace; its port defaults to the service's only one, then to the client's."""
    host = view.destination_host(destination.host, namespace)
    number = destination.port.number if destination.port is not None else 0
    return RouteDestination(host, number or client.only_port(host) or port, destination.subset)


def _weighted_destinations(
    view: View, routes: Sequence[api.HttpRouteDestination], namespace: str, client: RouteClient, port: int
) -> tuple[WeightedDestination, ...]:
    """The destinations that get requests: those of weight 0 get none, unless it is the only one."""
    return tuple(
        WeightedDestination(
            _route_destination(view, route.destination, namespace, client, port),
            route.weight or 100,
            header_operations(route.headers),
        )
        for route in routes
        if route.destination is not None and (route.weight or len(routes) == 1)
    )


def _hash_policies(
    view: View, weighted: Iterable[WeightedDestination], client: RouteClient
) -> Iterator[rc.RouteAction.HashPolicy]:
    """One for each destination with consistent hashing; Envoy uses the first that applies to a request."""
    for target in (destination.target for destination in weighted):
        found = hash_policy(view, client.rule(target.host), target.port, target.subset)
        if found is not None:
            yield found


def _cluster_weight(destination: WeightedDestination) -> rc.WeightedCluster.ClusterWeight:
    result = rc.WeightedCluster.ClusterWeight(name=destination.target.cluster, weight=uint32(destination.weight))
    destination.headers.write_to(result)
    if destination.headers.authority:
        result.host_rewrite_literal = destination.headers.authority
    return result


# -- consistent hashing


def hash_policy(view: View, ref: DestinationRuleRef, port: int, subset: str = "") -> rc.RouteAction.HashPolicy | None:
    """The hash policy that a DestinationRule sets for a port and subset; None without consistent hashing."""
    if not ref:
        return None
    balancer = traffic_policy(view, ref, port, subset).load_balancer
    return _consistent_hash(balancer.consistent_hash) if balancer is not None and balancer.consistent_hash else None


def _consistent_hash(hashing: api.LoadBalancerSettingsConsistentHashLb) -> rc.RouteAction.HashPolicy | None:
    if hashing.http_header_name is not None:
        return _Hash(header=_Hash.Header(header_name=hashing.http_header_name))
    if hashing.http_cookie is not None:
        return _Hash(cookie=_cookie(hashing.http_cookie))
    if hashing.use_source_ip is not None:
        return _Hash(connection_properties=_Hash.ConnectionProperties(source_ip=hashing.use_source_ip))
    if hashing.http_query_parameter_name is not None:
        return _Hash(query_parameter=_Hash.QueryParameter(name=hashing.http_query_parameter_name))
    return None


def _cookie(cookie: api.LoadBalancerSettingsConsistentHashLbHttpCookie) -> rc.RouteAction.HashPolicy.Cookie:
    attributes = [_Hash.CookieAttribute(name=a.name, value=a.value) for a in cookie.attributes]
    result = _Hash.Cookie(name=cookie.name, path=cookie.path, attributes=attributes)
    if cookie.ttl is not None:
        result.ttl.CopyFrom(duration(cookie.ttl))
    return result


# -- mirrors


def _mirror_policies(
    view: View, spec: api.HttpRoute, namespace: str, client: RouteClient, port: int
) -> Iterator[rc.RouteAction.RequestMirrorPolicy]:
    """The mirrors of a rule: ``mirrors``, and ``mirror`` with its percentage; all requests if no percentage is set."""
    mirrors = [(m.destination, _fraction(m.percentage)) for m in spec.mirrors]
    if spec.mirror is not None:
        percentage = spec.mirror_percentage
        if percentage is None and spec.mirror_percent is not None:
            percentage = api.Percent(value=float(spec.mirror_percent))
        mirrors.append((spec.mirror, _fraction(percentage)))
    for destination, fraction in mirrors:
        if destination is not None and fraction.numerator:
            yield rc.RouteAction.RequestMirrorPolicy(
                cluster=_route_destination(view, destination, namespace, client, port).cluster,
                runtime_fraction=base_pb2.RuntimeFractionalPercent(default_value=fraction),
                trace_sampled=boolean(False),
                disable_shadow_host_suffix_append=True,
            )


def _fraction(percentage: api.Percent | None) -> percent_pb2.FractionalPercent:
    if percentage is None:
        return percent_pb2.FractionalPercent(numerator=100)
    return fractional_percent(percentage.value)


# -- retries: an HTTPRetry as Envoy's RetryPolicy. Istio's default is two retries of failures that are safe to retry


DEFAULT_ATTEMPTS = 2
DEFAULT_RETRY_ON = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
STATUS_CODES = "retriable-status-codes"

HOST_SELECTION_ATTEMPTS = 5
"""Attempts to pick another endpoint before one that failed already is used again."""
PRIORITY_UPDATE_FREQUENCY = 2
"""Failed attempts at a priority before the next one is tried."""


def retry_policy(retries: api.HttpRetry | None, *, hashed: bool = False) -> rc.RetryPolicy | None:
    """The retry policy of a route, or the default for None; None if retries are off (``attempts: 0``).

    ``hashed``: the request's hash chooses the endpoint, so by default another one is not looked for.
    """
    if retries is None:
        retries = api.HttpRetry(attempts=DEFAULT_ATTEMPTS)
    if retries.attempts <= 0:
        return None
    retry_on, codes = _conditions(retries.retry_on)
    policy = rc.RetryPolicy(retry_on=retry_on, num_retries=uint32(retries.attempts), retriable_status_codes=codes)
    policy.host_selection_retry_max_attempts = HOST_SELECTION_ATTEMPTS
    ignores = retries.retry_ignore_previous_hosts
    if ignores or (ignores is None and not hashed):
        policy.retry_host_predicate.add(
            name="envoy.retry_host_predicates.previous_hosts",
            typed_config=any_of(previous_hosts_pb2.PreviousHostsPredicate()),
        )
    if retries.per_try_timeout is not None:
        policy.per_try_timeout.CopyFrom(duration(retries.per_try_timeout))
    if retries.backoff is not None:
        policy.retry_back_off.base_interval.CopyFrom(duration(retries.backoff))
    if retries.retry_remote_localities:
        policy.retry_priority.name = "envoy.retry_priorities.previous_priorities"
        config = previous_priorities_config_pb2.PreviousPrioritiesConfig(update_frequency=PRIORITY_UPDATE_FREQUENCY)
        policy.retry_priority.typed_config.CopyFrom(any_of(config))
    return policy


@derived
def application_retries(view: View) -> rc.RetryPolicy | None:
    """The retry policy of a sidecar's requests to its application; None without retries. Callers must not change it.

    By default it is for what the application cannot have seen, so that a restart loses no request.
    """
    mesh: MeshConfig = view.mesh()
    retries = mesh.default_inbound_http_retry_policy
    if retries is None:
        retries = api.HttpRetry(attempts=DEFAULT_ATTEMPTS)
    if retries.attempts <= 0:
        return None
    retry_on, codes = _conditions(retries.retry_on or "reset-before-request")
    policy = rc.RetryPolicy(retry_on=retry_on, num_retries=uint32(retries.attempts), retriable_status_codes=codes)
    if retries.backoff is not None:
        policy.retry_back_off.base_interval.CopyFrom(duration(retries.backoff))
    return policy


def _conditions(retry_on: str) -> tuple[str, Iterable[int]]:
    """(Envoy's conditions, status codes): ``retryOn`` lists both."""
    if not retry_on:
        return DEFAULT_RETRY_ON, ()
    parts = [part.strip() for part in retry_on.split(",") if part.strip()]
    codes = [int(part) for part in parts if part.isdecimal()]
    conditions = [part for part in parts if not part.isdecimal()]
    if codes and STATUS_CODES not in conditions:
        conditions.append(STATUS_CODES)
    return ",".join(conditions), codes
