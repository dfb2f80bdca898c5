"""The accepted answers on their way to disk, and a disk that takes none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.agent.relay import answer_writer as keeper_module
from mesh_pilot.agent.relay.ack_tracker import AckTracker, Interest
from mesh_pilot.agent.relay.answer_writer import AnswerWriter
from mesh_pilot.agent.relay.answers import Answers
from mesh_pilot.agent.relay.messages import Head, KeptResource, XdsProtocol, empty_body, write_delta, write_sotw
from mesh_pilot.base.protowire import field
from mesh_pilot.model.resource import CLUSTER, ENDPOINT
from tests.support.envoy import eventually
from tests.support.troubles import is_quoted

SOTW, DELTA = XdsProtocol.SOTW, XdsProtocol.DELTA


def clusters(version: str, *names: str, size: int = 0) -> bytes:
    return write_sotw(
        CLUSTER, version, version, [empty_body(CLUSTER, name) + b"\x92\x3f" + varint(size) for name in names]
    )


def varint(size: int) -> bytes:
    return field(1, bytes(size))[1:]


@asynccontextmanager
async def running(keeper: AnswerWriter) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        yield
        nursery.cancel_scope.cancel()


@pytest.fixture
def answers(tmp_path: Path) -> Answers:
    return Answers(tmp_path / "answers.db", "me")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "COALESCE_SECONDS", 0.01)
    monkeypatch.setattr(keeper_module, "RETRY_SECONDS", 0.05)


async def test_answers_are_written_in_the_background_and_at_the_end(answers: Answers) -> None:
    keeper = AnswerWriter(answers)
    async with running(keeper):
        keeper.accepted(Head(CLUSTER, "1"), SOTW, clusters("1", "a"))
        await eventually(lambda: keeper.known.resources == 1)
        found = await keeper.find(CLUSTER, None)  # reading must not stop the writing
        assert found is not None
        keeper.accepted(Head(CLUSTER, "2"), SOTW, clusters("2", "a", "b"))
        await eventually(lambda: keeper.known.resources == 2)
        keeper.accepted(Head(CLUSTER, "3"), SOTW, clusters("3", "a", "b", "c"))
    found_at_end = answers.find(CLUSTER, None)
    assert found_at_end is not None
    assert found_at_end[0] == "3"


async def test_what_is_read_has_what_was_just_accepted(answers: Answers) -> None:
    keeper = AnswerWriter(answers)
    keeper.accepted(Head(CLUSTER, "1"), SOTW, clusters("1", "a"))
    found = await keeper.find(CLUSTER, ["a"])
    assert found is not None
    assert [each.name for each in found[1]] == ["a"]


async def test_a_full_disk_is_said_once_and_tried_again(answers: Answers) -> None:
    keeper = AnswerWriter(answers)
    with capture_logs() as logs:
        async with running(keeper):
            await keeper.look()
            open_before = answers._connect

            def small():  # type: ignore[no-untyped-def]
                database = open_before()
                database.execute("PRAGMA max_page_count=12")
                return database

            answers.close()
            answers._connect = small  # type: ignore[method-assign]
            keeper.accepted(Head(CLUSTER, "1"), SOTW, clusters("1", "a", size=200_000))
            await eventually(lambda: bool(logs))
            keeper.accepted(Head(ENDPOINT, "2"), SOTW, write_sotw(ENDPOINT, "2", "2", [empty_body(ENDPOINT, "a")]))
            for _ in range(3):
                assert not await keeper.flush()
            answers.close()
            answers._connect = open_before  # type: ignore[method-assign]
            await eventually(lambda: keeper.known.resources == 2, what="there is room again")
    assert [line["event"] for line in logs] == ["answers are not kept; they are tried again"]
    assert "full" in logs[0]["reason"]
    assert is_quoted(logs[0])


async def test_a_folder_that_cannot_be_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    keeper = AnswerWriter(Answers(tmp_path / "none" / "answers.db", "me"))
    with capture_logs() as logs:
        async with running(keeper):
            keeper.accepted(Head(CLUSTER, "1"), SOTW, clusters("1", "a"))
            assert await keeper.find(CLUSTER, None) is None
    assert {line["event"] for line in logs} <= {
        "answers are not kept; they are tried again",
        "kept answers cannot be used",
    }
    assert len(logs) == 1


async def test_memory_is_bounded_while_the_disk_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "MAX_WAITING", 1000)
    (tmp_path / "none").touch()
    keeper = AnswerWriter(Answers(tmp_path / "none" / "answers.db", "me"))
    for number in range(100):
        data = write_delta(ENDPOINT, str(number), [KeptResource("a", "1", bytes(300))], ())
        keeper.accepted(Head(ENDPOINT, str(number)), DELTA, data)
    assert sum(len(each.data) for each in keeper._waiting) < 2000


async def test_an_answer_that_cannot_be_read_is_left_out(answers: Answers) -> None:
    keeper = AnswerWriter(answers)
    keeper.accepted(Head(ENDPOINT, "1"), SOTW, b"\x12\x7fcut")
    keeper.accepted(Head(CLUSTER, "1"), SOTW, clusters("1", "a"))
    assert await keeper.flush()
    assert keeper.known.resources == 1


async def test_what_is_subscribed_to_no_more_is_dropped_once_all_is_known(answers: Answers) -> None:
    keeper = AnswerWriter(answers)
    bodies = [KeptResource(name, "1", empty_body(ENDPOINT, name)) for name in "abc"]
    keeper.accepted(Head(ENDPOINT, "1"), DELTA, write_delta(ENDPOINT, "1", bodies, ()))
    await keeper.flush()
    interest = Interest(DELTA)
    for request in (
        field(2, ENDPOINT.encode()) + field(3, b"a") + field(3, b"b"),
        field(2, ENDPOINT.encode()) + field(4, b"b"),
    ):
        interest.note(request, Head(ENDPOINT, ""))
    other = Interest(DELTA)  # of the next Envoy, during a hot restart
    other.note(field(2, ENDPOINT.encode()) + field(3, b"c"), Head(ENDPOINT, ""))
    assert await kept_after(keeper, interest, other) == ["a", "c"]
    everything = Interest(DELTA)
    everything.note(field(2, ENDPOINT.encode()) + field(3, b"*"), Head(ENDPOINT, ""))
    assert await kept_after(keeper, interest, everything) == ["a", "c"]
    assert await kept_after(keeper, interest) == ["a"]


async def kept_after(keeper: AnswerWriter, *interests: Interest) -> list[str]:
    await keeper.forget_others(interests)
    found = await keeper.find(ENDPOINT, None)
    assert found is not None
    return sorted(each.name for each in found[1])


def test_only_what_was_accepted_counts() -> None:
    acceptance = AckTracker(SOTW)
    first, second = clusters("1", "a"), clusters("2", "b")
    acceptance.sent(first)
    assert acceptance.answered(Head(CLUSTER, "")) is None
    assert acceptance.answered(Head(CLUSTER, "1")) == first
    assert acceptance.answered(Head(CLUSTER, "1")) is None  # it subscribes to more
    acceptance.sent(second)
    assert acceptance.answered(Head(CLUSTER, "2", "refused")) is None
    assert acceptance.answered(Head(CLUSTER, "2")) is None


def test_an_answer_to_a_later_response_covers_those_before_it() -> None:
    acceptance = AckTracker(DELTA)
    for number in range(200):
        acceptance.sent(write_delta(CLUSTER, str(number), (), ()))
    assert acceptance.answered(Head(CLUSTER, "199")) is not None
    assert not acceptance._sent
