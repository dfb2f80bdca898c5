"""One question, put to every tool in every state: what is the state of an object? All answers are the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from envoy.config.core.v3.base_pb2 import Node
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from google.rpc.status_pb2 import Status

from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.explain.truth.facts import PlaneFacts
from mesh_pilot.explain.truth.states import TruthState
from mesh_pilot.model.events import Upsert
from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.model.warming import Awaited, WaitKind, WarmingResource
from mesh_pilot.net.rpc import Cardinality, open_channel
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.safety.rollout.progress import Progress, plan_of
from mesh_pilot.world.guard import HeldObjects
from mesh_pilot.xds.ads.warming import Warming
from tests.support.command import Done, mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane
from tests.support.worlds import configs

pytestmark = pytest.mark.plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
MARK = b"refused.test"
NAME = "ServiceEntry/shop/reviews"
KEY = ("config", "ServiceEntry", "shop", "reviews")
RESOURCE = "outbound|9080||reviews.test"
PROXY = "web-1.shop"
CHANGED = SERVICE.replace("[reviews.test]", "[reviews.test, more.test]")
REFUSED = SERVICE.replace("[reviews.test]", "[reviews.test, refused.test]")
INVALID = SERVICE.replace("number: 9080", "number: 99080")
PLANNED = SERVICE.replace("10.0.0.1", "10.0.0.2")


async def proxy(address: str, *, name: str, task_status: trio.TaskStatus[None]) -> None:
    """A proxy that asks for clusters and refuses those with the mark."""
    kinds = (Cardinality.STREAM_STREAM, DiscoveryRequest, DiscoveryResponse)
    async with open_channel(address) as channel, channel.request(ADS, *kinds) as call:
        node = ParseDict(EnvoyNode(name, "shop", f"10.9.9.{name[-1]}").to_dict(), Node(user_agent_name="envoy"))
        node.user_agent_build_version.version.major_number = 1
        await call.send_message(DiscoveryRequest(node=node, type_url=CLUSTER))
        task_status.started()
        while (response := await call.recv_message()) is not None:
            answer = DiscoveryRequest(type_url=CLUSTER, response_nonce=response.nonce)
            if any(MARK in resource.value for resource in response.resources):
                answer.error_detail.CopyFrom(Status(code=13, message="no refused.test"))
            else:
                answer.version_info = response.version_info
            await call.send_message(answer)


@attrs.frozen
class Asked:
    """A control plane with two proxies, its files, and all tools that ask it."""

    plane: ControlPlane
    client: httpx.AsyncClient
    file: Path
    facts: dict[str, Any]
    """What the facts of the plane are replaced by."""

    async def get(self, path: str, **query: str) -> Any:
        answer = await self.client.get(f"http://{self.plane.addresses.http}/api/v1{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def run(self, *arguments: str, stdin: str = "") -> Done:
        words = (*arguments, "--pilot", self.plane.addresses.http)
        return await trio.to_thread.run_sync(lambda: mesh_pilot(*words, stdin=stdin))

    def order(self, what: Callable[[Progress], None]) -> None:
        rollouts = self.plane.state.rollouts
        assert rollouts is not None
        rollouts.order(what, "order")

    async def has_settled(self) -> bool:
        """True once all proxies have what there is for them."""
        rows = await self.get("/proxies")
        return len(rows) == 2 and all(row["status"]["CDS"] in ("SYNCED", "WARMING") for row in rows)

    async def is_in(self, state: TruthState) -> bool:
        (row,) = (await self.get("/objects", kind="ServiceEntry"))["items"]
        return bool(row["state"] == state)


@pytest.fixture
async def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asked]:
    file, facts = tmp_path / "reviews.yaml", dict[str, Any]()
    file.write_text(SERVICE)
    known = PlaneState.facts

    def replaced(state: PlaneState) -> PlaneFacts:
        return attrs.evolve(known(state), **facts)

    monkeypatch.setattr(PlaneState, "facts", replaced)
    async with (
        running_plane(tmp_path, debounce_after=0.01) as plane,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
        trio.open_nursery() as nursery,
    ):
        found = Asked(plane, client, file, facts)
        for number in (1, 2):
            await nursery.start(lambda number=number, **more: proxy(plane.addresses.grpc, name=f"web-{number}", **more))
        await eventually(found.has_settled)
        yield found
        nursery.cancel_scope.cancel()


async def withheld(asked: Asked) -> None:
    asked.file.write_text(REFUSED)


async def in_canary(asked: Asked) -> None:
    plan = plan_of(names=["web-2"], interval=600)
    asked.order(lambda progress: progress.arm(plan, trio.current_time()))
    asked.file.write_text(CHANGED)


async def taken_back(asked: Asked) -> None:
    await in_canary(asked)
    await eventually(lambda: asked.is_in(TruthState.CANARY))
    asked.order(lambda progress: progress.abort("an operator has aborted it"))


async def refused(asked: Asked) -> None:
    asked.file.write_text(INVALID)


async def held(asked: Asked) -> None:
    asked.facts["held"] = {"files": HeldObjects("files", (KEY,), "all went at once", 0.0)}


async def stale(asked: Asked) -> None:
    asked.facts["stale"] = {"files": "silent for 90 s"}


async def warming(asked: Asked) -> None:
    awaited = (Awaited(WaitKind.EDS, RESOURCE),)
    for connection in asked.plane.state.xds.status.proxies():
        connection.warming = (Warming(WarmingResource(CLUSTER, RESOURCE, "", awaited), 11),)


async def conflicting(asked: Asked) -> None:
    assert asked.plane.state.events is not None
    (other,) = configs(CHANGED)
    await asked.plane.state.events.send(Upsert("other", other))


async def in_force(asked: Asked) -> None:
    """It is so from the beginning."""


NEW_HOST = {
    TruthState.WITHHELD: "refused.test",
    TruthState.CANARY: "more.test",
    TruthState.TAKEN_BACK: "more.test",
}
"""The second host of the newest version, which not all proxies have."""

CASES: dict[TruthState, tuple[Callable[[Asked], Awaitable[None]], str]] = {
    TruthState.WITHHELD: (withheld, "MP0040"),
    TruthState.CANARY: (in_canary, "MP0040"),
    TruthState.TAKEN_BACK: (taken_back, "MP0040"),
    TruthState.REFUSED: (refused, "IST0106"),
    TruthState.HELD: (held, "MP0041"),
    TruthState.STALE: (stale, "MP0041"),
    TruthState.WARMING: (warming, "MP0040"),
    TruthState.CONFLICTING: (conflicting, "MP0040"),
    TruthState.IN_FORCE: (in_force, ""),
}
"""By state, how an object comes into it, and the code of the finding that says so."""


@pytest.mark.parametrize("state", CASES, ids=lambda state: state.replace(" ", "-"))
async def test_every_tool_says_the_same_of_an_object_in_a_state(asked: Asked, state: TruthState) -> None:
    bring, code = CASES[state]
    await bring(asked)
    await eventually(lambda: asked.is_in(state))
    is_in_force = state is TruthState.IN_FORCE

    one = await asked.get(f"/objects/{NAME}")
    assert one["truth"]["state"] == state
    assert bool(one["truth"]["why"]) is bool(one["truth"]["fix"]) is not is_in_force
    assert one["truth"]["applies_to"] == 2
    assert (await asked.get(f"/objects/{NAME}", proxy=PROXY))["truth"]["state"] == state

    described = await asked.get(f"/describe/object/{NAME}")
    assert described["facts"]["truth"] == one["truth"] and described["summary"].startswith(f"{state}, read from ")
    instead = [section["lines"] for section in described["sections"] if section["title"] == "Served instead"]
    assert bool(instead) is not one["truth"]["has_newest"]
    if instead:
        assert [line["text"] for line in instead[0]] == [f"spec.hosts[1]: nothing, not {json.dumps(NEW_HOST[state])}"]
    for path in (f"/describe/object/{NAME}", f"/describe/proxy/{PROXY}", "/describe/service/reviews.test"):
        first = (await asked.get(path))["sections"][0]
        said = [line for line in first["lines"] if line["object"] == NAME and line["text"].startswith(f"{state}")]
        assert (first["title"] == "Not in force as written") is bool(said) is not is_in_force, path

    table = await asked.run("get", "se", "-n", "shop")
    assert str(state) in table.out.splitlines()[1], table
    assert (await asked.run("get", "se", "-n", "shop", "-o", "yaml")).err.startswith(
        "" if is_in_force else f"# {NAME} is not in force as it is written: {state}"
    )
    found = json.loads((await asked.run("analyze", "-o", "json")).out)
    codes = [row["code"] for level in ("errors", "warnings") for row in found[level]]
    assert codes == [code] * (not is_in_force), found

    listing = await asked.run("proxy-config", "cluster", PROXY)
    said_here = f"note: {NAME} is not in force at this proxy as it is written: {state}"
    assert listing.err.startswith(said_here) is not is_in_force, listing
    assert ("STATE" in listing.out) is not is_in_force
    plan = await asked.run("plan", "-", stdin=PLANNED)
    assert (f"      now {state}" in plan.out) is not is_in_force, plan
    answer = await asked.get("/why", proxy=PROXY, to="reviews.test:9080/")
    notes = [note for note in answer["notes"] if note.startswith(NAME) and f" as it is written: {state}" in note]
    assert bool(notes) is not is_in_force, answer["notes"]
