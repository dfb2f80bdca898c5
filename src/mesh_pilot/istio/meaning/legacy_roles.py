"""ServiceRoles and ServiceRoleBindings of `rbac.istio.io` as rules of an AuthorizationPolicy with action ALLOW.

Rules: Istio's RBAC reference and its constraints and properties, versions 1.1 to 1.5. The workload decides about some
constraints (`destination.labels` and others): these have no place in a rule, see `serves`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from mesh_pilot.api.istio.rbac import v1alpha1 as legacy
from mesh_pilot.api.istio.security import v1beta1 as api

ANYBODY = "*"
"""A `user` that includes callers who prove no identity."""

LABELS_KEY = "destination.labels"
NAME_KEY = "destination.name"
NAMESPACE_KEY = "destination.namespace"

_GROUPS = "request.auth.claims[groups]"
_PEER = "source.principal"
_RENAMED = {"source.user": _PEER}


@attrs.frozen
class SubjectMatch:
    """A subject: the part that goes into `from`, and the part that goes into `when`."""

    source: api.Source
    conditions: tuple[api.Condition, ...]

    @property
    def is_anybody(self) -> bool:
        return not self.conditions and self.source == api.Source()


def allow_rules(
    rules: Sequence[legacy.AccessRule], subjects: Iterable[legacy.Subject], *, peer_bound: bool
) -> Iterator[api.Rule]:
    """The rules that let these subjects do what the access rules say.

    `peer_bound`: `request.auth.principal` is the identity of the peer, not that of a token.
    """
    callers = [caller_of(subject, peer_bound=peer_bound) for subject in subjects if names_somebody(subject)]
    plain = [caller for caller in callers if not caller.conditions]
    for rule in rules:
        operation, when = operation_of(rule), conditions_of(rule)
        to = [api.RuleTo(operation=operation)] if operation != api.Operation() else []
        if any(caller.is_anybody for caller in plain):
            yield api.Rule(to=to, when=when)
        elif plain:
            yield api.Rule(from_=[api.RuleFrom(source=caller.source) for caller in plain], to=to, when=when)
        for caller in callers:
            if caller.conditions:
                origin = [] if caller.source == api.Source() else [api.RuleFrom(source=caller.source)]
                yield api.Rule(from_=origin, to=to, when=[*when, *caller.conditions])


def operation_of(rule: legacy.AccessRule) -> api.Operation:
    """The operation that an access rule allows, without its constraints."""
    return api.Operation(
        hosts=list(rule.hosts),
        not_hosts=list(rule.not_hosts),
        paths=list(rule.paths),
        not_paths=list(rule.not_paths),
        methods=list(rule.methods),
        not_methods=list(rule.not_methods),
        ports=[str(port) for port in rule.ports],
        not_ports=[str(port) for port in rule.not_ports],
    )


def conditions_of(rule: legacy.AccessRule) -> list[api.Condition]:
    """The constraints of an access rule that requests decide about."""
    return [
        api.Condition(key=constraint.key, values=list(constraint.values))
        for constraint in rule.constraints
        if not is_of_workload(constraint.key)
    ]


def names_somebody(subject: legacy.Subject) -> bool:
    """True unless a subject is empty, and so matches no client."""
    return subject != legacy.Subject()


def caller_of(subject: legacy.Subject, *, peer_bound: bool) -> SubjectMatch:
    """The caller that a subject names; all that it says has to be true."""
    conditions = []
    principals = list(subject.names)
    if subject.user and subject.user != ANYBODY:
        if principals:
            conditions.append(api.Condition(key=_PEER, values=[subject.user]))
        else:
            principals = [subject.user]
    for groups, not_groups in (([subject.group] if subject.group else [], []), (subject.groups, subject.not_groups)):
        if groups or not_groups:
            conditions.append(api.Condition(key=_GROUPS, values=list(groups), not_values=list(not_groups)))
    for key, value in sorted(subject.properties.items()):
        bound = _PEER if peer_bound and key == "request.auth.principal" else _RENAMED.get(key, key)
        conditions.append(api.Condition(key=bound, values=[value]))
    source = api.Source(
        principals=principals,
        not_principals=list(subject.not_names),
        namespaces=list(subject.namespaces),
        not_namespaces=list(subject.not_namespaces),
        ip_blocks=list(subject.ips),
        not_ip_blocks=list(subject.not_ips),
    )
    return SubjectMatch(source, tuple(conditions))


# -- constraints that the workload decides about


def is_of_workload(key: str) -> bool:
    """True for the key of a constraint about the workload: no request differs in it."""
    return key in (NAME_KEY, NAMESPACE_KEY) or bool(label_of(key))


def label_of(key: str) -> str:
    """The label that ``destination.labels[LABEL]`` names; empty for other keys."""
    name, _, label = key.partition("[")
    return label[:-1] if name == LABELS_KEY and label.endswith("]") else ""


def serves(
    rule: legacy.AccessRule, services: Iterable[str], host: str, namespace: str, labels: Mapping[str, str]
) -> bool:
    """True if an access rule is about a service of this host, at a workload with these labels.

    `services` are the rule's, as full names.
    """
    if not _matches(host, services):
        return False
    actual = {NAME_KEY: host.partition(".")[0], NAMESPACE_KEY: namespace}
    for constraint in rule.constraints:
        if is_of_workload(constraint.key):
            label = label_of(constraint.key)
            value = labels.get(label) if label else actual[constraint.key]
            if value is None or not _matches(value, constraint.values):
                return False
    return True


def _matches(text: str, patterns: Iterable[str]) -> bool:
    """True if a string equals one of the patterns, which may have a wildcard at one end."""
    for pattern in patterns:
        if pattern in (ANYBODY, text):
            return True
        if pattern.startswith("*") and text.endswith(pattern[1:]):
            return True
        if pattern.endswith("*") and text.startswith(pattern[:-1]):
            return True
    return False
