"""DELETED of an API server: somebody deleted an object, or its kind goes."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.kubernetes.apiserver import ApiClient, ApiResource
from mesh_pilot.kubernetes.source.deletions import LOOK_SECONDS, StandingKinds
from mesh_pilot.kubernetes.source.discovery import CRDS
from mesh_pilot.kubernetes.source.readers import ConfigReader
from mesh_pilot.model.events import Delete
from tests.sources.test_kubernetes_config import reading, started
from tests.support.api_double import IN_MEMORY, ApiDouble

RULES = ConfigReader(KINDS["DestinationRule"]).resource
CRD = "destinationrules.networking.istio.io"


@pytest.mark.parametrize(
    ("metadata", "explicit"),
    [
        ({"name": CRD}, True),
        ({"name": CRD, "deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
        ({"name": "others.example.com"}, False),
    ],
)
async def test_a_deletion_is_explicit_while_the_kind_stands(
    metadata: dict[str, str], explicit: bool, autojump_clock: MockClock
) -> None:
    api = ApiDouble([CRDS, RULES], bookmark_seconds=1e9)
    api.put(CRDS, {"metadata": metadata})
    async with ApiClient(IN_MEMORY, transport=api.transport()) as client:
        kinds = StandingKinds(client)
        assert await kinds.is_explicit(RULES) is explicit
        asked = len(api.requests)
        for _ in range(50):
            assert await kinds.is_explicit(RULES) is explicit
        assert len(api.requests) == asked, "one look for deletions that come together"
        await trio.sleep(1)
        await kinds.is_explicit(RULES)
        assert len(api.requests) > asked
        assert await kinds.is_explicit(ApiResource("", ("v1",), "secrets", "Secret")), "a kind that no CRD defines"


async def test_a_look_that_is_refused_or_unanswered_is_no_yes(autojump_clock: MockClock) -> None:
    api = ApiDouble([CRDS, RULES], bookmark_seconds=1e9)
    api.put(CRDS, {"metadata": {"name": CRD}})
    api.forbid("customresourcedefinitions")
    async with ApiClient(IN_MEMORY, transport=api.transport()) as client:
        assert not await StandingKinds(client).is_explicit(RULES)

    class Silent(ApiClient):
        async def list_all(self, *_: object, **__: object) -> list[object]:  # type: ignore[override]
            await trio.sleep_forever()
            return []

    async with Silent(IN_MEMORY, transport=api.transport()) as client:
        began = trio.current_time()
        assert not await StandingKinds(client).is_explicit(RULES)
        assert trio.current_time() == began + LOOK_SECONDS


async def test_the_source_tells_a_deletion_from_a_kind_that_goes(autojump_clock: MockClock) -> None:
    async with reading() as found:
        found.api.put(CRDS, {"metadata": {"name": CRD}})
        found.rule("one")
        found.rule("two")
        async with started(found):
            await found.settle()
            found.api.remove(RULES, "one", "shop")
            await found.settle()
            found.api.put(CRDS, {"metadata": {"name": CRD, "deletionTimestamp": "2026-01-01T00:00:00Z"}})
            await trio.sleep(1)
            found.api.remove(RULES, "two", "shop")
            await found.settle()
        deletions = {event.key[-1]: event.is_explicit for event in found.follower.events if isinstance(event, Delete)}
    assert deletions == {"one": True, "two": False}


async def test_what_a_list_lacks_after_an_outage_may_be_lost(autojump_clock: MockClock) -> None:
    async with reading() as found:
        found.api.put(CRDS, {"metadata": {"name": CRD}})
        found.rule("one")
        async with started(found):
            await found.settle()
            found.api.end_watches()
            found.api.remove(RULES, "one", "shop")
            found.api.compact()
            await found.settle()
        deletions = {event.key[-1]: event.is_explicit for event in found.follower.events if isinstance(event, Delete)}
    assert deletions == {"one": False}
