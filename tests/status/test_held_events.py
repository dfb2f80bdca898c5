"""Kubernetes' events about what is kept although it is gone."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import MockClock

from mesh_pilot.kubernetes.apiserver import ApiClient
from mesh_pilot.kubernetes.status.held_events import EVENTS, HeldEvents
from mesh_pilot.replicas.election.base import Term
from mesh_pilot.world.guard import HeldObjects
from tests.support.api_double import IN_MEMORY, ApiDouble

KEYS = (
    ("config", "VirtualService", "shop", "cart"),
    ("config", "AuthorizationPolicy", "shop", "allow-contractor"),
    ("config", "Gateway", "infra", "edge"),
)


async def test_each_namespace_has_an_event_that_names_what_decides_who_may_do_what(autojump_clock: MockClock) -> None:
    api = ApiDouble([EVENTS], bookmark_seconds=1e9)
    held = {"kubernetes-config": HeldObjects("kubernetes-config", KEYS, "9 of 10 objects of kind X went at once", 0.0)}
    events = HeldEvents(IN_MEMORY, lambda: held, client=partial(ApiClient, transport=api.transport()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run, Term(1, lambda: ""))
        for _ in range(3):
            events.published()
            await trio.sleep(1)
        held["kubernetes-config"] = HeldObjects(
            "kubernetes-config", (*KEYS, ("config", "Gateway", "infra", "x")), "", 0
        )
        events.published()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    async with ApiClient(IN_MEMORY, transport=api.transport()) as client:
        found = await client.list_all(EVENTS)
    about = [(each["involvedObject"]["name"], each["message"]) for each in found]
    assert sorted(namespace for namespace, _ in about) == ["infra", "infra", "shop"], "each is said once"
    (shop,) = [message for namespace, message in about if namespace == "shop"]
    assert "Among them: AuthorizationPolicy/shop/allow-contractor." in shop
    assert shop.endswith("To let them go: mesh-pilot admin accept kubernetes-config")


async def test_a_server_that_refuses_events_costs_nothing_else(autojump_clock: MockClock) -> None:
    api = ApiDouble([EVENTS], bookmark_seconds=1e9)
    api.forbid("events")
    held = {"files": HeldObjects("files", KEYS, "", 0.0)}
    events = HeldEvents(IN_MEMORY, lambda: held, client=partial(ApiClient, transport=api.transport()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run, Term(1, lambda: ""))
        events.published()
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
