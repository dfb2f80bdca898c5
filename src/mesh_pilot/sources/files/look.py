"""One look at the roots: which units are new, changed or gone since the last one.

Blocking: to be called in a worker thread. Changes nothing: what is known comes in and goes out as values, so that a
look that was abandoned has no effect.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import attrs

from mesh_pilot.sources.files.content import Gone, Place, Unreadable
from mesh_pilot.sources.files.roots import Identity, Listing, Parts, Root, Signature

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
    folders: frozenset[str] = frozenset()
    """Folders to watch."""
    reads: int = 0
    """Units that were opened."""


def look(roots: Sequence[Root], before: Look, again: Collection[Place]) -> Look:
    """Look at all the roots. Units in `again` are read even where they look as before from outside."""
    visited: defaultdict[type[Root], set[Identity]] = defaultdict(set)
    seen: dict[Place, Seen] = {}
    changed: dict[Place, Parts | Unreadable | Gone] = {}
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
            reads += 1
            parts = _read(root, path)
            if isinstance(parts, Gone):
                continue
            seen[place] = Seen((), parts) if isinstance(parts, Unreadable) else Seen(signature, _digest(parts))
            if last is None or last.state != seen[place].state:
                changed[place] = parts
        for place, what in known.items():
            if place in seen:
                continue
            if _is_within(place.path, listing.faults):
                seen[place] = what
            else:
                changed[place] = Gone()
    return Look(seen, changed, identities, frozenset(folders), reads)


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
