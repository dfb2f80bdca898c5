"""A machine that is refused shows all the proofs that it has, in turn: whoever refuses may be wrong."""

from __future__ import annotations

from mesh_pilot.agent.identity.renewal import Moment, Proof, RenewalPlan, Validity


def test_certificate_and_token_are_shown_in_turn_while_both_are_refused() -> None:
    plan = RenewalPlan(has_token=True, uniform=lambda low, high: high)
    now = Moment(0.0, 0.0)
    plan.hold(Validity(0.0, 3600.0), 0.0, now)
    shown, waits = [], []
    for _ in range(6):
        proof = plan.proof(now)
        plan.failed(now, refused=proof)
        shown.append(proof)
        waits.append(plan.seconds_to_next(now))
    assert shown == [Proof.CERTIFICATE, Proof.TOKEN] * 3
    assert waits[0::2] == [0.0] * 3  # the other proof is shown at once
    assert 0.0 < waits[1] < waits[3] < waits[5]
