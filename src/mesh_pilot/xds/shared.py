"""What streams in the same state come to alike: worked out once, and kept a while for the next stream.

Everything here is a function of immutable values: sets of names, states (equal states are one object, see ``held``),
parts of resource sets at a revision. So the hundredth client that connects, comes back or is told of a change finds
what the first one came to, and costs no walk through all there is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from weakref import ref

import attrs

from mesh_pilot.model.resource import Resource
from mesh_pilot.xds.held import EMPTY, State, content_digest, intern_names, whole
from mesh_pilot.xds.kept import kept
from mesh_pilot.xds.plan import Plan
from mesh_pilot.xds.sets import ResourceSet

WILDCARD = "*"

NO_NAMES: frozenset[str] = frozenset()


@attrs.frozen
class Wanted:
    """What a list of names asks for."""

    names: frozenset[str]
    wildcard: bool


@kept(lambda names: len(names))
def wanted(names: tuple[str, ...]) -> Wanted:
    """The names of a request."""
    found = frozenset(names)
    return Wanted(intern_names(found - {WILDCARD}), WILDCARD in found)


def joined(some: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """All of both; one of the two where that is enough."""
    return others if not some else some if not others or others is some else some | others


def without(some: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """What is not among the others; the same object if that is everything."""
    if not some or some is others:
        return NO_NAMES
    return some if some.isdisjoint(others) else some - others


@kept(lambda names, new, lost: len(names) + len(new) + len(lost))
def renamed(names: frozenset[str], new: frozenset[str], lost: frozenset[str]) -> frozenset[str]:
    """The names that a client asks for after a request, the same object for all who come to the same."""
    return intern_names(without(joined(names, new), lost))


@kept(lambda names, before: len(names) + len(before))
def moved(names: frozenset[str], before: frozenset[str]) -> frozenset[str]:
    """The names that are asked for and were not before, or the other way round."""
    return names ^ before


def goal(source: ResourceSet, *, wildcard: bool, names: frozenset[str]) -> State:
    """What a client that asks for this should hold."""
    everything = whole(source) if wildcard else EMPTY
    if not names:
        return everything
    for _ in range(2):
        # Looking may bring in what nobody asked for before, and so a new revision.
        place = tuple([(ref(part), part.refresh()) for part in source.parts])
        found = _goal(place, everything, names, _Source(ref(source)))
    return found


@attrs.frozen
class _Source:
    """Where to look; equal to any other, because that is told by the place. Keeps nothing alive."""

    source: ref[ResourceSet] = attrs.field(eq=False)


@kept(lambda place, everything, names, where: len(everything.entries) + len(names))
def _goal(place: Hashable, everything: State, names: frozenset[str], where: _Source) -> State:
    source, entries = where.source(), everything.entries
    assert source is not None
    get = source.get
    return everything.changed([r for name in sorted(names) if name not in entries and (r := get(name))], ())


def differing(held: State, aim: State) -> frozenset[str]:
    """Names that one of the two states has and the other has not, or in another version."""
    if held is aim:
        return NO_NAMES
    return aim.names if held is EMPTY else held.names if aim is EMPTY else _differing(held, aim)


@kept(lambda held, aim: len(held.entries) + len(aim.entries))
def _differing(held: State, aim: State) -> frozenset[str]:
    had = held.entries
    found = [name for name, new in aim.entries.items() if (old := had.get(name)) is None or old.version != new.version]
    return (held.names - aim.names).union(found)


@attrs.frozen
class Offer:
    """What there is of some names."""

    plan: Plan
    """Those that there are."""
    missing: tuple[str, ...]


@kept(lambda names, aim: len(names) + len(aim.entries))
def offer(names: frozenset[str], aim: State) -> Offer:
    """What a state has of these names, by name."""
    order = sorted(names)
    found = [*map(aim.entries.get, order)]
    missing = tuple([name for name, resource in zip(order, found, strict=True) if resource is None])
    return Offer(Plan(tuple([resource for resource in found if resource is not None])), missing)


@kept(lambda held, plan: len(held.entries) + len(plan.puts))
def after(held: State, plan: Plan) -> State:
    """What a client holds once it was sent this."""
    return held.changed(plan.puts, plan.drops)


@attrs.frozen
class Content:
    """What identifies the content of a response that holds what changed."""

    digest: int
    marks: tuple[str, ...] = ()


@kept(lambda plan, removed, clusters: len(plan.puts) + (len(clusters.entries) if clusters else 0))
def content(plan: Plan, removed: tuple[str, ...], clusters: State | None) -> Content:
    """``clusters``: what marks are made from, see ``mark``; None for resources without."""
    marks = () if clusters is None else tuple([mark(resource.name, clusters) for resource in plan.puts])
    return Content(content_digest(plan.puts, removed, marks), marks)


def mark(name: str, clusters: State) -> str:
    """What the version of endpoints ends with for a client that has these clusters: the version of their cluster."""
    cluster = clusters.entries.get(name)
    return "" if cluster is None else f".{cluster.version[:8]}"


@kept(lambda aim, clusters: len(aim.entries) + (len(clusters.entries) if clusters else 0))
def presented(aim: State, clusters: State | None) -> Mapping[str, str]:
    """The versions that a Delta client presents which has all of this."""
    if clusters is None:
        return {name: resource.version for name, resource in aim.entries.items()}
    return {name: resource.version + mark(name, clusters) for name, resource in aim.entries.items()}


def believed(has: Mapping[str, str], aim: State, clusters: State | None, type_url: str) -> State:
    """What a client holds that presents these versions: what it has as it should be, and what is strange."""
    expected = presented(aim, clusters)
    if has == expected:
        return aim
    strange = [name for name, version in has.items() if expected.get(name) != version]
    odd = [Resource(name, type_url, b"", f"{has[name]} at the client") for name in strange]
    return aim.changed(odd, aim.names - has.keys())
