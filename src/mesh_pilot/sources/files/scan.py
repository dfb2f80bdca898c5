"""A scan of the roots: the units that are new, changed or gone since the last one.

Where the operating system tells which files were touched, a scan is of those alone, if that is certain to find all that
a complete one would (`scan_touched`).

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
from mesh_pilot.sources.files.roots import FileParts, Identity, Root, RootListing, Signature, files_of, plain_file

_STAYS = "what was read from it before is kept"


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
    plain: Mapping[str, tuple[int, str, Identity]] = attrs.field(factory=dict)
    """The plain folders that no other root has (see `RootListing`), by real path: the root, how paths begin, and the
    identity."""
    is_complete: bool = True
    """False if only touched files were looked at."""

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
    found = _ScannedUnits(before, again, written)
    seen, changed = found.seen, found.changed
    identities = dict(before.identities)
    folders: set[str] = set()
    plain: dict[str, tuple[int, str, Identity]] = {}
    for rank, root in enumerate(roots):
        known = {location: what for location, what in before.seen.items() if location.root == rank}
        listing = _unless_replaced(root, root.list(visited[type(root)]), known, identities.get(rank))
        if listing.identity is not None:
            identities[rank] = listing.identity
        for folder in listing.folders:
            if folder in folders:
                plain.pop(folder, None)
            elif folder in listing.plain:
                plain[folder] = rank, *listing.plain[folder]
        folders |= listing.folders
        for path, reason in listing.faults.items():
            location, fault = FileLocation(rank, path), Unreadable(f"{reason}; {_STAYS}")
            seen[location] = ScannedFile((), fault)
            if location not in known or known[location].state != fault:
                changed[location] = fault
        for path, signature in listing.units.items():
            found.take(root, FileLocation(rank, path), signature)
        for location, what in known.items():
            if location in seen:
                continue
            # Nothing is known to be gone below a folder that could not be listed.
            if _is_within(location.path, listing.faults):
                seen[location] = what
            else:
                changed[location] = Gone()
    return Scan(seen, changed, identities, frozenset(found.in_place), frozenset(folders), found.reads, plain)


def scan_touched(
    roots: Sequence[Root],
    before: Scan,
    touched: Iterable[str],
    again: Collection[FileLocation],
    written: Collection[Identity] = frozenset(),
) -> Scan | None:
    """The same where only these paths were touched since the scan before; None: it takes a complete one to tell."""
    locations = set(again)
    for path in touched:
        folder, _, name = path.rpartition(os.sep)
        if folder not in before.plain:
            return None
        rank, beginning, _ = before.plain[folder]
        locations.add(FileLocation(rank, beginning + name))
    # A folder further up may have been moved, and another one be in its place: such events come from elsewhere.
    there = {(rank, beginning): identity for rank, beginning, identity in before.plain.values()}
    folders = {(location.root, "".join(location.path.rpartition(os.sep)[:2])) for location in locations}
    if any(there.get(folder) not in identities_of([folder[1]]) for folder in folders):
        return None
    found = _ScannedUnits(before, locations, written, {**before.seen})
    for location in locations:
        found.seen.pop(location, None)
        try:
            signature = plain_file(location.path)
        except OSError:
            return None
        if signature is not None:
            found.take(roots[location.root], location, signature)
        if location in before.seen and location not in found.seen:
            found.changed[location] = Gone()
    return attrs.evolve(
        before,
        seen=found.seen,
        changed=found.changed,
        in_place=frozenset(found.in_place),
        reads=found.reads,
        is_complete=False,
    )


@attrs.define
class _ScannedUnits:
    """The units that a scan has come to so far."""

    before: Scan
    again: Collection[FileLocation]
    written: Collection[Identity]
    seen: dict[FileLocation, ScannedFile] = attrs.field(factory=dict)
    changed: dict[FileLocation, FileParts | Unreadable | Gone] = attrs.field(factory=dict)
    in_place: set[FileLocation] = attrs.field(factory=set)
    reads: int = 0

    def take(self, root: Root, location: FileLocation, signature: Signature) -> None:
        """A unit is there."""
        last = self.before.seen.get(location)
        # Whether it is the same comes before whether it is being written: most units are the same, and that check
        # needs no other look at the file.
        if last is not None and last.signature == signature and location not in self.again:
            self.seen[location] = last
            return
        if self.written and not files_of(signature).isdisjoint(self.written):
            if last is not None:
                self.seen[location] = last
            return
        self.reads += 1
        parts = _read(root, location.path)
        if isinstance(parts, Gone):
            return
        self.seen[location] = (
            ScannedFile((), parts) if isinstance(parts, Unreadable) else ScannedFile(signature, _digest(parts))
        )
        if last is None or last.state != self.seen[location].state:
            self.changed[location] = parts
            if last is not None and files_of(last.signature) == files_of(signature):
                self.in_place.add(location)


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
