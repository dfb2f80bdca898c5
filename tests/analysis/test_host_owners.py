"""Who lost a host to another namespace is named, by the owners of a plane and by those of files."""

from __future__ import annotations

from mesh_pilot.explain.analysis.analyze import analyze, analyze_picture
from mesh_pilot.explain.analysis.input import picture_of
from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.model.config import Origin
from mesh_pilot.model.events import MeshConfigValue, Upsert
from tests.support.owned import OwnedWorld
from tests.support.worlds import world_of
from tests.world.test_host_owners import TIMES, entry, routes


def losers(messages: object) -> list[tuple[str, str]]:
    return [(str(m.config.key), m.text) for m in messages if m.type.code == "MP0026"]  # type: ignore[attr-defined]


def test_a_plane_names_who_came_later_whatever_its_objects_say() -> None:
    owned = OwnedWorld(entry("shop") + routes("shop", gateways="edges/edge"))
    owned.put(entry("evil", TIMES[1]) + routes("evil", TIMES[1], gateways="edges/edge"))
    assert losers(analyze(owned.world)) == [
        (
            "ServiceEntry/evil/be",
            "the host be.test of services belongs to namespace shop (ServiceEntry/shop/be), which had it first: "
            "only clients in its namespace get this service",
        ),
        (
            "VirtualService/evil/own",
            "the host pay.test of gateway edges/edge belongs to namespace shop (VirtualService/shop/own), which had it "
            "first: the owner's routes come first",
        ),
    ]


def test_files_are_judged_by_age() -> None:
    world = world_of(entry("shop") + entry("evil", TIMES[2]))
    ((loser, text),) = losers(analyze(world))
    assert loser == "ServiceEntry/evil/be" and "which is first by age or name" in text


def test_what_no_client_sees_both_of_is_no_contest() -> None:
    world = world_of(entry("shop", export='"."') + entry("evil") + routes("shop") + routes("evil", gateways="a/b"))
    assert not losers(analyze(world))


def test_files_that_the_mesh_config_refuses_are_named() -> None:
    world = world_of(entry("evil"))
    config = decode_mesh({"hostOwners": {"*.test": "shop"}}, origin=Origin("mesh", "mesh.yaml"))
    world.apply([Upsert("mesh", MeshConfigValue(config))])
    (message,) = [m for m in analyze_picture(picture_of(world)) if m.type.code == "MP0027"]
    assert (str(message.config.key), message.path) == ("ServiceEntry/evil/be", "spec.hosts[0]")
    assert "belongs to namespace shop" in message.text
