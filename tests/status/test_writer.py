"""Status written to an API server: what is wanted, and nothing twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.istio.gateway_api.statuses import merged_status
from mesh_pilot.istio.gateway_api.values import CONTROLLER
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource, reflect
from mesh_pilot.kubernetes.source.readers import ConfigReader
from mesh_pilot.kubernetes.status.live import LiveObjects
from mesh_pilot.kubernetes.status.writer import StatusWriter
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.replicas.election.base import Term
from tests.support.api_double import IN_MEMORY, ApiDouble, Object

RULES = ConfigReader(KINDS["DestinationRule"]).resource
KEY = ConfigKey("DestinationRule", "shop", "reviews")
OTHERS = {"type": "Elsewhere", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}


@attrs.define
class _Following:
    """Tells the live objects what a reflector says, as the source of configuration does."""

    live: LiveObjects

    async def listed(self, resource: ApiResource, version: str, objects: list[Object]) -> None:
        for found in objects:
            self.live.seen(_key(found), resource, version, found)

    async def changed(self, resource: ApiResource, version: str, found: Object, *, there: bool) -> None:
        if there:
            self.live.seen(_key(found), resource, version, found)
        else:
            self.live.gone(_key(found))

    def lost(self, resource: ApiResource, reason: str) -> None: ...

    def found(self, resource: ApiResource) -> None: ...


@attrs.define
class Written:
    """A double, a writer that leads, and what it has written."""

    api: ApiDouble
    live: LiveObjects
    writer: StatusWriter

    @property
    def patches(self) -> int:
        return sum(request.startswith("PATCH") for request in self.api.requests)

    @property
    def status(self) -> dict[str, Any]:
        found = self.api.find(RULES, "reviews", "shop")
        return found.get("status", {}) if found else {}

    async def settled(self) -> None:
        """Until nothing is left to do for a minute."""
        await trio.sleep(60)

    def edit(self, status: dict[str, Any] | None = None, **spec: Any) -> None:
        found = {"metadata": {"name": "reviews", "namespace": "shop"}, "spec": {"host": "reviews", **spec}}
        status = self.status if status is None else status
        self.api.put(RULES, found | ({"status": status} if status else {}))


@asynccontextmanager
async def writing() -> AsyncIterator[Written]:
    api = ApiDouble([RULES], bookmark_seconds=1e9)
    found = {"metadata": {"name": "reviews", "namespace": "shop"}, "spec": {"host": "reviews"}}
    api.put(RULES, found)
    live = LiveObjects()
    async with writer_at(api, live) as writer:
        yield Written(api, live, writer)


@asynccontextmanager
async def writer_at(api: ApiDouble, live: LiveObjects | None = None) -> AsyncIterator[StatusWriter]:
    """A writer that leads."""
    live = live or LiveObjects()
    connect = partial(ApiClient, transport=api.transport())
    writer = StatusWriter(IN_MEMORY, live, now=lambda: datetime(2026, 1, 1, tzinfo=UTC), client=connect)
    async with ApiClient(IN_MEMORY, transport=api.transport()) as client, trio.open_nursery() as nursery:
        nursery.start_soon(reflect, client, RULES, _Following(live), Backoff())
        nursery.start_soon(writer.run, Term(1, lambda: ""))
        yield writer
        nursery.cancel_scope.cancel()


def _key(found: Object) -> tuple[str, ...]:
    return ("config", "DestinationRule", found["metadata"]["namespace"], found["metadata"]["name"])


def ready(status: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": "Reconciled", "status": status, "message": message}]}


async def test_what_is_wanted_is_written_once_and_own_writes_cause_no_others(autojump_clock: MockClock) -> None:
    async with writing() as written:
        written.writer.want(KEY, "distribution", ready("True", "1/1 proxies up to date."))
        written.writer.want(KEY, "messages", {"validationMessages": []})
        await written.settled()
        time = "2026-01-01T00:00:00Z"
        condition = {
            "type": "Reconciled",
            "status": "True",
            "message": "1/1 proxies up to date.",
            "observedGeneration": 1,
        }
        times = {"lastProbeTime": time, "lastTransitionTime": time}
        assert written.status == {"conditions": [condition | times], "observedGeneration": 1}
        assert written.patches == 1
        written.writer.want(KEY, "distribution", ready("True", "1/1 proxies up to date."))
        await written.settled()
        assert written.patches == 1


async def test_conditions_of_others_stay_and_messages_come_and_go(autojump_clock: MockClock) -> None:
    async with writing() as written:
        written.edit({"conditions": [OTHERS], "more": {"of": "somebody"}})
        message = {"type": {"code": "IST0101"}, "level": "ERROR"}
        written.writer.want(KEY, "messages", {"validationMessages": [message]})
        written.writer.want(KEY, "distribution", ready("False"))
        await written.settled()
        assert written.status["conditions"][0] == OTHERS
        assert written.status["more"] == {"of": "somebody"}
        assert written.status["validationMessages"] == [message]
        written.writer.want(KEY, "messages", {"validationMessages": []})
        await written.settled()
        assert written.status["validationMessages"] == []
        assert [each["type"] for each in written.status["conditions"]] == ["Elsewhere", "Reconciled"]


async def test_a_time_stays_for_as_long_as_the_status_of_its_condition(autojump_clock: MockClock) -> None:
    async with writing() as written:
        old = {"type": "Reconciled", "status": "True", "message": "1/1", "lastTransitionTime": "2020-01-01T00:00:00Z"}
        written.edit({"conditions": [old]})
        written.writer.want(KEY, "distribution", ready("True", "2/2"))
        await written.settled()
        assert written.status["conditions"][0]["lastTransitionTime"] == "2020-01-01T00:00:00Z"
        written.writer.want(KEY, "distribution", ready("False", "2/3"))
        await written.settled()
        assert written.status["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"


async def test_an_edit_meanwhile_is_a_conflict_after_which_the_object_is_read_again(autojump_clock: MockClock) -> None:
    async with writing() as written:
        await written.settled()
        live = written.live.get(KEY)
        assert live is not None
        written.live._objects[KEY] = attrs.evolve(live, resource_version="1")  # what the watch has not told yet
        written.writer.want(KEY, "distribution", ready("True"))
        await written.settled()
        assert written.status["conditions"][0]["status"] == "True"
        assert written.writer.statistics().conflicts == 1


async def test_who_undoes_it_each_time_is_answered_less_and_less_often(autojump_clock: MockClock) -> None:
    async with writing() as written:
        written.writer.want(KEY, "distribution", ready("True"))
        for _ in range(3600):
            await trio.sleep(1)
            if written.status:
                written.edit({"conditions": []})
        assert 8 <= written.patches <= 25


@pytest.mark.parametrize("odd", [{"a": "b"}, ["a"], None, 3])
async def test_a_status_may_be_anything(autojump_clock: MockClock, odd: object) -> None:
    condition = {"type": odd, "status": odd}
    gateway = {"conditions": [condition, odd], "listeners": [{"name": odd, "conditions": odd}], "parents": [odd]}
    gateway["parents"] = [{"controllerName": odd}, {"controllerName": CONTROLLER, "parentRef": {"name": odd}}]
    entry = {"controllerName": CONTROLLER, "parentRef": {"name": "a"}, "conditions": []}
    wanted = {"conditions": [], "listeners": [{"name": "a", "conditions": []}], "parents": [entry]}
    assert merged_status(wanted, gateway, "shop", 1, datetime.now(UTC))["listeners"] == wanted["listeners"]
    async with writing() as written:
        written.edit({"conditions": [condition, odd]})
        written.writer.want(KEY, "distribution", ready("True"))
        await written.settled()
        assert written.status["conditions"][-1]["type"] == "Reconciled"


async def test_a_right_that_comes_later_is_noticed(autojump_clock: MockClock) -> None:
    async with writing() as written:
        written.api.fail("PATCH", 403, times=2, message='User "x" cannot patch resource "destinationrules/status"')
        written.writer.want(KEY, "distribution", ready("True"))
        await trio.sleep(240)
        assert written.patches == 1
        await trio.sleep(600)
        assert written.patches == 3
        assert written.status["conditions"][0]["status"] == "True"


async def test_an_object_that_was_made_anew_meanwhile_is_not_one_without_status(autojump_clock: MockClock) -> None:
    async with writing() as written:
        await written.settled()
        written.live._objects[KEY] = attrs.evolve(written.live._objects[KEY], resource_version="1")  # not told yet
        written.api.fail("PATCH", 404, times=1)
        written.writer.want(KEY, "distribution", ready("True"))
        await trio.sleep(10)
        assert written.status["conditions"][0]["status"] == "True"


async def test_a_server_that_is_restored_from_a_backup_gets_it_again(autojump_clock: MockClock) -> None:
    async with writing() as written:
        written.edit(trafficPolicy={})
        await written.settled()
        snapshot = written.api.snapshot()
        written.writer.want(KEY, "distribution", ready("True"))
        await written.settled()
        written.api.restore(snapshot)
        await trio.sleep(600)
        assert written.status["conditions"][0]["status"] == "True"


@pytest.mark.parametrize(("status", "writes"), [(403, 1), (422, 1)])
async def test_what_the_server_does_not_take_is_not_tried_at_once_again(
    autojump_clock: MockClock, status: int, writes: int
) -> None:
    async with writing() as written:
        written.api.fail("PATCH", status, times=100)
        written.writer.want(KEY, "distribution", ready("True"))
        await written.settled()
        assert written.patches == writes
        assert "not now" in written.writer.statistics().trouble


async def test_a_server_that_is_away_gets_it_later(autojump_clock: MockClock) -> None:
    async with writing() as written:
        written.api.fail("PATCH", 503, times=4)
        written.writer.want(KEY, "distribution", ready("True"))
        await written.settled()
        assert written.status["conditions"][0]["status"] == "True"


async def test_a_server_with_too_much_to_do_is_left_alone_for_as_long_as_it_asks(autojump_clock: MockClock) -> None:
    async with writing() as written:
        written.api.fail("PATCH", 429, retry_after=50)
        written.writer.want(KEY, "distribution", ready("True"))
        await trio.sleep(45)
        assert written.patches == 1
        await trio.sleep(45)
        assert written.patches == 2
        assert written.status["conditions"][0]["status"] == "True"


async def test_an_object_that_is_gone_is_forgotten(autojump_clock: MockClock) -> None:
    async with writing() as written:
        await written.settled()
        written.api.remove(RULES, "reviews", "shop")
        written.writer.want(KEY, "distribution", ready("True"))
        await written.settled()
        assert written.patches <= 1
        written.edit()
        await written.settled()
        assert written.status["conditions"][0]["status"] == "True"


async def test_writes_are_limited_and_lead_only(autojump_clock: MockClock) -> None:
    api, live = ApiDouble([RULES]), LiveObjects()
    connect = partial(ApiClient, transport=api.transport())
    writer = StatusWriter(IN_MEMORY, live, per_second=10, client=connect)
    for number in range(100):
        name = f"rule-{number}"
        found = api.put(RULES, {"metadata": {"name": name, "namespace": "shop"}, "spec": {"host": name}})
        live.seen(("config", "DestinationRule", "shop", name), RULES, "v1", found)
        writer.want(ConfigKey("DestinationRule", "shop", name), "distribution", ready("True"))
    await trio.sleep(60)
    assert not api.requests, "another replica leads"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run, Term(1, lambda: ""))
        await trio.sleep(5)
        assert 40 <= writer.statistics().written <= 56
        await trio.sleep(10)
        assert writer.statistics().written == 100
        nursery.cancel_scope.cancel()


async def test_two_control_planes_without_an_election_do_not_write_in_turn(autojump_clock: MockClock) -> None:
    names = [f"rule-{number}" for number in range(60)]
    async with writing() as written, writer_at(written.api) as other:
        for name in names:
            written.api.put(RULES, {"metadata": {"name": name, "namespace": "shop"}, "spec": {"host": name}})
        await trio.sleep(1)
        with capture_logs() as logs:
            for message, writer in (("3/3", written.writer), ("5/5", other)):
                for name in names:
                    writer.want(ConfigKey("DestinationRule", "shop", name), "distribution", ready("True", message))
            await trio.sleep(60)
            assert written.patches < 5 * len(names), "each answers the other without end"
            (first, *_) = [line for line in logs if "gives way" in line["event"]]
            assert "--leader-election" in first["advice"]
            before = written.patches
            await trio.sleep(1800)
            assert written.patches - before < 5 * len(names)
            before = written.patches
            await trio.sleep(4 * 3600)
            assert written.patches - before < 20 * len(names)
        found = [written.api.find(RULES, name, "shop") for name in names]
        assert all(each is not None and each["status"]["conditions"] for each in found), "each has a status"
