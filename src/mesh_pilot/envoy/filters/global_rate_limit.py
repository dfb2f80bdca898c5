"""GlobalRateLimits: a filter of each that applies to a listener, which asks a rate limit server about requests.

The server counts, for all proxies that ask it, by *descriptors*: lists of keys and values, made of what a request has.
The filter has them itself, so that no route table changes because of a limit. A descriptor is complete or not sent: a
request without the header or claim is not counted by it.

If the mesh does not have a server's service, proxies ask a cluster without endpoints. So a server that is unknown is
one that does not answer, with the same consequence (``failureModeDeny``) and the same statistics; a cluster that does
not exist Envoy would refuse, with all else that its listener has.

Rules: Envoy's rate limit filter. Values that no action of it knows are CEL expressions; one that fails ends its
descriptor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from envoy.config.core.v3 import base_pb2, config_source_pb2
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.extensions.filters.http.ratelimit.v3 import rate_limit_pb2
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
from envoy.extensions.rate_limit_descriptors.expr.v3 import expr_pb2

from mesh_pilot.api.meshpilot.policy import v1alpha1 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, any_of_encoded, duration, encode, fractional_percent
from mesh_pilot.envoy.filters.jwt_authn import JWT_AUTHN_NAME, JWT_PAYLOAD
from mesh_pilot.envoy.filters.local_rate_limit import request_matchers
from mesh_pilot.mesh.names.resources import BLACK_HOLE
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.policies.rate_limits import GLOBAL_RATE_LIMIT, global_limit
from mesh_pilot.mesh.policies.telemetry import provider_cluster
from mesh_pilot.mesh.reach.visibility import visible_service
from mesh_pilot.model.config import ConfigKey, Problem, Severity
from mesh_pilot.world.view import View

HTTP_RATE_LIMIT = "envoy.filters.http.ratelimit"
"""Envoy's name. Each filter has its policy's behind it."""

PATH_KEY = "path"
PRINCIPAL_KEY = "source_principal"

_ENFORCED = "mesh_pilot.global_rate_limit.enforced"
_DENIED = "mesh_pilot.global_rate_limit.failure_mode_deny"
"""Runtime keys by which an operator can override the shares."""

_EXPRESSION = "envoy.rate_limit_descriptors.expr"
_PATH = "request.url_path"
_PRINCIPAL = r"re.extract(connection.uri_san_peer_certificate, '^spiffe://(.+)$', '\\1')"
_MEMBERS = re.compile(r"[^\[\]]+")


def global_limits(view: View, context: PolicyContext) -> Iterator[HttpFilter]:
    """The filters of a context, one for each policy."""
    for key in context.limits.policies:
        body = _config(view, key, context.namespace, context.limits.port) if key.kind == GLOBAL_RATE_LIMIT else None
        if body is not None:
            config = any_of_encoded(rate_limit_pb2.RateLimit, body)
            yield HttpFilter(name=f"{HTTP_RATE_LIMIT}/{key.namespace}/{key.name}", typed_config=config)


@derived
def _config(view: View, key: ConfigKey, namespace: str, port: int) -> bytes | None:
    """The encoded configuration for a port; None: it has no limit there."""
    spec = global_limit(view, key)
    descriptors = [each for each in spec.descriptors if each.port in (0, port)] if spec is not None else []
    if spec is None or not descriptors:
        return None
    config = rate_limit_pb2.RateLimit(
        domain=spec.domain,
        stat_prefix=f"{key.namespace}.{key.name}",
        failure_mode_deny=spec.failure_mode_deny,
        rate_limited_as_resource_exhausted=True,
        rate_limits=[rc.RateLimit(actions=_actions(descriptor)) for descriptor in descriptors],
    )
    cluster, host = _server(view, key, namespace)
    config.rate_limit_service.transport_api_version = config_source_pb2.V3
    config.rate_limit_service.grpc_service.envoy_grpc.cluster_name = cluster
    config.rate_limit_service.grpc_service.envoy_grpc.authority = host
    if spec.timeout is not None:
        config.timeout.CopyFrom(duration(spec.timeout))
    if spec.status:
        config.rate_limited_status.code = spec.status
    for name, value in sorted(spec.response_headers.items()):
        header = base_pb2.HeaderValue(key=name, value=value)
        action = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        config.response_headers_to_add.append(base_pb2.HeaderValueOption(header=header, append_action=action))
    if spec.rate_limit_headers:
        config.enable_x_ratelimit_headers = rate_limit_pb2.RateLimit.DRAFT_VERSION_03
    if spec.enforced_percent is not None:
        # A limit that is tried refuses nothing, whatever becomes of its server.
        for target, runtime_key in (
            (config.filter_enforced, _ENFORCED),
            *([(config.failure_mode_deny_percent, _DENIED)] if spec.failure_mode_deny else []),
        ):
            target.runtime_key = runtime_key
            target.default_value.CopyFrom(fractional_percent(spec.enforced_percent))
    return encode(config)


@derived
def server_problems(view: View, key: ConfigKey) -> tuple[Problem, ...]:
    """The reasons why the proxies of a policy's namespace cannot ask its server."""
    spec = global_limit(view, key)
    if spec is None or spec.service is None:
        return ()
    effect = "what it limits is refused" if spec.failure_mode_deny else "nothing is limited"
    host, port = view.full_host(spec.service.host, key.namespace), spec.service.port
    service = visible_service(view, key.namespace, host.lower())
    if service is None:
        return (Problem("spec.service.host", f"no service {host} is known: {effect}", Severity.WARNING),)
    found = service.port(port)
    if found is None:
        known = ", ".join(str(each.number) for each in service.ports) or "none"
        reason = f"{host} has no port {port}; its ports are {known}: {effect}"
        return (Problem("spec.service.port", reason, Severity.WARNING),)
    if not found.protocol.is_http2:
        reason = f"port {port} of {host} is {found.protocol.value}: calls of a server need GRPC or HTTP2: {effect}"
        return (Problem("spec.service.port", reason, Severity.WARNING),)
    return ()


def _server(view: View, key: ConfigKey, namespace: str) -> tuple[str, str]:
    """The cluster and the host of a policy's server, as seen from a proxy's namespace."""
    spec = global_limit(view, key)
    assert spec is not None and spec.service is not None, "validation requires it"
    host = view.full_host(spec.service.host, key.namespace).lower()
    return provider_cluster(view, namespace, host, spec.service.port) or (BLACK_HOLE, host)


def _actions(descriptor: api.RateLimitDescriptor) -> Iterator[rc.RateLimit.Action]:
    match = descriptor.match
    for entry in descriptor.entries:
        action = rc.RateLimit.Action()
        if entry.value is not None and match is not None:
            # The first given value carries the condition: Envoy sends it if all of it is true.
            action.header_value_match.descriptor_key = entry.key
            action.header_value_match.descriptor_value = entry.value
            action.header_value_match.headers.extend(request_matchers(match))
            match = None
        elif entry.value is not None:
            action.generic_key.descriptor_key = entry.key
            action.generic_key.descriptor_value = entry.value
        elif entry.header is not None:
            action.request_headers.header_name = entry.header
            action.request_headers.descriptor_key = entry.key or entry.header.lower()
        elif entry.claim is not None:
            _evaluate(action, entry.key or entry.claim, claim_expression(entry.claim))
        elif entry.path:
            _evaluate(action, entry.key or PATH_KEY, _PATH)
        elif entry.source_principal:
            _evaluate(action, entry.key or PRINCIPAL_KEY, _PRINCIPAL)
        else:
            action.remote_address.SetInParent()
        yield action


def _evaluate(action: rc.RateLimit.Action, key: str, expression: str) -> None:
    action.extension.name = _EXPRESSION
    action.extension.typed_config.CopyFrom(any_of(expr_pb2.Descriptor(descriptor_key=key, text=expression)))


def claim_expression(claim: str) -> str:
    """The value of a claim, as ``sub`` or ``realm[id]`` says, in CEL.

    Envoy would print every list and every object as the same text, and so count all their bearers together. They have
    no order, so the comparison fails for them; it is false for texts, numbers and booleans.
    """
    names = (JWT_PAYLOAD, *_MEMBERS.findall(claim))
    path = "".join(f"[{json.dumps(name, ensure_ascii=False)}]" for name in names)
    value = f'metadata.filter_metadata["{JWT_AUTHN_NAME}"]{path}'
    return f'{value} < {value} ? "" : {value}'
