"""A plan knows who owns a host, and what the mesh config refuses."""

from __future__ import annotations

from mesh_pilot.explain.plan.objects import ObjectChange
from mesh_pilot.explain.plan.picture import ConnectedProxy, read_picture, take_picture
from mesh_pilot.explain.plan.planning import Plan, Planner
from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.model.config import Origin
from mesh_pilot.model.events import MeshConfigValue, Upsert, item_key
from tests.support.owned import OwnedWorld
from tests.support.worlds import SOURCE, configs
from tests.world.test_host_owners import CLIENT, TIMES, entry


def plan_of(owned: OwnedWorld, text: str) -> Plan:
    picture = read_picture(take_picture(owned.world, "1")())
    planner = Planner(picture, [ConnectedProxy(CLIENT)])
    changes = []
    for config in configs(text):
        key = item_key(config)
        changes.append(ObjectChange(SOURCE, key, owned.world.item_of(SOURCE, key), config))
    before = {source: planner.world.items_of(source) for source in planner.world.sources()}
    found = planner.plan(changes)
    after = {source: planner.world.items_of(source) for source in planner.world.sources()}
    assert {s: items for s, items in after.items() if items} == {s: items for s, items in before.items() if items}
    assert not planner.world.rejections()
    return found


def codes(plan: Plan) -> set[str]:
    return {message.type.code for message in plan.new_findings}


def test_a_host_of_another_namespace_changes_nothing_for_its_clients() -> None:
    for kept in (True, False):
        owned = OwnedWorld(entry("shop"))
        if kept:
            owned.put(entry("zevil"))
        plan = plan_of(owned, entry("evil", TIMES[1]))
        assert not plan.touched and "MP0026" in codes(plan)


def test_what_the_mesh_config_refuses_is_a_finding() -> None:
    owned = OwnedWorld(entry("shop"))
    config = decode_mesh({"hostOwners": {"*.test": "shop"}}, origin=Origin("mesh", "mesh.yaml"))
    owned.apply([Upsert("mesh", MeshConfigValue(config))])
    plan = plan_of(owned, entry("evil", host="x.test"))
    assert not plan.touched
    assert ["belongs to namespace shop" in message.text for message in plan.new_findings] == [True]
