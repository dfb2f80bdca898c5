"""LocalRateLimits: a filter for requests and one for connections, of each that applies to a listener.

Requests are counted after they are authenticated and authorized, so that a client that may not come in does not use up
what others have; and after CORS, so that browsers may read the refusal. Connections are counted first of all, for that
costs least. Rules: Envoy's local rate limit filters. A limit for some requests is a descriptor of the filter itself: no
route table changes because of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from envoy.config.core.v3 import base_pb2
from envoy.config.listener.v3.listener_components_pb2 import Filter
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.extensions.filters.http.local_ratelimit.v3.local_rate_limit_pb2 import LocalRateLimit as HttpFilterConfig
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
from envoy.extensions.filters.network.local_ratelimit.v3.local_rate_limit_pb2 import (
    LocalRateLimit as NetworkFilterConfig,
)
from envoy.type.v3 import http_status_pb2, token_bucket_pb2

from mesh_pilot.api.istio.networking.v1alpha3 import StringMatch
from mesh_pilot.api.meshpilot.policy import v1alpha1 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import (
    any_of,
    any_of_encoded,
    boolean,
    duration,
    encode,
    fractional_percent,
    header_match,
    header_mismatch,
    uint32,
)
from mesh_pilot.envoy.filters.rbac.matchers import quoted
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.policies.rate_limits import local_limit
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world.view import View

HTTP_LOCAL_RATE_LIMIT = "envoy.filters.http.local_ratelimit"
NETWORK_LOCAL_RATE_LIMIT = "envoy.filters.network.local_ratelimit"
"""Envoy's names. The filters' own have the policy's behind them, so that an EnvoyFilter's and ours stay apart."""

DEFAULT_INTERVAL = timedelta(seconds=1)

_ENABLED = "mesh_pilot.local_rate_limit.enabled"
_ENFORCED = "mesh_pilot.local_rate_limit.enforced"
"""Runtime keys by which an operator can override the shares; Envoy requires them."""

_ANY_QUERY = r"(?:\?.*)?"


def request_limits(view: View, context: PolicyContext) -> Iterator[HttpFilter]:
    """The HTTP filters of a context, one for each policy."""
    for key in context.limits.policies:
        body = _http_config(view, key, context.limits.port)
        if body is not None:
            config = any_of_encoded(HttpFilterConfig, body)
            yield HttpFilter(name=_name(HTTP_LOCAL_RATE_LIMIT, key), typed_config=config)


def connection_limits(view: View, context: PolicyContext) -> list[Filter]:
    """The network filters of a context."""
    return [
        Filter.FromString(body)
        for key in context.limits.policies
        for body in _network_filters(view, key, context.limits.port)
    ]


@derived
def _http_config(view: View, key: ConfigKey, port: int) -> bytes | None:
    """The encoded configuration for a port; None: it has no limit of requests there."""
    spec = local_limit(view, key)
    http = spec.http if spec is not None else None
    limits = [(i, limit) for i, limit in enumerate(http.limits) if limit.port in (0, port)] if http is not None else []
    if http is None or not limits:
        return None
    config = HttpFilterConfig(
        stat_prefix=f"{key.namespace}.{key.name}",
        local_rate_limit_per_downstream_connection=http.per_connection,
        rate_limited_as_resource_exhausted=True,
    )
    config.filter_enabled.runtime_key = _ENABLED
    config.filter_enabled.default_value.CopyFrom(fractional_percent(100))
    config.filter_enforced.runtime_key = _ENFORCED
    share = 100.0 if http.enforced_percent is None else http.enforced_percent
    config.filter_enforced.default_value.CopyFrom(fractional_percent(share))
    if http.status:
        config.status.CopyFrom(http_status_pb2.HttpStatus(code=http.status))
    for name, value in sorted(http.response_headers.items()):
        header = base_pb2.HeaderValue(key=name, value=value)
        config.response_headers_to_add.append(
            base_pb2.HeaderValueOption(
                header=header, append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
            )
        )
    if http.rate_limit_headers:
        config.enable_x_ratelimit_headers = ratelimit_pb2.DRAFT_VERSION_03
    if len(limits) == 1 and limits[0][1].match is None:
        config.token_bucket.CopyFrom(_bucket(limits[0][1].rate))
        return encode(config)
    config.always_consume_default_token_bucket.CopyFrom(boolean(False))
    for index, limit in limits:
        if not limit.otherwise:
            _add_descriptor(config, f"limits[{index}]", limit)
    # One that names the port counts before one for all.
    rest = max((limit for _, limit in limits if limit.otherwise), key=lambda limit: limit.port, default=None)
    if rest is not None:
        config.token_bucket.CopyFrom(_bucket(rest.rate))
    return encode(config)


@derived
def _network_filters(view: View, key: ConfigKey, port: int) -> tuple[bytes, ...]:
    """The encoded filters for the connections of a port."""
    spec = local_limit(view, key)
    limits = spec.connections if spec is not None else []
    return tuple(
        encode(
            Filter(
                name=_name(NETWORK_LOCAL_RATE_LIMIT, key),
                typed_config=any_of(
                    NetworkFilterConfig(
                        stat_prefix=f"{key.namespace}.{key.name}",
                        token_bucket=_bucket(limit.rate),
                        # Filter chains with one bucket: a proxy counts all connections, whatever they are.
                        share_key=f"{key.namespace}/{key.name}/{limit.port}",
                    )
                ),
            )
        )
        for limit in limits
        if limit.port in (0, port)
    )


def _name(filter_name: str, key: ConfigKey) -> str:
    return f"{filter_name}/{key.namespace}/{key.name}"


def _bucket(rate: api.Rate | None) -> token_bucket_pb2.TokenBucket:
    assert rate is not None, "validation requires it"
    return token_bucket_pb2.TokenBucket(
        max_tokens=rate.burst or rate.count,
        tokens_per_fill=uint32(rate.count),
        fill_interval=duration(rate.interval if rate.interval is not None else DEFAULT_INTERVAL),
    )


def _add_descriptor(config: HttpFilterConfig, name: str, limit: api.RequestLimit) -> None:
    """Add a limit with its own bucket."""
    action = rc.RateLimit.Action()
    if limit.match is None:
        entry = "generic_key"
        action.generic_key.descriptor_value = name
    else:
        entry = "header_match"
        action.header_value_match.descriptor_value = name
        action.header_value_match.headers.extend(request_matchers(limit.match))
    config.rate_limits.add(actions=[action])
    descriptor = config.descriptors.add(token_bucket=_bucket(limit.rate))
    descriptor.entries.add(key=entry, value=name)


def request_matchers(match: api.RequestMatch) -> Iterator[rc.HeaderMatcher]:
    """The conditions of a match: all must be true of a request."""
    if match.uri is not None:
        yield _path(match.uri)
    for name, value in ((":method", match.method), (":authority", match.authority)):
        if value is not None:
            yield header_match(name, value)
    yield from (header_match(name, value) for name, value in sorted(match.headers.items()))
    yield from (header_mismatch(name, value) for name, value in sorted(match.without_headers.items()))


def _path(uri: StringMatch) -> rc.HeaderMatcher:
    """The matcher of a path. In the header, the query is part of it."""
    matcher = rc.HeaderMatcher(name=":path")
    if uri.prefix is not None:
        matcher.string_match.prefix = uri.prefix
    else:
        path = quoted(uri.exact) if uri.exact is not None else f"(?:{uri.regex})"
        matcher.string_match.safe_regex.regex = path + _ANY_QUERY
    return matcher
