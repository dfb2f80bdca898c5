"""Decides when a certificate is asked for and by what proof: no I/O, no clock.

- A certificate is renewed at a random point between half and three quarters of its life, so that machines that started
  together do not come back together.
- What fails is tried again forever, with waits that double up to a limit and are random from nothing to that.
- One that is not in force, by a clock that is wrong or was, is asked for again each `AGAIN_SECONDS`. It takes the place
  of another only if that is not in force either.
- A certificate that is refused (revoked, or expired) gives way to the token, at once. If that is refused, too, both are
  tried in turn.

Two clocks are looked at, as either may mislead: the wall clock may be set, and the other stands still while the machine
is suspended. Whichever says first that it is time is right.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable

import attrs

RENEWED_BETWEEN = (0.5, 0.75)
RETRY_SECONDS, RETRY_LIMIT_SECONDS = 1.0, 60.0
"""The longest wait after the first failure, and after many."""
SHORTEST_LIMIT_SECONDS = 0.5
RETRIES_IN_A_LIFE = 40
"""The limit is a part of the life, if that is shorter."""
SHORTEST_LIFE_SECONDS = 1.0
"""A signer whose certificates are of no use is not asked without end."""
AGAIN_SECONDS = 60.0
"""The longest wait without a certificate in force."""
HASTE_SECONDS = 10.0
"""The time within which certificates are renewed once there are other roots."""


class Proof(enum.Enum):
    """The evidence of who asks for a certificate."""

    CERTIFICATE = "certificate"
    TOKEN = "token"


@attrs.frozen
class Moment:
    """A time by both clocks, in seconds."""

    wall: float
    monotonic: float

    def later(self, seconds: float) -> Moment:
        return Moment(self.wall + seconds, self.monotonic + seconds)


@attrs.frozen
class Validity:
    """The life of a certificate, in Unix time."""

    begins: float
    ends: float

    def covers(self, wall: float) -> bool:
        return self.begins <= wall < self.ends


class RenewalPlan:
    """Where renewing stands. Mutable state: the certificate's life, the last attempt and the next, what was refused."""

    def __init__(self, *, has_token: bool, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self.has_token = has_token
        self._uniform = uniform
        self._validity: Validity | None = None
        self._next = Moment(0.0, 0.0)
        self._tried = Moment(0.0, 0.0)
        self._over = 0.0
        """The end of the certificate on the monotonic clock."""
        self._refused: set[Proof] = set()
        self.failures = 0
        """Attempts since the last certificate."""

    def __repr__(self) -> str:
        return f"<RenewalPlan of {self._validity}, next at {self._next}, {self.failures} failures>"

    def hold(self, validity: Validity, obtained: float, now: Moment) -> None:
        """Take a certificate that was obtained at ``obtained`` of the wall clock."""
        self._validity, self._refused, self.failures, self._tried = validity, set(), 0, now
        obtained = min(obtained, now.wall)
        whole = validity.ends - validity.begins
        self._over = now.monotonic + whole - (now.wall - obtained)
        # By a clock that is wrong it has not begun, or ended on arrival: then its life is as long as it says.
        life = min(whole, validity.ends - obtained) if obtained < validity.ends else whole
        life = max(life, SHORTEST_LIFE_SECONDS)
        self._next = now.later(obtained + life * self._uniform(*RENEWED_BETWEEN) - now.wall)

    def takes(self, new: Validity, now: Moment) -> bool:
        """True if a new certificate may replace the current one: it is in force, or the current one is not."""
        return self._validity is None or not self._validity.covers(now.wall) or new.covers(now.wall)

    def put_off(self, now: Moment) -> None:
        """Keep the current certificate, because the new one is not in force; the next one may be."""
        self._refused, self.failures, self._tried = set(), 0, now
        self._next = now.later(AGAIN_SECONDS)

    def hasten(self, now: Moment) -> None:
        """Renew soon: the certificate may be by a CA that goes."""
        soon = now.later(self._uniform(0.0, HASTE_SECONDS))
        self._next = Moment(min(self._next.wall, soon.wall), min(self._next.monotonic, soon.monotonic))

    def retry_now(self, now: Moment) -> None:
        """Try at once: there is another token."""
        self._next, self._refused = now, self._refused - {Proof.TOKEN}

    def seconds_to_next(self, now: Moment) -> float:
        """The time until the next attempt if no clock is set; 0 if it is due."""
        seconds = min(self._next.wall - now.wall, self._next.monotonic - now.monotonic)
        if self._validity is not None and not self._validity.covers(now.wall):
            seconds = min(seconds, self._tried.monotonic + AGAIN_SECONDS - now.monotonic)
        return max(0.0, seconds)

    def proof(self, now: Moment) -> Proof | None:
        """The proof to show next; None if there is none."""
        if self._validity is None:
            return Proof.TOKEN if self.has_token else None
        if not self.has_token:
            return Proof.CERTIFICATE
        has_ended = now.wall >= self._validity.ends and now.monotonic >= self._over
        order = [Proof.TOKEN, Proof.CERTIFICATE] if has_ended else [Proof.CERTIFICATE, Proof.TOKEN]
        return next((proof for proof in order if proof not in self._refused), order[0])

    def failed(self, now: Moment, *, refused: Proof | None = None) -> None:
        """Note an attempt that gave no certificate; ``refused``: somebody has judged the proof, and does not take it.

        Another proof is shown at once.
        """
        self.failures += 1
        self._tried = now
        if refused is not None:
            self._refused.add(refused)
            others = {Proof.CERTIFICATE} if self._validity is not None else set[Proof]()
            others |= {Proof.TOKEN} if self.has_token else set()
            if others - self._refused:
                self._next = now
                return
            self._refused.clear()
        longest = min(RETRY_SECONDS * 2.0 ** min(self.failures - 1, 30), self.limit_seconds)
        self._next = now.later(self._uniform(0.0, longest))

    @property
    def limit_seconds(self) -> float:
        """The longest wait between two attempts."""
        if self._validity is None:
            return RETRY_LIMIT_SECONDS
        part = (self._validity.ends - self._validity.begins) / RETRIES_IN_A_LIFE
        return min(RETRY_LIMIT_SECONDS, max(SHORTEST_LIMIT_SECONDS, part))
