"""Errors of mesh-pilot itself while resources are generated: which resource, since when, what stands in its place.

An exception of a translator costs the one resource. It stays at its last good version, or is missing; either way
somebody has to learn of it, so every live set reports here, and the pages and metrics read it.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Protocol
from weakref import WeakSet

import attrs

from mesh_pilot.incremental.memo import TRACEBACK


@attrs.frozen
class Failure:
    """A resource, or a plan of resources, that cannot be generated now."""

    type_url: str
    resource: str
    """The resource's name; of a plan, the function that plans and its arguments."""
    error: str
    """The exception in one line, such as ``KeyError: 'port'``."""
    place: str
    """The innermost line of its traceback: ``access_logs.py, line 12, in json_format``."""
    stays: bool
    """Whether the last good version stays in force; otherwise there is none, and the resource is missing."""
    is_plan: bool
    """Whether it is the list of resources: none is added or removed until it can be made."""
    configs: tuple[str, ...]
    """The objects that the last good version was made from."""
    since: datetime


@attrs.frozen
class StandingFailure:
    """A failure and who is concerned."""

    failure: Failure
    proxies: tuple[str, ...]
    """Names of the connected proxies that have the resource, or would."""


class FailingSet(Protocol):
    """The part of a resource set that ``Failures`` reads."""

    @property
    def is_plan(self) -> bool:
        """True if every reader has all resources of the set."""

    def failures(self) -> Mapping[Hashable, Failure]: ...

    def readers(self) -> tuple[Hashable, ...]: ...


class Failures:
    """All failures of a catalog's sets. State: the total, and the sets that may have failures."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        """Failures since the start, by type URL; each counts once, however long it lasts."""
        self._sets: WeakSet[FailingSet] = WeakSet()

    def note(self, failing: FailingSet, failure: Failure) -> None:
        self.total[failure.type_url] += 1
        self._sets.add(failing)

    def standing(self) -> Iterator[tuple[FailingSet, Failure]]:
        """The failures of sets that have readers. Costs the number of failures, not of resources."""
        for failing in list(self._sets):
            if not failing.failures():
                self._sets.discard(failing)
            elif failing.readers():
                for failure in failing.failures().values():
                    yield failing, failure


def failure_of(
    error: Exception, type_url: str, resource: str, *, stays: bool, is_plan: bool = False, configs: tuple[str, ...] = ()
) -> Failure:
    """The failure for an exception that a derived value raised."""
    return Failure(
        type_url=type_url,
        resource=resource,
        error="".join(traceback.format_exception_only(type(error), error.with_traceback(None))).split("\n")[0][:1000],
        place=_place(error),
        stays=stays,
        is_plan=is_plan,
        configs=configs,
        since=datetime.now(UTC),
    )


def _place(error: Exception) -> str:
    """The innermost place in the traceback that was kept as a note."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith(TRACEBACK):
            places = [line.strip() for line in note.splitlines() if line.startswith("  File ")]
            file, _, rest = places[-1].removeprefix("File ").partition(",") if places else ("", "", "")
            return f"{file.strip(chr(34)).rpartition('/')[2]},{rest}" if file else ""
    return ""
