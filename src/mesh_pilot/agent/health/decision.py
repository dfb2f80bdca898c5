"""The decision whether the application is healthy, from one result of a probe after another. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mesh_pilot.agent.relay.subscriptions import ApplicationHealth


@attrs.define
class ProbeDecision:
    """The state of one probe. It changes after ``success_threshold`` or ``failure_threshold`` results in a row."""

    success_threshold: int
    failure_threshold: int
    is_healthy: bool | None = None
    """None until enough results have come."""
    reason: str = ""
    """The reason of the failure that decided."""
    in_a_row: int = 0
    """Equal results up to now: successes if positive, failures if negative."""

    def record(self, result: ApplicationHealth) -> bool:
        """Take in a result; true if it changed the state."""
        if result.is_healthy:
            self.in_a_row = max(self.in_a_row, 0) + 1
            decided = self.in_a_row >= self.success_threshold
        else:
            self.in_a_row = min(self.in_a_row, 0) - 1
            decided = -self.in_a_row >= self.failure_threshold
        if not decided or self.is_healthy is result.is_healthy:
            return False
        self.is_healthy, self.reason = result.is_healthy, result.reason
        return True


def overall(probes: Sequence[ProbeDecision]) -> ApplicationHealth | None:
    """All probes together: unhealthy if one is; None while another is undecided."""
    for probe in probes:
        if probe.is_healthy is False:
            return ApplicationHealth(False, probe.reason)
    if any(probe.is_healthy is None for probe in probes):
        return None
    return ApplicationHealth(True)
