"""When a certificate is asked for and by what proof, over renewals, outages and clocks that are set."""

from __future__ import annotations

import math

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mesh_pilot.agent.identity.renewal import (
    HASTE_SECONDS,
    RETRY_LIMIT_SECONDS,
    RETRY_SECONDS,
    Moment,
    Proof,
    RenewalPlan,
    Validity,
)
from tests.support.sample import examples

START = 1_800_000_000.0
LIVES = st.floats(10.0, 30 * 86400.0)
PARTS = st.floats(0.0, 1.0)


def plan(part: float = 0.5, *, has_token: bool = True) -> RenewalPlan:
    """A plan whose random numbers are all at the same part of their range."""
    return RenewalPlan(has_token=has_token, uniform=lambda low, high: low + part * (high - low))


@given(LIVES, PARTS, st.floats(0.0, 300.0))
def test_a_new_certificate_is_renewed_between_half_and_three_quarters(life: float, part: float, before: float) -> None:
    now = Moment(START, 1000.0)
    own = plan(part)
    own.hold(Validity(now.wall - before, now.wall + life), now.wall, now)
    assert life * 0.5 - 1e-3 <= own.seconds_to_next(now) <= life * 0.75 + 1e-3


@given(LIVES, PARTS, st.floats(-86400.0, 86400.0))
def test_by_a_wrong_clock_it_is_renewed_within_its_life_all_the_same(life: float, part: float, ahead: float) -> None:
    """The certificate is from now on by the signer's clock; ours is wrong by ``ahead`` seconds."""
    now = Moment(START + ahead, 1000.0)
    own = plan(part)
    own.hold(Validity(START, START + life), now.wall, now)
    assert 0.0 < own.seconds_to_next(now) <= max(1.0, life * 0.75 + 1e-3)


@given(LIVES, PARTS, st.floats(-86400.0, 86400.0))
def test_a_clock_that_is_set_makes_it_earlier_and_never_later(life: float, part: float, step: float) -> None:
    now = Moment(START, 1000.0)
    own = plan(part)
    own.hold(Validity(START, START + life), START, now)
    due = own.seconds_to_next(now)
    later = Moment(now.wall + due + step, now.monotonic + due)
    assert own.seconds_to_next(later) <= 1e-3


def test_one_that_was_kept_over_a_restart_is_renewed_by_when_it_was_obtained() -> None:
    own = plan(0.0)
    now = Moment(START, 5.0)
    own.hold(Validity(START - 4000, START + 6000), START - 4000, now)
    assert math.isclose(own.seconds_to_next(now), 1000.0)
    own.hold(Validity(START - 8000, START + 2000), START - 8000, now)
    assert own.seconds_to_next(now) == 0.0, "it is due"


def test_a_refused_certificate_gives_way_to_the_token_at_once_and_both_are_tried_in_turn() -> None:
    now = Moment(START, 5.0)
    own = plan(1.0)
    own.hold(Validity(START, START + 1000), START, now)
    assert own.proof(now) is Proof.CERTIFICATE
    own.failed(now, refused=Proof.CERTIFICATE)
    assert (own.proof(now), own.seconds_to_next(now)) == (Proof.TOKEN, 0.0)
    own.failed(now, refused=Proof.TOKEN)
    assert own.proof(now) is Proof.CERTIFICATE
    assert own.seconds_to_next(now) == 2 * RETRY_SECONDS
    own.retry_now(now)
    assert own.seconds_to_next(now) == 0.0, "there is another token"


def test_one_that_has_ended_is_shown_only_after_the_token() -> None:
    now = Moment(START, 5.0)
    own, alone = plan(), plan(has_token=False)
    for each in (own, alone):
        each.hold(Validity(START - 2000, START - 1000), START - 2000, now)
    assert own.proof(now) is Proof.TOKEN
    assert alone.proof(now) is Proof.CERTIFICATE, "the clock may be wrong"
    assert plan(has_token=False).proof(now) is None


def test_other_roots_bring_the_next_renewal_forward_and_never_back() -> None:
    now = Moment(START, 5.0)
    own = plan(0.5)
    own.hold(Validity(START, START + 10_000), START, now)
    own.hasten(now)
    assert own.seconds_to_next(now) == HASTE_SECONDS / 2
    own.hold(Validity(START, START + 2), START, now)
    own.hasten(now)
    assert own.seconds_to_next(now) <= 2.0


@attrs.define
class Plane:
    """A control plane: away or not, refusing what it does not like."""

    is_away: bool = False
    refuses: set[Proof] = attrs.field(factory=set)


class RenewalLife(RuleBasedStateMachine):
    """A machine over weeks: outages, refusals, tokens that come, clocks that are set, restarts."""

    @initialize(life=LIVES, has_token=st.booleans(), part=PARTS)
    def begin(self, life: float, has_token: bool, part: float) -> None:
        self.life = life
        self.part = part
        self.now = Moment(START, 100.0)
        self.plan = plan(part, has_token=has_token)
        self.plane = Plane()
        self.held: Validity | None = None
        self.signed = 0

    @rule(seconds=st.floats(0.1, 5 * 86400.0))
    def pass_time(self, seconds: float) -> None:
        """Whatever is due meanwhile is tried."""
        until = self.now.monotonic + seconds
        for _ in range(2000):
            wait = self.plan.seconds_to_next(self.now)
            if self.plan.proof(self.now) is None or self.now.monotonic + wait > until:
                break
            # As the agent: at least some time passes with each attempt.
            self.now = self.now.later(wait + 0.05)
            self.attempt()
        if self.now.monotonic < until:
            self.now = self.now.later(until - self.now.monotonic)

    def attempt(self) -> None:
        proof = self.plan.proof(self.now)
        assert proof is not None and (proof is not Proof.CERTIFICATE or self.held is not None)
        if self.plane.is_away:
            self.plan.failed(self.now)
        elif proof in self.plane.refuses:
            self.plan.failed(self.now, refused=proof)
        else:
            self.held = Validity(self.now.wall - 60, self.now.wall + self.life)
            self.plan.hold(self.held, self.now.wall, self.now)
            self.signed += 1

    @rule(is_away=st.booleans())
    def outage(self, is_away: bool) -> None:
        self.plane.is_away = is_away

    @rule(refuses=st.sets(st.sampled_from(Proof)))
    def refuse(self, refuses: set[Proof]) -> None:
        self.plane.refuses = refuses

    @rule(step=st.floats(-7200.0, 7200.0))
    def set_clock(self, step: float) -> None:
        self.now = Moment(self.now.wall + step, self.now.monotonic)

    @rule(seconds=st.floats(0.0, 86400.0))
    def restart(self, seconds: float) -> None:
        has_token = self.plan.has_token
        self.now = Moment(self.now.wall + seconds, 1.0)
        self.plan = plan(self.part, has_token=has_token)
        if self.held is not None:
            self.plan.hold(self.held, self.held.begins + 60, self.now)

    @precondition(lambda self: self.plan.failures > 0)
    @rule()
    def new_token(self) -> None:
        self.plan.retry_now(self.now)

    @invariant()
    def the_next_attempt_is_never_far(self) -> None:
        wait = self.plan.seconds_to_next(self.now)
        longest = RETRY_LIMIT_SECONDS if self.plan.failures else max(1.0, 0.75 * (self.life + 60)) + 1e-3
        assert 0.0 <= wait <= longest

    @invariant()
    def a_plane_that_signs_is_enough(self) -> None:
        """With somebody who takes a proof that we have, the next attempts give a certificate."""
        proofs = {Proof.CERTIFICATE} if self.held else set()
        proofs |= {Proof.TOKEN} if self.plan.has_token else set()
        if self.plane.is_away or not proofs - self.plane.refuses or not self.plan.failures:
            return
        signed = self.signed
        for _ in range(4):
            self.now = self.now.later(self.plan.seconds_to_next(self.now))
            self.attempt()
            if self.signed > signed:
                return
        raise AssertionError(f"no certificate: {self.plan!r}")


RenewalLife.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
test_over_weeks = RenewalLife.TestCase
