"""The objects of Istio 1.1's security kinds that are in force for a port of a workload."""

from __future__ import annotations

import attrs

from mesh_pilot.api.istio.authentication import v1alpha1 as api
from mesh_pilot.engine import derived
from mesh_pilot.mesh.legacy.authentication import ServedPort, general_policy, policy_in_force
from mesh_pilot.mesh.legacy.authorization import grants, is_controlled
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.view import View

_DECIDING = ("Policy", "MeshPolicy", "ClusterRbacConfig", "RbacConfig")
"""The kinds without which the others have no effect."""


@attrs.frozen(cache_hash=True)
class LegacyPolicies:
    """The demands of a port on requests."""

    tokens: tuple[ConfigKey, ...] = ()
    """The Policies with ``origins``, which accept tokens."""
    token_required: bool = False
    """One of them does not say ``originIsOptional``."""
    controlled: tuple[ServiceKey, ...] = ()
    """The services of the port, if access is by roles: a role for any of them is one for the port."""
    peer_bound: bool = False
    """In roles, ``request.auth.principal`` is the peer: a Policy is in force that does not say USE_ORIGIN."""


NO_LEGACY_POLICIES = LegacyPolicies()


@derived
def any_legacy(view: View) -> bool:
    """True if there is any object of these kinds that decides about ports."""
    return any(view.all_configs(kind) for kind in _DECIDING)


@derived
def legacy_policies(view: View, namespace: str, ports: tuple[ServedPort, ...]) -> LegacyPolicies:
    """The demands of a workload's port that serves these ports of services; of the namespace's, if it serves none.

    If it serves several, the demands of all count: a request does not show for which one it is.
    """
    if not any_legacy(view):
        return NO_LEGACY_POLICIES
    in_force = [policy_in_force(view, port) for port in ports] or [general_policy(view, namespace)]
    configs = {key: view.config(key) for key in in_force if key is not None}
    policies: dict[ConfigKey, api.Policy] = {key: found.spec for key, found in configs.items() if found is not None}
    services = tuple(dict.fromkeys(port.service for port in ports)) or (ServiceKey("", namespace),)
    tokens = {key: spec for key, spec in policies.items() if spec.origins}
    return LegacyPolicies(
        tuple(tokens),
        any(not spec.origin_is_optional for spec in tokens.values()),
        services if any(is_controlled(view, service) for service in services) else (),
        any(spec.principal_binding == api.PrincipalBinding.USE_PEER for spec in policies.values()),
    )


def legacy_keys(view: View, legacy: LegacyPolicies, labels: Labels) -> tuple[ConfigKey, ...]:
    """The objects that the filters of a port are made from, at a workload with these labels."""
    granted = (g for service in legacy.controlled for g in grants(view, service, labels, legacy.peer_bound))
    return tuple(dict.fromkeys((*legacy.tokens, *(key for grant in granted for key in (grant.role, grant.binding)))))
