"""The Gateways of a router: Istio's by their selectors, the Gateway API's by name or service."""

from __future__ import annotations

import attrs

from mesh_pilot.engine import derived
from mesh_pilot.istio.gateway_api.values import BACKEND_CERTIFICATE, SERVICES
from mesh_pilot.mesh.proxy.registration import RegistrationClaim, registered
from mesh_pilot.mesh.selection.workloads import Labels
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.world.names import GATEWAY_NAME
from mesh_pilot.world.view import View


@attrs.frozen(cache_hash=True)
class ServedGateway:
    """An Istio Gateway made of one of the Gateway API, which says elsewhere which routers have it."""

    key: ConfigKey
    name: str
    """The name of the Gateway of the Gateway API: routers of its namespace with it as a label have it,"""
    hosts: frozenset[str]
    """and those that are endpoints of one of these services."""


def gateways_for(view: View, namespace: str, labels: Labels, claim: RegistrationClaim) -> tuple[ConfigKey, ...]:
    """The Gateways of a router of a namespace with these labels."""
    served = _served_in(view, namespace)
    if not served:
        return _selecting(view, labels, frozenset())
    names = {value for label, value in labels if label == GATEWAY_NAME}
    hosts = {key.host for key, _ in registered(view, claim)}
    ours = (each.key for each in served if each.name in names or not hosts.isdisjoint(each.hosts))
    return _selecting(view, labels, frozenset(ours))


@derived
def _selecting(view: View, labels: Labels, served: frozenset[ConfigKey]) -> tuple[ConfigKey, ...]:
    """Istio's Gateways that select a router with these labels, and ``served``. An empty selector selects every one."""
    return tuple(
        c.key
        for c in view.all_configs("Gateway")
        if (c.key in served if _is_served(c) else c.spec.selector.items() <= labels)
    )


@derived
def _served_in(view: View, namespace: str) -> tuple[ServedGateway, ...]:
    """The Gateways of the Gateway API of a namespace, by listener."""
    return tuple(
        ServedGateway(c.key, c.made_from[-1].name, frozenset(c.annotations[SERVICES].split(",")))
        for c in view.all_configs("Gateway")
        if _is_served(c) and c.made_from[-1].namespace == namespace
    )


@derived
def backend_certificate(view: View, gateways: tuple[ConfigKey, ...]) -> str:
    """The credential that a router with these Gateways shows to backends with a BackendTLSPolicy: that of the oldest
    Gateway that names one; empty: none."""
    configs = (view.config(key) for key in gateways)
    shown = (c.annotations.get(BACKEND_CERTIFICATE, "") for c in configs if c is not None and _is_served(c))
    return next(filter(None, shown), "")


def _is_served(config: Config) -> bool:
    return bool(config.made_from) and SERVICES in config.annotations
