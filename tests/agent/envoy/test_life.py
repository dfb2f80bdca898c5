"""Envoy's life as transitions: no process, and times of the test's own."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.agent.envoy.life import (
    CHANGED_SECONDS,
    ERROR_SECONDS,
    LONGEST_SECONDS,
    RETRY_SECONDS,
    EnvoyLife,
    EnvoyState,
    ReplaceEnvoy,
    RestartBackoff,
    StartEnvoy,
    WaitUntil,
    Wanted,
)
from mesh_pilot.agent.settings import EnvoySettings


def wanted(name: str) -> Wanted:
    return Wanted({"node": {"id": name}}, EnvoySettings())


FIRST, SECOND = wanted("first"), wanted("second")


def running(on: Wanted = FIRST) -> EnvoyLife:
    """The life of an Envoy that is ready."""
    life = EnvoyLife(RestartBackoff(lambda: 0.0))
    life.want(on, 0.0)
    assert life.next(0.0, is_alone=True) == StartEnvoy(on)
    life.started(on)
    life.ready()
    return life


def test_without_a_bootstrap_nothing_is_started() -> None:
    assert EnvoyLife(RestartBackoff(lambda: 0.0)).next(0.0, is_alone=True) == WaitUntil()


def test_one_that_has_ended_is_started_again_after_a_pause_that_grows() -> None:
    life, now = running(), 0.0
    for pause in (0.1, 0.2, 0.4):
        assert life.ended(1.0, now) == pause
        assert life.state is EnvoyState.DOWN
        assert life.next(now, is_alone=True) == WaitUntil(now + pause)
        now += pause
        assert life.next(now, is_alone=True) == StartEnvoy(FIRST)
        life.started(FIRST)


def test_another_bootstrap_shortens_the_pause_to_half_a_second() -> None:
    life = running()
    for _ in range(10):
        life.ended(0.0, 0.0)
    assert life.next(0.0, is_alone=True) == WaitUntil(LONGEST_SECONDS)
    life.want(FIRST, 0.1)
    assert life.next(0.1, is_alone=True) == WaitUntil(LONGEST_SECONDS)
    life.want(SECOND, 0.1)
    assert life.next(0.1, is_alone=True) == WaitUntil(CHANGED_SECONDS)
    assert life.next(CHANGED_SECONDS, is_alone=True) == StartEnvoy(SECOND)


def test_another_bootstrap_replaces_it_once_nothing_older_runs() -> None:
    life = running()
    assert life.next(1.0, is_alone=True) == WaitUntil()
    life.want(SECOND, 1.0)
    assert life.next(1.0, is_alone=False) == WaitUntil()
    assert life.next(1.0, is_alone=True) == ReplaceEnvoy(SECOND)
    life.replacing(SECOND)
    assert life.next(1.0, is_alone=True) == WaitUntil()
    life.succeeded(SECOND)
    assert (life.state, life.trials.current) == (EnvoyState.UP, SECOND)
    assert life.next(1.0, is_alone=True) == WaitUntil()


def test_a_refused_bootstrap_is_tried_once_and_the_good_one_is_started_where_none_runs() -> None:
    life = running()
    life.want(SECOND, 1.0)
    life.replacing(SECOND)
    life.refused(SECOND)
    assert (life.state, life.trials.current) == (EnvoyState.UP, FIRST)
    assert life.next(1e6, is_alone=True) == WaitUntil()
    life.ended(100.0, 1e6)
    assert life.next(2e6, is_alone=True) == StartEnvoy(FIRST)
    life.started(FIRST)
    assert life.next(2e6, is_alone=True) == ReplaceEnvoy(SECOND)  # the machine may be another by now


def test_a_fault_of_the_machine_is_tried_again_and_other_bootstraps_sooner() -> None:
    life = running()
    life.want(SECOND, 1.0)
    life.replacing(SECOND)
    life.failed(2.0)
    assert (life.state, life.trials.refused) == (EnvoyState.UP, None)
    assert life.next(2.0, is_alone=True) == WaitUntil(2.0 + RETRY_SECONDS)
    assert life.next(2.0 + RETRY_SECONDS, is_alone=True) == ReplaceEnvoy(SECOND)
    life.want(wanted("third"), 2.0)
    assert life.next(2.0, is_alone=True) == WaitUntil(2.0 + CHANGED_SECONDS)


def test_an_error_of_a_step_delays_the_next_and_repeats_no_trial() -> None:
    life = running()
    life.failed(2.0)
    assert life.next(2.0, is_alone=True) == WaitUntil(math.inf)
    life.want(SECOND, 2.0)
    assert life.next(2.0, is_alone=True) == WaitUntil(2.0 + min(CHANGED_SECONDS, ERROR_SECONDS))


def test_one_that_was_taken_over_is_compared_with_the_first_bootstrap() -> None:
    life = EnvoyLife(RestartBackoff(lambda: 0.0))
    life.begin(is_up=True)
    assert life.next(0.0, is_alone=True) == WaitUntil()
    life.want(FIRST, 0.0)
    assert life.next(0.0, is_alone=True) == ReplaceEnvoy(FIRST)
    assert life.trials.current is None


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["want", "start", "end", "fail", "refuse", "succeed", "drain", "ready"]), st.floats(0, 5)
    ),
    max_size=40,
)


@given(EVENTS)
def test_whatever_happens_it_starts_one_only_where_none_runs_and_none_once_it_drains(
    events: list[tuple[str, float]],
) -> None:
    """Events come as the runner tells them: a step is taken when it is due, and ends in one of its outcomes."""
    life = EnvoyLife(RestartBackoff(lambda: 0.5))
    now, runs, drains, names = 0.0, False, False, 0
    for event, seconds in events:
        now += seconds
        step = life.next(now, is_alone=True)
        assert not (drains and isinstance(step, StartEnvoy | ReplaceEnvoy))
        assert not (isinstance(step, StartEnvoy) and runs)
        assert not (isinstance(step, ReplaceEnvoy) and not runs)
        match event, step:
            case "want", _:
                names += 1
                life.want(wanted(str(names)), now)
            case "start", StartEnvoy(on):
                life.started(on)
                runs = True
            case (("fail" | "refuse" | "succeed"), ReplaceEnvoy(on)):
                life.replacing(on)
                outcomes = {"fail": lambda: life.failed(now), "refuse": lambda: life.refused(on)}  # noqa: B023
                outcomes.get(event, lambda: life.succeeded(on))()
            case "end", _ if runs and not drains:
                life.ended(seconds, now)
                runs = False
            case "ready", _ if runs:
                life.ready()
            case "drain", _:
                life.drain()
                drains = True
    later = life.next(now + LONGEST_SECONDS + RETRY_SECONDS, is_alone=True)
    if drains or life.wanted is None:
        assert later == WaitUntil()
    elif not runs:
        assert isinstance(later, StartEnvoy)
    else:
        assert later == WaitUntil() or isinstance(later, ReplaceEnvoy)
