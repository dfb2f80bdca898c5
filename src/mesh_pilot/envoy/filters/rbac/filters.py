"""The filters of AuthorizationPolicies, in the order in which Istio has them: CUSTOM, AUDIT, DENY, ALLOW.

Between CUSTOM and the rest a request's token is looked at, so that requests meet them in two places. What is the same
for all proxies with the same policies is made once for them.
"""

from __future__ import annotations

from typing import TypeVar

import attrs
from envoy.config.listener.v3.listener_components_pb2 import Filter
from envoy.config.rbac.v3.rbac_pb2 import RBAC
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC as HttpRbac
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import HttpFilter
from envoy.extensions.filters.network.rbac.v3.rbac_pb2 import RBAC as NetworkRbac
from google.protobuf import message

from mesh_pilot.envoy.core.protobuf import any_of, encode
from mesh_pilot.envoy.filters.rbac.custom import MARK, NETWORK_RBAC, REFUSE_ALL, NoCheck, check
from mesh_pilot.envoy.filters.rbac.policies import NONE, Policies, Rules, policies_for, rules_of
from mesh_pilot.envoy.filters.rbac.rules import EnforcementPoint
from mesh_pilot.incremental import derived
from mesh_pilot.mesh.names import DRY_RUN_ALLOW, DRY_RUN_DENY, HTTP_RBAC
from mesh_pilot.mesh.policies import PolicyContext, TrafficSide
from mesh_pilot.mesh.proxy.scope import Labels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world.view import View

HTTP_EXT_AUTHZ = "envoy.filters.http.ext_authz"
NETWORK_EXT_AUTHZ = "envoy.filters.network.ext_authz"
STAT_PREFIX = "tcp."


R = TypeVar("R", HttpRbac, NetworkRbac)


@attrs.frozen
class MissingProvider:
    """Policies that refuse all they are about, because nobody can be asked."""

    policies: tuple[ConfigKey, ...]
    reason: str


@attrs.frozen
class HttpFilters:
    """Encoded ``HttpFilter`` messages; None where there is nothing to do."""

    marking: bytes | None = None
    """Finds the requests that somebody else decides about."""
    checking: bytes | None = None
    """Asks that one."""
    audit: bytes | None = None
    deny: bytes | None = None
    allow: bytes | None = None


def http_authorization(view: View, context: PolicyContext) -> HttpFilters:
    """The filters for requests of a context. What an application sends is not looked at."""
    policies = _policies(view, context)
    return HttpFilters() if policies == NONE else _http_filters(view, context.namespace, policies)


def network_authorization(view: View, context: PolicyContext) -> list[Filter]:
    """The filters for connections of a context."""
    policies = _policies(view, context)
    if policies == NONE:
        return []
    return [Filter.FromString(body) for body in _network_filters(view, context.namespace, policies)]


def call_authorization(view: View, namespace: str, labels: Labels) -> list[HttpFilter]:
    """The filters for calls that a gRPC server takes without a proxy.

    It knows nobody to ask: what CUSTOM would ask about is refused. It keeps no log of AUDIT, and tries nothing.
    """
    policies = policies_for(view, namespace, labels)
    found: list[HttpFilter] = []
    for keys in (policies.custom, policies.deny, policies.allow):
        enforced = rules_of(view, keys, EnforcementPoint.CALLS).enforced
        if enforced is not None:
            found.append(HttpFilter.FromString(_http(HTTP_RBAC, _ruling(HttpRbac(), Rules(enforced)))))
    return found


def refusal(view: View, namespace: str, labels: Labels, *, grpc: bool) -> MissingProvider | None:
    """What a proxy, or a gRPC server, refuses only because nobody can be asked about it."""
    keys = policies_for(view, namespace, labels).custom
    if not keys or rules_of(view, keys, EnforcementPoint.REQUESTS).enforced is None:
        return None
    asked = NoCheck("a gRPC server has no way to ask") if grpc else check(view, namespace, keys)
    return MissingProvider(keys, asked.reason) if isinstance(asked, NoCheck) else None


def _policies(view: View, context: PolicyContext) -> Policies:
    return NONE if context.side is TrafficSide.OUTBOUND else policies_for(view, context.namespace, context.labels)


@derived
def _http_filters(view: View, namespace: str, policies: Policies) -> HttpFilters:
    marking = checking = None
    marked = rules_of(view, policies.custom, EnforcementPoint.REQUESTS).enforced
    if marked is not None:
        asked = check(view, namespace, policies.custom)
        if isinstance(asked, NoCheck):
            marking = _http(HTTP_RBAC, HttpRbac(rules=REFUSE_ALL))
        else:
            marking = _http(HTTP_RBAC, _marking(HttpRbac(), marked))
            checking = _http(HTTP_EXT_AUTHZ, asked.http)
    rules = (
        rules_of(view, keys, EnforcementPoint.REQUESTS) for keys in (policies.audit, policies.deny, policies.allow)
    )
    return HttpFilters(marking, checking, *(_http(HTTP_RBAC, _ruling(HttpRbac(), r)) if r else None for r in rules))


@derived
def _network_filters(view: View, namespace: str, policies: Policies) -> tuple[bytes, ...]:
    found: list[bytes] = []
    marked = rules_of(view, policies.custom, EnforcementPoint.CONNECTIONS).enforced
    if marked is not None:
        asked = check(view, namespace, policies.custom)
        if isinstance(asked, NoCheck):
            found.append(_network(NETWORK_RBAC, NetworkRbac(rules=REFUSE_ALL, stat_prefix=STAT_PREFIX)))
        elif asked.network is not None:
            found.append(_network(NETWORK_RBAC, _marking(NetworkRbac(stat_prefix=STAT_PREFIX), marked)))
            found.append(_network(NETWORK_EXT_AUTHZ, asked.network))
    for keys in (policies.audit, policies.deny, policies.allow):
        rules = rules_of(view, keys, EnforcementPoint.CONNECTIONS)
        if rules:
            found.append(_network(NETWORK_RBAC, _ruling(NetworkRbac(stat_prefix=STAT_PREFIX), rules)))
    return tuple(found)


def _marking(rbac: R, rules: bytes) -> R:
    """Says by its mark which policy a request or connection is for, and lets it go on."""
    rbac.shadow_rules.MergeFromString(rules)
    rbac.shadow_rules_stat_prefix = MARK
    return rbac


def _ruling(rbac: R, rules: Rules) -> R:
    if rules.enforced is not None:
        rbac.rules.ParseFromString(rules.enforced)
        rbac.rules.SetInParent()
    rbac.shadow_rules_stat_prefix = DRY_RUN_ALLOW
    if rules.tried is not None:
        rbac.shadow_rules.ParseFromString(rules.tried)
        rbac.shadow_rules.SetInParent()
        if rbac.shadow_rules.action == RBAC.DENY:
            rbac.shadow_rules_stat_prefix = DRY_RUN_DENY
    return rbac


def _http(name: str, config: message.Message) -> bytes:
    return encode(HttpFilter(name=name, typed_config=any_of(config)))


def _network(name: str, config: message.Message) -> bytes:
    return encode(Filter(name=name, typed_config=any_of(config)))
