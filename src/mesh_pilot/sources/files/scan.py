"""A scan of the roots: the units that are new, changed or gone since the last one.

Blocking: call it in a worker thread. It changes nothing: the last scan comes in and the new one goes out as values,
so that an abandoned scan has no effect.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from mesh_pilot.sources.files.content import FileLocation, Gone, Unreadable
from mesh_pilot.sources.files.roots import FileParts, Identity, Root, RootListing, Signature, files_of

_STAYS = "what was read from it before stays in force"


@attrs.frozen
class ScannedFile:
    """A unit as it was when it was last read."""

    signature: Signature
    state: bytes | Unreadable
    """The digest of its content, or the reason why it can't be read."""


@attrs.frozen
class Scan:
    """The result of a scan."""

    seen: Mapping[FileLocation, ScannedFile] = attrs.field(factory=dict)
    changed: Mapping[FileLocation, FileParts | Unreadable | Gone] = attrs.field(factory=dict)
    """The units that differ from the scan before."""
    identities: Mapping[int, Identity] = attrs.field(factory=dict)
    """The folder that each root is, for the roots that could be read at any time."""
    in_place: frozenset[FileLocation] = frozenset()
    """The changed units whose files are the same, with other content."""
    folders: frozenset[str] = frozenset()
    """Folders to watch."""
    reads: int = 0
    """Units that were opened."""

    def without(self, written: Collection[Identity], before: Scan) -> Scan:
        """The same scan without the units of these files, which stay as they were before."""
        locations = [location for location in self.changed if self.is_of(location, written)]
        if not locations:
            return self
        seen = {location: what for location, what in self.seen.items() if location not in locations}
        seen |= {location: before.seen[location] for location in locations if location in before.seen}
        changed = {location: what for location, what in self.changed.items() if location not in locations}
        return attrs.evolve(self, seen=seen, changed=changed)

    def is_of(self, location: FileLocation, files: Collection[Identity]) -> bool:
        """True if one of these files belongs to the unit."""
        return location in self.seen and not files_of(self.seen[location].signature).isdisjoint(files)


def scan(
    roots: Sequence[Root], before: Scan, again: Collection[FileLocation], written: Collection[Identity] = frozenset()
) -> Scan:
    """Scan all the roots. Units in `again` are read even if their signature is the same.

    Units with a file that is being `written` are not read: known ones stay as they were, new ones are skipped.
    """
    visited: defaultdict[type[Root], set[Identity]] = defaultdict(set)
    seen: dict[FileLocation, ScannedFile] = {}
    changed: dict[FileLocation, FileParts | Unreadable | Gone] = {}
    in_place: set[FileLocation] = set()
    identities = dict(before.identities)
    folders: set[str] = set()
    reads = 0
    for rank, root in enumerate(roots):
        known = {location: what for location, what in before.seen.items() if location.root == rank}
        listing = _unless_replaced(root, root.list(visited[type(root)]), known, identities.get(rank))
        if listing.identity is not None:
            identities[rank] = listing.identity
        folders |= listing.folders
        for path, reason in listing.faults.items():
            location, fault = FileLocation(rank, path), Unreadable(f"{reason}; {_STAYS}")
            seen[location] = ScannedFile((), fault)
            if location not in known or known[location].state != fault:
                changed[location] = fault
        for path, signature in listing.units.items():
            location = FileLocation(rank, path)
            last = known.get(location)
            # Whether it is the same comes before whether it is being written: most units are the same, and that check
            # needs no other look at the file.
            if last is not None and last.signature == signature and location not in again:
                seen[location] = last
                continue
            if written and not files_of(signature).isdisjoint(written):
                if last is not None:
                    seen[location] = last
                continue
            reads += 1
            parts = _read(root, path)
            if isinstance(parts, Gone):
                continue
            seen[location] = (
                ScannedFile((), parts) if isinstance(parts, Unreadable) else ScannedFile(signature, _digest(parts))
            )
            if last is None or last.state != seen[location].state:
                changed[location] = parts
                if last is not None and files_of(last.signature) == files_of(signature):
                    in_place.add(location)
        for location, what in known.items():
            if location in seen:
                continue
            # Nothing is known to be gone below a folder that could not be listed.
            if _is_within(location.path, listing.faults):
                seen[location] = what
            else:
                changed[location] = Gone()
    return Scan(seen, changed, identities, frozenset(in_place), frozenset(folders), reads)


def identities_of(paths: Iterable[str]) -> frozenset[Identity]:
    """The identities of files; paths to nothing are skipped."""
    found = set()
    for path in paths:
        with suppress(OSError):
            status = Path(path).stat()
            found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def _unless_replaced(
    root: Root, listing: RootListing, known: Collection[FileLocation], identity: Identity | None
) -> RootListing:
    """The listing, or a fault if the root was replaced by an empty folder."""
    is_replaced = identity is not None and listing.identity not in (None, identity)
    if not is_replaced or listing.units or listing.faults or not known:
        return listing
    reason = "was replaced by an empty folder (a volume that is not mounted?)"
    return RootListing(faults={root.path: reason}, folders=listing.folders)


def _read(root: Root, unit: str) -> FileParts | Unreadable | Gone:
    try:
        return root.read(unit)
    except FileNotFoundError:
        return Gone()
    except OSError as error:
        return Unreadable(f"can't be read: {error.strerror or error}; {_STAYS}")


def _digest(parts: FileParts) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, data in parts.items():
        digest.update(f"{name}:{len(data)}:".encode())
        digest.update(data)
    return digest.digest()


def _is_within(path: str, folders: Collection[str]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
