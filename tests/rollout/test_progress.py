"""The progress of rollouts under any order of changes, answers, proxies that come and go, orders and time."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mesh_pilot.model.events import KeySet, RolloutPlan
from mesh_pilot.safety.rollout.progress import Member, Progress, RolloutError, RolloutPhase, allowed, plan_of
from mesh_pilot.safety.state.codec import decode, encode
from tests.support.sample import examples

SHARES = (10.0, 30.0, 60.0, 100.0)


def value(number: int) -> tuple[KeySet, ...]:
    """A value of an object; 0: there is none."""
    return (KeySet("issuer", "", str(number)),) if number else ()


def key(name: str) -> tuple[str, ...]:
    return ("config", "VirtualService", "shop", name)


class Rollouts(RuleBasedStateMachine):
    """Never more than the share, never back but by a refusal or a new object, always back at a refusal."""

    @initialize(always=st.booleans(), count=st.integers(0, 30))
    def begin(self, always: bool, count: int) -> None:
        self.plan = RolloutPlan(SHARES, 60.0)
        self.progress = Progress(self.plan if always else None)
        self.time = 0.0
        self.numbers = {"a": 1, "b": 1}
        self.members: dict[str, Member] = {}
        self.joins(count)

    @rule(count=st.integers(1, 5))
    def joins(self, count: int) -> None:
        for _ in range(count):
            name = f"web-{len(self.members)}.{self.time}"
            self.members[name] = Member(name)

    @rule(number=st.integers(0, 50))
    def leaves(self, number: int) -> None:
        if self.members:
            del self.members[sorted(self.members)[number % len(self.members)]]

    @rule()
    def arm(self) -> None:
        if self.progress.phase in (RolloutPhase.OFF, RolloutPhase.ARMED):
            self.progress.arm(self.plan, self.time)
        else:
            with pytest.raises(RolloutError):
                self.progress.arm(self.plan, self.time)

    @rule(name=st.sampled_from("ab"), number=st.integers(0, 3), is_of_endpoints=st.booleans())
    def change(self, name: str, number: int, is_of_endpoints: bool) -> None:
        before, state, chosen = self.numbers[name], self.progress.state, self.chosen()
        if before == number:
            return
        self.numbers[name] = number
        only = {key(name)} if is_of_endpoints else set()
        self.progress.changed({key(name): (value(before), value(number))}, only, self.members, self.time)
        for each in self.progress.state.changes if self.progress.state else ():
            assert each.new == value(self.numbers[each.key[-1]])
            assert each.new != each.old
        if is_of_endpoints and state is not None and self.progress.state is not None:
            assert self.chosen() == chosen

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0]), accepts=st.booleans())
    def time_passes(self, seconds: float, accepts: bool) -> None:
        before, phase = self.chosen(), self.progress.phase
        self.time += seconds
        members = {node: Member(m.name, m.labels, has_accepted=accepts) for node, m in self.members.items()}
        present = [node for node in members if self.progress.has_new(node)]
        step = self.progress.state.step if self.progress.state else -1
        self.progress.tick(members, self.time)
        if phase is RolloutPhase.PAUSED:
            assert self.chosen() == before
        assert before <= self.chosen() or self.progress.phase in (RolloutPhase.OFF, RolloutPhase.TAKEN_BACK)
        if not accepts and present and phase is RolloutPhase.RUNNING:
            assert self.progress.state is not None
            assert self.progress.state.step == step
        self.within_share(before)

    def within_share(self, before: set[str]) -> None:
        state = self.progress.state
        if state is not None and state.share < 100 and self.chosen() != before:
            present = [node for node in self.members if node in state.canary]
            assert len(present) <= allowed(state.share, len(self.members))

    @rule(number=st.integers(0, 50))
    def refuses(self, number: int) -> None:
        if not self.members:
            return
        node = sorted(self.members)[number % len(self.members)]
        had, state = self.progress.has_new(node), self.progress.state
        assert self.progress.refused(node, "no") == had
        if had:
            assert self.progress.phase is RolloutPhase.TAKEN_BACK
            assert not any(map(self.progress.has_new, self.members))
            assert self.progress.state is not None and self.progress.state.reason == "no"
        else:
            assert self.progress.state is state

    @rule(order=st.sampled_from(["pause", "resume", "promote", "abort"]))
    def orders(self, order: str) -> None:
        try:
            if order == "pause":
                self.progress.pause()
            elif order == "resume":
                self.progress.resume(self.time)
            elif order == "promote":
                self.progress.promote()
                assert self.progress.phase is RolloutPhase.OFF
            else:
                self.progress.abort("an operator")
                assert not any(map(self.progress.has_new, self.members))
        except RolloutError as error:
            assert str(self.progress.phase) in str(error)

    @rule()
    def restart(self) -> None:
        state, chosen = self.progress.state, self.chosen()
        progress = Progress(self.progress._always)
        if state is not None:
            kept = decode(encode(state))
            assert kept == state
            progress.restore(kept, self.time)  # type: ignore[arg-type]  # a RolloutState
        self.progress = progress
        assert self.chosen() == chosen

    def chosen(self) -> set[str]:
        return {node for node in self.members if self.progress.has_new(node)}

    @invariant()
    def something_is_always_waited_for(self) -> None:
        if hasattr(self, "progress"):
            is_running = self.progress.phase is RolloutPhase.RUNNING
            assert bool(self.progress.waits_for(self.members, self.time)) == is_running

    def teardown(self) -> None:
        """Whatever happened: if all accept, it comes to its end."""
        if not hasattr(self, "progress") or self.progress.phase not in (RolloutPhase.RUNNING, RolloutPhase.PAUSED):
            return
        if self.progress.phase is RolloutPhase.PAUSED:
            self.progress.resume(self.time)
        self.members["last"] = Member("last")
        members = {node: Member(m.name, m.labels, has_accepted=True) for node, m in self.members.items()}
        for _ in range(len(SHARES) + 2):
            self.time += 60
            self.progress.tick(members, self.time)
        assert self.progress.phase in (RolloutPhase.OFF, RolloutPhase.TAKEN_BACK)


class TestRollouts(Rollouts.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None, derandomize=True)


def members(*names: str) -> dict[str, Member]:
    return {name: Member(name, {"app": name.partition("-")[0]}, has_accepted=True) for name in names}


def begun(plan: RolloutPlan, connected: dict[str, Member]) -> Progress:
    progress = Progress()
    progress.arm(plan, 0.0)
    progress.changed({key("a"): (value(1), value(2))}, (), connected, 0.0)
    return progress


def test_selected_proxies_are_first() -> None:
    connected = members("web-1", "web-2", "db-1", "db-2", "db-3", "db-4")
    for plan in (plan_of(labels={"app": "web"}), plan_of(names=["web-*"])):
        progress = begun(plan, connected)
        assert progress.state is not None
        assert set(progress.state.canary) == {"web-1", "web-2"}
        progress.tick({**connected, **members("web-3")}, 1.0)
        assert set(progress.state.canary) == {"web-1", "web-2", "web-3"}
        progress.tick({**connected, **members("web-3")}, 120.0)
        assert progress.state is not None
        assert progress.state.share == 100, "5, 25 and 50 % of 7 proxies are no more than the three"


def test_one_that_refuses_already_is_chosen_last() -> None:
    connected = {f"web-{n}": Member(f"web-{n}", is_refusing=n != 3) for n in range(8)}
    progress = begun(plan_of(), connected)
    assert progress.state is not None
    assert progress.state.canary == ("web-3",)


def test_it_waits_for_the_connected_proxies_of_the_canary_only() -> None:
    connected = members(*(f"web-{n}" for n in range(8)))
    progress = begun(plan_of(canary=25), connected)
    assert progress.state is not None
    gone, late = progress.state.canary
    del connected[gone]
    connected[late] = Member(late)
    progress.tick(connected, 200.0)
    assert progress.waits_for(connected, 200.0) == f"{late} to accept what was sent"
    connected[late] = Member(late, has_accepted=True)
    progress.tick(connected, 200.0)
    assert progress.state.share == 50


def test_a_silent_proxy_is_left_out_after_two_intervals() -> None:
    connected = members(*(f"web-{n}" for n in range(8)))
    progress = begun(plan_of(canary=25), connected)
    assert progress.state is not None
    _, silent = progress.state.canary
    connected[silent] = Member(silent)
    assert progress.due(130.0) == 240.0
    progress.tick(connected, 239.0)
    assert progress.state.share == 25
    progress.tick(connected, 240.0)
    assert progress.state.share == 50
    assert len(progress.state.canary) == 5, "another one stands in for it"


def test_if_the_whole_canary_is_silent_others_have_the_new_values_before_it_goes_on() -> None:
    connected = members(*(f"web-{n}" for n in range(8)))
    progress = begun(plan_of(canary=12.5), connected)
    assert progress.state is not None
    (silent,) = progress.state.canary
    connected[silent] = Member(silent)
    progress.tick(connected, 240.0)
    assert progress.state.share == 12.5 and len(progress.state.canary) == 2
    progress.tick(connected, 300.0)
    assert progress.state.share == 12.5
    progress.tick(connected, 360.0)
    assert progress.state.share == 25


def test_no_proxy_can_name_itself_into_the_canary() -> None:
    """R1: whose plain hash is the smallest of all is not the canary of every control plane."""
    names = sorted((f"m-{n}" for n in range(500)), key=lambda name: blake2b(name.encode(), digest_size=8).digest())
    connected = members(names[0], *(f"web-{n}" for n in range(20)))
    chosen = set()
    for _ in range(20):
        progress = begun(plan_of(canary=5), connected)
        assert progress.state is not None
        chosen.update(progress.state.canary)
    assert len(chosen) > 1


def test_an_armed_rollout_is_forgotten_in_time() -> None:
    progress = Progress()
    progress.arm(plan_of(within=60.0), 0.0)
    assert progress.due(0.0) == 60.0
    progress.tick({}, 59.0)
    assert progress.phase is RolloutPhase.ARMED
    progress.tick({}, 60.0)
    assert progress.phase is RolloutPhase.OFF


def test_another_object_after_a_take_back_goes_to_all_unless_every_change_is_rolled_out() -> None:
    connected = members("web-1", "web-2")
    once = begun(plan_of(), connected)
    once.abort("no")
    once.changed({key("b"): (value(1), value(2))}, (), connected, 1.0)
    assert once.state is not None and [each.key for each in once.state.changes] == [key("a")]
    always = Progress(plan_of())
    for name in "ab":
        always.changed({key(name): (value(1), value(2))}, (), connected, 1.0)
        if name == "a":
            always.abort("no")
    assert always.state is not None
    assert [each.key for each in always.state.held] == [key("a")]
    assert always.phase is RolloutPhase.RUNNING
    for time in (200.0, 400.0, 600.0):
        always.tick(connected, time)
    assert always.phase is RolloutPhase.TAKEN_BACK


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"canary": 5.0, "names": ["a"]}, "not both"),
        ({"canary": 0.0}, "between 0 and 100"),
        ({"steps": (5.0, 101.0)}, "between 0 and 100"),
        ({"steps": (50.0, 5.0)}, "larger"),
        ({"interval": -1.0}, "negative"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(RolloutError, match=reason):
        plan_of(**given)  # type: ignore[arg-type]  # what a caller may send
