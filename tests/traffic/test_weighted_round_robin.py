"""Client-side weighted round robin at work: endpoints that report less load get more requests."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import h11
import pytest
import trio

from mesh_pilot.istio.meaning.weighted_round_robin import WEIGHTED_ROUND_ROBIN
from tests.support.backends import Mesh, backends
from tests.support.echo import Answer
from tests.support.envoy import eventually
from tests.support.fleet import fleet
from tests.support.manifests import at, service
from tests.support.proxyless import grpc_peers
from tests.support.shop import CLIENT

Ports = Callable[[int], list[int]]
SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "load"
HOST = "reviews.shop.svc.cluster.local"
SOON = json.dumps({"blackoutPeriod": "0.1s", "weightUpdatePeriod": "0.1s"})


def weighted(settings: str, policy: str = "", host: str = HOST) -> str:
    return f"""---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: weighted, namespace: shop, annotations: {{{WEIGHTED_ROUND_ROBIN}: {json.dumps(settings)}}}}}
spec:
  host: {host}
  {policy}
"""


def reporting(utilization: float) -> Answer:
    """An application that says with each response how busy it is, at a hundred requests a second."""
    headers = {"endpoint-load-metrics": f"TEXT application_utilization={utilization}, rps_fractional=100"}

    def answer(request: h11.Request, body: bytes) -> tuple[int, dict[str, str]]:
        return 200, headers

    return answer


@pytest.mark.envoy
@pytest.mark.parametrize(
    "localities",
    ["", "trafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: '*', to: {'*': 100}}]}}}"],
)
async def test_an_envoy_sends_most_requests_to_the_endpoint_that_reports_less_load(
    tmp_path: Path, free_ports: Ports, localities: str
) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "busy", "idle") as (mesh, (busy, idle)):
        busy.answer, idle.answer = reporting(0.9), reporting(0.1)
        await mesh.apply(service(HOST, port, at(busy), at(idle)) + weighted(SOON, localities))
        await mesh.envoy(CLIENT)
        asked = Mesh(mesh, port)

        async def favours_the_idle() -> bool:
            found = Counter(await asked.names(HOST, 40))
            assert found["busy"] + found["idle"] == 40
            return found["idle"] >= 4 * found["busy"]

        await eventually(favours_the_idle, what="the idle endpoint has nine of ten requests")
        busy.answer, idle.answer = reporting(0.1), reporting(0.9)

        async def favours_the_other() -> bool:
            found = Counter(await asked.names(HOST, 40))
            return found["busy"] >= 4 * found["idle"]

        await eventually(favours_the_other, what="the other one has them after its report")


@pytest.mark.envoy
async def test_endpoints_that_report_nothing_have_equal_shares(tmp_path: Path, free_ports: Ports) -> None:
    (port,) = free_ports(1)
    async with backends(tmp_path, "a", "b") as (mesh, found):
        await mesh.apply(service(HOST, port, *map(at, found)) + weighted("{}"))
        await mesh.envoy(CLIENT)
        assert Counter(await Mesh(mesh, port).names(HOST, 40)) == {"a": 20, "b": 20}


@pytest.mark.process
async def test_a_proxyless_client_does_the_same(tmp_path: Path) -> None:
    async with fleet(tmp_path) as mesh, grpc_peers(mesh.plane.addresses.grpc, tmp_path) as peers:
        client, backend = await peers.start("client"), await peers.start("backend")
        ports = {name: await backend.serve(name) for name in ("busy", "idle")}
        endpoints = [{"address": "127.0.0.1", "ports": {"main": port}} for port in ports.values()]
        await backend.do("report", name="busy", utilization=0.9)
        await backend.do("report", name="idle", utilization=0.1)
        mesh.write(service(HOST, 9000, *endpoints, protocol="GRPC") + weighted(SOON))

        async def favours_the_idle() -> bool:
            found = await client.answers(f"xds:///{HOST}:9000", count=100)
            return set(found) == {"busy", "idle"} and found["idle"] >= 4 * found["busy"]

        await eventually(favours_the_idle, what="the idle server has nine of ten calls")
        assert mesh.plane.state.xds.status.recent_nacks() == ()


@pytest.mark.envoy
async def test_the_sample(tmp_path: Path, free_ports: Ports) -> None:
    port, busy, idle = free_ports(3)
    config = (SAMPLE / "config" / "reviews.yaml").read_text(encoding="utf-8")
    for shown, free in ((9080, port), (9101, busy), (9102, idle)):
        config = config.replace(str(shown), str(free))
    async with fleet(tmp_path) as mesh, trio.open_nursery() as nursery:
        for name, where, load in (("busy", busy, "0.9"), ("idle", idle, "0.1")):
            nursery.start_soon(trio.run_process, [sys.executable, SAMPLE / "backend.py", name, str(where), load])
        await mesh.apply(config)
        await mesh.envoy(CLIENT)

        async def favours_the_idle() -> bool:
            url = f"http://127.0.0.1:{port}/"
            replies = [await mesh.get(url, host="reviews.shop.internal") for _ in range(40)]
            found = Counter(reply.text.strip() for reply in replies)
            return found["idle"] >= 4 * found["busy"] > 0

        await eventually(favours_the_idle, what="the idle backend has nine of ten requests")
        nursery.cancel_scope.cancel()
