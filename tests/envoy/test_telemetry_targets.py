"""Whom a Telemetry with targets is for: the proxies of the Gateways that it names, and nobody else."""

from __future__ import annotations

import pytest

from mesh_pilot.envoy.telemetry.access_logs import access_loggers
from mesh_pilot.mesh.policies.context import PolicyContext, TrafficSide
from mesh_pilot.model.config import Severity
from mesh_pilot.world import World
from mesh_pilot.world.names import GATEWAY_NAME
from tests.support.rules import problems_of
from tests.support.telemetry import telemetry
from tests.support.worlds import world_of

FRONT = "{group: gateway.networking.k8s.io, kind: Gateway, name: front}"
OTHER = "{group: gateway.networking.k8s.io, kind: Gateway, name: other}"
SERVICE = '{group: "", kind: Service, name: web}'
ENTRY = "{group: networking.istio.io, kind: ServiceEntry, name: web}"
CLASS = "{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}"

QUIET = "accessLogging: [{disabled: true}]"


def logs(world: World, namespace: str, name: str = "") -> bool:
    """True if proxies of a namespace, and of a Gateway where it is named, log anything."""
    labels = frozenset({(GATEWAY_NAME, name)}) if name else frozenset()
    side = TrafficSide.GATEWAY if name else TrafficSide.INBOUND
    return bool(access_loggers(world.view, PolicyContext(side, namespace, labels)))


@pytest.mark.parametrize("field", [f"targetRef: {FRONT}", f"targetRefs: [{OTHER}, {SERVICE}, {FRONT}]"])
@pytest.mark.parametrize("namespace", ["shop", "istio-system"])
def test_it_is_for_the_proxies_of_the_gateway_alone(field: str, namespace: str) -> None:
    world = world_of(telemetry("t", namespace, f"{field}, {QUIET}"))
    assert not logs(world, namespace, "front")
    assert logs(world, namespace) and logs(world, namespace, "back")
    assert logs(world, "elsewhere") and logs(world, "elsewhere", "front")


@pytest.mark.parametrize("target", [SERVICE, ENTRY, CLASS])
@pytest.mark.parametrize("namespace", ["shop", "istio-system"])
def test_one_for_a_waypoint_is_for_nobody(target: str, namespace: str) -> None:
    world = world_of(telemetry("t", namespace, f"targetRefs: [{target}], {QUIET}"))
    assert logs(world, namespace) and logs(world, namespace, "front") and logs(world, "elsewhere")


def test_it_adds_to_the_telemetry_of_the_namespace() -> None:
    world = world_of(
        telemetry("a", "shop", f"targetRef: {FRONT}, accessLogging: [{{filter: {{expression: connection.mtls}}}}]")
        + telemetry("b", "shop", "accessLogging: [{providers: [{name: envoy}]}]"),
    )
    labels = frozenset({(GATEWAY_NAME, "front")})
    (logger,) = access_loggers(world.view, PolicyContext(TrafficSide.GATEWAY, "shop", labels))
    assert (logger.provider, logger.expression) == ("envoy", "connection.mtls")
    (logger,) = access_loggers(world.view, PolicyContext(TrafficSide.GATEWAY, "shop", frozenset()))
    assert (logger.provider, logger.expression) == ("envoy", "")


@pytest.mark.parametrize("kind", [("", "Service"), ("networking.istio.io", "ServiceEntry")])
def test_a_target_that_needs_a_waypoint_is_warned_of(kind: tuple[str, str]) -> None:
    front = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "front"}
    target = {"group": kind[0], "kind": kind[1], "name": "web"}
    found = problems_of("Telemetry", {"targetRefs": [front, target], "accessLogging": [{"disabled": True}]})
    (problem,) = (p for p in found if p.path == "spec.targetRefs[1]")
    assert problem.severity is Severity.WARNING and "waypoint" in problem.reason
