"""The election by a lock, with a lock in the test's hand and a clock that jumps: tasks, renewals, ends of terms."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from mesh_pilot.replicas.election.base import Holding, Leader, LockError, LockLost, Replica, Term, TermEnded
from mesh_pilot.replicas.election.elections import Alone, LockElection
from mesh_pilot.replicas.election.term_lease import MARGIN

TTL = 15.0
OTHER = Leader("other", 7)


@attrs.define(eq=False, slots=False)
class FakeLock:
    """A lock that does as it is told."""

    kind: str = "fake"
    place: str = "a lock"
    ttl_seconds: float = TTL
    poll_seconds: float = 1.0
    holder: Leader | None = None
    failure: Exception | None = None
    """Raised by every request."""
    slow_seconds: float = 0.0
    calls: int = 1
    """The requests that acquiring it takes."""
    terms: int = 10
    renewals: int = 0
    released: list[Holding | None] = attrs.field(factory=list)
    lost: trio.Event = attrs.field(factory=trio.Event)
    writes: list[tuple[str, bytes | None]] = attrs.field(factory=list)

    async def attend(self) -> None:
        await trio.sleep_forever()

    def replicas(self) -> tuple[Replica, ...]:
        return ()

    async def _asked(self) -> None:
        await trio.sleep(self.slow_seconds)
        if self.failure is not None:
            raise self.failure

    async def acquire(self) -> Holding | Leader | None:
        for _ in range(self.calls):
            await self._asked()
        if self.holder is not None:
            return self.holder
        self.terms += 1
        return Holding(self.terms)

    async def renew(self, holding: Holding) -> None:
        await self._asked()
        self.renewals += 1

    async def confirm(self, holding: Holding) -> None:
        await self._asked()

    async def release(self, holding: Holding | None) -> None:
        self.released.append(holding)

    async def wait_free(self) -> None:
        await trio.sleep(self.poll_seconds)

    async def wait_lost(self, holding: Holding) -> str:
        await self.lost.wait()
        self.lost = trio.Event()
        return "it was taken away"

    async def fenced_write(self, holding: Holding, key: str, value: bytes | None) -> None:
        await self._asked()
        self.writes.append((key, value))


@attrs.define(eq=False)
class Stage:
    """An election that runs, with a task that tells when it begins and ends."""

    nursery: trio.Nursery
    lock: FakeLock = attrs.field(factory=FakeLock)
    told: list[str] = attrs.field(factory=list)
    terms: list[Term] = attrs.field(factory=list)
    election: LockElection = attrs.field(init=False)
    skipped_seconds: float = 0.0
    """Of the replica's clock: the time for which the process was stopped."""

    def __attrs_post_init__(self) -> None:
        self.election = LockElection(self.lock, Replica("me"), clock=self.clock)
        self.election.while_leading("work", self.work)

    def clock(self) -> float:
        return trio.current_time() + self.skipped_seconds

    async def work(self, term: Term) -> None:
        self.terms.append(term)
        self.told.append(f"begin {term.number}")
        try:
            await trio.sleep_forever()
        finally:
            self.told.append(f"end {term.number}")

    async def start(self) -> Stage:
        self.nursery.start_soon(self.election.run)
        await wait_all_tasks_blocked()
        return self


@pytest.fixture
async def stage(nursery: trio.Nursery) -> Stage:
    return Stage(nursery)


async def test_a_duty_runs_while_this_replica_leads_and_is_cancelled_when_it_does_not(
    stage: Stage, mock_clock: MockClock
) -> None:
    await stage.start()
    assert stage.told == ["begin 11"]
    assert stage.election.leader is not None
    assert (stage.election.leader.id, stage.election.leader.term) == ("me", 11)
    stage.lock.holder = OTHER
    stage.lock.lost.set()
    await wait_all_tasks_blocked()
    assert stage.told == ["begin 11", "end 11"]
    assert stage.election.leader == OTHER
    assert stage.election.statistics().changes == 2
    with pytest.raises(TermEnded, match="term 11: it was taken away"):
        stage.terms[0].check()


async def test_it_renews_three_times_in_a_ttl_and_leads_on(stage: Stage, autojump_clock: MockClock) -> None:
    await stage.start()
    await trio.sleep(10 * TTL)
    assert stage.told == ["begin 11"]
    assert 30 <= stage.lock.renewals <= 38


@pytest.mark.parametrize("slow_seconds", [0.5, 2.0, 2.9])
async def test_a_store_that_answers_late_does_not_end_a_term(
    stage: Stage, autojump_clock: MockClock, slow_seconds: float
) -> None:
    """As Consul's, whose lock takes three calls; each may take a fifth of the TTL."""
    stage.lock.slow_seconds, stage.lock.calls = slow_seconds, 3
    await stage.start()
    await trio.sleep(20 * TTL)
    assert stage.told == ["begin 11"]
    assert stage.lock.renewals >= 3 * 18


async def test_a_leader_that_cannot_renew_stops_before_its_lock_can_be_anothers(
    stage: Stage, autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    await stage.start()
    stage.lock.failure = LockError("no answer")
    with capture_logs() as logs:
        await trio.sleep(TTL * (1 - MARGIN) - 0.01)
        assert stage.told == ["begin 11"]
        await trio.sleep(0.02)
        assert stage.told == ["begin 11", "end 11"]
        assert trio.current_time() < began + TTL
        await trio.sleep(TTL)
    (ended,) = (line for line in logs if line["event"] == "not leading any more")
    assert ended["reason"] == "not renewed in time: no answer"
    assert [line["event"] for line in logs].count("the lock of the leader cannot be reached") == 1
    assert stage.election.leader is None
    assert stage.election.statistics().trouble == "no answer"
    stage.lock.failure = None
    await trio.sleep(TTL)
    assert stage.told[-1] == "begin 12"
    assert stage.election.statistics().trouble == ""


async def test_a_process_that_was_stopped_does_not_act_although_nobody_has_told_it_yet(
    stage: Stage, mock_clock: MockClock
) -> None:
    await stage.start()
    (term,) = stage.terms
    term.check()
    stage.skipped_seconds = TTL
    with pytest.raises(TermEnded, match="not renewed in time"):
        term.check()
    with pytest.raises(TermEnded):
        await term.fenced_write("key", b"value")
    with pytest.raises(TermEnded):
        await term.confirm()
    assert stage.lock.writes == []
    assert stage.election.leader is None
    await wait_all_tasks_blocked()
    assert "end 11" in stage.told


async def test_the_end_is_noticed_within_a_second_where_the_clock_of_trio_stood_still(
    stage: Stage, autojump_clock: MockClock
) -> None:
    await stage.start()
    await trio.sleep(0.5)
    stage.skipped_seconds = TTL
    stage.lock.holder = OTHER
    await trio.sleep(1.0)
    assert stage.told == ["begin 11", "end 11"]


async def test_a_renewal_that_is_answered_too_late_revives_nothing(stage: Stage, autojump_clock: MockClock) -> None:
    await stage.start()
    stage.lock.slow_seconds = TTL
    await trio.sleep(TTL * 1.5)
    assert stage.told[:2] == ["begin 11", "end 11"]
    assert "begin 12" not in stage.told, "it was granted later than it is valid"


@pytest.mark.parametrize("failure", [LockLost("the session was invalidated")])
async def test_a_lock_that_is_lost_at_a_renewal_ends_the_term(
    stage: Stage, autojump_clock: MockClock, failure: Exception
) -> None:
    await stage.start()

    async def renew(_: Holding) -> None:
        raise failure

    stage.lock.holder = OTHER
    stage.lock.renew = renew  # type: ignore[method-assign]
    with capture_logs() as logs:
        await trio.sleep(TTL / 2)
    assert stage.told == ["begin 11", "end 11"]
    assert "the session was invalidated" in [line.get("reason") for line in logs]


async def test_whoever_resigns_ends_its_duties_and_lets_go_of_the_lock(stage: Stage, mock_clock: MockClock) -> None:
    await stage.start()
    stage.election.resign()
    await wait_all_tasks_blocked()
    assert stage.told == ["begin 11", "end 11"]
    assert Holding(11) in stage.lock.released
    assert stage.election.leader is None


async def test_duties_have_ended_before_the_lock_is_released(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    stage = Stage(nursery)
    release = stage.lock.release

    async def checked(holding: Holding | None) -> None:
        assert stage.told[-1].startswith("end")
        await release(holding)

    stage.lock.release = checked  # type: ignore[method-assign]
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as own:
            own.start_soon(stage.election.run)
            await wait_all_tasks_blocked()
            assert stage.told == ["begin 11"]
            scope.cancel()
    assert stage.lock.released[0] == Holding(11)


async def test_a_duty_that_fails_is_started_again_and_costs_neither_the_lock_nor_other_duties(
    stage: Stage, autojump_clock: MockClock
) -> None:
    tries = []

    async def failing(term: Term) -> None:
        tries.append(term.number)
        raise ValueError("oh")

    async def done(term: Term) -> None:
        tries.append(-term.number)

    stage.election.while_leading("failing", failing)
    stage.election.while_leading("done", done)
    with capture_logs() as logs:
        await stage.start()
        await trio.sleep(60)
    assert tries.count(11) > 2
    assert tries.count(-11) == 1, "what has returned is done"
    assert stage.told == ["begin 11"]
    assert {line["duty"] for line in logs if line["event"] == "duty failed; restarting it"} == {"failing"}
    assert stage.election.statistics().tasks == ("work", "failing", "done")


async def test_a_duty_that_meets_the_end_of_its_term_is_no_failure(stage: Stage, autojump_clock: MockClock) -> None:
    async def grouped(term: Term) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_ended, term)

    async def until_ended(term: Term) -> None:
        while True:
            with trio.CancelScope(shield=True):  # as one that is about to write when the term ends
                await trio.sleep(0.1)
            term.check()

    stage.election.while_leading("grouped", grouped)
    with capture_logs() as logs:
        await stage.start()
        stage.lock.holder = OTHER
        stage.lock.lost.set()
        await trio.sleep(1)
    assert [line for line in logs if line["log_level"] == "error"] == []


async def test_an_internal_error_costs_the_term_and_not_the_control_plane(
    stage: Stage, autojump_clock: MockClock
) -> None:
    await stage.start()
    stage.lock.failure = ZeroDivisionError("a bug")
    with capture_logs() as logs:
        await trio.sleep(TTL)
        assert stage.told == ["begin 11", "end 11"]
        assert not stage.election.statistics().leads
        stage.lock.failure = None
        await trio.sleep(TTL * 3)
    assert stage.told[-1] == "begin 12"
    assert Holding(11) in stage.lock.released
    assert "internal error in leader election; restarting it" in [line["event"] for line in logs]


async def test_a_follower_says_whom_it_follows_once_for_each_term(stage: Stage, autojump_clock: MockClock) -> None:
    stage.lock.holder = OTHER
    with capture_logs() as logs:
        await stage.start()
        await trio.sleep(5 * TTL)
        stage.lock.failure = LockError("no answer")
        await trio.sleep(2 * TTL)
        assert stage.election.leader is None, "nobody here can know"
        stage.lock.failure = None
        await trio.sleep(TTL)
        stage.lock.holder = Leader("third", 8)
        await trio.sleep(TTL)
    assert [line["leader"] for line in logs if line["event"] == "following"] == ["other", "third"]
    assert stage.election.statistics().changes == 2
    assert stage.told == []


async def test_a_single_replica_always_leads(nursery: trio.Nursery, mock_clock: MockClock) -> None:
    election = Alone(Replica("me"))
    terms: list[Term] = []
    ends: list[Callable[[], None]] = []

    async def work(term: Term) -> None:
        terms.append(term)
        try:
            await trio.sleep_forever()
        finally:
            ends.append(term.check)

    election.while_leading("work", work)
    assert not election.statistics().leads
    nursery.start_soon(election.run)
    await wait_all_tasks_blocked()
    mock_clock.jump(1000)
    terms[0].check()
    await terms[0].confirm()
    assert election.statistics().leads
    with pytest.raises(LockError, match="no leader election"):
        await terms[0].fenced_write("key", b"value")
    election.resign()
    await wait_all_tasks_blocked()
    assert len(ends) == 1
    with pytest.raises(TermEnded):
        terms[0].check()
