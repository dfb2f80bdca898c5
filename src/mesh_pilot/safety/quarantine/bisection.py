"""Finds the guilty among suspects, from which of them can be released without a refusal. Pure.

::

    search = Bisection(suspects)
    while not (search.verdict or search.is_hopeless):
        search.accepted() if is_accepted_without(search.withheld) else search.refused()

Each guilty one costs about two trials for every halving of the suspects. If several are only refused together, the last
ones in the order of suspects count as guilty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import attrs

Key = tuple[str, ...]


@attrs.frozen
class _Group:
    """Suspects that are released together."""

    keys: tuple[Key, ...]
    is_guilty: bool = False
    """True if at least one of them is known to be guilty."""
    decides_next: bool = False
    """If it is accepted, one of the next group is guilty."""


class Bisection:
    """Mutable state: the groups to release, the one being released, and those found guilty.

    The first trial withholds all suspects. That is also the state if others turn up on the way.
    """

    def __init__(self, suspects: Iterable[Key], hinted: Collection[Key] = ()) -> None:
        """Suspects in the order in which they are released; ``hinted`` ones are probably guilty."""
        self._suspects = tuple(dict.fromkeys(suspects))
        self._hinted = hinted
        self._is_covered = False
        """True once all suspects were withheld, and that was accepted."""
        self._groups: list[_Group] = []
        self._testing: _Group | None = None
        self._guilty: list[Key] = []
        self._accepted_without: frozenset[Key] | None = None
        self.verdict: tuple[Key, ...] | None = None
        """The guilty ones, once they are known and withholding just them is accepted."""
        self.is_hopeless = False
        """True if even withholding all suspects is refused."""
        self.trials = 0

    def __repr__(self) -> str:
        return f"<Bisection of {len(self._suspects)} guilty={self._guilty} testing={self._testing}>"

    @property
    def suspects(self) -> tuple[Key, ...]:
        return self._suspects

    @property
    def is_releasing(self) -> bool:
        """True if a group of suspects is released in the present trial, which a refusal would put to blame."""
        return self._testing is not None

    @property
    def withheld(self) -> tuple[Key, ...]:
        """The suspects to withhold in the next trial, in their order."""
        if not self._is_covered:
            return self._suspects
        kept = {*self._guilty, *(key for group in self._groups for key in group.keys)}
        return tuple(key for key in self._suspects if key in kept)

    def accepted(self) -> None:
        """The last trial was accepted."""
        self.trials += 1
        self._accepted_without = frozenset(self.withheld)
        if not self._is_covered:
            self._is_covered = True
            left = tuple(key for key in self._suspects if key not in self._guilty)
            self._groups = self._first_groups(left) if left else []
        elif self._testing is not None:
            released = self._testing.keys
            self._suspects = tuple(key for key in self._suspects if key not in released)
            if self._testing.decides_next:
                self._groups[0] = attrs.evolve(self._groups[0], is_guilty=True)
        self._testing = None
        self._advance()

    def refused(self, more: Iterable[Key] = ()) -> None:
        """The last trial was refused; ``more`` are suspects that have turned up since the one before."""
        self.trials += 1
        new = tuple(key for key in dict.fromkeys(more) if key not in self._suspects)
        self._suspects += new
        if self._testing is None:
            self.is_hopeless = not new
            self._is_covered = False
            return
        keys = (*self._testing.keys, *new)
        self._testing = None
        self._groups[:0] = [_Group(keys, is_guilty=True)]
        self._advance()

    def _first_groups(self, suspects: tuple[Key, ...]) -> list[_Group]:
        others = tuple(key for key in suspects if key not in self._hinted)
        if not others or len(others) == len(suspects):
            return [_Group(suspects, is_guilty=True)]
        return [_Group(others, decides_next=True), _Group(tuple(k for k in suspects if k in self._hinted))]

    def _advance(self) -> None:
        """Go on to the next group that has to be tested, or to the verdict."""
        while self._groups:
            group = self._groups.pop(0)
            if not group.is_guilty:
                self._testing = group
                return
            if len(group.keys) == 1:
                self._guilty.extend(group.keys)
            else:
                self._groups[:0] = _halves(group.keys)
        if self._accepted_without == frozenset(self._guilty):
            self.verdict = tuple(key for key in self._suspects if key in self._guilty)


def _halves(keys: Sequence[Key]) -> list[_Group]:
    middle = (len(keys) + 1) // 2
    return [_Group(tuple(keys[:middle]), decides_next=True), _Group(tuple(keys[middle:]))]
