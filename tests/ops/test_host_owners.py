"""``why`` and ``describe`` name who lost a host to another namespace."""

from __future__ import annotations

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.explain.inspection.why.request import parse_request
from mesh_pilot.explain.inspection.why.story import explain
from mesh_pilot.mesh.reach.visibility import visible_service
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from mesh_pilot.ops.explain.attribution import Attribution
from mesh_pilot.ops.explain.object_description import describe_object
from mesh_pilot.ops.explain.plane_evidence import PlaneEvidence
from mesh_pilot.ops.explain.service_description import describe_service
from mesh_pilot.ops.values.truth import IN_FORCE
from mesh_pilot.xds.ads.status import TypeDump
from tests.support.owned import OwnedWorld
from tests.world.test_host_owners import CLIENT, TIMES, entry, routes

SERVICE, ROUTES = ConfigKey("ServiceEntry", "evil", "be"), ConfigKey("VirtualService", "evil", "own")


def contested() -> OwnedWorld:
    owned = OwnedWorld(entry("shop") + routes("shop"))
    owned.put(entry("evil", TIMES[1]) + routes("evil", TIMES[1]))
    return owned


def deciders(owned: OwnedWorld, request: str) -> dict[str, str]:
    """The objects that ``why`` names for a request, each with its text."""
    opened = WorldCatalog(owned.world).open(CLIENT)
    dumps = []
    for type_url in (CLUSTER, LISTENER, ROUTE, ENDPOINT):
        held = opened.set(type_url)
        assert held is not None
        names = {ROUTE: ("80",), ENDPOINT: ("outbound|80||be.test",)}.get(type_url)
        snapshot = held.snapshot() if names is None else held.select(frozenset(names))
        dumps.append(TypeDump(type_url, "1", True, tuple(snapshot.entries.values())))
    answer = explain(PlaneEvidence(dumps, {}), parse_request(request))
    steps = Attribution(owned.world.view, opened.target).steps(answer)
    return {each.object: each.text for _, found in steps for each in found}


def test_why_names_the_service_that_lost_its_host() -> None:
    found = deciders(contested(), "be.test:80/")
    assert any("not ServiceEntry/evil/be, which has this host, too" in text for text in found.values())


def test_why_names_the_routes_that_lost_their_host() -> None:
    texts = deciders(contested(), "pay.test:80/").items()
    assert any("evil/own" in name and text == "not used: namespace shop has this host" for name, text in texts)


def test_a_service_is_described_with_who_has_its_host_too() -> None:
    owned = contested()
    service = visible_service(owned.world.view, "bank", "be.test")
    assert service is not None
    warnings = [line.text for line in describe_service(owned.world.view, service, "bank", {}).warnings]
    assert "ServiceEntry/evil/be has this host, too: clients of namespace bank are not given its service" in warnings


def test_an_object_is_described_with_the_owner_of_its_hosts() -> None:
    owned = contested()

    def warnings(key: ConfigKey) -> list[str]:
        config = owned.world.config.peek(key)
        assert config is not None
        return [line.text for line in describe_object(owned.world.view, config, [], [], IN_FORCE).warnings]

    assert "be.test of services belongs to namespace shop: this object comes after its" in warnings(SERVICE)
    assert "pay.test of sidecars belongs to namespace shop: this object comes after its" in warnings(ROUTES)
    assert "pay.test of sidecars belongs to this namespace; named by objects of evil, too" in warnings(
        ConfigKey("VirtualService", "shop", "own")
    )
