"""Reads configuration once, as ``discovery`` reads it, and collects its problems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import attrs

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig
from mesh_pilot.config.descriptors import descriptor_of
from mesh_pilot.config.kinds import reason_ignored
from mesh_pilot.config.yaml import load
from mesh_pilot.model.config import ConfigError, Origin, Severity
from mesh_pilot.model.events import MeshConfigValue, MeshNetworksValue, Rejected
from mesh_pilot.ops.problems import all_patch_problem_lines, rejected_lines, warning_lines
from mesh_pilot.ops.world_pages import warnings
from mesh_pilot.sources.files.content import FileContent, FileLocation, FileReading, IgnoredObject, ParsedObject
from mesh_pilot.sources.files.index import FileIndex
from mesh_pilot.sources.files.mesh import mesh_config, mesh_networks
from mesh_pilot.sources.files.objects import read_objects
from mesh_pilot.sources.files.roots import ConfigRoot, read_file
from mesh_pilot.world import World

SOURCE = "files"
STDIN = "stdin"
_SHOWN_NAMES = 5


@attrs.frozen
class Finding:
    """A problem: severity, location, object, field and reason. Unknown parts are empty."""

    severity: Severity
    where: str
    reason: str
    object: str = ""
    field: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.where, self.severity.value, self.object, self.field, self.reason)))


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
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    ignored: tuple[IgnoredObjects, ...]
    """Objects that nobody would expect to have an effect; other ignored objects are warnings."""
    notes: tuple[Note, ...]


class UnreadablePathError(Exception):
    """A path that was named and can't be read; the text is for people."""


def analyze(paths: Sequence[str], stdin: BinaryIO) -> Analysis:
    """Read files, folders and ``-`` (standard input); of duplicate objects the first one counts.

    Raises UnreadablePathError for a path that cannot be read.
    """
    reading = _Reading()
    for rank, path in enumerate(paths):
        try:
            reading.take(rank, path, stdin)
        except OSError as error:
            raise UnreadablePathError(f"cannot read {path}: {error.strerror or error}") from None
    return reading.analysis()


class _Reading:
    """State: the content of the files so far."""

    def __init__(self) -> None:
        self._content: dict[FileLocation, FileReading] = {}
        self._ignored: dict[tuple[str, str], list[str]] = {}
        self._settings: list[MeshConfigValue | MeshNetworksValue] = []
        self._errors: list[Finding] = []
        self._notes: list[Note] = []
        self._folders: set[tuple[int, int]] = set()
        self._files: set[str] = set()

    def take(self, rank: int, path: str, stdin: BinaryIO) -> None:
        """Read a path. Objects of a path with a lower ``rank`` win. Raises OSError."""
        if path == "-":
            self._take_data(FileLocation(rank, STDIN), stdin.read())
        elif Path(path).is_dir():
            self._take_folder(rank, path)
        else:
            self._take_file(FileLocation(rank, path))

    def _take_folder(self, rank: int, path: str) -> None:
        any(Path(path).iterdir())  # raises where the folder itself can't be read
        listing = ConfigRoot(path, SOURCE).list(self._folders)
        for file, reason in sorted(listing.faults.items()):
            self._errors.append(Finding(Severity.ERROR, file, reason))
        for file in sorted(listing.units):
            try:
                self._take_file(FileLocation(rank, file))
            except OSError as error:
                self._errors.append(Finding(Severity.ERROR, file, f"can't be read: {error.strerror or error}"))
        others = sorted(_other_files(path, listing.units.keys()))
        if others:
            more = f" and {len(others) - _SHOWN_NAMES} more" if len(others) > _SHOWN_NAMES else ""
            named = f"{', '.join(others[:_SHOWN_NAMES])}{more}"
            self._notes.append(Note(path, f"passed over, for neither YAML nor JSON: {named}"))

    def _take_file(self, location: FileLocation) -> None:
        real = os.path.realpath(location.path)
        if real not in self._files:
            self._take_data(location, read_file(Path(location.path)))
            self._files.add(real)

    def _take_data(self, location: FileLocation, data: bytes) -> None:
        match role := purpose_of(data, location.path):
            case FilePurpose.OBJECTS:
                self._content[location] = FileContent(tuple(self._objects(location, data)))
            case FilePurpose.MESH_CONFIG | FilePurpose.MESH_NETWORKS:
                self._take_settings(role, str(location), data)
            case _:
                self._notes.append(Note(str(location), f"passed over: {role}"))

    def _objects(self, location: FileLocation, data: bytes) -> Iterator[ParsedObject]:
        for entry in read_objects(data, Origin(SOURCE, str(location)), "default"):
            if isinstance(entry, IgnoredObject):
                kind = (entry.api_version, entry.kind)
                self._ignored.setdefault(kind, []).append(str(Origin(SOURCE, str(location), entry.line)))
            else:
                yield entry

    def _take_settings(self, role: FilePurpose, path: str, data: bytes) -> None:
        decode, flag = (
            (mesh_config, "--mesh-config") if role is FilePurpose.MESH_CONFIG else (mesh_networks, "--networks-config")
        )
        self._notes.append(Note(path, f"checked as {role}; it goes to {flag}, not into a folder of --config-dir"))
        try:
            self._settings.append(decode(data.decode("utf-8-sig"), Origin(SOURCE, path)))
        except ConfigError as error:
            self._errors += _of_rejected(Rejected(SOURCE, error.origin, error.problems))

    def analysis(self) -> Analysis:
        """The findings about everything that was read."""
        index = FileIndex(SOURCE)
        index.update(self._content)
        world = World()
        world.apply(index.state.announce())
        found = [*self._errors, *(f for rejected in world.rejections() for f in _of_rejected(rejected))]
        settings_warnings = [line for settings in self._settings for line in warning_lines(settings)]
        found += (Finding(Severity.WARNING, **line) for line in [*settings_warnings, *warnings(world)])
        found += (Finding(severity, **line) for severity, line in all_patch_problem_lines(world))
        ignored = []
        for (api_version, kind), locations in sorted(self._ignored.items()):
            if reason := reason_ignored(api_version, kind):
                what = f"{kind} of {api_version}"
                found += (
                    Finding(Severity.WARNING, location, f"ignored: {reason}", object=what) for location in locations
                )
            else:
                ignored.append(IgnoredObjects(api_version, kind, tuple(locations)))
        return Analysis(
            objects=sum(world.statistics().configs.values()),
            errors=tuple(finding for finding in found if finding.severity is Severity.ERROR),
            warnings=tuple(finding for finding in found if finding.severity is Severity.WARNING),
            ignored=tuple(ignored),
            notes=tuple(self._notes),
        )


def _other_files(folder: str, units: Iterable[str]) -> Iterator[str]:
    """Files beneath a folder that the reader of objects does not look at, hidden ones left out."""
    known = set(units)
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "#", "__pycache__"))]
        for name in files:
            path = str(Path(parent, name))
            if path not in known and not name.startswith((".", "#")):
                yield str(Path(path).relative_to(folder))


def _of_rejected(rejected: Rejected) -> Iterator[Finding]:
    for problem, line in zip(rejected.problems, rejected_lines(rejected), strict=True):
        yield Finding(problem.severity, **line)


class FilePurpose(StrEnum):
    """The purpose of a file; the values are for messages."""

    OBJECTS = "objects"
    MESH_CONFIG = "MeshConfig"
    MESH_NETWORKS = "MeshNetworks"
    ENVOY_BOOTSTRAP = "a bootstrap of Envoy"
    ENVOY_SDS = "a file of secrets for Envoy (SDS)"
    GRPC_BOOTSTRAP = "a bootstrap of gRPC clients"
    CONSUL_SERVICE = "a service definition for Consul"
    PROXY_SETTINGS = "settings of mesh-pilot proxy"


_TYPED = re.compile(rb"^(apiVersion|kind):", re.MULTILINE)
"""Matches nearly every file of objects, which saves parsing it twice."""
_MESH_NAMES = frozenset(("mesh", "mesh-config", "mesh_config", "meshconfig"))
_FIELDS: tuple[tuple[FilePurpose, frozenset[str]], ...] = (
    (FilePurpose.GRPC_BOOTSTRAP, frozenset(("xds_servers",))),
    (FilePurpose.ENVOY_BOOTSTRAP, frozenset(("static_resources", "dynamic_resources"))),
    (FilePurpose.ENVOY_SDS, frozenset(("resources",))),
    (FilePurpose.CONSUL_SERVICE, frozenset(("service", "services", "Service", "Services"))),
)
"""Fields of which one is enough."""


def purpose_of(data: bytes, path: str) -> FilePurpose:
    """The purpose of a file by its content; OBJECTS if unknown, so that the reader of objects reports the problem."""
    if _TYPED.search(data):
        return FilePurpose.OBJECTS
    try:
        first = next(load(data.decode("utf-8-sig"), Origin("files", path)), None)
    except UnicodeDecodeError:
        return FilePurpose.OBJECTS
    if first is None or isinstance(first, ConfigError):
        return FilePurpose.OBJECTS
    return _by_fields(first.data, Path(path).stem)


def _by_fields(fields: Mapping[str, object], name: str) -> FilePurpose:
    names = fields.keys()
    if names & {"pilot", "tls-ca"}:  # before objects: they may have "metadata", too
        return FilePurpose.PROXY_SETTINGS
    if names & {"apiVersion", "kind", "metadata", "spec"}:
        return FilePurpose.OBJECTS
    for role, enough in _FIELDS:
        if names & enough:
            return role
    if names == {"networks"}:
        return FilePurpose.MESH_NETWORKS
    if name.split(".")[0].lower() in _MESH_NAMES or names & descriptor_of(MeshConfig).by_name.keys():
        return FilePurpose.MESH_CONFIG
    return FilePurpose.OBJECTS
