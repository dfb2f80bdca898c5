"""One look at the roots: which units are new, changed or gone since the last one.

Blocking: to be called in a worker thread. Changes nothing: what is known comes in and goes out as values, so that a
look that was abandoned has no effect.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from mesh_pilot.sources.files.content import Gone, Place, Unreadable
from mesh_pilot.sources.files.roots import Identity, Listing, Parts, Root, Signature, files_of

_STAYS = "what was read from it before stays in force"


@attrs.frozen
class Seen:
    """What a unit was like when it was last read."""

    signature: Signature
    state: bytes | Unreadable
    """The digest of its content, or why it can't be read."""


@attrs.frozen
class Look:
    """The outcome of one look."""

    seen: Mapping[Place, Seen] = attrs.field(factory=dict)
    changed: Mapping[Place, Parts | Unreadable | Gone] = attrs.field(factory=dict)
    """What differs from the look before."""
    identities: Mapping[int, Identity] = attrs.field(factory=dict)
    """Which folder each root is, for the roots that could be read at any time."""
    in_place: frozenset[Place] = frozenset()
    """Of what changed, the units whose files are the ones that they were, with other content."""
    folders: frozenset[str] = frozenset()
    """Folders to watch."""
    reads: int = 0
    """Units that were opened."""

    def without(self, written: Collection[Identity], before: Look) -> Look:
        """The same, where what is made of these files was not looked at: it is as it was before."""
        places = [place for place in self.changed if self.is_of(place, written)]
        if not places:
            return self
        seen = {place: what for place, what in self.seen.items() if place not in places}
        seen |= {place: before.seen[place] for place in places if place in before.seen}
        changed = {place: what for place, what in self.changed.items() if place not in places}
        return attrs.evolve(self, seen=seen, changed=changed)

    def is_of(self, place: Place, files: Collection[Identity]) -> bool:
        """Whether one of these files belongs to a unit."""
        return place in self.seen and not files_of(self.seen[place].signature).isdisjoint(files)


def look(
    roots: Sequence[Root], before: Look, again: Collection[Place], written: Collection[Identity] = frozenset()
) -> Look:
    """Look at all the roots. Units in `again` are read even where they look as before from outside.

    Units of which a file is `written` at present are not read: they stand as they were, and new ones are passed over.
    """
    visited: defaultdict[type[Root], set[Identity]] = defaultdict(set)
    seen: dict[Place, Seen] = {}
    changed: dict[Place, Parts | Unreadable | Gone] = {}
    in_place: set[Place] = set()
    identities = dict(before.identities)
    folders: set[str] = set()
    reads = 0
    for rank, root in enumerate(roots):
        known = {place: what for place, what in before.seen.items() if place.root == rank}
        listing = _doubted(root, root.list(visited[type(root)]), known, identities.get(rank))
        if listing.identity is not None:
            identities[rank] = listing.identity
        folders |= listing.folders
        for path, reason in listing.faults.items():
            place, fault = Place(rank, path), Unreadable(f"{reason}; {_STAYS}")
            seen[place] = Seen((), fault)
            if place not in known or known[place].state != fault:
                changed[place] = fault
        for path, signature in listing.units.items():
            place = Place(rank, path)
            last = known.get(place)
            if last is not None and last.signature == signature and place not in again:
                seen[place] = last
                continue
            if written and not files_of(signature).isdisjoint(written):
                if last is not None:
                    seen[place] = last
                continue
            reads += 1
            parts = _read(root, path)
            if isinstance(parts, Gone):
                continue
            seen[place] = Seen((), parts) if isinstance(parts, Unreadable) else Seen(signature, _digest(parts))
            if last is None or last.state != seen[place].state:
                changed[place] = parts
                if last is not None and files_of(last.signature) == files_of(signature):
                    in_place.add(place)
        for place, what in known.items():
            if place in seen:
                continue
            if _is_within(place.path, listing.faults):
                seen[place] = what
            else:
                changed[place] = Gone()
    return Look(seen, changed, identities, frozenset(in_place), frozenset(folders), reads)


def identities_of(paths: Iterable[str]) -> frozenset[Identity]:
    """Which files these are; paths to nothing are passed over."""
    found = set()
    for path in paths:
        with suppress(OSError):
            status = Path(path).stat()
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def _doubted(root: Root, listing: Listing, known: Collection[Place], identity: Identity | None) -> Listing:
    """The listing, or a fault where the root holds nothing any more because another folder stands in its place."""
    is_replaced = identity is not None and listing.identity not in (None, identity)
    if not is_replaced or listing.units or listing.faults or not known:
        return listing
    reason = "was replaced by an empty folder (a volume that is not mounted?)"
    return Listing(faults={root.path: reason}, folders=listing.folders)


def _read(root: Root, unit: str) -> Parts | Unreadable | Gone:
    try:
        return root.read(unit)
    except FileNotFoundError:
        return Gone()
    except OSError as error:
        return Unreadable(f"can't be read: {error.strerror or error}; {_STAYS}")


def _digest(parts: Parts) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, data in parts.items():
        digest.update(f"{name}:{len(data)}:".encode())
        digest.update(data)
    return digest.digest()


def _is_within(path: str, folders: Collection[str]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
