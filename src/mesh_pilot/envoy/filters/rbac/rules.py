"""One rule of an AuthorizationPolicy as Envoy's RBAC has it: permissions (the operation) and principals (the caller).

A rule holds where one of its ``from``, one of its ``to`` and all of its ``when`` do. Each of those is a list of terms:
an attribute with values of which one must fit, and values of which none may.

What only a request has (a path, a header, a token) a plain connection has not, and a gRPC server without a proxy sees
no tokens. There an ALLOW rule with such a term allows nothing, and a DENY or AUDIT rule goes on without the term: what
can't be looked at is no way around a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Generic, TypeVar

import attrs
from envoy.config.rbac.v3.rbac_pb2 import RBAC, Permission, Policy, Principal

from mesh_pilot.api.istio.security import v1beta1 as api
from mesh_pilot.envoy.filters.rbac import operations, principals

M = TypeVar("M", Permission, Principal)


class EnforcementPoint(Enum):
    """Who looks at what comes in."""

    REQUESTS = "Envoy, at HTTP"
    CONNECTIONS = "Envoy, at bytes"
    CALLS = "a gRPC server"


_EVERYBODY: frozenset[EnforcementPoint] = frozenset()
_NOT_CONNECTIONS = frozenset((EnforcementPoint.CONNECTIONS,))
_NOT_CALLS = frozenset((EnforcementPoint.CALLS,))


@attrs.frozen(cache_hash=True)
class RuleContext:
    """For whom rules are read."""

    namespace: str
    """The policy's."""
    trust_domains: tuple[str, ...]
    """The mesh's own, then its aliases."""
    seer: EnforcementPoint


@attrs.frozen
class _Term(Generic[M]):
    """An attribute, and what it may and may not be."""

    build: Callable[[str], M]
    """What compares it with one value."""
    values: Sequence[str]
    not_values: Sequence[str]
    hidden_from: frozenset[EnforcementPoint] = _EVERYBODY
    """Those that can't look at it."""


@attrs.frozen
class _Grammar(Generic[M]):
    """How Envoy joins permissions, or principals."""

    anything: M
    every: Callable[[list[M]], M]
    either: Callable[[list[M]], M]
    negated: Callable[[M], M]


_OPERATIONS = _Grammar(
    anything=Permission(any=True),
    every=lambda found: Permission(and_rules=Permission.Set(rules=found)),
    either=lambda found: Permission(or_rules=Permission.Set(rules=found)),
    negated=lambda it: Permission(not_rule=it),
)
_CALLERS = _Grammar(
    anything=Principal(any=True),
    every=lambda found: Principal(and_ids=Principal.Set(ids=found)),
    either=lambda found: Principal(or_ids=Principal.Set(ids=found)),
    negated=lambda it: Principal(not_id=it),
)

NEVER = Policy(
    permissions=[_OPERATIONS.negated(_OPERATIONS.anything)], principals=[_CALLERS.negated(_CALLERS.anything)]
)
ALWAYS = Policy(permissions=[_OPERATIONS.anything], principals=[_CALLERS.anything])


def policy(rule: api.Rule, action: RBAC.Action, reader: RuleContext) -> Policy | None:
    """A rule in Envoy's words; None where it can never hold."""
    wanted = [_held(terms) for terms in _wanted_operations(rule)]
    callers = [_held(terms) for terms in _wanted_callers(rule, reader)]
    if action == RBAC.ALLOW and (_any_hidden(wanted, reader) or _any_hidden(callers, reader)):
        return None
    return Policy(
        permissions=[_joined(_OPERATIONS, terms, reader) for terms in wanted],
        principals=[_joined(_CALLERS, terms, reader) for terms in callers],
    )


def _held(terms: Iterator[_Term[M]]) -> list[_Term[M]]:
    return [term for term in terms if term.values or term.not_values]


def _any_hidden(alternatives: list[list[_Term[M]]], reader: RuleContext) -> bool:
    return any(reader.seer in term.hidden_from for terms in alternatives for term in terms)


def _joined(grammar: _Grammar[M], terms: list[_Term[M]], reader: RuleContext) -> M:
    found: list[M] = []
    for term in terms:
        if reader.seer in term.hidden_from:
            continue
        if term.values:
            found.append(grammar.either([term.build(v) for v in term.values]))
        if term.not_values:
            found.append(grammar.negated(grammar.either([term.build(v) for v in term.not_values])))
    return grammar.every(found or [grammar.anything])


# -- the operation


def _wanted_operations(rule: api.Rule) -> list[Iterator[_Term[Permission]]]:
    """The terms about the operation, for each ``to``; without any there is one that only ``when`` narrows."""
    wanted = [to.operation for to in rule.to if to.operation is not None]
    return [_operation(operation, rule) for operation in wanted] or [_operation_conditions(rule)]


def _operation(operation: api.Operation, rule: api.Rule) -> Iterator[_Term[Permission]]:
    yield _Term(operations.host, operation.hosts, operation.not_hosts, _NOT_CONNECTIONS)
    yield _Term(operations.method, operation.methods, operation.not_methods, _NOT_CONNECTIONS)
    yield _Term(operations.path, operation.paths, operation.not_paths, _NOT_CONNECTIONS)
    yield _Term(operations.port, operation.ports, operation.not_ports)
    yield from _operation_conditions(rule)


def _operation_conditions(rule: api.Rule) -> Iterator[_Term[Permission]]:
    for condition in rule.when:
        build = operations.of_condition(condition.key)
        if build is not None:
            hidden = _NOT_CALLS if operations.is_hidden_in_grpc(condition.key) else _EVERYBODY
            yield _Term(build, condition.values, condition.not_values, hidden)


# -- the caller


def _wanted_callers(rule: api.Rule, reader: RuleContext) -> list[Iterator[_Term[Principal]]]:
    sources = [origin.source for origin in rule.from_ if origin.source is not None]
    return [_source(source, rule, reader) for source in sources] or [_caller_conditions(rule, reader)]


def _source(source: api.Source, rule: api.Rule, reader: RuleContext) -> Iterator[_Term[Principal]]:
    yield _identities(source.principals, source.not_principals, reader)
    yield _Term(
        principals.request_identity,
        source.request_principals,
        source.not_request_principals,
        _NOT_CONNECTIONS | _NOT_CALLS,
    )
    yield _Term(principals.namespace, source.namespaces, source.not_namespaces)
    yield _accounts(source.service_accounts, source.not_service_accounts, reader)
    yield _Term(principals.trust_domain, source.trust_domains, source.not_trust_domains)
    yield _Term(principals.remote_ip, source.remote_ip_blocks, source.not_remote_ip_blocks)
    yield _Term(principals.source_ip, source.ip_blocks, source.not_ip_blocks)
    yield from _caller_conditions(rule, reader)


def _caller_conditions(rule: api.Rule, reader: RuleContext) -> Iterator[_Term[Principal]]:
    for condition in rule.when:
        key, values, not_values = condition.key, condition.values, condition.not_values
        name, _, _ = key.partition("[")
        if key == "source.principal":
            yield _identities(values, not_values, reader)
        elif key == "source.serviceAccount":
            yield _accounts(values, not_values, reader)
        elif name in principals.OF_CONNECTION:
            yield _Term(principals.OF_CONNECTION[name], values, not_values)
        elif name in principals.OF_REQUEST:
            hidden = _NOT_CALLS if principals.is_hidden_in_grpc(key) else _EVERYBODY
            yield _Term(principals.OF_REQUEST[name](key), values, not_values, hidden | _NOT_CONNECTIONS)


def _identities(values: Sequence[str], not_values: Sequence[str], reader: RuleContext) -> _Term[Principal]:
    aliases = reader.trust_domains
    return _Term(
        principals.identity, principals.with_aliases(values, aliases), principals.with_aliases(not_values, aliases)
    )


def _accounts(values: Sequence[str], not_values: Sequence[str], reader: RuleContext) -> _Term[Principal]:
    return _Term(lambda value: principals.service_account(value, reader.namespace), values, not_values)
