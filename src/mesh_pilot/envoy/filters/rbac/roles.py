"""ServiceRoles as separate RBAC filters, after those of AuthorizationPolicies: both have to allow a request.

The controlled services and the rules are in ``mesh.legacy``. Where a Policy requires a token that cannot be checked,
these filters let nothing pass: at proxyless gRPC servers, and for connections that do not look like HTTP to a port
whose protocol is not declared.
"""

from __future__ import annotations

from collections.abc import Iterable

from envoy.config.listener.v3.listener_components_pb2 import Filter
from envoy.config.rbac.v3.rbac_pb2 import RBAC
from envoy.extensions.filters.http.rbac.v3.rbac_pb2 import RBAC as HttpRbac
from google.protobuf import any_pb2

from mesh_pilot.engine import derived
from mesh_pilot.envoy.core.protobuf import any_of, any_of_encoded, encode
from mesh_pilot.envoy.filters.rbac.policies import Rules, network_filter, trust_domains, with_rules
from mesh_pilot.envoy.filters.rbac.rules import EnforcementPoint, RuleContext, rbac_policy
from mesh_pilot.envoy.filters.translator import FilterClass, FilterTranslator
from mesh_pilot.mesh.legacy.authorization import RoleGrant, grants, is_dry_run
from mesh_pilot.mesh.legacy.ports import LegacyPolicies
from mesh_pilot.mesh.names.resources import HTTP_RBAC
from mesh_pilot.mesh.policies.context import PolicyContext
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.service import Protocol
from mesh_pilot.world.view import View

NOTHING = encode(RBAC(action=RBAC.ALLOW))
"""Encoded rules that allow nothing."""


def network_role_filters(view: View, context: PolicyContext, protocol: Protocol) -> list[Filter]:
    """The filter for connections of a context to a port of this protocol; none if they may pass."""
    if context.legacy.token_required and not protocol.is_tcp:
        return [Filter.FromString(network_filter(Rules(NOTHING)))]
    if not context.legacy.controlled:
        return []
    return [Filter.FromString(_network_filter(view, context.legacy, context.labels))]


def _hcm(view: View, context: PolicyContext, protocol: Protocol) -> any_pb2.Any | None:
    if not context.legacy.controlled:
        return None
    return any_of_encoded(HttpRbac, _http_config(view, context.legacy, context.labels))


def _grpc_server(view: View, context: PolicyContext) -> any_pb2.Any | None:
    """A gRPC server has no dry run. It sees no tokens: where they are asked for, nothing passes."""
    if context.legacy.token_required:
        return any_of(with_rules(HttpRbac(), Rules(NOTHING)))
    if not context.legacy.controlled:
        return None
    enforced = _rules(view, context.legacy, context.labels, EnforcementPoint.GRPC_SERVER).enforced
    return None if enforced is None else any_of(with_rules(HttpRbac(), Rules(enforced)))


RBAC_ROLES = FilterTranslator(
    name=HTTP_RBAC, config=HttpRbac, hcm=_hcm, grpc_server=_grpc_server, filter_class=FilterClass.AUTHZ
)


@derived
def _http_config(view: View, legacy: LegacyPolicies, labels: Labels) -> bytes:
    return encode(with_rules(HttpRbac(), _rules(view, legacy, labels, EnforcementPoint.HTTP)))


@derived
def _network_filter(view: View, legacy: LegacyPolicies, labels: Labels) -> bytes:
    return network_filter(_rules(view, legacy, labels, EnforcementPoint.TCP))


def _rules(view: View, legacy: LegacyPolicies, labels: Labels, point: EnforcementPoint) -> Rules:
    """The rules of roles: those enforced, and in dry run all, if that makes a difference."""
    found = [grant for service in legacy.controlled for grant in grants(view, service, labels, legacy.peer_bound)]
    every = _encoded(view, found, point)
    if is_dry_run(view):
        return Rules(None, every)
    enforced = [grant for grant in found if not grant.dry_run]
    return Rules(_encoded(view, enforced, point), every if len(enforced) < len(found) else None)


def _encoded(view: View, found: Iterable[RoleGrant], point: EnforcementPoint) -> bytes:
    rbac = RBAC(action=RBAC.ALLOW)
    for grant in found:
        context = RuleContext(grant.role.namespace, trust_domains(view), point)
        for index, rule in enumerate(grant.rules):
            policy = rbac_policy(rule, RBAC.ALLOW, context)
            if policy is not None:
                name = f"ns[{grant.role.namespace}]-role[{grant.role.name}]-binding[{grant.binding.name}]-rule[{index}]"
                rbac.policies[name].CopyFrom(policy)
    return encode(rbac)
