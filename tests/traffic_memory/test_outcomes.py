"""What came of a revision: the same, better, worse, or too little traffic to know; and which minutes are compared."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from mesh_pilot.model.history import RevisionTraffic
from mesh_pilot.model.traffic import Counter, RowKind
from mesh_pilot.traffic.counts import Counts
from mesh_pilot.traffic.memory import WorkloadEdge
from mesh_pilot.traffic.outcomes import WaitingRevisions, outcomes_of
from mesh_pilot.traffic.table import CallingWorkload
from mesh_pilot.traffic.touched import TouchedEdges
from tests.support.manifests import manifest
from tests.support.quarantined import unchecked

MINUTE = timedelta(minutes=1)
AT = datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)
NOON = AT.replace(second=0)
WEB = CallingWorkload("shop", "web")
REVIEWS, RATINGS = TouchedEdges(hosts=frozenset(("reviews.test",))), TouchedEdges(hosts=frozenset(("ratings.test",)))
BOTH = TouchedEdges(hosts=frozenset(("reviews.test", "ratings.test")))
V1, V2 = "outbound|80|v1|reviews.test", "outbound|80|v2|reviews.test"
TO_RATINGS = "outbound|80||ratings.test"


def edge(name: str, requests: int, errors: int = 0, kind: RowKind = RowKind.CLUSTER, **more: int) -> WorkloadEdge:
    counts = {Counter.REQUESTS: requests, Counter.ERRORS: errors} | {Counter[key]: count for key, count in more.items()}
    return WorkloadEdge(WEB, kind, name, Counts(counts, has_requests=True))


def outcome(
    before: Iterable[WorkloadEdge], after: Iterable[WorkloadEdge], touched: TouchedEdges = REVIEWS
) -> RevisionTraffic:
    """Of a revision with the same traffic in all ten minutes before it, and in all ten after it."""
    waiting = WaitingRevisions()
    waiting.published(7, AT, touched)
    (due,) = waiting.due(NOON + 11 * MINUTE)
    minutes: Mapping[datetime, Iterable[WorkloadEdge]] = {
        **{NOON - number * MINUTE: [*before] for number in range(1, 11)},
        NOON: [edge(V1, 1000, 1000)],
        **{NOON + number * MINUTE: [*after] for number in range(1, 11)},
    }
    (found,) = outcomes_of([due], {each: minutes[each] for each in due.minutes()})
    return found


def test_errors_after_it_are_worse_and_the_worst_edge_is_named() -> None:
    found = outcome([edge(V1, 100)], [edge(V1, 50), edge(V2, 50, 5)])
    assert (found.verdict, found.edges, found.worse_edges) == ("worse", 1, 1)
    (worst,) = found.worse
    assert (worst.caller, worst.namespace, worst.called) == ("web", "shop", "reviews.test:80")
    assert (worst.tries_before, worst.failures_before, worst.tries_after, worst.failures_after) == (1000, 0, 1000, 50)
    assert (found.minutes_before, found.minutes_after, found.cut_by, found.is_complete) == (10, 10, None, True)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([edge(V1, 100, 10)], [edge(V1, 100)], "better"),
        ([edge(V1, 100, 1)], [edge(V2, 100, 1)], "same"),
        ([edge(V1, 1)], [edge(V1, 1)], "too little traffic"),
        ([], [], "too little traffic"),
        ([edge(TO_RATINGS, 100)], [edge(TO_RATINGS, 100, 50)], "too little traffic"),
    ],
)
def test_the_other_words(before: list[WorkloadEdge], after: list[WorkloadEdge], verdict: str) -> None:
    found = outcome(before, after)
    assert found.verdict == verdict
    assert not found.worse


def test_calls_that_move_to_another_host_are_compared_in_sum() -> None:
    found = outcome([edge(V1, 100)], [edge(TO_RATINGS, 100, 8)], BOTH)
    assert found.verdict == "worse"
    assert [each.called for each in found.worse] == [""]


def test_requests_without_a_cluster_count_where_the_caller_listens() -> None:
    listener = "outbound_0.0.0.0_80"
    found = outcome(
        [edge(V1, 100), edge(listener, 100, kind=RowKind.LISTENER)],
        [edge(listener, 100, 100, RowKind.LISTENER, NO_CLUSTER=100)],
    )
    assert [each.called for each in found.worse] == [f"listener {listener}"]
    found = outcome([edge(listener, 100, kind=RowKind.LISTENER)], [edge(listener, 100, 9, RowKind.LISTENER)])
    assert found.verdict == "too little traffic"  # nobody there calls what was touched


def test_denials_are_failures_of_policies() -> None:
    def row(allowed: int, denied: int) -> WorkloadEdge:
        counts = Counts({Counter.ALLOWED: allowed, Counter.DENIED: denied}, has_requests=True)
        return WorkloadEdge(WEB, RowKind.POLICY, "ns[shop]-policy[p]-rule[0]", counts)

    found = outcome([row(100, 0)], [row(50, 50)], TouchedEdges(is_everything=True))
    assert [(each.called, each.unit, each.failures_after) for each in found.worse] == [("policies", "allowed", 500)]


def test_denials_without_rules_of_their_own_stand_with_the_listener() -> None:
    policy = TouchedEdges(selecting=tuple(unchecked(manifest("AuthorizationPolicy", "web", "action: DENY"))))
    listener = "inbound_0.0.0.0_8080"
    found = outcome(
        [edge(V1, 100), edge(listener, 100, kind=RowKind.LISTENER)],
        [edge(V1, 100), edge(listener, 100, kind=RowKind.LISTENER, DENIED=30)],
        policy,
    )
    assert [(each.called, each.failures_after, each.tries_after) for each in found.worse] == [
        (f"listener {listener}", 300, 1000)
    ]


def test_a_revision_waits_for_ten_whole_minutes() -> None:
    waiting = WaitingRevisions()
    waiting.published(1, AT, REVIEWS)
    waiting.published(2, AT, TouchedEdges())
    assert waiting.due(NOON + 10 * MINUTE) == []
    (due,) = waiting.due(NOON + 11 * MINUTE)
    assert (due.before, due.after) == ((NOON - 10 * MINUTE, NOON), (NOON + MINUTE, NOON + 11 * MINUTE))
    assert waiting.due(NOON + 99 * MINUTE) == []


def test_another_revision_of_the_same_edges_ends_the_time_after_one_and_begins_that_before_the_other() -> None:
    waiting = WaitingRevisions()
    waiting.published(1, AT, REVIEWS)
    waiting.published(2, AT + 2 * MINUTE, RATINGS)
    waiting.published(3, AT + 4 * MINUTE, BOTH)
    (first, second) = waiting.due(NOON + 4 * MINUTE)
    assert (first.after, first.cut_by) == ((NOON + MINUTE, NOON + 4 * MINUTE), 3)
    assert (second.after, second.cut_by) == ((NOON + 3 * MINUTE, NOON + 4 * MINUTE), 3)
    (third,) = waiting.due(NOON + 15 * MINUTE)
    assert (third.before, third.cut_by) == ((NOON + 3 * MINUTE, NOON + 4 * MINUTE), None)


def test_revisions_in_one_minute_have_no_time_between_them() -> None:
    waiting = WaitingRevisions()
    for revision in range(3):
        waiting.published(revision, AT + timedelta(seconds=revision), REVIEWS)
    found = waiting.due(NOON + 11 * MINUTE)
    assert [(each.before[1] - each.before[0]) // MINUTE for each in found] == [10, 0, 0]
    assert [(each.after[1] - each.after[0]) // MINUTE for each in found] == [0, 0, 10]
    assert [each.cut_by for each in found] == [1, 2, None]


def test_waiting_revisions_are_bounded() -> None:
    waiting = WaitingRevisions()
    for revision in range(500):
        waiting.published(revision, AT, REVIEWS)
    assert len(waiting.due(NOON + 99 * MINUTE)) == 200


def simulated(chance: random.Random, *, share: float, more: float = 0.0, bursts: float = 0.0) -> str:
    """The word for a revision of twenty edges, before and after which calls fail alike, but for ``more`` on one of
    them. Each minute has more or fewer calls; in so many minutes of an edge there is a burst of failures."""
    waiting = WaitingRevisions()
    waiting.published(7, AT, TouchedEdges(is_everything=True))
    (due,) = waiting.due(NOON + 11 * MINUTE)
    minutes = {}
    for minute in due.minutes():
        rows = []
        for number in range(20):
            count = round(600 * chance.uniform(0.5, 1.5))
            rate = share + (more if number == 0 and minute > AT else 0.0)
            rate += 0.3 if chance.random() < bursts else 0.0
            failures = round(chance.gauss(count * rate, (count * rate * (1 - rate)) ** 0.5))
            rows.append(edge(f"outbound|80||{number}.test", count, min(count, max(0, failures))))
        minutes[minute] = rows
    (found,) = outcomes_of([due], minutes)
    return found.verdict


@pytest.mark.parametrize("bursts", [0.0, 0.1])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.1])
def test_revisions_without_an_effect_are_seldom_called_worse(share: float, bursts: float) -> None:
    """Of seeds 0 to 59 one at most."""
    words = [simulated(random.Random(seed), share=share, bursts=bursts) for seed in range(60)]
    assert words.count("worse") <= 1


@pytest.mark.parametrize("more", [0.02, 0.05])
def test_two_failures_more_in_a_hundred_at_ten_calls_a_second_are_found(more: float) -> None:
    assert {simulated(random.Random(seed), share=0.01, more=more) for seed in range(20)} == {"worse"}
