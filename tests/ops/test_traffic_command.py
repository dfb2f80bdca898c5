"""``mesh-pilot traffic`` at control planes with planted tables: text, JSON, several planes, names, what is unknown."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.traffic import RowKind
from mesh_pilot.ops.values.traffic_looks import TrafficLooks
from mesh_pilot.traffic.table import SLOTS
from tests.support.command import COMMAND, Done, completions, mesh_pilot, on_terminal
from tests.support.picky import proxy
from tests.support.planes import SERVICE, running_plane
from tests.support.traffic_counts import Planted, reporting, row

pytestmark = pytest.mark.plane

REVIEWS = "outbound|9080|v1|reviews.test"
WEB = reporting("web-1.shop", "web", "10.0.0.9")
SERVER = reporting("reviews-1.shop", "reviews", "10.0.0.1")


@attrs.frozen
class Meshes:
    """Control planes with planted tables."""

    planes: Sequence[ControlPlane]
    planted: Sequence[Planted]

    async def traffic(self, *arguments: str, several: bool = False) -> Done:
        pilots = [f"--pilot={each.addresses.http}" for each in (self.planes if several else self.planes[:1])]
        return await trio.to_thread.run_sync(partial(mesh_pilot, "traffic", *pilots, *arguments))


@pytest.fixture
async def meshes(tmp_path: Path) -> AsyncIterator[Meshes]:
    (tmp_path / "reviews.yaml").write_text(SERVICE)
    async with AsyncExitStack() as stack:
        planes = [await stack.enter_async_context(running_plane(tmp_path)) for _ in range(2)]
        tables = [each.state.traffic.table for each in planes if each.state.traffic is not None]
        yield Meshes(planes, [Planted(each) for each in tables])


def words(text: str) -> list[list[str]]:
    """The words of each row of a table in a pipe."""
    return [line.split() for line in text.splitlines() if line and line[0].islower()]


async def test_who_calls_whom_with_what_got_worse_first(meshes: Meshes) -> None:
    well = row("outbound|80||well.test", requests=500)
    meshes.planted[0].plant((WEB, [well, row(REVIEWS, requests=100)]), slots=SLOTS)
    meshes.planted[0].plant((WEB, [well, row(REVIEWS, requests=100, errors=3, timeouts=1, in_flight=2)]), slots=6)
    meshes.planted[0].plant((reporting("old-1.shop", "old"), [row(REVIEWS, attempts=10)]), of_agent=False)
    found = await meshes.traffic()
    assert found.code == 0, found.err
    first, second, third = words(found.out)
    assert first[:6] == ["web.shop", "reviews.test:9080/v1", "requests", "8.33", "97.00%", "100.00%"]
    assert first[6:] == ["2", "worse,_5_timeouts"]
    assert second[:6] == ["web.shop", "well.test:80", "requests", "41.7", "100.00%", "100.00%"]
    assert third[:7] == ["old.shop", "reviews.test:9080/v1", "attempts", "0.17", "100.00%", "-", "-"]
    assert "1 proxy sends load reports alone, which tell attempts" in found.out
    assert "Counts are incomplete" in found.out


async def test_requests_that_end_at_a_listener_and_calls_that_are_denied_are_told(meshes: Meshes) -> None:
    lost = row("outbound_0.0.0.0_9080", RowKind.LISTENER, no_route=1, no_cluster=2)
    judged = row("inbound_0.0.0.0_9080;", RowKind.LISTENER, denied=5)
    meshes.planted[0].plant((WEB, [row(REVIEWS, requests=10), lost]), (SERVER, [judged]), slots=6)
    ended = "6 requests matched no route (404), 12 requests went to a cluster that does not exist (503)"
    for arguments in ((), ("web-1.shop",)):
        found = await meshes.traffic(*arguments)
        assert f"web-1.shop at outbound_0.0.0.0_9080: {ended}" in found.out
    assert "policies_denied_30_calls_there" in (await meshes.traffic()).out
    assert "matched no route" not in (await meshes.traffic("reviews")).out


async def test_json_has_requests_and_errors_of_each_edge_in_the_window(meshes: Meshes) -> None:
    meshes.planted[0].plant((WEB, [row(REVIEWS, requests=100, errors=1)]), slots=12)
    found = json.loads((await meshes.traffic("-o", "json")).out)
    (edge,) = found["edges"]
    assert (edge["requests"], edge["errors"], found["seconds"], found["is_complete"]) == (600, 6, 60, True)
    assert (edge["before"]["requests"], edge["worse_by"]) == (600, 0)


async def test_a_service_is_told_with_what_its_own_proxies_counted(meshes: Meshes) -> None:
    inbound = row("inbound|9080||", requests=125)
    meshes.planted[0].plant(
        (WEB, [row(REVIEWS, requests=100), row("PassthroughCluster", connections=1)]), (SERVER, [inbound]), slots=6
    )
    found = await meshes.traffic("reviews")
    lines = found.out.splitlines()
    assert "reviews.test: 10.0 requests a second from 1 workload, 100.00% of them succeed" in lines
    assert "  its own proxies counted 12.5 requests a second; 150 came from outside the mesh" in lines
    assert "  no VirtualService or route names it" in lines
    assert "PassthroughCluster" not in found.out
    of_proxy = await meshes.traffic("web-1.shop")
    assert [each[:2] for each in words(of_proxy.out)] == [
        ["web-1.shop", "reviews.test:9080/v1"],
        ["web-1.shop", "PassthroughCluster"],
    ]


async def test_several_planes_are_summed(meshes: Meshes) -> None:
    meshes.planted[0].plant((WEB, [row(REVIEWS, requests=10)]), slots=12)
    other = reporting("web-2.shop", "web", "10.0.0.10")
    meshes.planted[1].plant((other, [row(REVIEWS, requests=30, errors=3)]), slots=12)
    (edge,) = json.loads((await meshes.traffic("-o", "json", several=True)).out)["edges"]
    assert (edge["requests"], edge["errors"], edge["rate"], edge["per_second"]) == (240, 18, 0.075, 4)
    assert (edge["before"]["requests"], edge["proxies"], edge["is_worse"]) == (240, 2, False)
    alone = await meshes.traffic("--pilot", "127.0.0.1:1", "-o", "json")
    assert alone.code == 1 and "127.0.0.1:1" in alone.err and json.loads(alone.out)["edges"]


async def test_a_name_of_nothing_is_refused_with_what_is_like_it(meshes: Meshes) -> None:
    wrong = await meshes.traffic("revews")
    assert wrong.err == "mesh-pilot: neither a service nor a proxy is called revews; did you mean reviews.test?\n"
    assert wrong.code == 1
    elsewhere = await meshes.traffic("reviews", "-n", "other")
    assert elsewhere.err.startswith("mesh-pilot: neither a service nor a proxy is called reviews in namespace other")


async def test_it_says_what_to_do_where_nothing_reports(meshes: Meshes, nursery: trio.Nursery) -> None:
    assert (await meshes.traffic()).out.startswith("no proxy has connected yet")
    await nursery.start(proxy, meshes.planes[0].addresses.grpc)
    meshes.planes[0].state.kept.pop(TrafficLooks)
    assert (await meshes.traffic()).out.startswith("no proxy reports traffic: run Envoys by mesh-pilot proxy")
    meshes.planted[0].plant((WEB, [row(REVIEWS, requests=10)]))
    meshes.planes[0].state.kept.pop(TrafficLooks)
    found = await meshes.traffic()
    assert "1 connected proxy reports nothing:\n  " in found.out and "docs/traffic.md" in found.out
    nursery.cancel_scope.cancel()


async def test_where_traffic_is_off_it_says_so(tmp_path: Path, meshes: Meshes) -> None:
    object.__setattr__(meshes.planes[0].state, "traffic", None)
    assert "traffic is off" in (await meshes.traffic()).out
    assert json.loads((await meshes.traffic("-o", "json")).out)["is_on"] is False


@pytest.mark.process
async def test_on_a_terminal_columns_without_news_are_left_out(meshes: Meshes) -> None:
    meshes.planted[0].plant((WEB, [row(REVIEWS, requests=10)]), slots=12)
    lines = await trio.to_thread.run_sync(
        partial(on_terminal, 100, "traffic", "--pilot", meshes.planes[0].addresses.http, NO_COLOR="1")
    )
    head = next(line for line in lines if line.startswith("CALLER"))
    assert head.split("  ")[-1].strip() == "BEFORE" and "UNIT" not in head


@pytest.mark.process
async def test_watching_shows_what_has_changed_until_it_is_interrupted(meshes: Meshes, nursery: trio.Nursery) -> None:
    command = [*COMMAND, "traffic", "-w", "--pilot", meshes.planes[0].addresses.http]
    run = partial(trio.run_process, command, stdout=subprocess.PIPE, check=False)
    process: trio.Process = await nursery.start(run)
    assert process.stdout is not None
    shown = b""
    async for piece in process.stdout:
        shown += piece
        if b"web.shop" in shown:
            process.send_signal(signal.SIGINT)
        elif b"no proxy has connected yet" in shown:
            meshes.planted[0].plant((WEB, [row(REVIEWS, requests=10)]), slots=6)
    assert b"web.shop  reviews.test:9080/v1" in shown
    assert await process.wait() == 130


async def test_a_shell_completes_services_and_proxies(meshes: Meshes, nursery: trio.Nursery) -> None:
    await nursery.start(proxy, meshes.planes[0].addresses.grpc)

    async def completed(*words: str) -> set[str]:
        pilot = f"--pilot={meshes.planes[0].addresses.http}"
        return await trio.to_thread.run_sync(completions, "traffic", pilot, *words)

    assert await completed("re") == {"reviews.test"}
    assert await completed("we") == {"web-1.shop"}
    assert await completed("-n", "sh") == {"shop"}
    assert await completed("x") == set()
    nursery.cancel_scope.cancel()
