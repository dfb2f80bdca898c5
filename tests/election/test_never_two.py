"""Never two replicas believe that they lead: over late and lost messages, pauses, and clocks that differ.

The replicas are the pure parts (``TermLease``, ``LeaseObserver``); Consul and the API server are models of their rules.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from mesh_pilot.kubernetes.election.lease_record import (
    LONGEST_SECONDS,
    LeaseObserver,
    Object,
    read_lease,
    released,
    renewed,
    taken,
)
from mesh_pilot.replicas.election.term_lease import MARGIN, TermLease
from tests.support.sample import examples

TTL = 10.0
SPANS = st.sampled_from([0.1, 1.0, TTL / 3, TTL * 0.75, TTL, TTL * 1.1])
TRIPS = st.sampled_from(["there and back", "there", "", "there and back"])
"""How far a message and its answer get at once; what is left of the way takes any time."""
SOME = st.integers(0, 5)
"""Which of what there is, modulo its number."""
SPEEDS = st.floats(0.95, 1.05)
RUNS = settings(
    max_examples=examples(150),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


@attrs.define
class Model:
    """A replica, with a clock of its own offset and speed. While nothing of it happens, it is paused or cut off."""

    name: str
    offset: float = 0.0
    speed: float = 1.0
    waiting: int = 0
    """The request whose answer it waits for; 0: none."""
    lease: TermLease = attrs.field(factory=lambda: TermLease(TTL))
    observer: LeaseObserver = attrs.field(factory=lambda: LeaseObserver(TTL))
    own: Any = None

    def clock(self, now: float) -> float:
        return self.offset + self.speed * now


@attrs.define(eq=False)
class Message:
    """A request on its way to the server, or its answer on its way back."""

    replica: Model
    number: int
    sent_at: float
    """By the replica's clock."""
    work: Callable[[], Any]
    """What the server does."""
    take: Callable[[Any], None]
    """What the replica does with the answer."""
    answer: Any = None


class Election(RuleBasedStateMachine):
    """The network, the clocks and the replicas; what the lock is comes from the subclasses."""

    count = 3
    counts_from_answer = False
    """A mistake, for the test of the test: the validity counted from the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.replicas = [Model(f"r{number}") for number in range(self.count)]
        self.requests: list[Message] = []
        self.answers: list[Message] = []
        self.sent = 0
        self.highest = 0

    @initialize(offsets=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), speeds=st.lists(SPEEDS, min_size=3))
    def clocks(self, offsets: list[float], speeds: list[float]) -> None:
        for replica, offset, speed in zip(self.replicas, offsets, speeds, strict=False):
            replica.offset, replica.speed = offset, speed

    @invariant()
    def never_two(self) -> None:
        leading = [r for r in self.replicas if r.lease.leads(r.clock(self.now))]
        assert len(leading) <= 1, leading

    @rule(seconds=SPANS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(which=SOME, trip=TRIPS)
    def act(self, which: int, trip: str) -> None:
        """A replica does what is due: it renews, or tries to acquire."""
        replica = self.replicas[which % self.count]
        if replica.waiting:
            return
        if replica.lease.leads(replica.clock(self.now)):
            self.renew(replica)
        else:
            replica.lease.end()
            self.acquire(replica)
        while replica.waiting and "there" in trip:
            self.deliver(self.requests[-1])
            if "back" not in trip:
                break
            self.take(self.answers[-1])

    @rule(which=SOME)
    def give_up(self, which: int) -> None:
        """A request is too slow for its sender; it stays on its way."""
        self.replicas[which % self.count].waiting = 0

    @rule(which=SOME)
    def a_request_arrives(self, which: int) -> None:
        if self.requests:
            self.deliver(self.requests[which % len(self.requests)])

    @rule(which=SOME)
    def an_answer_arrives(self, which: int) -> None:
        if self.answers:
            self.take(self.answers[which % len(self.answers)])

    def deliver(self, message: Message) -> None:
        self.requests.remove(message)
        message.answer = message.work()
        self.answers.append(message)

    def take(self, message: Message) -> None:
        self.answers.remove(message)
        if message.replica.waiting == message.number:
            message.replica.waiting = 0
            message.take(message.answer)

    @rule(which=SOME)
    def resign(self, which: int) -> None:
        replica = self.replicas[which % self.count]
        if replica.lease.leads(replica.clock(self.now)):
            replica.lease.end()
            replica.waiting = 0
            self.release(replica)

    # -- what replicas do

    def send(self, replica: Model, work: Callable[[], Any], take: Callable[[Any], None]) -> float:
        self.sent += 1
        replica.waiting = self.sent
        sent_at = replica.clock(self.now)
        self.requests.append(Message(replica, self.sent, sent_at, work, take))
        return sent_at

    def begin(self, replica: Model, term: int, sent_at: float) -> None:
        now = replica.clock(self.now)
        if replica.lease.begin(term, now if self.counts_from_answer else sent_at, now):
            assert term > self.highest, "numbers of terms only grow"
            self.highest = term
        else:
            replica.lease.end()

    def renewal(self, replica: Model, is_renewed: bool, sent_at: float) -> None:
        now = replica.clock(self.now)
        if is_renewed:
            replica.lease.renew(now if self.counts_from_answer else sent_at, now)
        else:
            replica.lease.end()

    def acquire(self, replica: Model) -> None:
        raise NotImplementedError

    def renew(self, replica: Model) -> None:
        raise NotImplementedError

    def release(self, replica: Model) -> None:
        raise NotImplementedError


class ConsulElection(Election):
    """Sessions with a TTL and a lock delay; the server may invalidate them late, and somebody may destroy them."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[int, float] = {}
        """When each was renewed last."""
        self.made = 0
        self.holder = 0
        self.delayed_until = 0.0
        self.index = 0

    @rule(which=SOME, early=st.sampled_from([False, False, False, True]))
    def a_session_is_invalidated(self, which: int, early: bool) -> None:
        over = [session for session, renewed in self.sessions.items() if early or self.now >= renewed + TTL]
        if over:
            session = over[which % len(over)]
            del self.sessions[session]
            if self.holder == session:
                self.holder, self.delayed_until = 0, self.now + TTL

    def acquire(self, replica: Model) -> None:
        self.made += 1
        replica.own = session = self.made

        def work() -> int:
            self.sessions[session] = self.now
            if self.holder or self.now < self.delayed_until:
                return 0
            self.holder = session
            self.index += 1
            return self.index

        def take(index: int) -> None:
            if index:
                self.begin(replica, index, sent_at)

        sent_at = self.send(replica, work, take)

    def renew(self, replica: Model) -> None:
        session = replica.own

        def work() -> bool:
            if session in self.sessions:
                self.sessions[session] = self.now
            return session in self.sessions

        sent_at = self.send(replica, work, lambda found: self.renewal(replica, found, sent_at))

    def release(self, replica: Model) -> None:
        session = replica.own

        def work() -> None:
            if self.holder == session:
                self.holder = 0
            self.sessions.pop(session, None)

        self.requests.append(Message(replica, 0, 0.0, work, lambda _: None))


class LeaseElection(Election):
    """A Lease, written only in the version that was read."""

    count = 2

    def __init__(self) -> None:
        super().__init__()
        self.lease: dict[str, Any] | None = None
        self.version = 0

    def put(self, new: Object) -> Object | None:
        """The Lease as it is written; None for a conflict."""
        expected = new["metadata"].get("resourceVersion")
        if expected != (self.lease and self.lease["metadata"]["resourceVersion"]):
            return None
        self.version += 1
        self.lease = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    def acquire(self, replica: Model) -> None:
        self.send(replica, lambda: self.lease, lambda found: self.seen(replica, found))

    def seen(self, replica: Model, found: Object | None) -> None:
        now = replica.clock(self.now)
        transitions = 0
        if found is not None:
            record = read_lease(found)
            transitions = record.transitions + 1
            if not replica.observer.is_free(record, now) and record.holder != replica.name:
                return
        new = taken(found or {"metadata": {}}, replica.name, int(TTL), transitions, datetime.now(UTC))
        # As the driver has it, the term counts from before the reading.
        sent_at = self.send(replica, lambda: self.put(new), lambda written: self.won(replica, written, sent_at))

    def won(self, replica: Model, written: Object | None, sent_at: float) -> None:
        if written is not None:
            replica.own = written
            self.begin(replica, read_lease(written).transitions + 1, sent_at)

    def renew(self, replica: Model) -> None:
        new = renewed(replica.own, datetime.now(UTC))

        def take(written: Object | None) -> None:
            self.renewal(replica, written is not None, sent_at)
            replica.own = written or replica.own

        sent_at = self.send(replica, lambda: self.put(new), take)

    def release(self, replica: Model) -> None:
        new = released(replica.own, datetime.now(UTC))
        self.requests.append(Message(replica, 0, 0.0, lambda: self.put(new), lambda _: None))


class HastyConsulElection(ConsulElection):
    count = 2
    counts_from_answer = True


class HastyLeaseElection(LeaseElection):
    count = 2
    counts_from_answer = True


@pytest.mark.parametrize("machine", [ConsulElection, LeaseElection])
def test_at_no_time_do_two_replicas_lead(machine: type[Election]) -> None:
    run_state_machine_as_test(machine, settings=RUNS)  # type: ignore[no-untyped-call]  # hypothesis has no types here


def late_answer(machine: Election) -> None:
    """A replica gets the lock, and learns of it when another has it already."""
    machine.clocks([0.0, 0.0], [1.0, 1.0])
    machine.act(0, "there")
    if isinstance(machine, LeaseElection):
        machine.an_answer_arrives(0)  # of the reading; now it writes
        machine.a_request_arrives(0)
        machine.act(1, "there and back")  # sees it for the first time
    machine.time_passes(TTL)
    if isinstance(machine, ConsulElection):
        machine.a_session_is_invalidated(0, early=False)
        machine.time_passes(TTL)
    machine.act(1, "there and back")
    assert machine.replicas[1].lease.leads(machine.replicas[1].clock(machine.now))
    machine.an_answer_arrives(0)
    machine.never_two()


@pytest.mark.parametrize("machine", [HastyConsulElection, HastyLeaseElection])
def test_counting_from_the_answer_would_let_two_lead(machine: type[Election]) -> None:
    """The models find the mistake that matters most."""
    with pytest.raises(AssertionError):
        late_answer(machine())


@pytest.mark.parametrize("machine", [ConsulElection, LeaseElection])
def test_an_answer_that_comes_when_another_leads_begins_nothing(machine: type[Election]) -> None:
    late_answer(machine())


def test_a_term_ends_before_the_lock_can_be_anothers() -> None:
    lease = TermLease(TTL)
    assert lease.begin(1, sent_at=100.0, now=101.0)
    assert lease.leads(100.0 + TTL * (1 - MARGIN) - 0.01)
    assert not lease.leads(100.0 + TTL * (1 - MARGIN))
    assert lease.remaining_seconds(101.0) == TTL * (1 - MARGIN) - 1.0


def test_a_late_renewal_revives_nothing_and_an_early_one_takes_nothing_away() -> None:
    lease = TermLease(TTL)
    assert lease.begin(1, sent_at=0.0, now=0.0)
    assert lease.renew(sent_at=3.0, now=4.0)
    end = lease.ends_at
    assert lease.renew(sent_at=2.0, now=5.0)
    assert lease.ends_at == end
    assert not lease.renew(sent_at=end - 1, now=end)
    assert not lease.leads(end - 1)


def test_a_grant_that_comes_too_late_begins_nothing() -> None:
    lease = TermLease(TTL)
    assert not lease.begin(1, sent_at=0.0, now=TTL)
    assert not lease.leads(TTL)


def test_a_lease_counts_from_when_it_was_first_seen_as_it_is_and_with_its_own_duration_if_that_is_longer() -> None:
    def lease(version: str, duration: int, holder: str = "other") -> Object:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": "1999-01-01T00:00:00.000000Z"}
        return {"metadata": {"resourceVersion": version}, "spec": spec}

    observer = LeaseObserver(TTL)
    assert not observer.is_free(read_lease(lease("1", 5)), 0.0)
    assert not observer.is_free(read_lease(lease("2", 5)), TTL + 1)
    assert not observer.is_free(read_lease(lease("2", 5)), 2 * TTL)
    assert observer.is_free(read_lease(lease("2", 5)), 2 * TTL + 1)
    assert not observer.is_free(read_lease(lease("2", 30)), 2 * TTL + 1)
    assert observer.is_free(read_lease(lease("3", 30, holder="")), 2 * TTL + 1)


@pytest.mark.parametrize("duration", [61, 2**31 - 1, 0, -1])
def test_a_lease_of_an_absurd_duration_ends_after_the_longest_that_there_is(duration: int) -> None:
    spec = {"holderIdentity": "other", "leaseDurationSeconds": duration}
    record = read_lease({"metadata": {"resourceVersion": "1"}, "spec": spec})
    observer = LeaseObserver(TTL)
    assert not observer.is_free(record, 0.0)
    assert not observer.is_free(record, TTL - 1)
    assert observer.is_free(record, LONGEST_SECONDS)
