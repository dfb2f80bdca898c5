"""Traffic in the API: edges, services, listeners and policies, and who reports; against planted tables."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.ops.values.service_traffic import port_of_listener
from mesh_pilot.ops.values.traffic import TrafficSeconds, change_of
from mesh_pilot.ops.values.traffic_looks import INTERVAL_SECONDS, KEPT, TrafficLooks
from mesh_pilot.ops.values.traffic_parts import own_part
from mesh_pilot.ops.values.traffic_rows import own_edges
from mesh_pilot.replicas.workers.questions import TrafficPartQuestion, TrafficQuestion
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.table import SLOTS
from tests.support.envoy import eventually
from tests.support.picky import proxy
from tests.support.planes import SERVICE, running_plane
from tests.support.traffic_counts import Planted, reporting, row

ROUTE = """\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec: {hosts: [reviews.test], http: [{route: [{destination: {host: reviews.test}}]}]}
"""
SHARED = SERVICE.replace("name: reviews", "name: ratings").replace("reviews.test", "ratings.test")

REVIEWS = "outbound|9080|v1|reviews.test"
WEB = reporting("web-1.shop", "web", "10.0.0.9")
SERVER = reporting("reviews-1.shop", "reviews", "10.0.0.1")


@attrs.frozen
class Web:
    """A control plane with a planted table, and a client of its API."""

    plane: ControlPlane
    client: httpx.AsyncClient
    planted: Planted
    folder: Path

    async def get(self, path: str = "", status: int = 200) -> Any:
        reply = await self.client.get(f"http://{self.plane.addresses.http}/api/v1/traffic{path}")
        assert reply.status_code == status, reply.text
        return reply.json()

    def look_anew(self) -> None:
        self.plane.state.kept.pop(TrafficLooks, None)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    (tmp_path / "reviews.yaml").write_text(f"{SERVICE}---\n{ROUTE}")
    async with running_plane(tmp_path) as plane, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        assert plane.state.traffic is not None
        yield Web(plane, client, Planted(plane.state.traffic.table), tmp_path)


@pytest.mark.plane
async def test_an_edge_has_what_its_caller_saw_now_and_ten_minutes_ago(web: Web) -> None:
    web.planted.plant((WEB, [row(REVIEWS, requests=100, client_errors=1, retries=2)]), slots=SLOTS)
    web.planted.plant((WEB, [row(REVIEWS, requests=100, errors=3, in_flight=7)]), slots=6)
    found = await web.get()
    assert (found["is_on"], found["advice"], found["seconds"], found["before_seconds"]) == (True, "", 60, 60)
    assert (found["by_agents"], found["by_load_reports"], found["silent"]) == (1, 0, 0)
    (edge,) = found["items"]
    assert edge["caller"] == {"kind": "workload", "name": "web", "namespace": "shop", "port": None, "subset": ""}
    called = {"kind": "service", "name": "reviews.test", "namespace": "shop", "port": 9080, "subset": "v1"}
    assert edge["called"] == called
    now = {"requests": 600, "errors": 18, "client_errors": 0, "in_flight": 7, "per_second": 10, "rate": 0.03}
    assert {name: edge[name] for name in now} == now
    before = {"requests": 600, "errors": 0, "client_errors": 6, "retries": 12, "rate": 0, "in_flight": None}
    assert {name: edge["before"][name] for name in before} == before
    assert (edge["is_worse"], edge["worse_by"], edge["more_failures"]) == (True, 0.03, 18)
    assert (edge["unit"], edge["attempts"], edge["is_complete"], edge["proxies"]) == ("requests", None, True, 1)
    (longer,) = (await web.get("?seconds=300"))["items"]
    assert (longer["requests"], longer["errors"], longer["per_second"]) == (3000, 18, 10)


@pytest.mark.plane
async def test_what_load_reports_do_not_tell_is_null(web: Web) -> None:
    web.planted.plant((WEB, [row(REVIEWS, attempts=10, failed_attempts=4)]), slots=12, of_agent=False)
    tcp = row("outbound|27017||reviews.test", connections=3)
    web.planted.plant((SERVER, [tcp]), of_agent=False)
    edge, connections = (await web.get())["items"]
    assert (edge["requests"], edge["errors"], edge["retries"], edge["connect_failures"]) == (None,) * 4
    assert (edge["unit"], edge["tries"], edge["failures"], edge["rate"]) == ("attempts", 50, 20, 0.4)
    assert (connections["unit"], connections["tries"], connections["failures"]) == ("connections", 3, None)
    assert connections["rate"] is None
    (reporter, _) = (await web.get("/proxies"))["items"]
    assert reporter["reports"] == "attempts" and "mesh-pilot proxy" in reporter["why"]


@pytest.mark.plane
async def test_edges_are_of_workloads_of_proxies_or_of_namespaces(web: Web) -> None:
    second = reporting("web-2.shop", "web", "10.0.0.10")
    web.planted.plant((WEB, [row(REVIEWS, requests=2)]), (second, [row(REVIEWS, requests=3)]))
    web.planted.plant((reporting("cron-1.jobs", "cron"), [row("PassthroughCluster", connections=1)]))
    web.planted.plant((WEB, [row("BlackHoleCluster", connections=4), row("of-a-filter", requests=1)]))
    edges = (await web.get())["items"]
    kinds = {edge["called"]["kind"]: edge["tries"] for edge in edges}
    assert kinds == {"service": 5, "passthrough": 1, "black_hole": 4, "cluster": 1}
    assert [edge["proxies"] for edge in edges if edge["called"]["kind"] == "service"] == [2]
    assert {edge["caller"]["name"] for edge in (await web.get("?by=proxy&service=reviews"))["items"]} == {
        "web-1.shop",
        "web-2.shop",
    }
    (own,) = (await web.get("?proxy=web-2.shop"))["items"]
    assert (own["caller"]["kind"], own["requests"]) == ("proxy", 3)
    two = (await web.get("?service=of-a-filter&service=reviews&service=nothing"))["items"]
    assert {edge["called"]["name"] for edge in two} == {"of-a-filter", "reviews.test"}
    (jobs,) = (await web.get("?namespace=jobs"))["items"]
    assert jobs["caller"]["name"] == "cron"
    between = (await web.get("?by=namespace&namespace=shop&sort=-tries"))["items"]
    assert between[0]["called"] == {
        "kind": "namespace",
        "name": "shop",
        "namespace": "shop",
        "port": None,
        "subset": "",
    }
    assert "must be one of workload, proxy, namespace" in (await web.get("?by=pod", 400))["error"]
    assert "seconds=5: must be a number from 10 to 600" in (await web.get("?seconds=5", 400))["error"]


@pytest.mark.plane
async def test_what_got_worse_comes_first_and_lists_come_in_pieces(web: Web) -> None:
    hosts = {"always-ill": (20, 20), "well": (0, 0), "now-ill": (0, 9), "chance": (1, 2)}
    for slots, place in ((SLOTS, 0), (6, 1)):
        rows = [row(f"outbound|80||{name}.test", requests=100, errors=each[place]) for name, each in hosts.items()]
        web.planted.plant((WEB, rows), slots=slots)
    found = await web.get()
    assert [each["called"]["name"].removesuffix(".test") for each in found["items"]] == [
        "now-ill",
        "always-ill",
        "chance",
        "well",
    ]
    assert found["counts"] == {"worse": 1, "failing": 2, "well": 1}
    (second,) = (await web.get("?limit=1&offset=1"))["items"]
    assert second["called"]["name"] == "always-ill.test"
    assert [each["called"]["name"] for each in (await web.get("?state=worse"))["items"]] == ["now-ill.test"]
    assert (await web.get("?q=chance"))["total"] == 1


@pytest.mark.plane
async def test_an_edge_tells_what_no_virtual_service_names_and_what_policies_deny_at_its_service(web: Web) -> None:
    judged = row("inbound_0.0.0.0_9080;", RowKind.LISTENER, denied=5)
    calls = [row(REVIEWS, requests=100), row("outbound|80||other.test", requests=1), row("PassthroughCluster")]
    web.planted.plant((WEB, [*calls, row("BlackHoleCluster", connections=1)]), (SERVER, [judged]), slots=12)
    found = {each["called"]["name"]: (each["is_routed"], each["denied"]) for each in (await web.get())["items"]}
    assert found == {"reviews.test": (True, 30), "other.test": (False, None), "BlackHoleCluster": (None, None)}
    of_proxy = (await web.get("?proxy=web-1.shop"))["items"]
    assert [each["denied"] for each in of_proxy if each["called"]["name"] == "reviews.test"] == [30]
    for only, name in {"unrouted": "other.test", "denied": "reviews.test"}.items():
        (edge,) = (await web.get(f"?only={only}&sort=-tries"))["items"]
        assert edge["called"]["name"] == name
    assert "must be one of unrouted, denied" in (await web.get("?only=odd", 400))["error"]


@pytest.mark.plane
async def test_a_service_has_its_callers_next_to_what_its_own_proxies_counted(web: Web) -> None:
    policy = row("ns[shop]-policy[deny]-rule[0]", RowKind.POLICY, denied=5)
    judged = row("inbound_0.0.0.0_9080;", RowKind.LISTENER, denied=5)
    web.planted.plant(
        (WEB, [row(REVIEWS, requests=100, retries=2), row("outbound_0.0.0.0_9080", RowKind.LISTENER, no_route=1)]),
        (SERVER, [row("inbound|9080||", requests=106), judged, policy]),
        slots=12,
    )
    found = await web.get("/services")
    (service,) = found["items"]
    assert (service["requests"], service["callers"], service["inbound"]["requests"]) == (600, 1, 636)
    assert service["outside"] == 636 + 30 - 600 - 12, "with what was denied, without retries"
    assert (service["denied"], service["is_shared"]) == (30, False)
    assert service["routed_by"] == ["VirtualService/shop/reviews"]
    assert service["series"]["tries"] == [0] * (SLOTS - 13) + [100] * 12
    assert [(each["namespace"], each["services"], each["requests"]) for each in found["namespaces"]] == [
        ("shop", 1, 600)
    ]
    rows = await web.get("/listeners")
    inbound, outbound = rows["listeners"]["items"]
    assert (inbound["port"], inbound["services"], inbound["denied"]) == (9080, ["reviews.test"], 30)
    assert (outbound["port"], outbound["no_route"]) == (None, 6)
    (rule,) = rows["policies"]
    assert (rule["policy"], rule["rule"], rule["denied"]) == ("AuthorizationPolicy/shop/deny", 0, 30)
    assert not any(each["called"]["kind"] == "inbound" for each in (await web.get())["items"])
    assert any(each["called"]["kind"] == "inbound" for each in (await web.get("?inbound=true"))["items"])


@pytest.mark.plane
async def test_services_at_one_port_of_a_workload_say_that_they_share_its_counts(web: Web) -> None:
    (web.folder / "ratings.yaml").write_text(SHARED)

    async def is_known() -> bool:
        return bool(web.plane.state.world.view.services_named("ratings.test"))

    await eventually(is_known)
    web.planted.plant((SERVER, [row("inbound|9080||", requests=5)]))
    for service in (await web.get("/services"))["items"]:
        assert (service["is_shared"], service["inbound"]["requests"], service["outside"]) == (True, 5, None)


@pytest.mark.plane
async def test_a_service_is_routed_by_each_virtual_service_that_has_its_host_or_a_wildcard_over_it(web: Web) -> None:
    wide = ROUTE.replace("name: reviews", "name: wide").replace("hosts: [reviews.test]", 'hosts: ["*.test", "*.else"]')
    (web.folder / "more.yaml").write_text(f"{SHARED}---\n{wide}")

    async def is_known() -> bool:
        return len([*web.plane.state.world.config]) == 4

    await eventually(is_known)
    web.planted.plant((WEB, [row(REVIEWS, requests=1), row("outbound|9080||ratings.test", requests=1)]))
    found = {each["service"]["name"]: each["routed_by"] for each in (await web.get("/services"))["items"]}
    wildcard = "VirtualService/shop/wide"
    assert found == {"reviews.test": ["VirtualService/shop/reviews", wildcard], "ratings.test": [wildcard]}
    listed = (await web.client.get(f"http://{web.plane.addresses.http}/api/v1/services?limit=9")).json()["items"]
    assert {each["host"]: each["routes"] for each in listed} == {"reviews.test": 2, "ratings.test": 1}


@pytest.mark.plane
async def test_it_says_what_to_do_while_there_is_nothing_to_tell(web: Web, nursery: trio.Nursery) -> None:
    assert "no proxy has connected" in (await web.get())["advice"]
    await nursery.start(proxy, web.plane.addresses.grpc)
    web.look_anew()
    found = await web.get()
    assert found["advice"].startswith("no proxy reports traffic") and found["silent"] == 1
    (silent,) = (await web.get("/proxies?state=nothing"))["items"]
    assert silent["is_connected"] and "docs/traffic.md" in silent["why"]
    web.planted.table.add(WEB, [row(REVIEWS, requests=1)], of_agent=True)
    web.look_anew()
    assert (await web.get())["advice"] == "the first reports are ten seconds away"
    web.planted.now += 10
    web.look_anew()
    assert [each["requests"] for each in (await web.get())["items"]] == [1]
    nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_counts_after_a_gap_say_that_they_are_incomplete(web: Web) -> None:
    web.planted.plant((WEB, [row(REVIEWS, requests=1)]), slots=3)
    web.planted.table.add(WEB, [row(REVIEWS, requests=1)], of_agent=True, follows_gap=True)
    web.planted.now += 10
    found = await web.get()
    assert (found["is_complete"], found["items"][0]["is_complete"]) == (False, False)
    assert found["items"][0]["requests"] == 4


@attrs.define
class OtherWorker:
    """A second worker, which is another plane: what is asked and answered goes through bytes, as between processes."""

    state: Any
    numbers: Sequence[int] = (2,)

    async def ask(self, question: object) -> dict[int, object]:
        if isinstance(question, TrafficPartQuestion):
            return {2: pickle.loads(pickle.dumps(await own_part(self.state)))}
        assert isinstance(question, TrafficQuestion)
        return {2: pickle.loads(pickle.dumps(await own_edges(self.state, question)))}


@pytest.mark.plane
async def test_with_several_workers_it_is_of_all_of_them(web: Web, nursery: trio.Nursery) -> None:
    async with running_plane(web.folder) as second:
        assert second.state.traffic is not None
        object.__setattr__(web.plane.state, "others", OtherWorker(second.state))
        await nursery.start(proxy, second.addresses.grpc)
        assert (await web.get())["silent"] == 1, "it is connected to the second worker"
        planted = Planted(second.state.traffic.table)
        planted.now -= 60
        web.planted.plant((WEB, [row(REVIEWS, requests=10)]), slots=6)
        own = attrs.evolve(reporting("web-1.shop", "web", "10.9.9.9"), name="web-9.shop")
        planted.plant((own, [row(REVIEWS, requests=20, errors=1)]), slots=12)
        web.look_anew()
        second.state.kept.pop(TrafficLooks)
        found = await web.get()
        (edge,) = found["items"]
        assert (edge["requests"], edge["errors"], edge["proxies"]) == (180, 6, 2)
        assert (edge["before"]["requests"], found["before_seconds"]) == (120, 60), "the second one knows more"
        assert (found["by_agents"], found["silent"]) == (2, 0)
        (service,) = (await web.get("/services"))["items"]
        assert service["series"]["tries"][-12:] == [20] * 6 + [30] * 6
        object.__setattr__(web.plane.state, "others", None)
        nursery.cancel_scope.cancel()


@pytest.mark.plane
async def test_a_connected_proxy_that_has_fallen_silent_is_named(web: Web, nursery: trio.Nursery) -> None:
    await nursery.start(proxy, web.plane.addresses.grpc)
    own = reporting("web-1.shop", "web", "10.9.9.9")
    web.planted.plant((own, [row(REVIEWS, requests=1)]), slots=4)
    assert (await web.get("/proxies"))["counts"] == {"requests": 1}
    web.planted.now += 140
    web.look_anew()
    (silent,) = (await web.get("/proxies?state=nothing"))["items"]
    assert silent["why"] == "it is connected, and its last report came 150 s ago"
    nursery.cancel_scope.cancel()


async def test_many_who_ask_at_once_are_given_one_look(autojump_clock: trio.testing.MockClock) -> None:
    made: list[float] = []
    looks = TrafficLooks()

    async def make() -> int:
        made.append(trio.current_time())
        await trio.sleep(0.1)
        return len(made)

    async def ask() -> None:
        await looks.get("edges", 1, make)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert len(made) == 1
    assert await looks.get("edges", 2, make) == 1, "it is of this half second"
    await trio.sleep(INTERVAL_SECONDS)
    assert await looks.get("edges", 1, make) == 1, "nothing has changed"
    assert await looks.get("edges", 2, make) == 2
    for other in range(KEPT):
        await looks.get(other, 1, make)
    assert await looks.get("edges", 2, make) == KEPT + 3, "others were asked for since"


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [
        ((1000, 10), (1000, 13), False),
        ((1000, 10), (1000, 60), True),
        ((1000, 0), (1000, 2), False),
        ((1000, 0), (1000, 15), True),
        ((10, 0), (1000, 15), False),  # ten requests are too few to know what the rate was
        ((0, 0), (10, 3), True),
        ((0, 0), (10, 0), False),
        ((1000, 1000), (1000, 1000), False),
    ],
)
def test_worse_is_more_than_chance_gives(before: tuple[int, int], now: tuple[int, int], is_worse: bool) -> None:
    def counts(requests: int, errors: int) -> Counts:
        return Counts({Counter.REQUESTS: requests, Counter.ERRORS: errors} if requests else {}, has_requests=True)

    assert change_of(counts(*now), counts(*before), TrafficSeconds(60, 60)).is_worse is is_worse


def test_the_port_of_an_inbound_listener_is_in_its_name() -> None:
    names = (
        "inbound_0.0.0.0_9080;",
        "inbound_0.0.0.0_9080",
        "outbound_0.0.0.0_80",
        "inbound_InboundPassthroughCluster",
    )
    assert [*map(port_of_listener, names)] == [9080, 9080, 0, 0]
