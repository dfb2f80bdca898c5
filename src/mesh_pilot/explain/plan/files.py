"""The objects that a plan is about, read from files and folders as ``discovery`` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from mesh_pilot.base.reading import as_object
from mesh_pilot.explain.analysis.command_line import FilePurpose, purpose_of
from mesh_pilot.explain.analysis.object_problems import rejected_lines
from mesh_pilot.explain.plan.picture import ConnectedProxy, without_secrets
from mesh_pilot.explain.plan.report import Refused, printable
from mesh_pilot.model.config import ConfigError, Origin, Severity
from mesh_pilot.model.events import Item, MeshConfigValue, MeshNetworksValue, Rejected
from mesh_pilot.model.proxy import NodeError, parse_proxy
from mesh_pilot.model.service import Locality
from mesh_pilot.sources.files.content import FileContent, FileLocation, IgnoredObject, ParsedObject
from mesh_pilot.sources.files.index import FileIndex
from mesh_pilot.sources.files.mesh import mesh_config, mesh_networks
from mesh_pilot.sources.files.objects import read_objects
from mesh_pilot.sources.files.roots import ConfigRoot, CredentialsRoot, read_file

SOURCE = "files"

Key = tuple[str, ...]


class PlanFileError(Exception):
    """A path that was named and can't be read; the text is for people."""


@attrs.frozen
class ReadFiles:
    """The objects of files, in order of precedence."""

    items: tuple[Item, ...]
    """Without private keys."""
    refused: tuple[Refused, ...]
    refused_keys: frozenset[Key]
    """The objects that are refused, as far as they could be identified."""
    is_whole: bool
    """False if it cannot be known which objects a part of the files holds."""
    passed_over: tuple[str, ...]
    """Files of other kinds, for people."""


class FilesReader:
    """State: what was read so far. Of two objects of a name the first one counts."""

    def __init__(self, root_namespace: str) -> None:
        self._root_namespace = root_namespace
        self._content: dict[FileLocation, FileContent] = {}
        self._settings: dict[str, Item] = {}
        self._refused: list[Refused] = []
        self._passed_over: list[str] = []
        self._is_whole = True

    def read(self, paths: Sequence[str], stdin: BinaryIO, credentials: Iterable[str] = ()) -> ReadFiles:
        """The objects at these paths, and in folders of credentials. Raises PlanFileError."""
        visited: set[tuple[int, int]] = set()
        for rank, path in enumerate(paths):
            if path == "-":
                self._take(FileLocation(rank, "stdin"), stdin.read())
            elif Path(path).is_dir():
                self._take_folder(rank, ConfigRoot(path, SOURCE), visited)
            else:
                self._take(FileLocation(rank, path), _data(path))
        for rank, path in enumerate(credentials, len(paths)):
            self._take_credentials(rank, CredentialsRoot(path, SOURCE))
        return self._result()

    def _take_folder(self, rank: int, root: ConfigRoot, visited: set[tuple[int, int]]) -> None:
        listing = root.list(visited)
        if root.path in listing.faults:
            raise PlanFileError(f"cannot read {root.path}: {listing.faults[root.path]}")
        for file, reason in sorted(listing.faults.items()):
            self._unreadable(file, reason)
        for file in sorted(listing.units):
            try:
                self._take(FileLocation(rank, file), _data(file))
            except PlanFileError as error:
                self._unreadable(file, str(error))

    def _take_credentials(self, rank: int, root: CredentialsRoot) -> None:
        listing = root.list(set())
        if root.path in listing.faults:
            raise PlanFileError(f"cannot read {root.path}: {listing.faults[root.path]}")
        for unit in sorted(listing.units):
            parsed = [each for each in root.parse(unit, root.read(unit)) if not isinstance(each, IgnoredObject)]
            self._content[FileLocation(rank, unit)] = FileContent(tuple(parsed))

    def _unreadable(self, file: str, reason: str) -> None:
        self._refused.append(Refused(file, reason))
        self._is_whole = False

    def _take(self, location: FileLocation, data: bytes) -> None:
        place = str(location)
        match purpose_of(data, place):
            case FilePurpose.OBJECTS:
                origin = Origin(SOURCE, place)
                entries: list[ParsedObject] = []
                for entry in read_objects(data, origin, "default"):
                    if not isinstance(entry, IgnoredObject):
                        entries.append(entry)
                        self._is_whole &= entry.key is not None
                self._content[location] = FileContent(tuple(entries))
            case FilePurpose.MESH_CONFIG:
                self._take_settings("mesh", data, place)
            case FilePurpose.MESH_NETWORKS:
                self._take_settings("networks", data, place)
            case purpose:
                self._passed_over.append(f"{printable(place)} ({purpose})")

    def _take_settings(self, name: str, data: bytes, place: str) -> None:
        origin = Origin("mesh", place)
        found: MeshConfigValue | MeshNetworksValue
        try:
            text = data.decode("utf-8-sig")
            found = mesh_config(text, origin, self._root_namespace) if name == "mesh" else mesh_networks(text, origin)
        except UnicodeDecodeError:
            self._refused.append(Refused(place, "is not UTF-8 text"))
        except ConfigError as error:
            self._refused += _refused(Rejected("mesh", error.origin, error.problems, (name,)))
        else:
            self._settings.setdefault(name, found)

    def _result(self) -> ReadFiles:
        index = FileIndex(SOURCE)
        index.state.announce()
        index.update(self._content)
        rejections = index.rejections()
        refused = [*self._refused, *(each for rejected in rejections for each in _refused(rejected))]
        return ReadFiles(
            tuple(map(without_secrets, (*self._settings.values(), *index.items()))),
            tuple(refused),
            frozenset(rejected.key for rejected in rejections if rejected.key is not None),
            self._is_whole,
            tuple(self._passed_over),
        )


def _refused(rejected: Rejected) -> list[Refused]:
    errors = attrs.evolve(
        rejected, problems=tuple(each for each in rejected.problems if each.severity is Severity.ERROR)
    )
    return [Refused(**line) for line in rejected_lines(errors)]


def _data(path: str) -> bytes:
    try:
        return read_file(Path(path))
    except OSError as error:
        raise PlanFileError(f"cannot read {path}: {error.strerror or error}") from None


def read_nodes(path: str) -> list[ConnectedProxy]:
    """The proxies in a file: a node as Envoy's bootstrap has it (``id``, ``metadata``, ...), or a list of these.

    Raises PlanFileError.
    """
    try:
        value = json.loads(_data(path))
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{path}: is not JSON: {error}") from None
    nodes = value if isinstance(value, list) else [value]
    found = []
    for node in nodes:
        if not isinstance(node, dict) or not isinstance(node.get("id"), str):
            raise PlanFileError(f'{path}: a node is an object with an "id", and perhaps "metadata" and "locality"')
        try:
            found.append(ConnectedProxy(_proxy(node)))
        except NodeError as error:
            raise PlanFileError(f"{path}: {error}") from None
    return found


def _proxy(node: dict[str, Any]) -> Any:
    place = as_object(node, "locality")
    parts = [str(place.get(key, "")) for key in ("region", "zone", "sub_zone")] if place else []
    return parse_proxy(
        node["id"],
        as_object(node, "metadata"),
        locality=Locality(*parts),
        cluster=str(node.get("cluster", "")),
    )
