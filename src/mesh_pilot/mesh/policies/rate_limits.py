"""LocalRateLimits: which apply to a workload, and to which of its ports.

All of them apply, as AuthorizationPolicies do: those of the root namespace, of the workload's namespace, and those that
select it. A request or connection is let in if each of them lets it in.
"""

from __future__ import annotations

import attrs

from mesh_pilot.api.meshpilot.policy.v1alpha1 import LocalRateLimit
from mesh_pilot.engine import derived
from mesh_pilot.mesh.selection.workloads import Labels, selected
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world.view import View

LOCAL_RATE_LIMIT = "LocalRateLimit"


@attrs.frozen(cache_hash=True)
class RateLimits:
    """The LocalRateLimits of a listener's connections."""

    policies: tuple[ConfigKey, ...] = ()
    port: int = 0
    """The port of the connections, if any of these names it; 0 for the others."""


NO_RATE_LIMITS = RateLimits()


def rate_limits(view: View, namespace: str, labels: Labels) -> RateLimits:
    """The limits of a proxy. Not derived: most meshes have none, and look no further."""
    if not any(view.configs(LOCAL_RATE_LIMIT, where) for where in (view.root_namespace, namespace)):
        return NO_RATE_LIMITS
    found = selected(view, LOCAL_RATE_LIMIT, namespace, labels)
    return RateLimits(found) if found else NO_RATE_LIMITS


def limited_ports(view: View, limits: RateLimits) -> tuple[int, ...]:
    """The ports that some of these limits are for alone."""
    return _named_ports(view, limits.policies) if limits.policies else ()


@derived
def _named_ports(view: View, policies: tuple[ConfigKey, ...]) -> tuple[int, ...]:
    found: set[int] = set()
    for key in policies:
        spec = limit_spec(view, key)
        if spec is not None:
            found.update(limit.port for limit in (*(spec.http.limits if spec.http else ()), *spec.connections))
    return tuple(sorted(found - {0}))


def limit_spec(view: View, key: ConfigKey) -> LocalRateLimit | None:
    """A LocalRateLimit; None if it is gone."""
    config = view.config(key)
    return config.spec if config is not None else None
