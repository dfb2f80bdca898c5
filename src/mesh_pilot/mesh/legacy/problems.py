"""Warnings about legacy policies that name what is not there: such a policy protects, or grants, nothing."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.engine import derived
from mesh_pilot.istio.rules.legacy_policies import GENERAL
from mesh_pilot.model.config import ConfigKey, Problem, Severity
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.view import View


@derived
def legacy_problems(view: View, key: ConfigKey) -> tuple[Problem, ...]:
    """Warnings about references of a legacy policy, with their paths in it."""
    found = {"Policy": _of_policy, "ServiceRoleBinding": _of_binding, "RbacConfig": _of_access}.get(key.kind)
    if found is None or view.config(key) is None:
        return ()
    return tuple(Problem(path, reason, Severity.WARNING) for path, reason in found(view, key))


def _of_policy(view: View, key: ConfigKey) -> Iterator[tuple[str, str]]:
    config = view.config(key)
    for index, target in enumerate(config.spec.targets if config is not None else ()):
        path, host = f"spec.targets[{index}]", view.full_host(target.name, key.namespace)
        service = view.service(ServiceKey(host, key.namespace))
        if service is None:
            yield f"{path}.name", f"namespace {key.namespace} has no service {host}: the policy protects nothing there"
            continue
        known = {port.number for port in service.ports} | {port.name for port in service.ports}
        for number, port in enumerate(target.ports):
            named = port.number if port.number is not None else port.name
            if named not in known:
                yield (
                    f"{path}.ports[{number}]",
                    f"service {host} has no port {named}: the policy protects nothing there",
                )


def _of_binding(view: View, key: ConfigKey) -> Iterator[tuple[str, str]]:
    config = view.config(key)
    if config is None or config.spec.actions:
        return
    reference = config.spec.role_ref
    role, path = (reference.name, "spec.roleRef.name") if reference is not None else (config.spec.role, "spec.role")
    if view.config(ConfigKey("ServiceRole", key.namespace, role)) is None:
        yield path, f"namespace {key.namespace} has no ServiceRole {role}: the binding grants nothing"


def _of_access(view: View, key: ConfigKey) -> Iterator[tuple[str, str]]:
    if key.namespace != view.root_namespace:
        yield "metadata.namespace", f"has no effect: only an RbacConfig in {view.root_namespace} counts"
    elif view.config(ConfigKey("ClusterRbacConfig", "", GENERAL)) is not None:
        yield "metadata.name", "has no effect next to a ClusterRbacConfig"
