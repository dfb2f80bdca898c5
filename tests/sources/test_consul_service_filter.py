"""What filters say about services as a whole."""

from __future__ import annotations

import pytest

from mesh_pilot.consul.client.service_filter import ServiceFilter, catalog_filter, service_filter

NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("expression", "tags", "names"),
    [
        ("", NONE, NONE),
        ('"mesh" in Service.Tags', {"mesh"}, NONE),
        ('Service.Tags contains "mesh"', {"mesh"}, NONE),
        ("mesh in Service.Tags and `a b` in Service.Tags", {"mesh", "a b"}, NONE),
        ('Service.Service == "web" and Service.Meta.team == "x"', NONE, {"web"}),
        ('"a" in Service.Tags or "b" in Service.Tags', NONE, NONE),
        ('not "a" in Service.Tags', NONE, NONE),
        ('("a" in Service.Tags) and "b" in Service.Tags', NONE, NONE),
        ('"this and that" in Service.Tags', {"this and that"}, NONE),
        ('"(a or b)" in Service.Tags', {"(a or b)"}, NONE),
        ('"a" not in Service.Tags', NONE, NONE),
        ('"a" in Node.Meta', NONE, NONE),
    ],
)
def test_tags_and_names_are_taken_from_what_is_joined_by_and(
    expression: str, tags: frozenset[str], names: frozenset[str]
) -> None:
    assert service_filter(expression, "") == ServiceFilter(frozenset(tags), frozenset(names))


def test_a_service_is_ruled_out_only_by_what_it_can_not_have() -> None:
    mesh = service_filter('"a" in Service.Tags', "mesh")
    assert mesh.admits("web", ["mesh", "a", "x"])
    assert not mesh.admits("web", ["mesh"])
    assert service_filter("", "").admits("web", [])
    assert not service_filter('Service.Service == "api"', "").admits("web", [])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('Service.Meta.team == "a"', 'ServiceMeta.team == "a"'),
        (
            '"x" in Service.Tags and Node.Meta.zone != "Node.Meta"',
            '"x" in ServiceTags and NodeMeta.zone != "Node.Meta"',
        ),
        ('Service.Service matches "^web" or Node.Node == n1', 'ServiceName matches "^web" or Node == n1'),
        ('Checks.Status == "passing"', ""),
        ('Service.Connect.Native == "true"', ""),
        ("", ""),
    ],
)
def test_a_filter_is_put_as_the_catalog_wants_it(expression: str, expected: str) -> None:
    assert catalog_filter(expression) == expected
