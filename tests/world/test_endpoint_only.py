"""Which events are about endpoints only, and what the reducer does with those."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.model.events import Accepted, Delete, Event, Upsert
from mesh_pilot.world import Reducer
from mesh_pilot.world.reducer import is_endpoint_only
from tests.support.worlds import SOURCE, configs, world_of

ENTRY = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: db, namespace: shop, creationTimestamp: "2024-03-01T00:00:00Z", labels: {team: a}}
spec:
  hosts: [db.example]
  addresses: [240.0.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  exportTo: ["*"]
  endpoints: [{address: 10.0.0.1, weight: 1}]
"""
WORKLOAD = """
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db-1, namespace: shop}
spec: {address: 10.0.0.1, labels: {app: db}}
"""
OTHER = """
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: db, namespace: shop}
spec: {hosts: [db.example], http: [{route: [{destination: {host: db.example}}]}]}
"""


def upsert(text: str) -> Event:
    (config,) = configs(text)
    return Upsert(SOURCE, config)


def edited(before: str, after: str, text: str = ENTRY) -> Event:
    assert before in text
    return upsert(text.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("10.0.0.1", "10.0.0.2"),
        ("[{address: 10.0.0.1, weight: 1}]", "[{address: 10.0.0.1}, {address: 10.0.0.2}]"),
        ("weight: 1", "weight: 9, locality: r/z"),
        ("weight: 1", "labels: {version: v2}, serviceAccount: db"),
        ("weight: 1", "weight: 1"),
    ],
)
def test_an_edit_of_the_endpoints_of_a_service_entry_is_of_endpoints_only(before: str, after: str) -> None:
    assert is_endpoint_only(edited(before, after), world_of(ENTRY))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("number: 80", "number: 81"),
        ("protocol: HTTP", "protocol: TCP"),
        ("[db.example]", "[db.example, more.example]"),
        ("240.0.0.1", "240.0.0.2"),
        ("MESH_INTERNAL", "MESH_EXTERNAL"),
        ("STATIC", "DNS"),
        ('["*"]', '["."]'),
        ("2024-03-01", "2024-03-02"),
        ("{team: a}", "{team: b}"),
        ("  endpoints: [{address: 10.0.0.1, weight: 1}]", "  workloadSelector: {labels: {app: db}}"),
        ("name: db,", "name: db2,"),
    ],
)
def test_any_other_edit_of_a_service_entry_is_not(before: str, after: str) -> None:
    assert not is_endpoint_only(edited(before, after), world_of(ENTRY))


def test_endpoints_of_a_service_entry_that_dns_resolves_are_part_of_its_cluster() -> None:
    dns = ENTRY.replace("STATIC", "DNS")
    assert not is_endpoint_only(edited("10.0.0.1", "10.0.0.2", dns), world_of(dns))


def test_a_service_entry_that_is_new_or_goes_or_comes_from_another_source_is_more_than_endpoints() -> None:
    world = world_of(ENTRY)
    (config,) = configs(ENTRY)
    assert not is_endpoint_only(upsert(ENTRY), world_of())
    assert not is_endpoint_only(Delete(SOURCE, ("config", *config.key)), world)
    assert not is_endpoint_only(Upsert("another", config), world)


def test_a_workload_entry_is_an_endpoint() -> None:
    world = world_of(ENTRY)
    event = upsert(WORKLOAD)
    assert isinstance(event, Upsert)
    assert is_endpoint_only(event, world)
    assert is_endpoint_only(Delete(SOURCE, ("config", "WorkloadEntry", "shop", "db-1")), world)


def test_other_configs_are_not() -> None:
    assert not is_endpoint_only(upsert(OTHER), world_of(ENTRY))
    assert not is_endpoint_only(edited("db.example}", "other.example}", OTHER), world_of(ENTRY + "---" + OTHER))


async def published_at(*told: Event) -> list[tuple[float, int]]:
    """When revisions were published after a world of one entry was told these, and how much changed in each."""
    world = world_of(ENTRY)
    reducer = Reducer(world, debounce_after=0.1)
    send, receive = trio.open_memory_channel[Event](1)
    found: list[tuple[float, int]] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(reducer.run, receive)
        await send.send(Accepted(SOURCE, "nowhere"))
        await wait_all_tasks_blocked()
        await trio.sleep(1)
        assert reducer.synced
        began = trio.current_time()
        reducer.on_publish(lambda p: found.append((round(p.published_at - began, 3), len(p.revision.changed))))
        for event in told:
            await send.send(event)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    return found


async def test_an_edit_of_endpoints_only_is_published_at_once(autojump_clock: MockClock) -> None:
    assert await published_at(edited("10.0.0.1", "10.0.0.2")) == [(0.0, 1)]


async def test_another_edit_waits_for_quiet(autojump_clock: MockClock) -> None:
    assert await published_at(edited("number: 80", "number: 81")) == [(0.1, 1)]


async def test_urgent_events_that_are_sent_one_after_the_other_are_one_revision(autojump_clock: MockClock) -> None:
    workloads = [edited("db-1", f"db-{number}", WORKLOAD) for number in range(40)]
    assert await published_at(*workloads) == [(0.0, 40)]


async def test_an_urgent_event_behind_another_waits_with_it(autojump_clock: MockClock) -> None:
    assert await published_at(upsert(OTHER), edited("10.0.0.1", "10.0.0.2")) == [(0.1, 2)]
    assert await published_at(edited("10.0.0.1", "10.0.0.2"), upsert(OTHER)) == [(0.1, 2)]
