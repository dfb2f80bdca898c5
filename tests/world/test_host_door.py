"""``hostOwners`` of the mesh config: objects of other namespaces are refused, and nothing else suffers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.model.config import ConfigError, Origin
from mesh_pilot.model.events import Accepted, Delete, MeshConfigValue, Replace, SourceRemoved, Upsert
from tests.support.owned import OwnedWorld
from tests.support.worlds import SOURCE, configs
from tests.world.test_host_owners import entry, provider, routes, server

TEST_YAML = Origin(SOURCE, "test.yaml").location


def say(owned: OwnedWorld, owners: Mapping[str, str]) -> None:
    """The operator writes ``hostOwners``."""
    config = decode_mesh({"hostOwners": dict(owners)}, origin=Origin("mesh", "mesh.yaml"))
    owned.apply([Upsert("mesh", MeshConfigValue(config))])


def refused(owned: OwnedWorld) -> list[str]:
    return [f"{'/'.join((each.key or ())[1:])}: {each.problems[0]}" for each in owned.world.rejections()]


def test_an_object_of_another_namespace_is_refused_and_the_reason_says_what_to_do() -> None:
    owned = OwnedWorld()
    say(owned, {"be.test": "shop"})
    owned.put(entry("evil") + entry("shop"))
    assert provider(owned) == provider(owned, "evil") == "shop"
    assert refused(owned) == [
        'ServiceEntry/evil/be: spec.hosts[0]: "be.test" belongs to namespace shop (hostOwners of the mesh config); '
        "remove it, or change that"
    ]
    owned.put(entry("evil", host="own.test"))
    assert not refused(owned) and provider(owned, host="own.test") == "evil"


def test_what_is_refused_leaves_the_last_good_version_in_force() -> None:
    owned = OwnedWorld(routes("evil", hosts="gain.test"))
    say(owned, {"pay.test": "shop"})
    owned.put(routes("evil", hosts="gain.test, pay.test"))
    assert len(refused(owned)) == 1 and server(owned, host="gain.test") == "evil"
    item = configs(routes("evil", hosts="pay.test"))[0]
    owned.apply([Replace(SOURCE, ("config",), (item,))])
    assert len(refused(owned)) == 1 and server(owned, host="gain.test") == "evil"
    owned.apply([Accepted(SOURCE, TEST_YAML)])  # its source finds nothing wrong with it
    assert len(refused(owned)) == 1
    owned.apply([Delete(SOURCE, ("config", *item.key))])
    assert not refused(owned)
    say(owned, {})
    assert not owned.world.items_of(SOURCE)


def test_the_operator_s_word_evicts_who_is_there_and_lets_back_who_is_allowed() -> None:
    owned = OwnedWorld(entry("evil"))
    owned.put(entry("shop"))
    assert provider(owned) == "evil"
    say(owned, {"be.test": "shop"})
    assert provider(owned) == "shop" and len(refused(owned)) == 1
    say(owned, {"be.test": "evil"})
    assert provider(owned) == "evil" and len(refused(owned)) == 1
    say(owned, {})
    assert provider(owned, "shop") == "shop" and not refused(owned)


@pytest.mark.parametrize(
    ("owners", "host", "is_refused"),
    [
        ({"*.test": "shop"}, "be.test", True),
        ({"*.test": "shop", "be.test": "evil"}, "be.test", False),
        ({"*.test": "evil", "*.be.test": "shop"}, "a.be.test", True),
        ({"be.test": "shop"}, "BE.test", True),
        ({"be.test": "shop"}, "be.test.example", False),
        ({"be.test": "shop"}, '"*.test"', False),
    ],
)
def test_the_most_precise_host_decides(owners: dict[str, str], host: str, is_refused: bool) -> None:
    owned = OwnedWorld()
    say(owned, owners)
    owned.put(entry("evil", host=host))
    assert bool(refused(owned)) is is_refused


def test_a_route_of_the_gateway_api_is_refused_too() -> None:
    owned = OwnedWorld()
    say(owned, {"pay.test": "shop"})
    owned.put("""
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: evil}
spec: {hostnames: [pay.test], parentRefs: [{name: edge, namespace: edges}]}
""")
    assert refused(owned)[0].startswith('HTTPRoute/evil/r: spec.hostnames[0]: "pay.test" belongs to namespace shop')


def test_a_source_that_goes_takes_what_was_refused_with_it() -> None:
    owned = OwnedWorld()
    say(owned, {"be.test": "shop"})
    owned.put(entry("evil"))
    owned.apply([SourceRemoved(SOURCE)])
    say(owned, {})
    assert not refused(owned) and provider(owned) == ""


@pytest.mark.parametrize(
    ("owners", "path"),
    [({"be..test": "shop"}, "hostOwners[be..test]"), ({"be.test": "no good"}, "hostOwners[be.test]")],
)
def test_what_is_wrong_with_the_key_is_said(owners: dict[str, str], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_mesh({"hostOwners": owners}, origin=Origin("mesh", "mesh.yaml"))
    assert path in str(caught.value)
