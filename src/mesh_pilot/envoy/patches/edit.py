"""One resource being patched: which patches there are, which were applied, and which could not be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mesh_pilot.envoy.patches.patch import ApplyTo, Patch, PatchError, PatchProblem
from mesh_pilot.model.config import ConfigKey


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

    def apply(self, patch: Patch, change: Callable[[], bool]) -> None:
        """Try a change, which says whether it found anything to do."""
        try:
            done = change()
        except PatchError as error:
            self._problems[PatchProblem(patch.config, patch.index, str(error), self._resource)] = None
            return
        if done:
            self.changes += 1
            self._used[patch.config] = None
