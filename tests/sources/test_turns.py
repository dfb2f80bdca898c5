"""Turns and rounds: what one namespace's servers do delays nothing of another's, and no start without end."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.net.fetching import OWNER, FetchError
from mesh_pilot.net.fetching.refreshing import FIRST_ROUND_SECONDS, MANY_FAILING, Refresh, Rounds, refresh_statistics
from mesh_pilot.net.fetching.turns import Turns


async def test_an_owner_whose_servers_are_silent_takes_nobody_elses_place() -> None:
    turns = Turns(places=8, each=2)
    done: list[str] = []

    async def silent() -> None:
        async with turns.turn(["evil"]):
            await trio.sleep_forever()

    async def quick(owner: str) -> None:
        async with turns.turn([owner]):
            done.append(OWNER.get())

    async with trio.open_nursery() as nursery:
        for _ in range(1000):
            nursery.start_soon(silent)
        await trio.testing.wait_all_tasks_blocked()
        for owner in ("shop", "bank", "evil"):
            nursery.start_soon(quick, owner)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(done) == ["bank", "shop"]
        nursery.cancel_scope.cancel()
    assert repr(turns) == "<Turns 0 of 8 held, 0 waiting>"


async def test_what_several_ask_for_has_the_turn_of_whichever_comes_first() -> None:
    turns = Turns(places=2, each=1)
    async with turns.turn(["evil"]), turns.turn(["evil", "shop"]):
        assert OWNER.get() == "shop"


async def test_owners_that_wait_have_their_turns_in_a_circle() -> None:
    turns = Turns(places=1, each=1)
    order: list[str] = []

    async def work(owner: str) -> None:
        async with turns.turn([owner]):
            order.append(owner)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, turns.turn(["first"]):
        for owner in ["evil"] * 5 + ["bank", "shop"]:
            nursery.start_soon(work, owner)
            await trio.testing.wait_all_tasks_blocked()
    assert order == ["evil", "bank", "shop", "evil", "evil", "evil", "evil"]


@given(st.lists(st.tuples(st.sets(st.sampled_from("abc"), min_size=1), st.integers(0, 5), st.booleans()), max_size=30))
def test_never_more_than_there_are_and_none_is_lost(jobs: list[tuple[set[str], int, bool]]) -> None:
    async def main() -> None:
        turns = Turns(places=3, each=2)
        held: Counter[str] = Counter()
        done = 0

        async def work(owners: set[str], steps: int, is_cancelled: bool) -> None:
            nonlocal done
            with trio.CancelScope() as scope:
                if is_cancelled:
                    scope.deadline = trio.current_time() + steps
                async with turns.turn(owners):
                    held[OWNER.get()] += 1
                    assert held.total() <= 3
                    assert held[OWNER.get()] <= 2
                    try:
                        await trio.sleep(steps)
                    finally:
                        held[OWNER.get()] -= 1
            done += 1

        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(work, *job)
        assert done == len(jobs)
        assert repr(turns) == "<Turns 0 of 3 held, 0 waiting>"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@attrs.define(eq=False)
class Document(Refresh):
    text: str = ""

    @property
    def is_in_force(self) -> bool:
        return bool(self.text)


@attrs.define
class Source:
    """Fetches documents by `Rounds`, each as a test wants."""

    documents: list[Document]
    rounds: Rounds = attrs.field(factory=lambda: Rounds(lambda: None, Turns(8, 2)))
    tries: Counter[str] = attrs.field(factory=Counter)
    said: list[str] = attrs.field(factory=list)

    async def run(self, document: Document) -> None:
        async def fetch() -> str:
            self.tries[document.of] += 1
            await trio.lowlevel.checkpoint()
            if document.of.startswith("good"):
                return "text"
            if document.of.startswith("silent"):
                await trio.sleep_forever()
            if document.of.startswith("odd"):
                raise ExceptionGroup("unforeseen", [ValueError("x")])
            raise FetchError("refused")

        async def take(text: str) -> float:
            document.text = text
            return 1200.0

        async def failed(reason: str, is_new: bool) -> None:
            if is_new:
                self.said.append(f"{document.of}: {reason}")

        await self.rounds.run(document, fetch, take, failed, lambda: self.said.append("recovered"))


async def running(source: Source, nursery: trio.Nursery) -> None:
    for document in source.documents:
        nursery.start_soon(source.run, document)
    await trio.testing.wait_all_tasks_blocked()


async def test_an_error_that_nobody_foresaw_is_one_documents_failure(mock_clock: trio.testing.MockClock) -> None:
    source = Source([Document("odd", owners=frozenset({"evil"})), Document("good", owners=frozenset({"shop"}))])
    async with trio.open_nursery() as nursery:
        await running(source, nursery)
        assert source.documents[1].is_in_force
        assert source.said == ["odd: an internal error: ExceptionGroup: unforeseen (1 sub-exception)"]
        mock_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        assert source.tries["odd"] == 2
        nursery.cancel_scope.cancel()


async def test_a_first_round_ends(mock_clock: trio.testing.MockClock) -> None:
    source = Source([Document(f"silent {n}", owners=frozenset({"evil"})) for n in range(12)])
    source.documents.append(Document("good", owners=frozenset({"shop"})))
    async with trio.open_nursery() as nursery:
        await running(source, nursery)
        assert source.documents[-1].tried
        assert not source.rounds.is_first_over(source.documents)
        said = refresh_statistics(source.documents, "keys", synced=False)
        assert said.waiting_for == "keys at silent 0, silent 1, silent 2 and 9 more"
        ended = trio.Event()

        async def wait() -> None:
            await source.rounds.wait(trio.Event(), synced=False)
            ended.set()

        nursery.start_soon(wait)
        mock_clock.jump(FIRST_ROUND_SECONDS)
        await ended.wait()
        assert source.rounds.is_first_over(source.documents)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("count", "least"), [(10, 5 * 60), (MANY_FAILING * 10, 5 * 6)])
async def test_many_that_fail_are_tried_no_more_often_than_a_few(
    mock_clock: trio.testing.MockClock, count: int, least: int
) -> None:
    source = Source([Document(f"bad {n}", owners=frozenset({"evil"})) for n in range(count)])
    source.documents.append(Document("bad one of shop", owners=frozenset({"shop", "evil"})))
    async with trio.open_nursery() as nursery:
        await running(source, nursery)
        for _ in range(3600 // 20):
            mock_clock.jump(20)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    tries = source.tries.total() - source.tries["bad one of shop"]
    assert tries < count * 5 + 3600 * MANY_FAILING / 15, "in an hour"
    assert source.tries["bad one of shop"] > 60


async def test_the_reason_of_the_oldest_failure_is_the_present_one(mock_clock: trio.testing.MockClock) -> None:
    first, second = Document("a"), Document("b")
    for document, since, trouble in ((first, 1.0, "away now"), (second, 2.0, "other")):
        document.failing_since, document.trouble, document.tried = since, trouble, True
    mock_clock.jump(5)
    said = refresh_statistics([second, first], "keys", synced=True)
    assert (said.trouble, said.stale_seconds) == ("away now (and 1 more)", 4.0)
