"""LocalRateLimits and GlobalRateLimits: which apply to a workload, and to which of its ports; and the servers asked.

All of them apply, as AuthorizationPolicies do: those of the root namespace, of the workload's namespace, and those that
select it. A request or connection is let in if each of them lets it in.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mesh_pilot.api.meshpilot.policy.v1alpha1 import GlobalRateLimit, LocalRateLimit
from mesh_pilot.engine import derived
from mesh_pilot.mesh.selection.workloads import Labels, selected
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.world.view import View

LOCAL_RATE_LIMIT = "LocalRateLimit"
GLOBAL_RATE_LIMIT = "GlobalRateLimit"

_KINDS = (LOCAL_RATE_LIMIT, GLOBAL_RATE_LIMIT)
"""In the order of a request: a proxy does not ask a server about requests that it has refused."""


@attrs.frozen(cache_hash=True)
class RateLimits:
    """The limits of a listener's connections."""

    policies: tuple[ConfigKey, ...] = ()
    """LocalRateLimits, then GlobalRateLimits."""
    port: int = 0
    """The port of the connections, if any of these names it; 0 for the others."""

    @property
    def by_server(self) -> bool:
        """True if a server is asked."""
        return any(key.kind == GLOBAL_RATE_LIMIT for key in self.policies)

    def local(self) -> RateLimits:
        """The limits that need no server."""
        return attrs.evolve(self, policies=tuple(key for key in self.policies if key.kind == LOCAL_RATE_LIMIT))


NO_RATE_LIMITS = RateLimits()


def rate_limits(view: View, namespace: str, labels: Labels) -> RateLimits:
    """The limits of a proxy. Not derived: most meshes have none, and look no further."""
    places = (view.root_namespace, namespace)
    there = [kind for kind in _KINDS if any(view.configs(kind, where) for where in places)]
    found = tuple(key for kind in there for key in selected(view, kind, namespace, labels))
    return RateLimits(found) if found else NO_RATE_LIMITS


def limited_ports(view: View, limits: RateLimits) -> tuple[int, ...]:
    """The ports that some of these limits are for alone."""
    return _named_ports(view, limits.policies) if limits.policies else ()


@derived
def _named_ports(view: View, policies: tuple[ConfigKey, ...]) -> tuple[int, ...]:
    found: set[int] = set()
    for key in policies:
        if (local := local_limit(view, key)) is not None:
            found.update(limit.port for limit in (*(local.http.limits if local.http else ()), *local.connections))
        if (shared := global_limit(view, key)) is not None:
            found.update(descriptor.port for descriptor in shared.descriptors)
    return tuple(sorted(found - {0}))


def local_limit(view: View, key: ConfigKey) -> LocalRateLimit | None:
    """A LocalRateLimit; None if it is gone, or of the other kind."""
    config = view.config(key) if key.kind == LOCAL_RATE_LIMIT else None
    return config.spec if config is not None else None


def global_limit(view: View, key: ConfigKey) -> GlobalRateLimit | None:
    """A GlobalRateLimit; None if it is gone, or of the other kind."""
    config = view.config(key) if key.kind == GLOBAL_RATE_LIMIT else None
    return config.spec if config is not None else None


@derived
def rate_limit_servers(view: View) -> Mapping[str, frozenset[int]]:
    """The services of the mesh's rate limit servers, by host, each with the ports that are called."""
    found: dict[str, frozenset[int]] = {}
    for config in view.all_configs(GLOBAL_RATE_LIMIT):
        spec: GlobalRateLimit = config.spec
        assert spec.service is not None, "validation requires it"
        host = view.full_host(spec.service.host, config.namespace).lower()
        found[host] = found.get(host, frozenset()) | {spec.service.port}
    return found
