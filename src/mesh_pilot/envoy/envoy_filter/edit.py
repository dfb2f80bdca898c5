"""Applying patches to one resource: which were applied, which could not be, and changes to ordered lists of filters.

Listener filters, network filters and HTTP filters are patched alike. First come all changes of membership and order,
patch by patch, then all merges, so that a patch can merge into a filter that another has inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from mesh_pilot.envoy.core.protobuf import type_name
from mesh_pilot.envoy.envoy_filter.match import selected_name
from mesh_pilot.envoy.envoy_filter.merge import fits_filter, merge_filter
from mesh_pilot.envoy.envoy_filter.patch import (
    ApplyTo,
    FilterClass,
    Operation,
    Patch,
    PatchError,
    PatchMatches,
    PatchProblem,
    PatchRef,
)
from mesh_pilot.envoy.filters import types_in_class
from mesh_pilot.envoy.refusals.extensions import TERMINAL
from mesh_pilot.model.config import ConfigKey


class Edit:
    """One attempt to apply patches to a resource. A patch that fails has no influence on the others.

    State: the patches that changed the resource, the problems of those that could not, and which matched anything.
    """

    def __init__(self, patches: Iterable[Patch], resource: str) -> None:
        """``resource`` names the resource in problems: ``cluster outbound|80||a``."""
        self._patches: dict[ApplyTo, list[Patch]] = {}
        for patch in patches:
            self._patches.setdefault(patch.apply_to, []).append(patch)
        self._resource = resource
        self._applied: dict[ConfigKey, None] = {}
        self._problems: dict[PatchProblem, None] = {}
        self._matched: set[PatchRef] = set()
        self._nearest: dict[PatchRef, str] = {}
        self.changes = 0
        """The number of times that a patch was applied."""
        self.last_tried: Patch | None = None

    def __repr__(self) -> str:
        return f"<Edit of {self._resource}: {self.changes} changes, {len(self._problems)} problems>"

    @property
    def configs(self) -> tuple[ConfigKey, ...]:
        """The EnvoyFilters that changed the resource."""
        return tuple(self._applied)

    @property
    def problems(self) -> tuple[PatchProblem, ...]:
        return tuple(self._problems)

    @property
    def matches(self) -> PatchMatches:
        nearest = ((ref, where) for ref, where in self._nearest.items() if ref not in self._matched)
        return PatchMatches(frozenset(self._matched), tuple(nearest))

    def miss(self, patch: Patch, there: str, names: Iterable[str]) -> None:
        """Note what is there instead of the name that a patch looks for. The first place is kept."""
        if patch.ref not in self._nearest:
            listed = ", ".join(dict.fromkeys(name for name in names if name))
            self._nearest[patch.ref] = f"{self._resource} has the {there} {listed}" if listed else ""

    def patches_to(self, kind: ApplyTo) -> Sequence[Patch]:
        """The patches to objects of a kind, in the order in which they apply."""
        return self._patches.get(kind, ())

    def report(self, problems: Iterable[PatchProblem]) -> None:
        """Add problems of earlier attempts."""
        self._problems.update(dict.fromkeys(problems))

    def apply(self, patch: Patch, change: Callable[[], bool]) -> None:
        """Call ``change``, which returns False if there was nothing to change."""
        self.last_tried = patch
        try:
            changed = change()
        except PatchError as error:
            self._matched.add(patch.ref)
            self._problems[PatchProblem(patch.config, patch.index, str(error), self._resource)] = None
            return
        if changed:
            self._matched.add(patch.ref)
            self.changes += 1
            self._applied[patch.config] = None


# -- lists of filters

_HTTP = "envoy.extensions.filters.http"
_NETWORK = "envoy.extensions.filters.network"

_OTHERS_IN_CLASS: Mapping[FilterClass, tuple[str, ...]] = {
    FilterClass.AUTHN: (
        f"{_HTTP}.oauth2.v3.OAuth2",
        f"{_HTTP}.basic_auth.v3.BasicAuth",
        f"{_HTTP}.api_key_auth.v3.ApiKeyAuth",
    ),
    FilterClass.AUTHZ: (f"{_NETWORK}.rbac.v3.RBAC", f"{_NETWORK}.ext_authz.v3.ExtAuthz"),
}
"""Types of filters in a class besides the HTTP filters that translators generate."""


_ADDED_AFTER = {FilterClass.AUTHN: (FilterClass.AUTHN,), FilterClass.AUTHZ: (FilterClass.AUTHN, FilterClass.AUTHZ)}
"""The classes after whose filters one that is added with a ``filterClass`` goes. STATS is missing: Istio adds these
before its own statistics filters, which stock Envoys do not have, so they go to the end."""

# The three messages for filters have the fields name and typed_config in common, but no type: hence Any.


def patch_filters(edit: Edit, filters: Any, patches: Sequence[Patch]) -> None:
    """Apply patches that match its container to a repeated field of filters."""
    for patch in patches:
        if not patch.is_merge:
            edit.apply(patch, partial(_change_list, filters, patch))
    for filter_ in filters:
        for patch in patches:
            if patch.is_merge and _merges_into(filter_, patch):
                edit.apply(patch, partial(_merge_filter, filter_, patch))
    for patch in patches:
        if selected_name(patch):
            edit.miss(patch, "filters", (filter_.name for filter_ in filters))


def config_type(filter_: Any) -> str:
    """The type name of a filter's config; empty if it has none."""
    return type_name(filter_.typed_config.type_url)


def _merges_into(filter_: Any, patch: Patch) -> bool:
    """True if a merge is for this filter: by name, or for all of its type if it names none."""
    name = selected_name(patch)
    return name == filter_.name if name else fits_filter(filter_, patch)


def _merge_filter(filter_: Any, patch: Patch) -> bool:
    merge_filter(filter_, patch)
    return True


def _change_list(filters: Any, patch: Patch) -> bool:
    """Add, insert, replace or remove a filter; False if the filter that the patch names is not there."""
    name = selected_name(patch)
    named = [index for index, filter_ in enumerate(filters) if name and name == filter_.name]
    # ADD and INSERT_FIRST need no other filter; all else that names one waits for it, as an earlier patch may add it.
    if patch.operation is Operation.ADD:
        filters.insert(_end(filters, patch.filter_class), patch.message)
        return True
    if patch.operation is Operation.INSERT_FIRST:
        filters.insert(0, patch.message)
        return True
    if name and not named:
        return False
    match patch.operation:
        case Operation.REMOVE:
            for index in reversed(named):
                del filters[index]
        case Operation.REPLACE:
            filters[named[0]].CopyFrom(patch.message)
        case Operation.INSERT_AFTER:
            filters.insert(named[0] + 1 if named else _end(filters), patch.message)
        case Operation.INSERT_BEFORE:
            filters.insert(named[0] if named else 0, patch.message)
    return True


def _end(filters: Any, filter_class: FilterClass = FilterClass.UNSPECIFIED) -> int:
    """The index for an added filter: after those of its class, else before the terminal filter.

    Pilot adds after the terminal filter, and Envoy refuses such a listener.
    """
    classes = _ADDED_AFTER.get(filter_class)
    if classes is not None:
        predecessors = types_in_class(*classes).union(*(_OTHERS_IN_CLASS[c] for c in classes))
        return max((index + 1 for index, f in enumerate(filters) if config_type(f) in predecessors), default=0)
    count = len(filters)
    return count - 1 if count and config_type(filters[-1]) in TERMINAL else count
