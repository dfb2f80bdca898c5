"""Tracing that a wider Telemetry turns off and a narrower one on: the narrowest that says anything decides."""

from __future__ import annotations

import pytest

from mesh_pilot.envoy.telemetry.tracing import tracing_settings
from tests.support.telemetry import context, telemetry
from tests.support.worlds import world_of


@pytest.mark.parametrize(
    ("own", "is_on"), [("disableSpanReporting: false", True), ("randomSamplingPercentage: 5", False)]
)
def test_a_workload_turns_on_again_what_its_namespace_turned_off(own: str, is_on: bool) -> None:
    world = world_of(
        telemetry("mesh", "istio-system", "tracing: [{providers: [{name: zipkin}]}]")
        + telemetry("shop", "shop", "tracing: [{disableSpanReporting: true}]")
        + telemetry("web", "shop", f"tracing: [{{{own}}}]", "{app: web}")
    )
    assert (tracing_settings(world.view, context()) is not None) is is_on
