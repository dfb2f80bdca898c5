"""AuthorizationPolicies as RBAC filters: one for each of the actions AUDIT, DENY and ALLOW, in Istio's order.

Action CUSTOM has filters in front of these, see ``ext_authz``; its rules come from here, too. Filters depend on the
policies that select a proxy, not on the proxy: proxies with the same policies share them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs
from envoy.config.listener.v3.listener_components_pb2 import Filter
from envoy.config.rbac.v3.rbac_pb2 import RBAC
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC as HttpRbac
from envoy.extensions.filters.network.rbac.v3.rbac_pb2 import RBAC as NetworkRbac
from google.protobuf import any_pb2

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, any_of_encoded, encode
from mesh_pilot.envoy.filters.rbac.rules import MATCHES_NOTHING, EnforcementPoint, RuleContext, rbac_policy
from mesh_pilot.envoy.filters.translator import FilterClass, FilterTranslator
from mesh_pilot.mesh.names.resources import DRY_RUN_ALLOW, DRY_RUN_DENY, HTTP_RBAC
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide, is_in_dry_run
from mesh_pilot.mesh.selection.workloads import Labels, selected
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

AUTHORIZATION_POLICY = "AuthorizationPolicy"
CUSTOM_POLICY_PREFIX = "istio-ext-authz"
"""Prefix of the policy ids of action CUSTOM."""

NETWORK_RBAC = "envoy.filters.network.rbac"
TCP_STAT_PREFIX = "tcp."

Action = api.AuthorizationPolicyAction

_RBAC_ACTIONS = {Action.ALLOW: RBAC.ALLOW, Action.DENY: RBAC.DENY, Action.AUDIT: RBAC.LOG, Action.CUSTOM: RBAC.DENY}
"""The rules of CUSTOM are shadow rules that note a match; Envoy notes those of DENY."""

R = TypeVar("R", HttpRbac, NetworkRbac)


@attrs.frozen(cache_hash=True)
class Policies:
    """The policies that select a proxy, by action: the root namespace's before others, then the oldest first."""

    custom: tuple[ConfigKey, ...] = ()
    audit: tuple[ConfigKey, ...] = ()
    deny: tuple[ConfigKey, ...] = ()
    allow: tuple[ConfigKey, ...] = ()


NO_POLICIES = Policies()


@attrs.frozen
class Rules:
    """The rules of the policies of one action, each an encoded ``RBAC``; None where there are none.

    Empty bytes are rules, too: ALLOW with no rule that allows anything.
    """

    enforced: bytes | None = None
    dry_run: bytes | None = None

    def __bool__(self) -> bool:
        return self.enforced is not None or self.dry_run is not None


# -- the policies of a proxy, and their rules


def context_policies(view: View, context: PolicyContext) -> Policies:
    """The policies for the connections of a context; none for those that an application opens."""
    outbound = context.side is TrafficSide.OUTBOUND
    return NO_POLICIES if outbound else policies_for(view, context.namespace, context.labels)


@derived
def policies_for(view: View, namespace: str, labels: Labels) -> Policies:
    """The policies for a proxy with these labels, of which those that no policy selects by may be left out."""
    keys = selected(view, AUTHORIZATION_POLICY, namespace, labels)
    if not keys:
        return NO_POLICIES
    by_action: dict[Action, list[ConfigKey]] = {action: [] for action in Action}
    for key in keys:
        by_action[_action(view, key)].append(key)
    return Policies(*(tuple(by_action[a]) for a in (Action.CUSTOM, Action.AUDIT, Action.DENY, Action.ALLOW)))


@derived
def rules_of(view: View, policies: tuple[ConfigKey, ...], point: EnforcementPoint) -> Rules:
    """The rules of policies of one action, as an enforcement point can check them."""
    parts: dict[bool, list[bytes]] = {}
    for key in policies:
        dry_run, rules = _policy_rules(view, key, point)
        # Encoded messages are merged by joining their bytes: the action, then each policy's rules.
        parts.setdefault(dry_run, [_encoded_action(view, key)]).append(rules)
    return Rules(*(b"".join(parts[dry_run]) if dry_run in parts else None for dry_run in (False, True)))


@derived
def _policy_rules(view: View, key: ConfigKey, point: EnforcementPoint) -> tuple[bool, bytes]:
    """True for a policy in dry run; and its rules, a part of an encoded ``RBAC``."""
    config = view.config(key)
    if config is None:
        return False, b""
    spec: api.AuthorizationPolicy = config.spec
    rbac = RBAC()
    prefix = f"{CUSTOM_POLICY_PREFIX}-" if spec.action == Action.CUSTOM else ""
    policy_id = f"{prefix}ns[{key.namespace}]-policy[{key.name}]-rule"
    context = RuleContext(key.namespace, trust_domains(view), point)
    for index, rule in enumerate(spec.rules):
        policy = rbac_policy(rule, _RBAC_ACTIONS[spec.action], context)
        if policy is not None:
            rbac.policies[f"{policy_id}[{index}]"].CopyFrom(policy)
    if not spec.rules:
        rbac.policies[f"{policy_id}[0]"].CopyFrom(MATCHES_NOTHING)
    return is_in_dry_run(config), encode(rbac)


@derived
def _encoded_action(view: View, key: ConfigKey) -> bytes:
    """An encoded ``RBAC`` with only the policy's action."""
    return encode(RBAC(action=_RBAC_ACTIONS[_action(view, key)]))


@derived
def _action(view: View, key: ConfigKey) -> Action:
    config = view.config(key)
    spec: api.AuthorizationPolicy | None = config.spec if config else None
    return Action(spec.action) if spec else Action.ALLOW


@derived
def trust_domains(view: View) -> tuple[str, ...]:
    """The mesh's own, then its aliases."""
    mesh = view.mesh()
    return tuple(dict.fromkeys((mesh.trust_domain, *mesh.trust_domain_aliases)))


# -- the filters


def network_rbac_filters(view: View, context: PolicyContext) -> list[Filter]:
    """The filters for connections of a context, in order."""
    policies = context_policies(view, context)
    encoded = (_network_filter(view, keys) for keys in (policies.audit, policies.deny, policies.allow) if keys)
    return [Filter.FromString(body) for body in encoded if body is not None]


def grpc_server_rbac(view: View, policies: tuple[ConfigKey, ...]) -> any_pb2.Any | None:
    """The filter configuration for calls to a proxyless gRPC server. It has no dry run."""
    enforced = rules_of(view, policies, EnforcementPoint.GRPC_SERVER).enforced
    return None if enforced is None else any_of(with_rules(HttpRbac(), Rules(enforced)))


@derived
def _http_config(view: View, policies: tuple[ConfigKey, ...], rule_stats: bool) -> bytes | None:
    rules = rules_of(view, policies, EnforcementPoint.HTTP)
    return encode(with_rules(HttpRbac(track_per_rule_stats=rule_stats), rules)) if rules else None


@derived
def _network_filter(view: View, policies: tuple[ConfigKey, ...]) -> bytes | None:
    rules = rules_of(view, policies, EnforcementPoint.TCP)
    if not rules:
        return None
    return network_filter(rules)


def network_filter(rules: Rules) -> bytes:
    """The encoded filter that checks connections by rules."""
    config = with_rules(NetworkRbac(stat_prefix=TCP_STAT_PREFIX), rules)
    return encode(Filter(name=NETWORK_RBAC, typed_config=any_of(config)))


def with_rules(rbac: R, rules: Rules) -> R:
    """Put rules into a filter's configuration: enforced ones, and those in dry run as shadow rules."""
    if rules.enforced is not None:
        rbac.rules.ParseFromString(rules.enforced)
        rbac.rules.SetInParent()
    rbac.shadow_rules_stat_prefix = DRY_RUN_ALLOW
    if rules.dry_run is not None:
        rbac.shadow_rules.ParseFromString(rules.dry_run)
        rbac.shadow_rules.SetInParent()
        if rbac.shadow_rules.action == RBAC.DENY:
            rbac.shadow_rules_stat_prefix = DRY_RUN_DENY
    return rbac


def _translator(of_action: Callable[[Policies], tuple[ConfigKey, ...]], *, grpc: bool) -> FilterTranslator:
    def hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
        keys = of_action(context_policies(view, context))
        encoded = _http_config(view, keys, context.rule_stats) if keys else None
        return None if encoded is None else any_of_encoded(HttpRbac, encoded)

    def grpc_server(view: View, context: PolicyContext) -> any_pb2.Any | None:
        return grpc_server_rbac(view, of_action(context_policies(view, context)))

    return FilterTranslator(
        name=HTTP_RBAC,
        config=HttpRbac,
        hcm=hcm,
        grpc_server=grpc_server if grpc else None,
        filter_class=FilterClass.AUTHZ,
    )


RBAC_AUDIT = _translator(lambda policies: policies.audit, grpc=False)
"""gRPC servers keep no log of AUDIT."""
RBAC_DENY = _translator(lambda policies: policies.deny, grpc=True)
RBAC_ALLOW = _translator(lambda policies: policies.allow, grpc=True)
