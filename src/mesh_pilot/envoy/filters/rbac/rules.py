"""One rule of an AuthorizationPolicy as a policy of Envoy's RBAC: permissions (the operation), principals (the caller).

A rule matches if one of its ``from``, one of its ``to`` and all of its ``when`` match. Each of these is a list of
terms: an attribute, values of which one must match, and values of which none may match.

Not every enforcement point can check every attribute: connections have no path, header or token, and proxyless gRPC
servers see no tokens. There an ALLOW rule with that term allows nothing, and a DENY or AUDIT rule is applied without
the term, so that no policy can be bypassed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Generic, TypeVar

import attrs
from envoy.config.rbac.v3.rbac_pb2 import RBAC, Permission, Policy, Principal

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.envoy.filters.rbac import operations, principals

M = TypeVar("M", Permission, Principal)


class EnforcementPoint(Enum):
    """The place at which a policy is enforced."""

    HTTP = auto()
    """Envoy's HTTP filter, on requests."""
    TCP = auto()
    """Envoy's network filter, on connections."""
    GRPC_SERVER = auto()
    """A proxyless gRPC server."""


_NONE: frozenset[EnforcementPoint] = frozenset()
_TCP = frozenset((EnforcementPoint.TCP,))
_GRPC_SERVER = frozenset((EnforcementPoint.GRPC_SERVER,))


@attrs.frozen(cache_hash=True)
class RuleContext:
    """The parameters of translating a policy's rules."""

    namespace: str
    """The policy's."""
    trust_domains: tuple[str, ...]
    """The mesh's own, then its aliases."""
    point: EnforcementPoint


@attrs.frozen
class _Term(Generic[M]):
    """An attribute with the values that it must and must not have."""

    build: Callable[[str], M]
    """The builder of the condition for one value."""
    values: Sequence[str]
    not_values: Sequence[str]
    unsupported_by: frozenset[EnforcementPoint] = _NONE
    """The enforcement points that cannot check it."""


@attrs.frozen
class _Operators(Generic[M]):
    """The boolean operators of permissions, or of principals."""

    true: M
    and_: Callable[[list[M]], M]
    or_: Callable[[list[M]], M]
    not_: Callable[[M], M]


_PERMISSIONS = _Operators(
    true=Permission(any=True),
    and_=lambda conditions: Permission(and_rules=Permission.Set(rules=conditions)),
    or_=lambda conditions: Permission(or_rules=Permission.Set(rules=conditions)),
    not_=lambda condition: Permission(not_rule=condition),
)
_PRINCIPALS = _Operators(
    true=Principal(any=True),
    and_=lambda conditions: Principal(and_ids=Principal.Set(ids=conditions)),
    or_=lambda conditions: Principal(or_ids=Principal.Set(ids=conditions)),
    not_=lambda condition: Principal(not_id=condition),
)

MATCHES_NOTHING = Policy(
    permissions=[_PERMISSIONS.not_(_PERMISSIONS.true)], principals=[_PRINCIPALS.not_(_PRINCIPALS.true)]
)
MATCHES_ALL = Policy(permissions=[_PERMISSIONS.true], principals=[_PRINCIPALS.true])


def rbac_policy(rule: api.Rule, action: RBAC.Action, context: RuleContext) -> Policy | None:
    """The RBAC policy of a rule; None if it can never match."""
    permitted = [_present(terms) for terms in _operation_terms(rule)]
    callers = [_present(terms) for terms in _caller_terms(rule, context)]
    if action == RBAC.ALLOW and (_any_unsupported(permitted, context) or _any_unsupported(callers, context)):
        return None
    return Policy(
        permissions=[_conjunction(_PERMISSIONS, terms, context) for terms in permitted],
        principals=[_conjunction(_PRINCIPALS, terms, context) for terms in callers],
    )


def _present(terms: Iterator[_Term[M]]) -> list[_Term[M]]:
    return [term for term in terms if term.values or term.not_values]


def _any_unsupported(alternatives: list[list[_Term[M]]], context: RuleContext) -> bool:
    return any(context.point in term.unsupported_by for terms in alternatives for term in terms)


def _conjunction(operators: _Operators[M], terms: list[_Term[M]], context: RuleContext) -> M:
    """The condition that all terms match which the enforcement point can check."""
    conditions: list[M] = []
    for term in terms:
        if context.point in term.unsupported_by:
            continue
        if term.values:
            conditions.append(operators.or_([term.build(v) for v in term.values]))
        if term.not_values:
            conditions.append(operators.not_(operators.or_([term.build(v) for v in term.not_values])))
    return operators.and_(conditions or [operators.true])


# -- the operation


def _operation_terms(rule: api.Rule) -> list[Iterator[_Term[Permission]]]:
    """The terms about the operation, for each ``to``; for a rule without ``to``, only those of ``when``."""
    permitted = [to.operation for to in rule.to if to.operation is not None]
    return [_operation(operation, rule) for operation in permitted] or [_operation_conditions(rule)]


def _operation(operation: api.Operation, rule: api.Rule) -> Iterator[_Term[Permission]]:
    yield _Term(operations.host, operation.hosts, operation.not_hosts, _TCP)
    yield _Term(operations.method, operation.methods, operation.not_methods, _TCP)
    yield _Term(operations.path, operation.paths, operation.not_paths, _TCP)
    yield _Term(operations.port, operation.ports, operation.not_ports)
    yield from _operation_conditions(rule)


def _operation_conditions(rule: api.Rule) -> Iterator[_Term[Permission]]:
    for condition in rule.when:
        build = operations.of_condition(condition.key)
        if build is not None:
            unsupported = _GRPC_SERVER if operations.is_unsupported_by_grpc(condition.key) else _NONE
            yield _Term(build, condition.values, condition.not_values, unsupported)


# -- the caller


def _caller_terms(rule: api.Rule, context: RuleContext) -> list[Iterator[_Term[Principal]]]:
    """The terms about the caller, for each ``from``; for a rule without ``from``, only those of ``when``."""
    sources = [origin.source for origin in rule.from_ if origin.source is not None]
    return [_source(source, rule, context) for source in sources] or [_caller_conditions(rule, context)]


def _source(source: api.Source, rule: api.Rule, context: RuleContext) -> Iterator[_Term[Principal]]:
    yield _identities(source.principals, source.not_principals, context)
    yield _Term(
        principals.request_identity,
        source.request_principals,
        source.not_request_principals,
        _TCP | _GRPC_SERVER,
    )
    yield _Term(principals.namespace, source.namespaces, source.not_namespaces)
    yield _accounts(source.service_accounts, source.not_service_accounts, context)
    yield _Term(principals.trust_domain, source.trust_domains, source.not_trust_domains)
    yield _Term(principals.remote_ip, source.remote_ip_blocks, source.not_remote_ip_blocks)
    yield _Term(principals.source_ip, source.ip_blocks, source.not_ip_blocks)
    yield from _caller_conditions(rule, context)


def _caller_conditions(rule: api.Rule, context: RuleContext) -> Iterator[_Term[Principal]]:
    for condition in rule.when:
        key, values, not_values = condition.key, condition.values, condition.not_values
        name, _, _ = key.partition("[")
        if key == "source.principal":
            yield _identities(values, not_values, context)
        elif key == "source.serviceAccount":
            yield _accounts(values, not_values, context)
        elif name in principals.CONNECTION_KEYS:
            yield _Term(principals.CONNECTION_KEYS[name], values, not_values)
        elif name in principals.REQUEST_KEYS:
            unsupported = _GRPC_SERVER if principals.is_unsupported_by_grpc(key) else _NONE
            yield _Term(principals.REQUEST_KEYS[name](key), values, not_values, unsupported | _TCP)


def _identities(values: Sequence[str], not_values: Sequence[str], context: RuleContext) -> _Term[Principal]:
    aliases = context.trust_domains
    return _Term(
        principals.identity, principals.with_aliases(values, aliases), principals.with_aliases(not_values, aliases)
    )


def _accounts(values: Sequence[str], not_values: Sequence[str], context: RuleContext) -> _Term[Principal]:
    return _Term(lambda value: principals.service_account(value, context.namespace), values, not_values)
