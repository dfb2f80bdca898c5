"""Failures and the proxies concerned: whose resources stay as they were, are missing, or lack a part."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import Protocol, runtime_checkable

import attrs

from mesh_pilot.engine import FailedPart, Memo, Observer
from mesh_pilot.engine.failures import Condition, Failure, Failures, OwnFailures, failure_of
from mesh_pilot.envoy.catalog.resource_sets import ResourceSet
from mesh_pilot.identity.certificates.secrets import IdentitySet
from mesh_pilot.model.resource import RESOURCE_TYPES

INCOMPLETE_LISTED = 1000
"""Resources without an optional part that are listed. A part may fail in all listeners of the mesh."""


@attrs.frozen
class StandingFailure:
    """A failure and who is concerned."""

    failure: Failure
    proxies: tuple[str, ...]
    """Names of the connected proxies that have the resource, or would. Empty if no proxy has such resources."""


@runtime_checkable
class Reader(Protocol):
    """A proxy that reads sets."""

    @property
    def name(self) -> str: ...

    def requested(self, type_url: str) -> frozenset[str]:
        """The names of a type that it requests."""


def standing_failures(register: Failures) -> list[StandingFailure]:
    """The failures that concern a connected proxy, or no proxy in particular, each once, the oldest first."""
    names: dict[Failure, set[str]] = {}
    oldest: dict[Failure, Failure] = {}
    for owner, failure in register.standing():
        concerned = _concerned(owner, failure)
        if concerned or owner is None:
            names.setdefault(failure, set()).update(concerned)
            oldest[failure] = min(oldest.get(failure, failure), failure, key=lambda each: each.since)
    found = (StandingFailure(failure, tuple(sorted(names[failure]))) for failure in oldest.values())
    return sorted(found, key=lambda each: each.failure.since)


def _concerned(owner: object, failure: Failure) -> Iterable[str]:
    """The names of the proxies that a failure of a set or of a proxy concerns."""
    if isinstance(owner, Reader):
        return (owner.name,)
    if not isinstance(owner, ResourceSet | IdentitySet):
        return ()
    readers = (reader for reader in owner.readers() if isinstance(reader, Reader))
    return [r.name for r in readers if owner.is_plan or failure.name in r.requested(owner.type_url)]


class FailingParts:
    """The optional parts that fail now, as failures of the sets whose resources lack them.

    State: those failures, by set.
    """

    def __init__(self, memo: Memo, register: Failures) -> None:
        self._memo = memo
        self._register = register
        self._own: dict[ResourceSet, OwnFailures] = {}

    def follow(self, sets: Iterable[ResourceSet]) -> None:
        """Bring the register up to date with the memo table. Costs nothing while no part fails."""
        parts = list(self._memo.failed_parts())
        if not parts and not self._own:
            return
        found: dict[ResourceSet, dict[Hashable, tuple[Failure, Exception]]] = {}
        for resources, name, part in islice(_incomplete(parts, sets), INCOMPLETE_LISTED):
            function = part.query.derived.name
            kind = RESOURCE_TYPES[resources.type_url].short
            failure = failure_of(part.error, kind, name, Condition.INCOMPLETE, part=function)
            found.setdefault(resources, {})[name, function] = failure, part.error
        for resources in {**self._own, **found}:
            own = self._own.setdefault(resources, OwnFailures(self._register, resources))
            own.retain(found.get(resources, {}))
            for key, (failure, error) in found.get(resources, {}).items():
                own.put(key, failure, error)
            if not own:
                del self._own[resources]


def _incomplete(
    parts: Iterable[FailedPart], sets: Iterable[ResourceSet]
) -> Iterator[tuple[ResourceSet, str, FailedPart]]:
    """The resources that lack a part: the set and the name of each."""
    set_of: dict[Observer, ResourceSet] = {resources.watch: resources for resources in sets}
    for part in parts:
        for watch, query in part.concerns:
            resources = set_of.get(watch)
            name = resources.name_of(query) if resources is not None else None
            if resources is not None and name is not None:
                yield resources, name, part
