"""What a proxy accepts and never uses is that proxy's own refusal: withheld from it, and from nobody else."""

from __future__ import annotations

import attrs
import pytest

from mesh_pilot.model.events import Quarantine
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import LISTENER, ROUTE
from mesh_pilot.xds.ads.messages import Nack, Response, Variant
from mesh_pilot.xds.ads.stream import Stream
from mesh_pilot.xds.ads.warming import NOT_IN_USE, WARMING_SECONDS
from tests.quarantine.fleet import MARK, Fleet, RefusingClient
from tests.quarantine.test_controller import EDGE, GATEWAY, edge_of, has, route

PASS = WARMING_SECONDS + 1


class WarmingClient(RefusingClient):
    """Accepts everything, and never uses what holds its mark."""

    def new_stream(self) -> Stream:
        stream = super().new_stream()
        stream.warms = self.warms_now
        self.used_to_warm = False
        return stream

    def warms_now(self, type_url: str) -> bool:
        return bool(self.warming_resources(type_url))

    def warming_resources(self, type_url: str) -> list[str]:
        return [n for n, r in self.has[type_url].items() if any(mark.encode() in r.body for mark in self.marks)]

    def objects_to(self, response: Response) -> str:
        return ""

    def wait(self, type_url: str = ROUTE) -> None:
        """So much time passes; the session tells of what is overdue then."""
        self._fleet.time += PASS
        self._fleet.quarantine.tick()
        names = self.warming_resources(type_url)
        if names:
            held = self.stream.client_state(type_url)
            resources = tuple(held[name] for name in names)
            reason = f"{NOT_IN_USE} after 10 s: {', '.join(names)}"
            nack = Nack(self.proxy, type_url, "", "", reason, tuple(names), (), resources, is_warming=True)
            self._fleet.quarantine.warms(self._number, nack)
        self._fleet.settle()


def join(fleet: Fleet, proxy: Proxy, variant: Variant, marks: str = MARK, identity: str = "") -> WarmingClient:
    proven = f"spiffe://cluster.local/ns/infra/sa/{identity}" if identity else ""
    known = attrs.evolve(proxy, identity=proven, peer=proxy.ip_addresses[0])
    client = WarmingClient(fleet, known, variant, frozenset((marks,)), build="envoy 1.40.0")
    fleet.clients.append(client)
    fleet.settle()
    fleet.time += PASS
    return client


@pytest.fixture(params=list(Variant))
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


@pytest.fixture
def fleet() -> Fleet:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("good", "good-1") + route("bad", "bad-1"))
    return fleet


def domains(fleet: Fleet) -> list[str]:
    return [each.domain.partition(" ")[0] for each in fleet.quarantine.withheld() if isinstance(each, Quarantine)]


def test_an_object_that_a_proxy_never_uses_is_withheld_from_it_in_the_version_that_it_uses(
    fleet: Fleet, variant: Variant
) -> None:
    edge = join(fleet, EDGE, variant)
    fleet.edit(route("bad", MARK) + route("good", "good-2"))
    fleet.settle()
    for _ in range(8):
        edge.wait()
    assert has(edge, "bad-1") and has(edge, "good-2") and not has(edge, MARK)
    assert [*fleet.withheld().values()] == [["VirtualService/bad/bad"]]
    assert domains(fleet) == ["proxy"]
    assert not fleet.quarantine.held()


def test_other_proxies_of_the_identity_and_of_other_identities_keep_the_object(fleet: Fleet, variant: Variant) -> None:
    stuck = join(fleet, EDGE, variant, identity="edge")
    same = join(fleet, edge_of("edge-2", ip="10.1.1.2"), variant, "nothing", identity="edge")
    other = join(fleet, edge_of("edge-3", ip="10.1.1.3"), variant, "nothing", identity="other")
    fleet.edit(route("bad", MARK))
    fleet.settle()
    for _ in range(6):
        stuck.wait()
    assert has(stuck, "bad-1") and has(same, MARK) and has(other, MARK)
    assert domains(fleet) == ["proxy"]


def test_two_identities_that_never_use_it_make_no_verdict_for_their_build(fleet: Fleet, variant: Variant) -> None:
    first = join(fleet, EDGE, variant, identity="edge")
    second = join(fleet, edge_of("edge-2", ip="10.1.1.2"), variant, identity="other")
    third = join(fleet, edge_of("edge-3", ip="10.1.1.3"), variant, "nothing", identity="third")
    fleet.edit(route("bad", MARK))
    fleet.settle()
    for _ in range(6):
        first.wait()
        second.wait()
    assert has(first, "bad-1") and has(second, "bad-1") and has(third, MARK)
    assert domains(fleet) == ["proxy", "proxy"]


def test_a_new_version_of_the_object_is_tried_at_once(fleet: Fleet, variant: Variant) -> None:
    edge = join(fleet, EDGE, variant)
    fleet.edit(route("bad", MARK))
    fleet.settle()
    for _ in range(4):
        edge.wait()
    assert has(edge, "bad-1")
    fleet.edit(route("bad", "bad-3"))
    fleet.settle()
    assert has(edge, "bad-3") and not fleet.withheld()


def test_a_proxy_that_starts_and_never_uses_an_object_is_served_without_it(fleet: Fleet, variant: Variant) -> None:
    edge = join(fleet, EDGE, variant, "bad-1")
    for _ in range(4):
        edge.wait()
    assert not has(edge, "bad-1") and has(edge, "good-1")
    assert [*fleet.withheld().values()] == [["VirtualService/bad/bad"]]


def test_what_another_proxy_in_its_place_uses_is_on_hold_and_nothing_is_withheld(
    fleet: Fleet, variant: Variant
) -> None:
    join(fleet, edge_of("edge-2", ip="10.1.1.2"), variant, "nothing", identity="edge")
    edge = join(fleet, EDGE, variant, "bad-1", identity="edge")
    for _ in range(4):
        edge.wait()
    (held,) = fleet.quarantine.held()
    assert held.why == "nothing has changed since the client accepted it last" and NOT_IN_USE in held.words
    assert has(edge, "bad-1") and not fleet.withheld()
    edge.marks = frozenset(("nothing",))
    edge.wait()
    assert not fleet.quarantine.held()


def test_what_is_used_in_the_end_is_forgotten(fleet: Fleet, variant: Variant) -> None:
    edge = join(fleet, EDGE, variant)
    fleet.edit(route("bad", MARK))
    fleet.settle()
    edge.marks = frozenset(("nothing",))
    edge.wait()
    assert has(edge, MARK) and not fleet.withheld() and not fleet.quarantine.held()


def test_a_refusal_of_another_proxy_of_the_identity_does_not_wait_for_the_trials_of_what_warms(
    fleet: Fleet, variant: Variant
) -> None:
    stuck = join(fleet, EDGE, variant, identity="edge")
    refusing = fleet.join(edge_of("edge-2", ip="10.1.1.2"), variant, frozenset(("odd",)), identity="edge")
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    stuck.wait()
    fleet.edit(route("good", "odd"))
    fleet.settle()
    assert has(refusing, "good-1") and not has(refusing, "odd")


def test_a_listener_that_warms_is_put_back(fleet: Fleet, variant: Variant) -> None:
    edge = join(fleet, EDGE, variant, "9999")
    more = GATEWAY[: GATEWAY.index("---")].replace("name: edge,", "name: more,").replace("number: 80", "number: 9999")
    fleet.edit(more)
    fleet.settle()
    assert has(edge, "9999", LISTENER)
    for _ in range(4):
        edge.wait(LISTENER)
    assert not has(edge, "9999", LISTENER)
    assert [*fleet.withheld().values()] == [["Gateway/infra/more"]]
