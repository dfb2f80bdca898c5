"""Internal errors that stand: since when, however often their text changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs

from mesh_pilot.engine.failures import Condition, Failures, OwnFailures, failure_of

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_failure_stands_since_it_began_and_not_since_its_last_words() -> None:
    register = Failures()
    own = OwnFailures(register)
    for hours in range(3):
        error = KeyError(f"port {hours}")
        failure = failure_of(error, "CDS", "outbound|80||a", Condition.STALE)
        own.put("a", attrs.evolve(failure, since=BEGAN + timedelta(hours=hours)), error)
    ((_, standing),) = register.standing()
    assert (standing.error, standing.since) == ("KeyError: 'port 2'", BEGAN)
    own.pop("a")
    assert not list(register.standing())
