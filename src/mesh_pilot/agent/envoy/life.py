"""The life of Envoy under the agent as a pure state machine: no process, no I/O, no clock.

``EnvoyRunner`` tells it what has happened and does what ``next`` answers; it never asks what to do from where it
stands in a coroutine. An exception may come at any await of a start or a replacement, and a process may end at any
time: whatever is left then, the runner looks at it, says so here, and the next step follows from the state alone. With
the steps as a sequence of awaits, each exception would need its own way back into the middle of it.

A bootstrap that an Envoy did not take over on is not tried again until another one is wanted, but a start where none
runs is not to fail for it: there the last one that was good is used, and the refused one is tried as its successor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import attrs

from mesh_pilot.agent.settings import EnvoySettings

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""After an Envoy that lived this long, delays start again at the first."""
CHANGED_SECONDS = 0.5
"""The least pause, where another bootstrap is wanted."""
ERROR_SECONDS = 1.0
"""Before another step while Envoy serves, after an exception in the last."""
RETRY_SECONDS = 10.0
"""Before another try to replace Envoy, where the last has failed for a fault of the machine, not of the bootstrap."""


@attrs.frozen
class Wanted:
    """The bootstrap and settings that Envoy is to run on."""

    bootstrap: Mapping[str, Any]
    settings: EnvoySettings
    request: int = 0
    """Another number: a hot restart, even if nothing else differs."""


@attrs.define
class RestartBackoff:
    """Delays that double from 0.1 to 30 s, each less a random part of up to a half."""

    chance: Callable[[], float]
    """Random numbers from 0 to 1."""
    failures: int = 0

    def after(self, lived_seconds: float) -> float:
        """Seconds to wait, after an Envoy that lived this long."""
        if lived_seconds >= STEADY_SECONDS:
            self.failures = 0
        longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return longest * (1 - self.chance() / 2)


class EnvoyState(Enum):
    """The states of Envoy's life."""

    DOWN = "none runs: one is started once it is due"
    UP = "one serves, or starts"
    REPLACING = "another one is about to take over from the one that serves"
    DRAINING = "connections end; Envoy is not started again"


@attrs.frozen
class StartEnvoy:
    """Start an Envoy where none runs."""

    wanted: Wanted


@attrs.frozen
class ReplaceEnvoy:
    """Have another Envoy take over from the one that serves, once nothing older runs."""

    wanted: Wanted


@attrs.frozen
class WaitUntil:
    """Nothing is to be done until something happens, or this time has come."""

    until: float = math.inf


@attrs.define
class EnvoyTrials:
    """The bootstraps that were tried, and what came of it."""

    current: Wanted | None = None
    """The one that the Envoy runs on; None for one that was taken over."""
    last: Wanted | None = None
    """The last that was tried."""
    refused: Wanted | None = None
    """One that an Envoy did not take over on."""
    good: Wanted | None = None
    """The last that an Envoy became ready on."""


class EnvoyLife:
    """Mutable state: the state, when its next step is due, what is wanted, and what was tried."""

    def __init__(self, backoff: RestartBackoff) -> None:
        self.state = EnvoyState.DOWN
        self.wanted: Wanted | None = None
        self.trials = EnvoyTrials()
        self._backoff = backoff
        self._since = self._due = -math.inf
        """When the wait for the next step has begun, and when it ends."""
        self._again_at = math.inf
        """When the last trial is repeated."""

    def __repr__(self) -> str:
        return f"<EnvoyLife {self.state.name}, due at {self._due:.1f}>"

    def next(self, now: float, *, is_alone: bool) -> StartEnvoy | ReplaceEnvoy | WaitUntil:
        """The next step. ``is_alone``: no older Envoy still ends its connections."""
        if self.state in (EnvoyState.DRAINING, EnvoyState.REPLACING) or self.wanted is None:
            return WaitUntil()
        trials, due = self.trials, self._due
        if self.state is EnvoyState.UP:
            if not is_alone:
                return WaitUntil()
            if self.wanted == trials.last:
                due = max(due, self._again_at)
        if now < due:
            return WaitUntil(due)
        if self.state is EnvoyState.UP:
            return ReplaceEnvoy(self.wanted)
        return StartEnvoy(trials.good if trials.good and self.wanted == trials.refused else self.wanted)

    # -- what happens

    def want(self, wanted: Wanted, now: float) -> None:
        """Another bootstrap shortens a wait, which may be for the sake of the one before."""
        if wanted != self.wanted:
            self.wanted = wanted
            self._due = min(self._due, max(now, self._since + CHANGED_SECONDS))

    def begin(self, *, is_up: bool) -> None:
        """The runner begins; ``is_up``: with an Envoy of the version before, on a bootstrap that is not known."""
        if self.state is not EnvoyState.DRAINING:
            self.state = EnvoyState.UP if is_up else EnvoyState.DOWN

    def started(self, wanted: Wanted) -> None:
        self.trials.last = wanted
        self._run_on(wanted)

    def replacing(self, wanted: Wanted) -> None:
        """A replacement begins; ``succeeded``, ``refused`` or ``failed`` ends it."""
        self.trials.last, self._again_at = wanted, math.inf
        self._enter(EnvoyState.REPLACING)

    def succeeded(self, wanted: Wanted) -> None:
        """The Envoy runs on this now: another one, or the same where it did already."""
        self._run_on(wanted)

    def refused(self, wanted: Wanted) -> None:
        """No Envoy takes over on this; the one that runs is kept."""
        self.trials.refused = wanted
        self._enter(EnvoyState.UP)

    def failed(self, now: float) -> None:
        """A step has failed for a fault of the machine, or ours, while an Envoy serves."""
        if self.state is EnvoyState.REPLACING:
            self._again_at = now + RETRY_SECONDS
        self._enter(EnvoyState.UP)
        self._put_off(ERROR_SECONDS, now)

    def ready(self) -> None:
        self.trials.good = self.trials.current

    def ended(self, lived_seconds: float, now: float) -> float:
        """The Envoy ended after a life of this length, or could not be started; the seconds until the next."""
        self._enter(EnvoyState.DOWN)
        seconds = self._backoff.after(lived_seconds)
        self._put_off(seconds, now)
        return seconds

    def drain(self) -> None:
        """Drain for good: whatever else happens, Envoy is not started again."""
        self.state = EnvoyState.DRAINING

    def _run_on(self, wanted: Wanted) -> None:
        self.trials.current, self._again_at = wanted, math.inf
        self._enter(EnvoyState.UP)

    def _enter(self, state: EnvoyState) -> None:
        if self.state is not EnvoyState.DRAINING:
            self.state = state

    def _put_off(self, seconds: float, now: float) -> None:
        self._since, self._due = now, now + seconds
