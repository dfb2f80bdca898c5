"""The choice among control planes: told what happens, it says what to do."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.agent.relay.choice import Choice, Connect, Release, Timings, Use

TIMINGS = Timings()


@attrs.define
class Driver:
    """Plays the network: attempts at planes that are up succeed after a moment, others fail."""

    distances: list[int]
    seed: int = 0
    up: set[int] = attrs.field(factory=set)
    now: float = 0.0
    links: dict[int, int] = attrs.field(factory=dict)
    """Open links, each with its plane."""
    used: int | None = None
    attempts: list[tuple[float, int]] = attrs.field(factory=list)
    uses: list[tuple[float, int]] = attrs.field(factory=list)
    choice: Choice = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.choice = Choice(self.distances, timings=TIMINGS, lots=random.Random(self.seed))

    def step(self) -> None:
        """Do what is to be done now."""
        while actions := self.choice.decide(self.now):
            for action in actions:
                self._do(action)

    def _do(self, action: Connect | Use | Release) -> None:
        match action:
            case Connect(link, plane):
                self.attempts.append((self.now, plane))
                self.links[link] = plane
                if plane in self.up:
                    self.choice.ready(link, self.now)
                else:
                    del self.links[link]
                    self.choice.ended(link, self.now)
            case Use(link):
                assert link in self.links
                self.used = link
                self.uses.append((self.now, self.links[link]))
            case Release(link):
                del self.links[link]
                assert link != self.used

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        self.step()
        while (wake := self.choice.wake_at()) <= end:
            assert wake > self.now - 1e-9
            self.now = max(self.now, wake)
            self.step()
        self.now = end
        self.step()

    def kill(self, plane: int) -> None:
        self.up.discard(plane)
        for link in [link for link, of in self.links.items() if of == plane]:
            del self.links[link]
            if self.used == link:
                self.used = None
            self.choice.ended(link, self.now)
        self.step()

    @property
    def used_plane(self) -> int | None:
        return None if self.used is None else self.links[self.used]


def test_the_nearest_that_answers_is_used() -> None:
    driver = Driver([2, 0, 1], up={0, 1, 2})
    driver.run(1)
    assert driver.used_plane == 1
    assert driver.attempts == [(0.0, 1)]


def test_one_that_fails_is_followed_by_the_next_at_once() -> None:
    driver = Driver([0, 1, 2], up={2})
    driver.run(0)
    assert driver.used_plane == 2
    assert not driver.choice.is_away


def test_one_that_does_not_answer_is_followed_by_the_next_after_a_moment() -> None:
    choice = Choice([0, 1])
    assert choice.decide(0) == [Connect(1, 0)]
    assert choice.decide(0.5) == []
    assert choice.wake_at() == TIMINGS.stagger
    assert choice.decide(TIMINGS.stagger) == [Connect(2, 1)]
    choice.ready(2, 1.2)
    assert choice.decide(1.2) == [Use(2)]
    choice.ready(1, 3)  # the nearer one, late: it has to last first
    assert choice.decide(3) == []
    assert choice.decide(3 + TIMINGS.steady) == [Use(1), Release(2)]


def test_all_are_away_once_each_was_tried() -> None:
    driver = Driver([0, 0, 1])
    driver.run(0)
    assert driver.choice.is_away
    driver.up = {1}
    driver.run(2)
    assert driver.used_plane == 1
    assert not driver.choice.is_away


def test_one_that_is_away_is_tried_often_at_first_and_then_ever_more_rarely() -> None:
    driver = Driver([0])
    driver.run(30)
    first = len(driver.attempts)
    assert 30 <= first <= 120
    driver.run(3600)
    assert max(later - earlier for (earlier, _), (later, _) in pairwise(driver.attempts[:first])) <= TIMINGS.short_delay
    assert len([at for at, _ in driver.attempts if at > 1800]) < 240


def test_a_nearer_one_that_is_back_is_used_once_it_has_lasted() -> None:
    driver = Driver([0, 1], up={1})
    driver.run(100)
    driver.up = {0, 1}
    driver.run(2 * TIMINGS.probe)
    (_, first), (when, last) = driver.uses
    assert (first, last) == (1, 0)
    began = max(at for at, plane in driver.attempts if plane == 0)
    assert when == began + TIMINGS.steady
    assert list(driver.links.values()) == [0]


def test_a_nearer_one_that_comes_and_goes_is_trusted_ever_later() -> None:
    flapping = Driver([0, 1], up={1})
    flapping.run(1)
    waits = []
    for _ in range(4):
        flapping.up = {0, 1}
        start = flapping.now
        while flapping.used_plane != 0:
            flapping.run(1)
        waits.append(flapping.now - start)
        flapping.kill(0)
        flapping.run(1)
        assert flapping.used_plane == 1
    assert waits[-1] >= TIMINGS.steady * 2**3


def test_one_of_the_same_distance_is_never_better() -> None:
    driver = Driver([1, 1, 1], up={0})
    driver.run(1)
    driver.up = {0, 1, 2}
    driver.run(10_000)
    assert [plane for _, plane in driver.uses] == [0]


def test_one_that_is_going_away_is_used_until_another_is_ready() -> None:
    choice = Choice([0, 0], lots=random.Random(1))
    (first,) = choice.decide(0)
    assert isinstance(first, Connect)
    choice.ready(first.link, 0)
    assert choice.decide(0) == [Use(first.link)]
    choice.leaving(first.link, 5)
    (second,) = choice.decide(5)
    assert isinstance(second, Connect)
    assert choice.used == first.link
    assert not choice.is_away
    choice.ready(second.link, 6)
    assert choice.decide(6) == [Use(second.link), Release(first.link)]


def test_one_that_sends_away_whoever_comes_is_asked_ever_more_rarely() -> None:
    driver = Driver([0], up={0})
    driver.run(0)
    for _ in range(200):
        if driver.used is not None:
            driver.choice.leaving(driver.used, driver.now)
        driver.run(1)
    early = [at for at, _ in driver.attempts if at <= 60]
    late = [at for at, _ in driver.attempts if at > 140]
    assert len(late) < len(early) / 1.3


def test_a_renewed_certificate_is_shown_at_once_also_to_one_that_refused_the_last() -> None:
    driver = Driver([0])
    driver.run(1000)
    driver.up = {0}
    driver.choice.renew(driver.now)
    driver.run(0)
    before = driver.used
    assert before is not None
    driver.choice.renew(driver.now)
    driver.run(0)
    assert driver.used not in (None, before)


def test_one_that_refuses_streams_is_left_for_another() -> None:
    driver = Driver([0, 1], up={0, 1})
    driver.run(0)
    refusing = driver.used
    assert refusing is not None
    driver.used = None
    for action in driver.choice.refused(refusing, 0):
        driver._do(action)
    driver.step()
    assert driver.used_plane == 1


def test_several_that_all_refuse_streams_are_away_and_asked_ever_more_rarely() -> None:
    driver = Driver([0, 1], up={0, 1})
    away_at = None
    while driver.now < 3600:
        driver.step()
        if driver.used is not None:
            refusing, driver.used = driver.used, None
            for action in driver.choice.refused(refusing, driver.now):
                driver._do(action)
            if away_at is None and driver.choice.is_away:
                away_at = driver.now
        else:
            driver.now = driver.choice.wake_at()
    assert away_at is not None
    assert away_at < 1
    assert len([at for at, _ in driver.attempts if at < 60]) < 300
    assert len([at for at, _ in driver.attempts if at > 1800]) < 480


def test_one_that_was_lost_though_it_worked_is_followed_by_the_next_at_once() -> None:
    driver = Driver([0, 1], up={0})
    driver.run(5)
    assert driver.used is not None
    driver.choice.answered(driver.used)
    driver.up = {1}
    driver.kill(0)
    driver.step()
    assert driver.used_plane == 1


def test_agents_spread_over_those_of_one_distance() -> None:
    first = []
    for seed in range(60):
        driver = Driver([0, 0, 0], seed=seed, up={0, 1, 2})
        driver.run(0)
        first.append(driver.used_plane)
    assert all(first.count(plane) >= 10 for plane in range(3))


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.sampled_from(("up", "kill", "leave", "refuse", "renew")), st.integers(0, 3), st.floats(0, 100)),
        max_size=40,
    ),
    st.integers(0, 1000),
)
@settings(deadline=None)
def test_whatever_happens_the_nearest_that_is_up_is_used_in_the_end(
    distances: list[int], events: list[tuple[str, int, float]], seed: int
) -> None:
    driver = Driver(distances, seed=seed)
    driver.run(0)
    for what, plane, seconds in events:
        plane %= len(distances)
        before = len(driver.attempts)
        match what:
            case "up":
                driver.up.add(plane)
            case "kill":
                driver.kill(plane)
            case "leave" if driver.used is not None:
                driver.choice.leaving(driver.used, driver.now)
            case "refuse" if driver.used is not None:
                used, driver.used = driver.used, None
                for action in driver.choice.refused(used, driver.now):
                    driver._do(action)
            case _:
                pass
        driver.run(seconds)
        assert driver.choice.used == driver.used
        assert len([link for link in driver.links if driver.links[link] == driver.used_plane]) <= 1
        if not driver.up:
            assert driver.used is None or driver.links[driver.used] not in driver.up
        # never a storm: a few at once, then ever more rarely
        assert len(driver.attempts) - before <= len(distances) * (12 + 4 * min(seconds, 60) + seconds / 5)
    driver.run(5000)
    if driver.up:
        assert driver.used_plane is not None
        nearest = min(distances[plane] for plane in driver.up)
        assert distances[driver.used_plane] == nearest
        assert list(driver.links.values()) == [driver.used_plane]
    else:
        assert driver.used is None
        assert driver.choice.is_away
        assert driver.choice.wake_at() < math.inf
