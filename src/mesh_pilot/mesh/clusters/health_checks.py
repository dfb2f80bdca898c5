"""HealthChecks: which one applies to the clients of a service's port.

The order is that of DestinationRules: the client's namespace, then the service's, then the root namespace. Within one,
a check that names the port comes before one for all ports, and the older before the younger. A check is for exactly one
host, so that services without one never look for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import attrs

from mesh_pilot.api.meshpilot.policy.v1alpha1 import HealthCheck
from mesh_pilot.engine import derived
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.names import export_namespaces, exported_to
from mesh_pilot.world.shards import shard_of
from mesh_pilot.world.view import View

HEALTH_CHECK = "HealthCheck"


@attrs.frozen
class _CheckMeta:
    """The fields of a HealthCheck that decide where it applies. An edit of its times leaves them alone."""

    key: ConfigKey
    export_to: frozenset[str]
    ports: tuple[int, ...]


@derived
def checked_hosts(view: View, shard: int) -> frozenset[str]:
    """The hosts with a HealthCheck in a shard."""
    bits = shard.bit_length() - 1
    return frozenset(host for host in _hosts(view) if shard_of(host, bits) == shard)


@derived
def health_check_for(view: View, namespace: str, service: ServiceKey, port: int) -> ConfigKey | None:
    """The check of a service's port for the clients of a namespace."""
    metas = _metas_for(view, service.host)
    for owner in dict.fromkeys((namespace, service.namespace, view.root_namespace)):
        found = [m for m in metas if m.key.namespace == owner and exported_to(m.export_to, namespace)]
        for meta in (*(m for m in found if port in m.ports), *(m for m in found if not m.ports)):
            return meta.key
    return None


def check_spec(view: View, key: ConfigKey) -> HealthCheck | None:
    """A HealthCheck; None if it is gone."""
    config = view.config(key)
    return config.spec if config is not None else None


@derived
def _metas(view: View) -> Mapping[str, tuple[_CheckMeta, ...]]:
    """All checks by the full host, each host's by age."""
    found: defaultdict[str, list[_CheckMeta]] = defaultdict(list)
    for config in view.all_configs(HEALTH_CHECK):
        spec: HealthCheck = config.spec
        exports = export_namespaces(spec.export_to, (), config.namespace)
        host = view.full_host(spec.host, config.namespace)
        found[host].append(_CheckMeta(config.key, exports, tuple(spec.ports)))
    return {host: tuple(metas) for host, metas in found.items()}


@derived
def _metas_for(view: View, host: str) -> tuple[_CheckMeta, ...]:
    return _metas(view).get(host, ())


@derived
def _hosts(view: View) -> frozenset[str]:
    return frozenset(_metas(view))
