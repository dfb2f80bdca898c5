"""Parsing of the units that have changed, and the objects in them that are of no kind of Istio's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.base.offload import LARGE_BYTES, offload
from mesh_pilot.istio.kinds import reason_ignored
from mesh_pilot.model.events import Item
from mesh_pilot.sources.base.contract import IgnoredKind
from mesh_pilot.sources.files.content import (
    FileContent,
    FileLocation,
    IgnoredObject,
    ParsedDocument,
    ParsedObject,
)
from mesh_pilot.sources.files.objects import ParsedParts, restored_parts
from mesh_pilot.sources.files.roots import FileParts, Root

log = structlog.get_logger(scope="sources")


class UnitParser:
    """Parses units.

    State: `_known`, what stood in the parts of files that hold several objects, so that only what differs is decoded;
    `_restored`, the same of an earlier run, for files that were not read yet; `_ignored`, the objects that are not
    ours, and their kinds until these change.
    """

    def __init__(self, roots: Sequence[Root]) -> None:
        self._roots = roots
        self._known: dict[FileLocation, ParsedParts] = {}
        self._restored: Mapping[str, ParsedParts] = {}
        self._ignored: dict[FileLocation, tuple[IgnoredObject, ...]] = {}
        self._kinds: tuple[IgnoredKind, ...] | None = ()

    def seed(self, items: Iterable[Item]) -> None:
        """The objects of an earlier run: what is still in their files is not read again."""
        self._restored = restored_parts(items)

    def end_restoring(self) -> None:
        """Every file has been read."""
        self._restored = {}

    def forget(self, location: FileLocation) -> None:
        """A unit is gone."""
        self._known.pop(location, None)
        self._ignored.pop(location, None)
        self._kinds = None

    def ignored_kinds(self) -> tuple[IgnoredKind, ...]:
        """The kinds of objects that are not read."""
        if self._kinds is None:
            self._kinds = _kinds(self._ignored)
        return self._kinds

    async def parse(self, location: FileLocation, parts: FileParts) -> FileContent:
        """The content of a unit. Other tasks run while a large one is parsed, or after every object of a small one."""
        entries: list[ParsedObject] = []
        ignored: list[IgnoredObject] = []
        known = dict(self._known.get(location) or self._restored.get(str(location), {}))
        found: Iterable[ParsedDocument] = self._roots[location.root].parse(location.path, parts, known)
        is_large = sum(map(len, parts.values())) > LARGE_BYTES
        if is_large:
            found = await offload(True, partial(list, found))
        for entry in found:
            if isinstance(entry, IgnoredObject):
                ignored.append(entry)
            else:
                entries.append(entry)
            if not is_large:
                await trio.lowlevel.checkpoint()
        self._known[location] = known
        if len(known) < 2:
            del self._known[location]  # a file of one object is read again after any change
        self._tell_ignored(location, ignored)
        unnamed_line = next((entry.line for entry in ignored if not entry.is_named), 0)
        is_empty = not (entries or ignored) or not any(map(bytes.strip, parts.values()))
        return FileContent(tuple(entries), is_empty, unnamed_line)

    def _tell_ignored(self, location: FileLocation, ignored: Sequence[IgnoredObject]) -> None:
        self._kinds = None
        before = {(entry.api_version, entry.kind) for entry in self._ignored.pop(location, ())}
        if not ignored:
            return
        self._ignored[location] = tuple(ignored)
        for kind in _kinds({location: ignored}):
            if (kind.api_version, kind.kind) not in before:
                tell = log.warning if kind.reason else log.info
                fields = attrs.asdict(kind)
                tell(
                    "objects of this kind are ignored",
                    file=str(location),
                    **{k: v for k, v in fields.items() if v},
                )


def _kinds(ignored: Mapping[FileLocation, Sequence[IgnoredObject]]) -> tuple[IgnoredKind, ...]:
    """Ignored objects by kind, with the location of the first."""
    count: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for location in sorted(ignored):
        for entry in ignored[location]:
            kind = entry.api_version, entry.kind
            count[kind] += 1
            first.setdefault(kind, f"{location!s}:{entry.line}")
    return tuple(IgnoredKind(*kind, count[kind], first[kind], reason_ignored(*kind)) for kind in sorted(count))
