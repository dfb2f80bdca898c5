"""Whose status is wanted, and what it says: messages of analysis, and how far a change has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.input import picture_of
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.kubernetes.source.readers import resource_of
from mesh_pilot.kubernetes.status.conditions import ConditionReports
from mesh_pilot.kubernetes.status.distribution import DistributionReports
from mesh_pilot.kubernetes.status.live import LiveObjects
from mesh_pilot.kubernetes.status.messages import MessageReports, messages_of, shown_message
from mesh_pilot.kubernetes.status.writer import StatusWriter
from mesh_pilot.model.config import ConfigKey, Origin, Problem
from mesh_pilot.model.events import Delete, Rejected, Synced, Upsert
from mesh_pilot.model.history import ProxyRevision
from mesh_pilot.replicas.election.base import Term
from mesh_pilot.world import World
from tests.support.api_double import IN_MEMORY
from tests.support.worlds import SOURCE, world_of

ROUTES = resource_of(KINDS["VirtualService"])
KEY = ConfigKey("VirtualService", "shop", "reviews")
YAML = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: shop}
spec: {hosts: [reviews], http: [{route: [{destination: {host: nowhere}}]}]}
"""


@attrs.define
class Client:
    at: int | None

    def position(self) -> ProxyRevision:
        return ProxyRevision(self.at, False)


@attrs.define
class Stage:
    """A World with an object of a Kubernetes, and what is wanted of it."""

    world: World = attrs.field(factory=lambda: world_of(YAML))
    live: LiveObjects = attrs.field(factory=LiveObjects)
    writer: StatusWriter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.writer = StatusWriter(IN_MEMORY, self.live)
        self.see()

    def see(self, **status: Any) -> None:
        metadata = {"name": "reviews", "namespace": "shop", "generation": 1, "resourceVersion": "1"}
        self.live.seen(("config", *KEY), ROUTES, "v1", {"metadata": metadata, "status": status})

    def wanted(self, part: str) -> Any:
        return self.writer._wanted.get(KEY, {}).get(part)


async def led(run: Callable[[Term], Any], story: Callable[[], Any]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, Term(1, lambda: ""))
        await trio.lowlevel.checkpoint()
        await story()
        nursery.cancel_scope.cancel()


async def test_a_change_is_followed_until_every_proxy_has_it(autojump_clock: MockClock) -> None:
    stage, clients = Stage(), [Client(None), Client(3)]
    stage.see(conditions=[{"type": "Reconciled", "status": "True", "observedGeneration": "1"}])
    reports = DistributionReports(stage.world, stage.live, stage.writer, lambda: clients)

    def condition() -> tuple[str, str]:
        (found,) = stage.wanted("distribution")["conditions"]
        return found["status"], found["message"]

    async def story() -> None:
        await trio.sleep(10)
        assert stage.wanted("distribution") is None, "its generation was reported already"
        stage.world.revision = 7
        reports.published(7, [("config", *KEY), ("service", "shop", "a")])
        await trio.sleep(2)
        assert condition() == ("False", "1/2 proxies up to date.")
        clients[1].at = 7
        await trio.sleep(2)
        assert condition() == ("True", "2/2 proxies up to date.")
        await trio.sleep(10)
        clients.append(Client(0))
        await trio.sleep(10)
        assert condition() == ("True", "2/2 proxies up to date."), "who comes later changes nothing"
        refused = Rejected(SOURCE, Origin(SOURCE), (Problem("spec.hosts", "is missing"),), ("config", *KEY))
        stage.world.apply([refused])
        reports.published(7, [])
        await trio.sleep(2)
        assert condition() == ("False", "spec.hosts: is missing (the last good version is kept)")
        stage.world.apply([Delete(SOURCE, ("config", *KEY)), refused])
        reports.published(8, [])
        await trio.sleep(2)
        assert condition() == ("False", "spec.hosts: is missing (it has no effect)")

    await led(reports.run, story)


async def test_an_object_that_was_never_reported_is_followed_from_the_start(autojump_clock: MockClock) -> None:
    stage = Stage()
    reports = DistributionReports(stage.world, stage.live, stage.writer, list)
    reports.published(5, [("config", *KEY)])
    assert stage.wanted("distribution") is None, "another replica leads"

    async def story() -> None:
        await trio.sleep(2)
        assert stage.wanted("distribution")["conditions"][0]["message"] == "0/0 proxies up to date."

    await led(reports.run, story)


async def test_messages_come_and_go_also_those_of_an_earlier_leader(autojump_clock: MockClock) -> None:
    stage = Stage(world_of(""))
    stage.world.apply([Synced(SOURCE)])
    stage.see(validationMessages=[{"type": {"code": "IST0101"}}])
    reports = MessageReports(stage.world, stage.live, stage.writer, list, 10.0)

    async def story() -> None:
        while stage.wanted("messages") is None:  # noqa: ASYNC110  a thread analyses, while the clock leaps
            await trio.sleep(1)
        assert stage.wanted("messages") == {"validationMessages": []}

    await led(reports.run, story)


def test_messages_are_as_istiod_writes_them() -> None:
    world = world_of(YAML)
    world.apply([Rejected(SOURCE, Origin(SOURCE), (Problem("spec", "is odd"),), ("config", "Sidecar", "shop", "bad"))])
    found = messages_of(picture_of(world, []))
    assert found[KEY] == [
        {
            "type": {"name": "ReferencedResourceNotFound", "code": "IST0101"},
            "level": "ERROR",
            "documentationUrl": "https://istio.io/latest/docs/reference/config/analysis/ist0101/",
        }
    ]
    assert found[ConfigKey("Sidecar", "shop", "bad")] == [shown_message(codes.SCHEMA_ERROR)]


@pytest.mark.parametrize("leads", [True, False])
async def test_conditions_are_those_that_the_world_knows(leads: bool, autojump_clock: MockClock) -> None:
    world = world_of(
        "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: istio},"
        " spec: {controllerName: istio.io/gateway-controller}}"
    )
    stage = Stage(world)
    key = ConfigKey("GatewayClass", "", "istio")
    reports = ConditionReports(world, stage.writer)

    async def story() -> None:
        await trio.sleep(1)
        assert stage.writer._wanted[key]["conditions"] == world.object_status(key)

    if leads:
        await led(reports.run, story)
    else:
        reports.published([key])
        assert not stage.writer._wanted


async def test_nothing_is_said_of_a_generation_that_is_refused(autojump_clock: MockClock) -> None:
    world = world_of(
        "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: istio},"
        " spec: {controllerName: istio.io/gateway-controller}}"
    )
    stage, key = Stage(world), ConfigKey("GatewayClass", "", "istio")
    reports = ConditionReports(world, stage.writer)
    item = world.config.peek(key)
    assert item is not None
    refused = Rejected(SOURCE, Origin(SOURCE), (Problem("spec", "is odd"),), ("config", *key))

    def wanted() -> Any:
        return stage.writer._wanted.get(key, {}).get("conditions")

    async def story() -> None:
        await trio.sleep(1)
        assert wanted() == world.object_status(key)
        reports.published(world.apply([refused]).statuses)
        assert wanted() is None and world.object_status(key) is not None, "the last good one is in force"
        reports.published(world.apply([Upsert(SOURCE, item)]).statuses)
        assert wanted() == world.object_status(key)

    await led(reports.run, story)
