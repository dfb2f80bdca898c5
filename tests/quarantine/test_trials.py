"""The costs of quarantine: of a trial for others, of a refusal that nothing is done about, and of having it at all."""

from __future__ import annotations

import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.events import Synced
from mesh_pilot.model.resource import CLUSTER, LISTENER, ROUTE
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Response, Variant
from mesh_pilot.xds.ads.stream import Stream
from tests.quarantine.fleet import MARK, Fleet, RefusingClient, Sent, sent
from tests.quarantine.test_controller import EDGE, GATEWAY, has, route
from tests.support.envoy_model import EnvoyModel, names_in
from tests.support.manifests import manifest
from tests.support.quarantined import unchecked
from tests.support.worlds import SOURCE, update

VARIANTS = pytest.mark.parametrize("variant", list(Variant))


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("good", "good-1") + route("bad", "bad-1"))
    return fleet


def entry(tenant: str, host: str) -> str:
    return GATEWAY[GATEWAY.index("---") :].replace("web.example.com", host).replace("name: web", f"name: to-{tenant}")


def to_service(tenant: str, number: int) -> str:
    """A tenant's route to a service that is there for this number only."""
    host = f"{tenant}-{number}.example.com"
    return entry(tenant, host) + route(tenant, f"{tenant}-{number}").replace(
        "directResponse: {status: 200}", f"route: [{{destination: {{host: {host}}}}}]"
    )


BAD_CLUSTER = f"""
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: bad, namespace: infra}}
spec:
  host: web.example.com
  trafficPolicy: {{tls: {{mode: SIMPLE, sni: {MARK}}}}}
"""


class PlainClient(EnvoyModel):
    """A client of a catalog without quarantine, that logs what it is sent."""

    def new_stream(self) -> Stream:
        self.log: list[Sent] = []
        return super().new_stream()

    def objects_to(self, response: Response) -> str:
        self.log.append(sent(response))
        return ""


def clusters_named(client: RefusingClient) -> set[str]:
    """The clusters that a client's routes name."""
    return {cluster for resource in client.has[ROUTE].values() for cluster in names_in(resource).clusters}


@VARIANTS
def test_a_trial_takes_no_cluster_that_a_route_of_before_still_names(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.edit(to_service("good", 1))
    fleet.settle()
    fleet.edit(to_service("good", 2) + route("bad", MARK))
    while fleet.step():
        assert clusters_named(edge) <= edge.has[CLUSTER].keys()
    assert clusters_named(edge) == {"outbound|80||good-2.example.com"}
    assert "outbound|80||good-1.example.com" not in edge.has[CLUSTER]


@VARIANTS
def test_routes_wait_for_clusters_that_were_refused_beside_a_guilty_one(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.edit(to_service("good", 1))
    fleet.settle()
    fleet.edit(to_service("good", 2) + to_service("new", 1) + BAD_CLUSTER)
    while fleet.step():
        assert clusters_named(edge) <= edge.has[CLUSTER].keys() - edge.warming
    assert has(edge, "good-2") and not has(edge, MARK, CLUSTER)


@VARIANTS
def test_a_new_cluster_that_is_refused_does_not_stay_in_a_trial(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.edit(to_service("good", 1))
    fleet.settle()
    fleet.edit(to_service("good", 2) + entry("new", f"{MARK}.example.com"))
    fleet.settle()
    assert has(edge, "good-2") and not has(edge, MARK, CLUSTER)
    assert [*fleet.withheld().values()] == [["ServiceEntry/infra/to-new"]]
    assert not fleet.quarantine.held()


@VARIANTS
def test_a_trial_takes_no_resource_whose_translator_fails(fleet: Fleet, variant: Variant) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    sources = [{"source": {"ipBlocks": ["999.1.1.1"]}}]
    policy = {"action": "DENY", "rules": [{"from": sources}]}
    (fails,) = unchecked(manifest("AuthorizationPolicy", "fails", policy, namespace="infra"))
    fleet.put(fails)
    fleet.settle()
    assert "0.0.0.0_80" in edge.has[LISTENER]
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert "0.0.0.0_80" in edge.has[LISTENER]


@VARIANTS
def test_a_refusal_that_nothing_is_done_about_does_not_hide_another_of_a_different_type(
    fleet: Fleet, variant: Variant
) -> None:
    edge = fleet.join(EDGE, variant)
    fleet.settle()
    edge.marks |= {"good.example.com"}
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert fleet.quarantine.held() and not fleet.withheld()
    fleet.edit(BAD_CLUSTER)
    fleet.settle()
    assert [*fleet.withheld().values()] == [["DestinationRule/infra/bad"]]


@VARIANTS
def test_a_refusal_that_nothing_is_done_about_does_not_hide_another_of_its_type(fleet: Fleet, variant: Variant) -> None:
    more = GATEWAY[: GATEWAY.index("---")].replace("name: edge", "name: more").replace("number: 80", "number: 81")
    other = route("other", "other-1").replace("infra/edge, mesh", "infra/more")
    edge = fleet.join(EDGE, variant)
    fleet.edit(more + other)
    fleet.settle()
    edge.marks |= {"good.example.com"}
    fleet.edit(route("good", "good-2"))
    fleet.settle()
    assert fleet.quarantine.held() and not fleet.withheld()
    innocent = route("innocent", "innocent-1").replace("infra/edge, mesh", "infra/more")
    fleet.edit(innocent + other.replace("other-1", MARK))
    fleet.settle()
    assert [*fleet.withheld().values()] == [["VirtualService/other/other"]]
    assert has(edge, "innocent-1")


@VARIANTS
def test_it_costs_nothing_while_nothing_is_refused(variant: Variant) -> None:
    """The same calls of derived values and the same responses as without it, for a sequence of edits."""
    fleet, plain = Fleet(), World()
    plain.apply([Synced(SOURCE)])
    fleet.edit(GATEWAY)
    update(plain, GATEWAY)
    with_it, without = fleet.join(EDGE, variant), PlainClient(WorldCatalog(plain), EDGE, variant)
    for number in range(4):
        for text in (to_service("good", number), route("bad", f"bad-{number}"), to_service(f"new-{number}", number)):
            fleet.edit(text)
            fleet.settle()
            update(plain, text)
            without.settle()
    calls, calls_without = (dict(world.memo.statistics().calls) for world in (fleet.world, plain))
    assert calls == calls_without
    assert with_it.log == without.log and len(with_it.log) > 10
