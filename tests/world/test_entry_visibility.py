"""`serviceEntryVisibility` of the mesh config narrows who sees the ServiceEntries of which namespaces."""

from __future__ import annotations

import pytest

from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.model.config import Origin
from mesh_pilot.model.events import MeshConfigValue, Upsert
from mesh_pilot.world import World
from tests.support.upstreams import outbound
from tests.support.worlds import SOURCE, plain, sidecar, update, world_of

ENTRY = """---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{hosts: [{name}.test], resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}]{more}}}
"""
LABELS = """---
apiVersion: v1
kind: Namespace
metadata: {{name: team, labels: {{scope: {scope}}}}}
"""


def entry(name: str, namespace: str, export_to: str = "") -> str:
    return ENTRY.format(name=name, namespace=namespace, more=f", exportTo: {export_to}" if export_to else "")


def settings(visibility: str) -> MeshConfigValue:
    text = f"serviceEntryVisibility: {{{visibility}}}"
    return MeshConfigValue(decode_mesh(plain(text), origin=Origin(SOURCE, "mesh.yaml")))


def seen(world: World, namespace: str) -> set[str]:
    """The hosts that a sidecar of a namespace has clusters for."""
    names = outbound(world, sidecar("10.0.0.9", namespace=namespace))
    return {name.rpartition("|")[2].removesuffix(".test") for name in names if name.startswith("outbound|")}


ENTRIES = (
    entry("public", "team") + entry("named", "team", "[other]") + entry("own", "team", "[., other]") + entry("far", "x")
)
EVERYTHING = ({"public", "own", "far"}, {"public", "named", "own", "far"}, {"public", "far"})


@pytest.mark.parametrize(
    ("visibility", "team", "other", "third"),
    [
        ("defaultVisibility: NAMESPACE", *EVERYTHING),  # without applyToSidecars
        ("applyToSidecars: true", *EVERYTHING),
        ("applyToSidecars: true, defaultVisibility: PUBLIC", *EVERYTHING),
        ("applyToSidecars: true, defaultVisibility: NAMESPACE", {"public", "own"}, set(), set()),
        ("applyToSidecars: true, defaultVisibility: NONE", set(), set(), set()),
        (
            "applyToSidecars: true, defaultVisibility: NONE, policies: [{visibility: NAMESPACE, matchingRules: "
            "[{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team}}}]}]",
            {"public", "own"},
            set(),
            set(),
        ),
        ("applyToSidecars: true, policies: [{visibility: NONE, matchingRules: [{}]}]", *EVERYTHING),
        ("applyToSidecars: true, policies: [{visibility: PUBLIC}, {visibility: NONE}]", *EVERYTHING),
    ],
)
def test_a_policy_narrows_what_entries_are_exported_to(
    visibility: str, team: set[str], other: set[str], third: set[str]
) -> None:
    world = world_of(ENTRIES)
    assert (seen(world, "team"), seen(world, "other"), seen(world, "third")) == EVERYTHING
    world.apply([Upsert(SOURCE, settings(visibility))])
    assert (seen(world, "team"), seen(world, "other"), seen(world, "third")) == (team, other, third)
    world.apply([Upsert(SOURCE, settings(""))])
    assert (seen(world, "team"), seen(world, "other"), seen(world, "third")) == EVERYTHING


def test_labels_of_a_namespace_may_change() -> None:
    world = world_of(ENTRIES)
    rule = "matchingRules: [{namespaceSelector: {matchExpressions: [{key: scope, operator: In, values: [local]}]}}]"
    world.apply([Upsert(SOURCE, settings(f"applyToSidecars: true, policies: [{{visibility: NAMESPACE, {rule}}}]"))])
    assert seen(world, "third") == {"public", "far"}
    update(world, LABELS.format(scope="local"))
    assert seen(world, "third") == {"far"}
    assert seen(world, "team") == {"public", "own", "far"}
    update(world, LABELS.format(scope="wide"))
    assert seen(world, "third") == {"public", "far"}
