"""Applying the patches of a resource, without those that fail and those because of which Envoy would refuse it, or wait
forever for what it names.

The result is checked as a whole, because a patch may complete or repair what another one does. Only if it is
found wanting, trials with fewer patches find the culprits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import structlog
from google.protobuf.message import Message

from mesh_pilot.envoy.envoy_filter.edit import Edit
from mesh_pilot.envoy.envoy_filter.patch import Patch, PatchProblem
from mesh_pilot.envoy.refusals.check import refusals

T = TypeVar("T", bound=Message | None)

log = structlog.get_logger(scope="envoy")

MAX_TRIALS = 100
"""Trials for one resource; the patches that are not tried by then are left out."""

MAX_LEFT_OUT_IN_TURN = 20
"""Patches of one EnvoyFilter up to which each of them is left out in turn."""

_REFUSED = "Envoy would refuse it: "

_INDEX = re.compile(r"\[\d+\]")


Unserved = Callable[[Message], Iterator[str]]
"""Reasons why Envoy would wait forever for what a message names."""


def _nothing(_: Message) -> Iterator[str]:
    return iter(())


def apply_patches(
    patches: Iterable[Patch], resource: str, change: Callable[[Edit], T], unserved: Unserved = _nothing
) -> tuple[T, Edit]:
    """Call ``change`` with an ``Edit`` of a resource; returns its result and the edit. It starts again at each call.

    ``change`` returns the message, or None if a patch removes the resource.
    """
    patches = tuple(patches)
    attempts = _Attempts(resource, change, unserved)
    result, edit = attempts.apply(patches)
    if not edit.changes or result is None or not next(attempts.reasons(result), ""):
        return result, edit
    return attempts.apply(attempts.accepted((), attempts.fit(patches)))


class _Attempts(Generic[T]):
    """Attempts to apply patches to one resource.

    State: the patches found guilty, why, and how many trials are left.
    """

    def __init__(self, resource: str, change: Callable[[Edit], T], unserved: Unserved) -> None:
        self._resource = resource
        self._change = change
        self._unserved = unserved
        self._guilty: dict[int, PatchProblem] = {}
        """The problems of patches that are left out, by their ``id``."""
        self._trials = MAX_TRIALS
        self._own: frozenset[str] | None = None
        """Problems of the resource without patches: no patch is to blame for them."""

    def reasons(self, result: Message) -> Iterator[str]:
        """The reasons why Envoy could not use a resource: it refuses it, or waits forever."""
        yield from (_REFUSED + text for text in refusals(result))
        yield from self._unserved(result)

    def fit(self, patches: Iterable[Patch]) -> tuple[Patch, ...]:
        """The patches that are not found guilty."""
        return tuple(patch for patch in patches if id(patch) not in self._guilty)

    def apply(self, patches: tuple[Patch, ...]) -> tuple[T, Edit]:
        """Apply patches. The edit has the problems of the guilty ones, too.

        If ``change`` raises (a bug of ours, or bytes that cannot be decoded), the patch that was tried last is guilty.
        The resource is edited again without it, which costs neither the resource nor the other patches.
        """
        while True:
            edit = Edit(self.fit(patches), self._resource)
            try:
                result = self._change(edit)
            except Exception as error:
                culprit = edit.last_tried
                if culprit is None:
                    raise
                resource = self._resource
                log.error(
                    "patch failed; the resource goes without it", resource=resource, patch=culprit.path, exc_info=error
                )
                self._blame(culprit, f"it can't be applied ({type(error).__name__}: {error})")
                continue
            edit.report(self._guilty.values())
            return result, edit

    def accepted(self, accepted: tuple[Patch, ...], more: tuple[Patch, ...]) -> tuple[Patch, ...]:
        """The patches that Envoy accepts: those that it does already, and of some more as many as go with them.

        Patches that conflict are accepted in their order. Those of one EnvoyFilter may need one another, so they are
        only parted if leaving out one of them does not help.
        """
        reason = self._reason(accepted + more)
        if not reason:
            return accepted + more
        if len(more) == 1 or not self._trials:
            for patch in more:
                self._blame(patch, reason)
            return accepted
        middle = _boundary(more)
        if middle is None and len(more) <= MAX_LEFT_OUT_IN_TURN:
            for index in reversed(range(len(more))):
                rest = more[:index] + more[index + 1 :]
                if not self._reason(accepted + rest):
                    self._blame(more[index], reason)
                    return accepted + rest
        middle = middle or len(more) // 2
        return self.accepted(self.accepted(accepted, more[:middle]), more[middle:])

    def _reason(self, patches: tuple[Patch, ...]) -> str:
        """Why Envoy could not use the resource with these patches; empty if it can."""
        if not self._trials:
            return f"{_REFUSED}the patches of {self._resource} need more than {MAX_TRIALS} trials"
        self._trials -= 1
        result, _ = self.apply(patches)
        if result is None:
            return ""
        return next((text for text in self.reasons(result) if _INDEX.sub("", text) not in self._own_refusals()), "")

    def _own_refusals(self) -> frozenset[str]:
        if self._own is None:
            result = self._change(Edit((), self._resource))
            self._own = (
                frozenset(_INDEX.sub("", text) for text in self.reasons(result)) if result is not None else frozenset()
            )
        return self._own

    def _blame(self, patch: Patch, reason: str) -> None:
        self._guilty[id(patch)] = PatchProblem(patch.config, patch.index, reason, self._resource)


def _boundary(patches: Sequence[Patch]) -> int | None:
    """The index nearest the middle where another EnvoyFilter begins; None: all are of one."""
    starts = [i for i in range(1, len(patches)) if patches[i].config != patches[i - 1].config]
    return min(starts, key=lambda index: abs(index - len(patches) // 2), default=None)
