"""One resource being patched: which patches there are, which were applied, and which could not be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import structlog

from mesh_pilot.envoy.envoy_filter.patch import ApplyTo, Patch, PatchError, PatchProblem
from mesh_pilot.model.config import ConfigKey

T = TypeVar("T")

log = structlog.get_logger(scope="envoy")


class Edit:
    """What is done to one resource. Each patch is tried by itself: one that fails leaves the others alone."""

    def __init__(self, patches: Iterable[Patch], resource: str) -> None:
        """``resource`` is what problems are said of: ``cluster outbound|80||a``."""
        self._patches: dict[ApplyTo, list[Patch]] = {}
        for patch in patches:
            self._patches.setdefault(patch.apply_to, []).append(patch)
        self._resource = resource
        self._used: dict[ConfigKey, None] = {}
        self._problems: dict[PatchProblem, None] = {}
        self.changes = 0
        """How many times a patch was applied."""
        self.tried: Patch | None = None
        """The last patch that was tried."""

    def __repr__(self) -> str:
        return f"<Edit of {self._resource}: {self.changes} changes, {len(self._problems)} problems>"

    @property
    def configs(self) -> tuple[ConfigKey, ...]:
        """The EnvoyFilters that changed the resource."""
        return tuple(self._used)

    @property
    def problems(self) -> tuple[PatchProblem, ...]:
        return tuple(self._problems)

    def of(self, kind: ApplyTo) -> Sequence[Patch]:
        """The patches to objects of a kind, in the order in which they apply."""
        return self._patches.get(kind, ())

    def report(self, problems: Iterable[PatchProblem]) -> None:
        """Add problems that were found elsewhere."""
        self._problems.update(dict.fromkeys(problems))

    def apply(self, patch: Patch, change: Callable[[], bool]) -> None:
        """Try a change, which says whether it found anything to do."""
        self.tried = patch
        try:
            done = change()
        except PatchError as error:
            self._problems[PatchProblem(patch.config, patch.index, str(error), self._resource)] = None
            return
        if done:
            self.changes += 1
            self._used[patch.config] = None


def edited(patches: Iterable[Patch], resource: str, change: Callable[[Edit], T]) -> tuple[T, Edit]:
    """What ``change`` returns for an ``Edit`` of a resource, and that edit. ``change`` has to begin anew at each call.

    Where it raises (a fault of ours, or bytes that cannot be decoded), that is put down to the patch that was tried
    last. The resource is edited again without it, so that it costs neither the resource nor the other patches.
    """
    left = tuple(patches)
    broken: list[PatchProblem] = []
    while True:
        edit = Edit(left, resource)
        try:
            result = change(edit)
        except Exception as error:
            tried = edit.tried
            if tried is None:
                raise
            log.error(
                "patch failed; the resource goes without it", resource=resource, patch=tried.where, exc_info=error
            )
            reason = f"it can't be applied ({type(error).__name__}: {error})"
            broken.append(PatchProblem(tried.config, tried.index, reason, resource))
            left = tuple(p for p in left if p is not tried)
            continue
        edit.report(broken)
        return result, edit
