"""GatewayClasses: which Gateways are ours, and how they are served."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mesh_pilot.istio.gateway_api.conditions import Conditions
from mesh_pilot.istio.gateway_api.values import CONTROLLER, Json, Objects
from mesh_pilot.model.config import Config

REMOTE_CONTROLLER = "istio.io/unmanaged-gateway"


_IS_SERVED: Mapping[str, bool] = MappingProxyType({CONTROLLER: True, REMOTE_CONTROLLER: False})
"""The controllers whose classes are ours. False: Gateways of another control plane, which we only take note of."""

_BUILT_IN: Mapping[str, str] = MappingProxyType({"istio": CONTROLLER, "istio-remote": REMOTE_CONTROLLER})
"""Classes that need no object, with their controllers."""


def is_served(name: str, objects: Objects) -> bool | None:
    """True if Gateways of a class are served, False if noted; None: it is of another controller, or undeclared."""
    found = objects.config("GatewayClass", "", name)
    controller = found.spec.controller_name if found is not None else _BUILT_IN.get(name, "")
    return _IS_SERVED.get(controller)


def class_status(config: Config) -> Json | None:
    """The status of a GatewayClass; None if it is of another controller."""
    if config.spec.controller_name not in _IS_SERVED:
        return None
    return {"conditions": Conditions.fine("Handled by Istio controller", "Accepted").to_json()}
