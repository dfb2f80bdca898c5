"""What clients hold of one type: immutable states, shared by all clients that hold the same.

A state's digest is the sum of its resources' digests. A change therefore costs what it touches, the order of events
leaves no trace, and two clients (in any process) that hold the same have the same digest, which makes it their
``version_info``. Equal states of one process are one object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from weakref import WeakKeyDictionary, WeakValueDictionary

import attrs

from mesh_pilot.model.resource import Resource
from mesh_pilot.xds.kept import kept
from mesh_pilot.xds.sets import Part, ResourceSet

_MASK = (1 << 128) - 1

_states: WeakValueDictionary[int, State] = WeakValueDictionary()
"""Every state in use, by digest."""

_whole: WeakKeyDictionary[Part, tuple[int, State]] = WeakKeyDictionary()
"""The revision and state of each part of a set when it was last looked at as a whole."""

RECENT = 32
"""States of clients that left that are kept."""

RECENT_TRIMS = 3
"""Calls of ``trim`` that such a state outlives."""

_recent: dict[State, int] = {}
"""States of clients that left a while ago, which they have when they come back; and how many calls of ``trim`` each is
kept for. The latest last."""

_names: WeakValueDictionary[int, frozenset[str]] = WeakValueDictionary()
"""Every set of subscribed names in use, by hash."""


@attrs.frozen(eq=False)
class State:
    """Resources by name; never changed."""

    digest: int
    entries: Mapping[str, Resource] = attrs.field(repr=lambda entries: str(len(entries)))

    @property
    def version(self) -> str:
        """The digest as text: the same for the same resources in any process."""
        return f"{self.digest:032x}"

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.entries)

    def changed(self, puts: Iterable[Resource], drops: Iterable[str]) -> State:
        """This state with resources put in and names taken out. Copies only when nobody holds the result yet."""
        puts, drops = tuple(puts), tuple(drops)
        digest = self.digest
        for name in drops:
            digest -= _digest_of(self.entries.get(name))
        for resource in puts:
            digest += resource.digest - _digest_of(self.entries.get(resource.name))
        found = _states.get(digest & _MASK)
        if found is not None:
            return found
        entries = dict(self.entries)
        for name in drops:
            entries.pop(name, None)
        entries.update((resource.name, resource) for resource in puts)
        return _shared(digest, entries)

    def only(self, names: Collection[str]) -> State:
        """This state without what is not named."""
        return self.changed((), [name for name in self.entries if name not in names])

    def listing(self) -> tuple[Resource, ...]:
        """The resources in the order in which they are sent: by name."""
        return _listing(self)


@kept(lambda state: len(state.entries))
def _listing(state: State) -> tuple[Resource, ...]:
    return tuple([resource for _, resource in sorted(state.entries.items())])


def _digest_of(resource: Resource | None) -> int:
    return 0 if resource is None else resource.digest


def _shared(digest: int, entries: Mapping[str, Resource]) -> State:
    digest &= _MASK
    found = _states.get(digest)
    if found is None:
        found = _states[digest] = State(digest, entries)
    return found


EMPTY = _shared(0, {})
"""Nothing held."""


def remember(state: State) -> None:
    """Keep what a client that is leaving holds, for some time."""
    _recent.pop(state, None)
    _recent[state] = RECENT_TRIMS
    if len(_recent) > RECENT:
        del _recent[next(iter(_recent))]


def trim() -> int:
    """Forget states of clients that left long ago; returns the number of names in them. Call every now and then."""
    gone = [state for state, trims in _recent.items() if trims <= 1]
    for state in gone:
        del _recent[state]
    for state in _recent:
        _recent[state] -= 1
    return sum([len(state.entries) for state in gone])


def recall(version: str) -> State | None:
    """The state of a version, if anyone holds it or held it lately."""
    try:
        return _states.get(int(version, 16))
    except ValueError:
        return None


def whole(source: ResourceSet) -> State:
    """Everything a wildcard gets from a set; costs what was touched since its parts were last asked, by any proxy."""
    parts = source.parts
    if len(parts) == 1:
        return _whole_of(parts[0])
    digest = sum([_whole_of(part).digest for part in parts]) & _MASK
    return _states.get(digest) or _shared(digest, source.all())


def _whole_of(part: Part) -> State:
    revision = part.refresh()
    known = _whole.get(part)
    if known is not None and known[0] == revision:
        return known[1]
    entries = part.all()
    touched = None if known is None else part.touched_since(known[0])
    if known is None or touched is None:
        digest = sum([resource.digest for resource in entries.values()])
    else:
        before = known[1]
        digest = before.digest
        for name in touched:
            digest += _digest_of(entries.get(name)) - _digest_of(before.entries.get(name))
    state = _shared(digest, entries)
    _whole[part] = (revision, state)
    return state


def content_digest(resources: Iterable[Resource], removed: Iterable[str] = (), marks: Iterable[str] = ()) -> int:
    """What identifies the content of a response."""
    digest = sum([resource.digest for resource in resources])
    if any(marks := tuple(marks)):
        marked = hashlib.blake2b("\0".join(marks).encode(), digest_size=16, person=b"marks").digest()
        digest += int.from_bytes(marked, "big")
    for name in removed:
        gone = hashlib.blake2b(name.encode(), digest_size=16, person=b"removed").digest()
        digest += int.from_bytes(gone, "big")
    return digest & _MASK


def intern_names(names: Iterable[str]) -> frozenset[str]:
    """A set of names, the same object for all who hold the same names."""
    made = frozenset(names)
    found = _names.get(hash(made))
    if found == made:
        return found
    _names[hash(made)] = made
    return made
