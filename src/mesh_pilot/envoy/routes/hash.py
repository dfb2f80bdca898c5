"""Hash policies: what of a request decides its endpoint, where a DestinationRule asks for consistent hashing."""

from __future__ import annotations

from envoy.config.route.v3 import route_components_pb2 as rc

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.envoy.core.protobuf import duration
from mesh_pilot.mesh.destination_rules import DestinationRuleRef, policy
from mesh_pilot.world import View

_Hash = rc.RouteAction.HashPolicy


def hash_policy(view: View, ref: DestinationRuleRef, port: int, subset: str = "") -> rc.RouteAction.HashPolicy | None:
    """What a rule hashes requests to a port and subset by; None without consistent hashing."""
    if not ref:
        return None
    balancer = policy(view, ref, port, subset).load_balancer
    return _translate(balancer.consistent_hash) if balancer is not None and balancer.consistent_hash else None


def _translate(hashing: api.LoadBalancerSettingsConsistentHashLb) -> rc.RouteAction.HashPolicy | None:
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
