"""Edits of an object whose change is being rolled out: the canary has each for a whole step before others get it."""

from __future__ import annotations

from mesh_pilot.model.events import RolloutPlan
from mesh_pilot.safety.rollout.progress import Member, Progress
from tests.rollout.test_progress import key, value

INTERVAL = 60.0


def test_a_value_that_changes_again_is_with_the_canary_for_a_whole_step() -> None:
    members = {f"web-{number}": Member(f"web-{number}", has_accepted=True) for number in range(10)}
    progress = Progress(RolloutPlan((10.0, 100.0), INTERVAL))
    progress.changed({key("a"): (value(1), value(2))}, set(), members, now=0.0)
    assert progress.state is not None and len(progress.state.canary) == 1
    progress.changed({key("a"): (value(2), value(3))}, set(), members, now=50.0)
    assert progress.due(50.0) == 50.0 + INTERVAL
    assert not progress.tick(members, now=INTERVAL)
    assert progress.tick(members, now=50.0 + INTERVAL)
    assert all(map(progress.has_new, members)) or progress.state is None
