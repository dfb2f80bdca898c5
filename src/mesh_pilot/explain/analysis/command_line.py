"""Reads configuration once, as ``discovery`` reads it, and finds its problems."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from mesh_pilot.explain.analysis.analyze import analyze_picture, standing_problems
from mesh_pilot.explain.analysis.codes import IGNORED_OBJECT, MESH_SETTINGS, UNREADABLE
from mesh_pilot.explain.analysis.context import context_object, is_context, unchecked_config
from mesh_pilot.explain.analysis.file_purposes import FilePurpose as FilePurpose
from mesh_pilot.explain.analysis.file_purposes import purpose_of as purpose_of
from mesh_pilot.explain.analysis.findings import AnalysisMessage, Level
from mesh_pilot.explain.analysis.imagined import patch_problems_in_files
from mesh_pilot.explain.analysis.input import picture_of
from mesh_pilot.explain.analysis.places import Places
from mesh_pilot.explain.analysis.suppressions import Suppressions
from mesh_pilot.istio.kinds import lookup, reason_ignored, written_kind
from mesh_pilot.istio.reading.mesh import decode_mesh
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import Config, ConfigError, ConfigKey, Origin, Problem
from mesh_pilot.model.events import Event, Item, MeshConfigValue, MeshNetworksValue, Rejected, Replace, Synced, Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.sources.base.published import InvalidObject, ValidObject
from mesh_pilot.sources.files.content import FileContent, FileLocation, FileReading, IgnoredObject, ParsedObject
from mesh_pilot.sources.files.index import FileIndex
from mesh_pilot.sources.files.mesh import mesh_config, mesh_networks
from mesh_pilot.sources.files.objects import read_objects
from mesh_pilot.sources.files.roots import ConfigRoot, CredentialsRoot, read_file
from mesh_pilot.world import World

SOURCE = "files"
STDIN = "stdin"
_SHOWN_NAMES = 5
_MESH_CONFIG_MAP = "istio"


@attrs.frozen
class Finding:
    """A problem, ready to be shown: a message with the line of its field. Unknown parts are empty."""

    level: Level
    code: str
    where: str
    """``demo/reviews.yaml:12``."""
    reason: str
    object: str = ""
    field: str = ""
    fix: str = ""
    doc: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.where, self.level.value, self.object, self.field, self.reason)))


@attrs.frozen
class IgnoredObjects:
    """Objects of a kind that mesh-pilot does not read."""

    api_version: str
    kind: str
    where: tuple[str, ...]
    """File and line of each."""


@attrs.frozen
class Note:
    """A file without objects, and how it was treated."""

    where: str
    what: str


@attrs.frozen
class Analysis:
    """The findings about all paths."""

    objects: int
    """The number of valid objects."""
    findings: tuple[Finding, ...]
    """The heaviest first."""
    suppressed: int
    ignored: tuple[IgnoredObjects, ...]
    """Objects that no user would expect to have an effect; other ignored objects are warnings."""
    notes: tuple[Note, ...]

    def of(self, level: Level) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level is level)


@attrs.frozen
class LivePlane:
    """The objects that are in force at a control plane, by source in order of precedence, and its proxies."""

    items: Mapping[str, Mapping[tuple[str, ...], Item]]
    settings: Mapping[str, str]
    proxies: tuple[Proxy, ...]


class UnreadablePathError(Exception):
    """A path that was named and can't be read; the text is for people."""


def analyze(
    paths: Sequence[str],
    stdin: BinaryIO,
    *,
    secrets: Iterable[str] = (),
    suppressions: Suppressions | None = None,
    plane: LivePlane | None = None,
) -> Analysis:
    """Read files, folders and ``-`` (standard input); of duplicate objects the first one counts.

    ``secrets``: folders of credentials. ``plane``: what the files would be added to. Raises UnreadablePathError for a
    path that cannot be read.
    """
    reading = _Reading()
    try:
        for rank, path in enumerate(paths):
            reading.take(rank, path, stdin)
        for rank, path in enumerate(secrets, len(paths)):
            reading.take_secrets(rank, path)
    except OSError as error:
        where = error.filename or path
        raise UnreadablePathError(f"cannot read {where}: {error.strerror or error}") from None
    return reading.analysis(suppressions or Suppressions(()), plane)


class _Reading:
    """State: the content of the files so far."""

    def __init__(self) -> None:
        self._content: dict[FileLocation, FileReading] = {}
        self._texts: dict[str, str] = {}
        self._ignored: dict[tuple[str, str], list[Origin]] = {}
        self._settings: list[MeshConfigValue | MeshNetworksValue] = []
        self._context: list[Config] = []
        self._unchecked: list[Config] = []
        self._found: list[AnalysisMessage] = []
        self._rejected: list[Rejected] = []
        self._notes: list[Note] = []
        self._folders: set[tuple[int, int]] = set()
        self._files: set[str] = set()
        self._has_secrets = False

    def take(self, rank: int, path: str, stdin: BinaryIO) -> None:
        """Read a path. Objects of a path with a lower ``rank`` win. Raises OSError."""
        if path == "-":
            self._take_data(FileLocation(rank, STDIN), stdin.read())
        elif Path(path).is_dir():
            self._take_folder(rank, path)
        else:
            self._take_file(FileLocation(rank, path))

    def take_secrets(self, rank: int, path: str) -> None:
        """Read a folder of credentials. Raises OSError."""
        any(Path(path).iterdir())
        self._has_secrets = True
        root = CredentialsRoot(path, SOURCE)
        listing = root.list(set())
        for file, reason in sorted(listing.faults.items()):
            self._unreadable(file, reason)
        for unit in sorted(listing.units):
            entries = [e for e in root.parse(unit, root.read(unit)) if not isinstance(e, IgnoredObject)]
            self._content[FileLocation(rank, unit)] = FileContent(tuple(entries))

    def _take_folder(self, rank: int, path: str) -> None:
        any(Path(path).iterdir())  # raises where the folder itself can't be read
        listing = ConfigRoot(path, SOURCE).list(self._folders)
        for file, reason in sorted(listing.faults.items()):
            self._unreadable(file, reason)
        for file in sorted(listing.units):
            try:
                self._take_file(FileLocation(rank, file))
            except OSError as error:
                self._unreadable(file, f"can't be read: {error.strerror or error}")
        others = sorted(_other_files(path, listing.units.keys()))
        if others:
            more = f" and {len(others) - _SHOWN_NAMES} more" if len(others) > _SHOWN_NAMES else ""
            named = f"{', '.join(others[:_SHOWN_NAMES])}{more}"
            self._notes.append(Note(path, f"passed over, for neither YAML nor JSON: {named}"))

    def _unreadable(self, file: str, reason: str) -> None:
        nothing = Config(ConfigKey("", "", ""), None, origin=Origin(SOURCE, file))
        self._found.append(AnalysisMessage(UNREADABLE, nothing, "", (reason,)))

    def _take_file(self, location: FileLocation) -> None:
        real = os.path.realpath(location.path)
        if real not in self._files:
            self._take_data(location, read_file(Path(location.path)))
            self._files.add(real)

    def _take_data(self, location: FileLocation, data: bytes) -> None:
        self._texts[str(location)] = data.decode("utf-8-sig", errors="replace")
        match role := purpose_of(data, location.path):
            case FilePurpose.OBJECTS:
                self._content[location] = FileContent(tuple(self._objects(location, data)))
            case FilePurpose.MESH_CONFIG | FilePurpose.MESH_NETWORKS:
                self._take_settings(role, str(location), data)
            case _:
                self._notes.append(Note(str(location), f"passed over: {role}"))

    def _objects(self, location: FileLocation, data: bytes) -> Iterator[ParsedObject]:
        documents = _Documents(self._texts[str(location)], Origin(SOURCE, str(location)))
        if b"status:" in data:
            self._context += documents.with_status()
        for entry in read_objects(data, documents.origin, "default"):
            if isinstance(entry, IgnoredObject):
                origin = attrs.evolve(documents.origin, line=entry.line)
                self._ignored.setdefault((entry.api_version, entry.kind), []).append(origin)
                self._take_context(documents.at(entry.line), documents.origin)
                continue
            item = entry.item if isinstance(entry, ValidObject) else None
            if isinstance(item, Config) and is_context(item.api_version, written_kind(item.key.kind)):
                self._take_context(documents.at(entry.line), documents.origin)
            if isinstance(entry, InvalidObject) and (config := documents.unchecked(entry.line)) is not None:
                self._unchecked.append(config)
            yield entry

    def _take_context(self, document: Document | None, origin: Origin) -> None:
        """Keep an object of Kubernetes as context."""
        config = context_object(document, origin) if document is not None else None
        if config is None or document is None:
            return
        self._context.append(config)
        if (config.key.kind, config.name) == ("ConfigMap", _MESH_CONFIG_MAP):
            self._take_config_map(document, origin)

    def _take_config_map(self, document: Document, origin: Origin) -> None:
        if "mesh" not in (document.data.get("data") or {}):  # type: ignore[operator]  # a mapping, or it has no members
            return
        place = attrs.evolve(origin, line=document.line)
        warnings: list[Problem] = []
        try:
            settings = decode_mesh(document.data, origin=place, warnings=warnings)
        except ConfigError as error:
            self._rejected.append(Rejected(SOURCE, place, error.problems, ("mesh",)))
        else:
            self._settings.append(MeshConfigValue(settings, place, tuple(warnings)))

    def _take_settings(self, role: FilePurpose, path: str, data: bytes) -> None:
        decode, flag = (
            (mesh_config, "--mesh-config") if role is FilePurpose.MESH_CONFIG else (mesh_networks, "--networks-config")
        )
        self._notes.append(Note(path, f"checked as {role}; it goes to {flag}, not into a folder of --config-dir"))
        try:
            self._settings.append(decode(data.decode("utf-8-sig"), Origin(SOURCE, path)))
        except ConfigError as error:
            for problem in error.problems:
                nothing = Config(ConfigKey("", "", ""), None, origin=error.origin)
                message = AnalysisMessage(MESH_SETTINGS, nothing, problem.path, (problem.reason,), line=problem.line)
                self._found.append(message)

    def _events(self) -> Iterator[Event]:
        index = FileIndex(SOURCE)
        index.update(self._content)
        yield from index.state.announce()
        taken = set()
        for settings in self._settings:
            if type(settings) not in taken:
                taken.add(type(settings))
                yield Upsert(SOURCE, settings)
        yield from self._rejected

    def analysis(self, suppressions: Suppressions, plane: LivePlane | None) -> Analysis:
        """The findings about everything that was read."""
        world = World(**plane.settings) if plane is not None else World()
        world.expect(SOURCE)
        world.apply(self._events())
        objects = sum(world.statistics().configs.values())
        for name, items in plane.items.items() if plane is not None else ():
            source = f"plane {name}"
            world.expect(source)
            world.apply([Replace(source, (), tuple(items.values())), Synced(source)])
        picture = picture_of(
            world,
            plane.proxies if plane is not None else None,
            standing=tuple(chain(standing_problems(world), patch_problems_in_files(world) if plane is None else ())),
            unchecked=tuple(self._unchecked),
            kubernetes=tuple(self._context),
            is_whole=plane is not None,
            has_secrets=plane is not None or self._has_secrets,
        )
        places = Places(self._texts)
        messages = [*self._found, *self._of_ignored(), *analyze_picture(picture)]
        heard = [m for m in messages if not suppressions.cover(m)]
        found = sorted((_finding(m, places) for m in heard), key=lambda f: f.level.rank)
        harmless = [(kind, origins) for kind, origins in sorted(self._ignored.items()) if not reason_ignored(*kind)]
        return Analysis(
            objects=objects,
            findings=tuple(found),
            suppressed=len(messages) - len(heard),
            ignored=tuple(IgnoredObjects(*kind, tuple(map(str, origins))) for kind, origins in harmless),
            notes=(*self._notes, *self._context_notes()),
        )

    def _of_ignored(self) -> Iterator[AnalysisMessage]:
        for (api_version, kind), origins in sorted(self._ignored.items()):
            if reason := reason_ignored(api_version, kind):
                for origin in origins:
                    config = Config(ConfigKey(f"{kind} of {api_version}", "", ""), None, origin=origin)
                    yield AnalysisMessage(IGNORED_OBJECT, config, "", (reason,))

    def _context_notes(self) -> Iterator[Note]:
        files: dict[str, dict[str, int]] = {}
        for config in self._context:
            if _is_only_context(config):
                kinds = files.setdefault(config.origin.location, {})
                kinds[config.key.kind] = kinds.get(config.key.kind, 0) + 1
        for file, kinds in files.items():
            counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            yield Note(file, f"read for the analysis only, and not served: {counted}")


def _is_only_context(config: Config) -> bool:
    kind = config.key.kind
    return is_context(config.api_version, kind) and lookup(config.api_version, kind) is None


class _Documents:
    """The documents of a file as plain data, read if they are needed."""

    def __init__(self, text: str, origin: Origin) -> None:
        self.origin = origin
        self._text = text.replace("\t", " ") if origin.location.lower().endswith(".json") else text
        self._by_line: dict[int, Document] | None = None

    def at(self, line: int) -> Document | None:
        return self._all().get(line)

    def unchecked(self, line: int) -> Config | None:
        """The object at a line, if it can be read though it is not valid."""
        document = self.at(line)
        return unchecked_config(document, self.origin) if document is not None else None

    def with_status(self) -> Iterator[Config]:
        """Objects of Istio's with a status."""
        for document in self._all().values():
            is_istios = ".istio.io/" in str(document.data.get("apiVersion"))
            config = context_object(document, self.origin) if is_istios and document.data.get("status") else None
            if config is not None:
                yield config

    def _all(self) -> dict[int, Document]:
        if self._by_line is None:
            found = [d for d in load(self._text, self.origin) if isinstance(d, Document)]
            self._by_line = {document.line: document for document in found}
        return self._by_line


def _finding(message: AnalysisMessage, places: Places) -> Finding:
    type = message.type
    where, name = str(places.of(message)), message.object
    return Finding(type.level, type.code, where, message.text, name, message.path, message.fix, type.doc)


def finding_of(row: Mapping[str, Any], level: Level) -> Finding:
    """The finding that a control plane's API answered."""
    texts = {key: str(row.get(key, "")) for key in ("code", "where", "reason", "object", "field", "fix", "doc")}
    return Finding(level, **texts)


def _other_files(folder: str, units: Iterable[str]) -> Iterator[str]:
    """Files beneath a folder that the reader of objects does not look at, hidden ones left out."""
    known = set(units)
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "#", "__pycache__"))]
        for name in files:
            path = str(Path(parent, name))
            if path not in known and not name.startswith((".", "#")):
                yield str(Path(path).relative_to(folder))
