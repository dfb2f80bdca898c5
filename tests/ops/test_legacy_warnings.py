"""Legacy policies that name what is not there are told, with the field and the reason."""

from __future__ import annotations

from mesh_pilot.explain.analysis.object_problems import reference_lines
from mesh_pilot.world import World
from tests.support.legacy import access, binding, policy, role
from tests.support.routing import service
from tests.support.worlds import update, world_of


def told(world: World) -> dict[str, str]:
    """The reason by object and field."""
    return {f"{line['object']} {line['field']}": line["reason"] for line in reference_lines(world)}


def test_a_policy_for_a_service_or_port_that_is_not_there_is_told() -> None:
    text = policy(
        "web", "targets: [{name: web}, {name: gone}, {name: web, ports: [{number: 80}, {name: ui}, {number: 1}]}]"
    )
    found = told(world_of(service("web", ports="80 ui HTTP") + text))
    assert found.keys() == {"Policy/shop/web spec.targets[1].name", "Policy/shop/web spec.targets[2].ports[2]"}
    assert "has no service gone.shop.svc.cluster.local" in found["Policy/shop/web spec.targets[1].name"]


def test_a_binding_of_a_role_that_is_not_there_is_told() -> None:
    world = world_of(binding("readers", "[{user: '*'}]", role="reader"))
    assert told(world).keys() == {"ServiceRoleBinding/shop/readers spec.roleRef.name"}
    update(world, role("reader", "[{services: ['*']}]"))
    assert told(world) == {}
    update(world, binding("readers", "[{user: '*'}]", more="actions: [{services: ['*']}]"))
    assert told(world) == {}


def test_a_config_that_does_not_count_is_told() -> None:
    world = world_of(access("ON", namespace="shop") + access("ON", namespace="istio-system"))
    assert told(world).keys() == {"RbacConfig/shop/default metadata.namespace"}
    update(world, access("OFF"))
    assert "RbacConfig/istio-system/default metadata.name" in told(world)
