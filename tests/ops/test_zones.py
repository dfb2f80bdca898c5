"""Zone aware load balancing at proxies that cannot route by zone is told, with what asks for it."""

from __future__ import annotations

import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.ops.observers.problem_log import ProblemLog
from mesh_pilot.ops.values.problems import at_proxies
from tests.support.manifests import rule
from tests.support.rows import rows
from tests.support.worlds import sidecar, world_of

ZONES = "loadBalancer: {zoneAwareLbSetting: {enabled: true}}"
PRIVATE = rule("b.test", ZONES, namespace="other").replace("spec:\n", "spec:\n  exportTo: [.]\n")


def catalog(text: str, mesh: str = "") -> WorldCatalog:
    found = WorldCatalog(world_of(text, mesh=mesh))
    found.open(sidecar(name="web", namespace="shop"))
    found.open(sidecar(name="able", namespace="shop", ENABLE_SELF_DISCOVERY="true"))
    found.open(sidecar(name="grpc", namespace="shop", GENERATOR="grpc"))
    return found


@pytest.mark.parametrize(
    ("text", "mesh", "objects"),
    [
        ("", "", []),
        (rule("a.test", ZONES), "", ["DestinationRule/shop/a-test"]),
        (rule("a.test", "loadBalancer: {zoneAwareLbSetting: {enabled: false}}"), "", []),
        (rule("b.test", ZONES, namespace="other"), "", ["DestinationRule/other/b-test"]),
        (PRIVATE, "", []),
        (rule("b.test", ZONES, namespace="other"), "defaultDestinationRuleExportTo: [.]", []),
        ("", "zoneAwareLbSetting: {}", ["MeshConfig"]),
        ("", "zoneAwareLbSetting: {enabled: false}", []),
    ],
)
def test_objects_and_proxies_are_told(text: str, mesh: str, objects: list[str]) -> None:
    found = rows(at_proxies(catalog(text, mesh).diagnostics().zones()))
    assert [(entry["object"], entry["proxies"]) for entry in found] == [(o, ["web.shop"]) for o in objects]


def test_it_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    opened = catalog(rule("a.test", ZONES))
    problems = ProblemLog(opened, opened._world)
    problems.log_new()
    problems.log_new()
    assert capsys.readouterr().out.count("zone aware load balancing has no effect at proxies") == 1
