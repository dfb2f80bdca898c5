"""Access control by services: where a ClusterRbacConfig turns it on, and what ServiceRoles and their bindings grant.

Rules: Istio's RBAC reference, versions 1.1 to 1.5. Where it is on, what no role allows is denied. Roles count in their
own namespace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs

from mesh_pilot.api.istio.rbac import v1alpha1 as api
from mesh_pilot.api.istio.security.v1beta1 import Rule
from mesh_pilot.engine import derived
from mesh_pilot.istio.meaning.legacy_roles import allow_rules, label_of, serves
from mesh_pilot.istio.rules.legacy_policies import GENERAL
from mesh_pilot.istio.rules.legacy_roles import access_problems, subject_problems
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.view import View

Mode = api.RbacConfigMode


@attrs.frozen
class RoleGrant:
    """The rules by which a binding lets its subjects use a service."""

    role: ConfigKey
    """The ServiceRole; the binding itself if it lists the actions."""
    binding: ConfigKey
    dry_run: bool
    """The binding is PERMISSIVE: it is evaluated and not enforced."""
    rules: tuple[Rule, ...]


def is_controlled(view: View, service: ServiceKey) -> bool:
    """True if access to a service is only by roles. A service without a host stands for ports of no service."""
    config = _rbac_config(view)
    if config is None:
        return False
    match config.mode:
        case Mode.ON:
            return True
        case Mode.ON_WITH_INCLUSION:
            return _includes(config.inclusion, service)
        case Mode.ON_WITH_EXCLUSION:
            return not _includes(config.exclusion, service)
        case _:
            return False


@derived
def is_dry_run(view: View) -> bool:
    """True if no role is enforced anywhere: what they would do is counted and logged."""
    config = _rbac_config(view)
    return config is not None and config.enforcement_mode == api.EnforcementMode.PERMISSIVE


@derived
def grants(view: View, service: ServiceKey, labels: Labels, peer_bound: bool) -> tuple[RoleGrant, ...]:
    """Everything that anybody may do with a service, at a workload with these labels.

    ``peer_bound``: see ``allow_rules``.
    """
    namespace = service.namespace
    found = []
    for role in _roles_for(view, service, labels):
        for binding in _bindings(view, namespace).get(role.name, ()):
            found.append(_grant(view, role, binding, service, labels, peer_bound))
    for binding in _bindings(view, namespace).get("", ()):
        found.append(_grant(view, binding, binding, service, labels, peer_bound))
    return tuple(grant for grant in found if grant.rules)


@derived
def role_labels(view: View) -> frozenset[str]:
    """The labels of workloads by which any role decides."""
    rules = (rule for config in view.all_configs("ServiceRole") for rule in config.spec.rules)
    actions = (rule for config in view.all_configs("ServiceRoleBinding") for rule in config.spec.actions)
    keys = (constraint.key for some in (rules, actions) for rule in some for constraint in rule.constraints)
    return frozenset(filter(None, map(label_of, keys)))


@derived
def _rbac_config(view: View) -> api.RbacConfig | None:
    for key in (ConfigKey("ClusterRbacConfig", "", GENERAL), ConfigKey("RbacConfig", view.root_namespace, GENERAL)):
        config = view.config(key)
        if config is not None:
            spec: api.RbacConfig = config.spec
            return spec
    return None


def _includes(target: api.RbacConfigTarget | None, service: ServiceKey) -> bool:
    return target is not None and (service.namespace in target.namespaces or service.host in target.services)


@derived
def _roles_for(view: View, service: ServiceKey, labels: Labels) -> tuple[ConfigKey, ...]:
    """The roles of a namespace with a rule about a service."""
    found = view.configs("ServiceRole", service.namespace)
    return tuple(role.key for role in found if _about(view, role.spec.rules, service, labels))


@derived
def _bindings(view: View, namespace: str) -> Mapping[str, tuple[ConfigKey, ...]]:
    """The bindings of a namespace by role; under no name those that list the actions themselves."""
    found: dict[str, list[ConfigKey]] = defaultdict(list)
    for config in view.configs("ServiceRoleBinding", namespace):
        spec: api.ServiceRoleBinding = config.spec
        found[spec.role_ref.name if spec.role_ref is not None else spec.role].append(config.key)
    return {role: tuple(keys) for role, keys in found.items()}


@derived
def _grant(
    view: View, role: ConfigKey, binding: ConfigKey, service: ServiceKey, labels: Labels, peer_bound: bool
) -> RoleGrant:
    role_config, binding_config = view.config(role), view.config(binding)
    if role_config is None or binding_config is None:
        return RoleGrant(role, binding, False, ())
    spec: api.ServiceRoleBinding = binding_config.spec
    declared = spec.actions if role == binding else role_config.spec.rules
    rules = [rule for rule in _about(view, declared, service, labels) if not any(access_problems("", rule))]
    subjects = [subject for subject in spec.subjects if not any(subject_problems("", subject))]
    return RoleGrant(
        role,
        binding,
        spec.mode == api.EnforcementMode.PERMISSIVE,
        tuple(allow_rules(rules, subjects, peer_bound=peer_bound)),
    )


def _about(view: View, rules: Sequence[api.AccessRule], service: ServiceKey, labels: Labels) -> list[api.AccessRule]:
    """The rules that are about a service."""
    host, namespace = service
    known = dict(labels)
    return [
        rule
        for rule in rules
        if serves(rule, [view.full_host(name, namespace) for name in rule.services], host, namespace, known)
    ]
