"""GatewayClasses: which Gateways are ours, and how they are served."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from mesh_pilot.istio.gateway_api.values import CONTROLLER, Json, Objects, StatusCondition
from mesh_pilot.model.config import Config

REMOTE_CONTROLLER = "istio.io/unmanaged-gateway"


@attrs.frozen
class ClassInfo:
    """A kind of classes, by the controller that they name."""

    is_served: bool
    """False: Gateways of another control plane, which we only take note of."""
    supports_sets: bool
    """ListenerSets may be attached to its Gateways."""


_CONTROLLERS: Mapping[str, ClassInfo] = MappingProxyType(
    {CONTROLLER: ClassInfo(True, True), REMOTE_CONTROLLER: ClassInfo(False, False)}
)

_BUILT_IN: Mapping[str, str] = MappingProxyType({"istio": CONTROLLER, "istio-remote": REMOTE_CONTROLLER})
"""Classes that need no object, with their controllers."""


def class_info(name: str, objects: Objects) -> ClassInfo | None:
    """The properties of a class; None if it is of another controller, or nobody has declared it."""
    found = objects.config("GatewayClass", "", name)
    controller = found.spec.controller_name if found is not None else _BUILT_IN.get(name, "")
    return _CONTROLLERS.get(controller)


def class_status(config: Config) -> Json | None:
    """The status of a GatewayClass; None if it is of another controller."""
    if config.spec.controller_name not in _CONTROLLERS:
        return None
    condition = StatusCondition("Accepted", True, "Accepted", "Handled by Istio controller")
    return {"conditions": [condition.to_json()]}
