"""Client-side weighted round robin: endpoints get requests by their load, as a DestinationRule says.

It says so by ``backendUtilization`` (Istio 1.32) or by an annotation, whose settings are those of Envoy's
``ClientSideWeightedRoundRobin`` and of gRFC A58, in their JSON. Loads are reported by endpoints in responses, as ORCA
defines. Reports out of band are not among them: Envoy would open a stream to each endpoint.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import attrs

from mesh_pilot.api.istio.networking.v1alpha3 import LoadBalancerSettingsBackendUtilizationLb
from mesh_pilot.istio.meaning.durations import describe, read_duration

WEIGHTED_ROUND_ROBIN = "mesh-pilot/client-side-weighted-round-robin"
"""The annotation. Its value is a JSON object; ``{}`` for the defaults of Envoy and gRPC."""

_DURATIONS = {
    "blackoutPeriod": "blackout_period",
    "weightExpirationPeriod": "weight_expiration_period",
    "weightUpdatePeriod": "weight_update_period",
}
_PENALTY, _METRICS = "errorUtilizationPenalty", "metricNamesForComputingUtilization"
_KNOWN = (*_DURATIONS, _PENALTY, _METRICS)


@attrs.frozen
class WeightedRoundRobin:
    """Settings; None leaves one to the client."""

    blackout_period: timedelta | None = None
    """The time for which an endpoint reports before its weight counts."""
    weight_expiration_period: timedelta | None = None
    """The time for which a weight counts without a report."""
    weight_update_period: timedelta | None = None
    error_utilization_penalty: float | None = None
    metric_names: tuple[str, ...] = ()
    """The metrics of a report that are the utilization; empty: the application's, else that of the CPU."""


def weighted_by_utilization(settings: LoadBalancerSettingsBackendUtilizationLb) -> WeightedRoundRobin:
    """The settings of ``backendUtilization``. Errors count only if it says so, unlike Envoy's default."""
    return WeightedRoundRobin(
        settings.weight_stabilization_period,
        settings.weight_expiration_period,
        settings.weight_update_period,
        settings.error_utilization_penalty_percent / 100,
        tuple(settings.metric_names_for_computing_utilization),
    )


def read_weighted_round_robin(text: str) -> WeightedRoundRobin:
    """The settings in an annotation's value. Raises ValueError with a reason for users."""
    try:
        given: Any = json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise ValueError(f"is not JSON: {failure}; write {{}} for the defaults") from None
    if not isinstance(given, dict):
        raise ValueError(f"expected a JSON object, got {describe(given)}; write {{}} for the defaults")
    if unknown := [key for key in given if key not in _KNOWN]:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(_KNOWN)}")
    return WeightedRoundRobin(
        **{name: _positive(key, given[key]) for key, name in _DURATIONS.items() if key in given},
        error_utilization_penalty=_penalty(given[_PENALTY]) if _PENALTY in given else None,
        metric_names=_names(given.get(_METRICS, [])),
    )


def _positive(key: str, value: object) -> timedelta:
    try:
        found = read_duration(value)
    except ValueError as failure:
        raise ValueError(f"{key}: {failure}") from None
    if found <= timedelta(0):
        raise ValueError(f"{key}: must be more than 0s")
    return found


def _penalty(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{_PENALTY}: expected a number from 0 on, got {describe(value)}")
    return float(value)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"{_METRICS}: expected a list of names, such as named_metrics.queue")
    return tuple(value)
