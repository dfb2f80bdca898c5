"""Traffic where configuration is explained: the way of a request, a service in words, clusters and endpoints."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from mesh_pilot.model.traffic import RowKind
from mesh_pilot.ops.values.traffic_looks import TrafficLooks
from mesh_pilot.traffic.table import SLOTS, CallingWorkload, ReportingProxy
from tests.ops.test_equal_names import Running, node, with_proxies
from tests.support.traffic_counts import Planted, row

pytestmark = pytest.mark.plane

REVIEWS = "outbound|9080||reviews.test"
CLIENT, SERVER = "web-1.default", "reviews-1.default"
OF_CLIENT = ReportingProxy(node("10.0.0.9", CLIENT), CLIENT, CallingWorkload("default", "web"))
OF_SERVER = ReportingProxy(node("10.0.0.1", SERVER), SERVER, CallingWorkload("default", "reviews"))


@attrs.frozen
class Shown:
    """A plane with a client and a server, and what is planted of their traffic."""

    running: Running
    planted: Planted

    async def why(self) -> str:
        self.running.plane.state.kept.pop(TrafficLooks, None)
        return (await self.running.command("why", "reviews.test:9080/", "--from", CLIENT)).out


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[Shown]:
    async with with_proxies(tmp_path, OF_CLIENT.node, OF_SERVER.node) as running:
        assert running.plane.state.traffic is not None
        yield Shown(running, Planted(running.plane.state.traffic.table))


async def test_why_says_how_many_requests_took_this_way_and_failed(shown: Shown) -> None:
    unknown = "traffic is unknown: the proxy reports none"
    text = await shown.why()
    assert text.count(unknown) == 2, "at the client and at the next proxy"
    shown.planted.plant((OF_CLIENT, [row("outbound|80||other.test", requests=1)]))
    assert (await shown.why()).count("nothing took this way in the last ten minutes") == 1
    shown.planted.plant((OF_CLIENT, [row(REVIEWS, requests=100, errors=3)]), slots=SLOTS - 1)
    shown.planted.plant((OF_SERVER, [row("inbound|9080||", attempts=50, failed_attempts=1)]), of_agent=False)
    text = await shown.why()
    assert "of 5,800 requests in the last ten minutes that took this way 3 % failed" in text
    assert "of 50 attempts in the last ten minutes that took this way 2 % failed (counts are incomplete)" in text
    answer = (await shown.running.get("/why", proxy=CLIENT, to="reviews.test:9080/")).json()
    (cluster,) = (each for each in answer["steps"] if each["step"] == "cluster")
    assert cluster["details"]["traffic"]["counts"]["requests"] == 5800
    assert cluster["details"]["traffic"]["seconds"] == 590


async def test_why_says_nothing_of_traffic_where_that_is_off(shown: Shown) -> None:
    object.__setattr__(shown.running.plane.state, "traffic", None)
    assert "took this way" not in await shown.why()


async def test_a_service_is_described_with_its_callers_and_what_its_own_proxies_counted(shown: Shown) -> None:
    described = await shown.running.command("describe", "service", "reviews.test")
    assert "Traffic\n  unknown: no proxy reports traffic" in described.out
    shown.planted.plant((OF_CLIENT, [row(REVIEWS, requests=100)]), slots=SLOTS)
    judged = row("inbound_0.0.0.0_9080;", RowKind.LISTENER, denied=2)
    shown.planted.plant(
        (OF_CLIENT, [row(REVIEWS, requests=100, errors=3)]),
        (OF_SERVER, [row("inbound|9080||", requests=125), judged]),
        slots=6,
    )
    shown.running.plane.state.kept.pop(TrafficLooks)
    described = await shown.running.command("describe", "service", "reviews.test")
    section = described.out.partition("Traffic of the last 60 s\n")[2].partition("\n\n")[0].splitlines()
    assert section == [
        "  1 workload calls it: 10.0 requests a second, 3 % of them fail, before 0 %: worse",
        "    web.default to port 9080: 10.0 requests a second, 3 % of them fail, before 0 %: worse",
        "  the service's own proxies counted 12.5 requests a second, 0 % of them fail",
        "  162 requests came from outside the mesh",
        "  policies denied 12 calls",
    ]
    facts = json.loads((await shown.running.command("describe", "svc", "reviews.test", "-o", "json")).out)["facts"]
    assert (facts["traffic"]["service"]["requests"], len(facts["traffic"]["callers"])) == (600, 1)


async def test_clusters_and_endpoints_have_what_the_proxy_counted_of_them(shown: Shown) -> None:
    without = await shown.running.command("proxy-config", "cluster", CLIENT)
    assert "SUCCESS" not in without.out
    shown.planted.plant((OF_CLIENT, [row(REVIEWS, requests=100, errors=1)]), slots=6)
    shown.running.plane.state.kept.pop(TrafficLooks)
    listed = (await shown.running.command("proxy-config", "cluster", "web-1")).out.splitlines()
    assert "DESTINATION RULE  A SECOND  SUCCESS" in listed[0]
    (reviews,) = (line.split() for line in listed if line.startswith("reviews.test"))
    assert reviews[5:8] == ["-", "10.0", "99.00%"]
    (passthrough,) = (line.split() for line in listed if line.startswith("PassthroughCluster"))
    assert passthrough[6:8] == ["-", "-"]
    found = json.loads((await shown.running.command("proxy-config", "cluster", CLIENT, "-o", "json")).out)
    assert [each["traffic"]["requests"] for each in found if "traffic" in each] == [600]
    endpoints = await shown.running.command("proxy-config", "endpoint", CLIENT, "--file", "/dev/null")
    assert "SUCCESS" not in endpoints.out, "it is not the control plane that tells"
