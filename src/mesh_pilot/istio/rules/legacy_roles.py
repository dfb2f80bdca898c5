"""Rules for the kinds of `rbac.istio.io`.

These kinds say who may pass. So what has no counterpart today grants nothing, with a warning, and the rest of the
object counts (see `istio.meaning.legacy_roles`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mesh_pilot.api.istio.rbac import v1alpha1 as api
from mesh_pilot.api.istio.security.v1beta1 import Condition, Operation, Source
from mesh_pilot.istio.meaning.legacy_roles import (
    ANYBODY,
    caller_of,
    conditions_of,
    is_of_workload,
    names_somebody,
    operation_of,
)
from mesh_pilot.istio.rules.authorization_policy import check_condition, check_operation, check_source
from mesh_pilot.istio.rules.context import Context, check_parts, error, warning
from mesh_pilot.istio.rules.legacy_policies import GENERAL
from mesh_pilot.model.config import Problem, Severity

_DEPRECATED = "is deprecated: Istio removed this kind in 1.6; write AuthorizationPolicy"
_BRACED = "braces have their own meaning in today's paths"

MANY_SUBJECTS = 100
"""Subjects with properties, users of tokens or groups that a binding has at most without a warning."""

_SUBJECT_FIELDS = {
    "principals": "names",
    "notPrincipals": "notNames",
    "ipBlocks": "ips",
    "notIpBlocks": "notIps",
}
"""The fields of a Source that a subject has under another name."""

Mode = api.RbacConfigMode


def validate_role(spec: api.ServiceRole, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a ServiceRole."""
    yield warning("", _DEPRECATED)
    if not spec.rules:
        yield error("spec.rules", "is missing: a ServiceRole needs a rule")
    yield from _check_rules("spec.rules", spec.rules)


def validate_binding(spec: api.ServiceRoleBinding, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a ServiceRoleBinding."""
    yield warning("", _DEPRECATED)
    given = [
        name for name, value in (("roleRef", spec.role_ref), ("role", spec.role), ("actions", spec.actions)) if value
    ]
    if len(given) != 1:
        yield error(f"spec.{given[1] if given else 'roleRef'}", "exactly one of roleRef, role, actions is needed")
    if spec.role_ref is not None:
        if spec.role_ref.kind not in ("", "ServiceRole"):
            yield error("spec.roleRef.kind", f'is "{spec.role_ref.kind}"; a binding is of a ServiceRole')
        if not spec.role_ref.name:
            yield error("spec.roleRef.name", "is missing")
    yield from _check_rules("spec.actions", spec.actions)
    if not spec.subjects:
        yield error("spec.subjects", "is missing: a binding needs a subject")
    yield from check_parts("spec", spec, subject_problems, "subjects")
    apart = sum(bool(caller_of(s, peer_bound=True).conditions) for s in spec.subjects if names_somebody(s))
    if apart > MANY_SUBJECTS:
        yield warning(
            "spec.subjects",
            f"{apart} of them have a user, groups or properties: Envoy gets a policy for each, with every rule of the "
            "role, and tries them one by one; name a group that all are in, or use names",
        )


def validate_rbac_config(spec: api.RbacConfig, context: Context) -> Iterator[Problem]:
    """Everything that is wrong with a ClusterRbacConfig or RbacConfig."""
    yield warning("", _DEPRECATED)
    if context.name != GENERAL:
        yield error("metadata.name", f'must be "{GENERAL}": there is one for the mesh')
    for name, mode, target in (
        ("inclusion", Mode.ON_WITH_INCLUSION, spec.inclusion),
        ("exclusion", Mode.ON_WITH_EXCLUSION, spec.exclusion),
    ):
        if target is not None:
            if spec.mode != mode:
                yield warning(f"spec.{name}", f"has no effect: the mode is {Mode(spec.mode).name}, not {mode.name}")
            yield from _check_exact(f"spec.{name}", target)
        elif spec.mode == mode:
            yield warning(f"spec.{name}", f"is missing: {mode.name} is about no service then")


def _check_exact(path: str, target: api.RbacConfigTarget) -> Iterator[Problem]:
    yield from check_parts(path, target, _check_wildcards, "services", "namespaces")


def _check_wildcards(path: str, value: str) -> Iterator[Problem]:
    if "*" in value:
        yield warning(path, f'"{value}" has no effect: wildcards don\'t work here')


def _check_rules(path: str, rules: Sequence[api.AccessRule]) -> Iterator[Problem]:
    for index, rule in enumerate(rules):
        here = f"{path}[{index}]"
        if not rule.services:
            yield error(f"{here}.services", 'is missing; ["*"] are all services of the namespace')
        yield from access_problems(here, rule)


def access_problems(path: str, rule: api.AccessRule) -> Iterator[Problem]:
    """Warnings because of which an access rule grants nothing."""
    operation = operation_of(rule)
    found = list(check_operation(path, operation)) if operation != Operation() else []
    for name, values in (("paths", rule.paths), ("notPaths", rule.not_paths)):
        found += [
            error(f"{path}.{name}[{i}]", f'"{value}": {_BRACED}') for i, value in enumerate(values) if "{" in value
        ]
    for name, ports in (("ports", rule.ports), ("notPorts", rule.not_ports)):
        found += [error(f"{path}.{name}[{i}]", "0 is not a port") for i, port in enumerate(ports) if not port]
    conditions = iter(conditions_of(rule))
    for index, constraint in enumerate(rule.constraints):
        here = f"{path}.constraints[{index}]"
        if not is_of_workload(constraint.key):
            found += check_condition(here, next(conditions))
        elif not all(constraint.values):
            found.append(error(f"{here}.values", "must not be empty"))
    yield from _granting_nothing(found, "this rule")


def subject_problems(path: str, subject: api.Subject) -> Iterator[Problem]:
    """Warnings for a subject that matches no client."""
    if not names_somebody(subject):
        yield warning(path, f'is empty and matches no client; user: "{ANYBODY}" matches every client')
        return
    caller = caller_of(subject, peer_bound=False)
    found = []
    for problem in check_source("", caller.source) if caller.source != Source() else ():
        name, bracket, index = problem.path.removeprefix(".").partition("[")
        found.append(error(f"{path}.{_SUBJECT_FIELDS.get(name, name)}{bracket}{index}", problem.reason))
    for condition in caller.conditions:
        name = _field_of(subject, condition)
        found += [error(f"{path}.{name}", problem.reason) for problem in check_condition("", condition)]
    yield from _granting_nothing(found, "this subject")


def _field_of(subject: api.Subject, condition: Condition) -> str:
    """The field of a subject that a condition is made from."""
    if subject.properties.get(condition.key) in condition.values:
        return f"properties[{condition.key}]"
    if condition.key == "source.principal":
        return "properties[source.user]" if "source.user" in subject.properties else "user"
    return "group" if condition.values == [subject.group] else "groups"


def _granting_nothing(problems: Sequence[Problem], what: str) -> Iterator[Problem]:
    for problem in problems:
        if problem.severity is Severity.ERROR:
            yield warning(problem.path, f"{problem.reason}; {what} grants nothing")
