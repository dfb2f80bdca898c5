"""The Policy or MeshPolicy in force for a port of a service.

Rules: Istio's Authentication Policy reference, versions 1.1 to 1.5. The narrowest counts alone: one that names the
port, one that names the service, the ``default`` of the namespace, the MeshPolicy. Of several that name the same the
oldest counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.istio.rules.legacy_policies import GENERAL
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import ServiceKey
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class ServedPort:
    """A port of a service, served at a port of a workload."""

    at: int
    """The workload's port."""
    service: ServiceKey
    number: int
    """The service's port."""
    name: str


@attrs.frozen(cache_hash=True)
class PolicyTarget:
    """A Policy that names a service, or some of its ports."""

    policy: ConfigKey
    ports: tuple[int | str, ...]
    """Numbers and names; empty: all."""


def policy_in_force(view: View, port: ServedPort) -> ConfigKey | None:
    """The policy for a port of a service."""
    return port_policy(view, port) or service_policy(view, port.service) or general_policy(view, port.service.namespace)


def general_policy(view: View, namespace: str) -> ConfigKey | None:
    """The policy for the ports that none names."""
    return namespace_policy(view, namespace) or mesh_policy(view)


def port_policy(view: View, port: ServedPort) -> ConfigKey | None:
    """The Policy that names a port."""
    found = _targeting(view, port.service)
    return next((t.policy for t in found if port.number in t.ports or port.name in t.ports), None)


def service_policy(view: View, service: ServiceKey) -> ConfigKey | None:
    """The Policy that names a service, with all its ports."""
    return next((target.policy for target in _targeting(view, service) if not target.ports), None)


def namespace_policy(view: View, namespace: str) -> ConfigKey | None:
    """The Policy of a namespace."""
    return _existing(view, ConfigKey("Policy", namespace, GENERAL))


def mesh_policy(view: View) -> ConfigKey | None:
    return _existing(view, ConfigKey("MeshPolicy", "", GENERAL))


def _targeting(view: View, service: ServiceKey) -> tuple[PolicyTarget, ...]:
    """As ``targeting``. Where no Policy names a service, as in most meshes, no service has its own value."""
    return targeting(view, service) if _any_target(view, service.namespace) else ()


@derived
def targeting(view: View, service: ServiceKey) -> tuple[PolicyTarget, ...]:
    """The targets of Policies that name a service, oldest Policy first."""
    return _targets(view, service.namespace).get(service.host, ())


@derived
def _any_target(view: View, namespace: str) -> bool:
    return bool(_targets(view, namespace))


@derived
def _targets(view: View, namespace: str) -> Mapping[str, tuple[PolicyTarget, ...]]:
    """The targets of a namespace's Policies, by the host that they name."""
    found: dict[str, tuple[PolicyTarget, ...]] = {}
    for config in view.configs("Policy", namespace):
        for target in config.spec.targets:
            host = view.full_host(target.name, namespace)
            ports = (port.number if port.number is not None else port.name or "" for port in target.ports)
            found[host] = (*found.get(host, ()), PolicyTarget(config.key, tuple(ports)))
    return found


def _existing(view: View, key: ConfigKey) -> ConfigKey | None:
    return key if view.config(key) is not None else None
