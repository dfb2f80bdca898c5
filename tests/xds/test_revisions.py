"""Tallies of revisions: who is touched by which, and where each stream is."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.history import ProxyRevision, RevisionNack, RevisionOutcome
from mesh_pilot.model.resource import CLUSTER
from mesh_pilot.xds.ads.revisions import MAX_NACKS, MAX_OPEN, RevisionFollower, Revisions

LATEST = ProxyRevision(None, is_refusing=False)


def nack(reason: str = "no such thing") -> RevisionNack:
    return RevisionNack(datetime(2026, 1, 1, tzinfo=UTC), "web-1.shop", "CDS", ("outbound|80||a",), (), reason)


def connected(revisions: Revisions) -> RevisionFollower:
    """A stream that has everything."""
    follower = revisions.follow()
    follower.settled(0.0)
    return follower


def publish(revisions: Revisions, number: int, at: float, *woken: RevisionFollower) -> None:
    for follower in woken:
        follower.woken()
    revisions.published(number, at)


def outcome(revisions: Revisions, number: int) -> RevisionOutcome:
    return next(found for found in revisions.recent() if found.revision == number)


def test_a_revision_is_over_when_the_last_touched_stream_has_answered() -> None:
    revisions = Revisions()
    first, second, other = (connected(revisions) for _ in range(3))
    publish(revisions, 1, 10.0, first, second)
    for follower in (first, second):
        follower.noted()
        follower.sent(100)
    first.settled(10.5)
    assert not outcome(revisions, 1).is_over
    assert (first.position(), second.position(), other.position()) == (LATEST, ProxyRevision(0, False), LATEST)
    second.settled(11.0)
    assert outcome(revisions, 1) == RevisionOutcome(1, 2, 0, 200, 1.0, (), 0, True)


def test_a_stream_that_never_answers_costs_bounded_memory() -> None:
    revisions = Revisions()
    follower = connected(revisions)
    for number in range(1, 5 * MAX_OPEN):
        publish(revisions, number, float(number), follower)
        follower.noted()
        follower.sent(10)
    assert len(follower._pending) <= 2 * MAX_OPEN + 1
    assert follower.position() == ProxyRevision(0, is_refusing=False)
    latest = outcome(revisions, 5 * MAX_OPEN - 1)
    assert (latest.proxies, latest.waiting, latest.bytes) == (1, 1, 10)
    follower.settled(10_000.0)
    assert follower.position() == LATEST
    assert all(found.is_over for found in revisions.recent())


def test_a_stream_that_is_woken_and_sent_nothing_is_not_touched() -> None:
    revisions = Revisions()
    follower = connected(revisions)
    publish(revisions, 1, 0.0, follower)
    follower.noted()
    follower.settled(0.1)
    assert outcome(revisions, 1) == RevisionOutcome(1, 0, 0, 0, None, (), 0, True)


def test_what_wakes_a_stream_between_revisions_belongs_to_none() -> None:
    revisions = Revisions()
    follower = connected(revisions)
    publish(revisions, 1, 0.0)
    follower.woken()  # by a certificate
    follower.noted()
    follower.sent(500)
    assert follower.position() == LATEST
    publish(revisions, 2, 1.0)
    assert [found.bytes for found in revisions.recent()] == [0, 0]
    assert all(found.is_over for found in revisions.recent())


def test_a_certificate_and_a_revision_in_one_wake_count_for_the_revision() -> None:
    revisions = Revisions()
    follower = connected(revisions)
    follower.woken()
    publish(revisions, 1, 0.0, follower)
    follower.noted()
    follower.sent(7)
    follower.settled(0.5)
    assert outcome(revisions, 1) == RevisionOutcome(1, 1, 0, 7, 0.5, (), 0, True)


def test_merged_revisions_count_each_and_bytes_go_to_the_newest() -> None:
    revisions = Revisions()
    follower = connected(revisions)
    publish(revisions, 1, 0.0, follower)
    publish(revisions, 2, 1.0)  # its sets were not read again, so nothing wakes it
    publish(revisions, 3, 2.0)
    follower.noted()
    follower.sent(30)
    follower.sent(3)
    assert follower.position() == ProxyRevision(0, is_refusing=False)
    follower.settled(3.0)
    assert [(found.proxies, found.bytes, found.acked_seconds) for found in revisions.recent()] == [
        (1, 0, 3.0),
        (1, 0, 2.0),
        (1, 33, 1.0),
    ]


def test_a_stream_that_refuses_stays_where_it_was_until_it_accepts() -> None:
    revisions = Revisions()
    follower = connected(revisions)
    publish(revisions, 1, 0.0)
    publish(revisions, 2, 1.0, follower)
    follower.noted()
    follower.sent(10)
    follower.refused(nack(), CLUSTER)
    follower.settled(1.5)
    assert follower.position() == ProxyRevision(1, is_refusing=True)
    assert outcome(revisions, 2).nacks == (nack(),)
    publish(revisions, 3, 2.0, follower)
    follower.noted()
    follower.sent(10)
    assert follower.position() == ProxyRevision(1, is_refusing=True)
    follower.accepted(CLUSTER)
    follower.settled(2.5)
    assert follower.position() == LATEST


def test_a_stream_that_ends_is_not_waited_for() -> None:
    revisions = Revisions()
    follower = connected(revisions)
    publish(revisions, 1, 0.0, follower)
    follower.noted()
    follower.sent(10)
    follower.left()
    assert outcome(revisions, 1) == RevisionOutcome(1, 1, 0, 10, None, (), 0, True)


def test_a_stuck_stream_keeps_only_the_latest_open() -> None:
    revisions = Revisions()
    stuck, other = connected(revisions), connected(revisions)
    publish(revisions, 1, 0.0, stuck)
    stuck.noted()
    stuck.sent(1)
    revisions.take()
    for number in range(2, MAX_OPEN + 2):
        publish(revisions, number, float(number), other)
        other.noted()
        other.settled(float(number))
    taken = revisions.take()
    assert len(revisions.recent()) == MAX_OPEN
    assert (taken[0].revision, taken[0].is_over, taken[0].waiting) == (1, True, 1)
    assert len(taken) == MAX_OPEN + 1
    assert revisions.take() == []


def test_refusals_are_kept_up_to_a_number_and_counted() -> None:
    revisions = Revisions()
    follower = connected(revisions)
    publish(revisions, 1, 0.0, follower)
    follower.noted()
    follower.sent(1)
    for _ in range(MAX_NACKS + 5):
        follower.refused(nack("x" * 10_000), CLUSTER)
    found = outcome(revisions, 1)
    assert (len(found.nacks), found.nacked, len(found.nacks[0].reason)) == (MAX_NACKS, MAX_NACKS + 5, 2000)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sets(st.integers(0, 3))),
        st.tuples(st.sampled_from(["certificate", "note", "send", "settle", "leave", "refuse"]), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(STEPS)
def test_in_any_order_revisions_are_over_once_all_streams_have_settled(steps: list[tuple[str, object]]) -> None:
    revisions = Revisions()
    followers = [connected(revisions) for _ in range(4)]
    number, sent = 0, 0
    for now, (step, argument) in enumerate(steps):
        if step == "publish":
            assert isinstance(argument, set)
            number += 1
            publish(revisions, number, float(now), *(followers[index] for index in argument))
            continue
        assert isinstance(argument, int)
        follower = followers[argument]
        match step:
            case "certificate":
                follower.woken()
            case "note":
                follower.noted()
            case "send":
                follower.noted()
                sent += 1
                follower.sent(1)
            case "settle":
                follower.noted()
                follower.settled(float(now))
            case "refuse":
                follower.refused(nack(), CLUSTER)
            case "leave":
                follower.left()
                followers[argument] = connected(revisions)
        for found in revisions.recent():
            assert found.waiting >= 0
    for follower in followers:
        follower.accepted(CLUSTER)
        follower.noted()
        follower.settled(float(len(steps)))
    assert all(found.is_over and not found.waiting for found in revisions.recent())
    assert sum(found.bytes for found in revisions.recent()) <= sent
    assert [follower.position() for follower in followers] == [LATEST] * 4
    assert len(revisions.take()) == number
