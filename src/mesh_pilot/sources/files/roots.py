"""The roots that can be read: a folder of YAML files, a folder of credentials, a single file.

A root lists its units (a unit is what is read, and refused, together: a file, or the files of one credential), reads
one, and parses it. No state; all calls but `parse` block, and belong in a worker thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import attrs

from mesh_pilot.model.config import ConfigError, Origin, Problem
from mesh_pilot.model.events import Item, item_key
from mesh_pilot.sources.base.published import InvalidObject, ValidObject
from mesh_pilot.sources.files.content import ParsedDocument, printable
from mesh_pilot.sources.files.objects import ParsedParts, internal_error, read_objects
from mesh_pilot.sources.files.secrets import FILE_NAMES, make_credential

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Larger files are refused: they are not configuration."""

Signature = tuple[int, ...]
"""Device, inode, size and times of a unit's files. If it differs, the unit is read again."""

_SIGNATURE_SIZE = 5
"""Numbers that there are for each file."""

Identity = tuple[int, int]
"""Device and inode."""

FileParts = Mapping[str, bytes]
"""The contents of a unit's files by name; the name of a lone file is empty."""


@attrs.frozen
class RootListing:
    """The present content of a root."""

    units: Mapping[str, Signature] = attrs.field(factory=dict)
    faults: Mapping[str, str] = attrs.field(factory=dict)
    """Folders (or the root) that can't be looked into, with the reason: what is beneath them is as it was."""
    folders: frozenset[str] = frozenset()
    """Real paths of the folders in which any change matters."""
    identity: Identity | None = None
    """The identity of the folder; None if there is none."""
    plain: Mapping[str, tuple[str, Identity]] = attrs.field(factory=dict)
    """Folders of which each file is a unit or is not read, whatever others there are, as there are no links: how the
    paths of units in them begin, and their identities, by their real paths."""


class Root(Protocol):
    @property
    def path(self) -> str:
        """As it was given."""

    @property
    def place(self) -> str:
        """The settings that decide what it gives; see `sources.base.contract.Placed`."""

    def list(self, visited: set[Identity]) -> RootListing:
        """The present content. Folders in `visited` are skipped, and those that it enters are added."""

    def read(self, unit: str) -> FileParts:
        """Raises OSError."""

    def parse(self, unit: str, parts: FileParts, known: ParsedParts | None = None) -> Iterator[ParsedDocument]:
        """The documents of a unit, one by one. ``known``: see `objects.read_objects`."""


@attrs.frozen
class ConfigRoot:
    """A folder tree of YAML and JSON files. Hidden names, backups and editors' temporary files are passed over.

    Symbolic links are followed, to files and to folders; a folder reached twice is read once. A mounted ConfigMap is
    so read through its links, and its hidden versions are not.
    """

    path: str
    source: str
    default_namespace: str = "default"

    @property
    def place(self) -> str:
        return f"objects in {Path(self.path).absolute()}, by default of namespace {self.default_namespace}"

    def list(self, visited: set[Identity]) -> RootListing:
        walk = _Walk(visited, is_config_file)
        identity = walk.enter(self.path)
        plain = {} if walk.has_links else walk.named
        return RootListing(walk.units, walk.faults, frozenset(walk.folders), identity, plain)

    def read(self, unit: str) -> FileParts:
        return {"": read_file(Path(unit))}

    def parse(self, unit: str, parts: FileParts, known: ParsedParts | None = None) -> Iterator[ParsedDocument]:
        return read_objects(parts[""], Origin(self.source, printable(unit)), self.default_namespace, known)


@attrs.frozen
class CredentialsRoot:
    """A folder with a folder for each credential, NAMESPACE/NAME, that holds its PEM files and grants.

    A folder NAME is a credential of the mesh's root namespace.
    """

    path: str
    source: str

    @property
    def place(self) -> str:
        return f"credentials in {Path(self.path).absolute()}"

    def list(self, visited: set[Identity]) -> RootListing:
        walk = _Walk(visited, lambda name: name in FILE_NAMES)
        identity = walk.enter(self.path, depth=2)
        units: dict[str, Signature] = {}
        for file, signature in walk.units.items():
            folder = str(Path(file).parent)
            if folder != self.path:
                units[folder] = units.get(folder, ()) + signature
        return RootListing(units, walk.faults, frozenset(walk.folders), identity)

    def read(self, unit: str) -> FileParts:
        files = sorted(file for file in Path(unit).iterdir() if file.name in FILE_NAMES)
        return {file.name: read_file(file) for file in files}

    def parse(self, unit: str, parts: FileParts, known: ParsedParts | None = None) -> Iterator[ParsedDocument]:
        folder = Path(unit)
        is_of_root = folder.parent == Path(self.path)
        namespace = "" if is_of_root else printable(folder.parent.name)
        secret, problems = make_credential(printable(folder.name), namespace, parts)
        key = item_key(secret)
        yield InvalidObject(problems, key) if problems else ValidObject(key, secret)


@attrs.frozen
class FileRoot:
    """A single file that holds one item."""

    path: str
    source: str
    decode: Callable[[str, Origin], Item]
    """Raises ConfigError."""
    key: tuple[str, ...]
    """The key of the item that it gives."""
    settings: str = ""
    """The settings that, besides its text, decide what a file gives."""

    @property
    def place(self) -> str:
        return " ".join(filter(None, (*self.key, "in", str(Path(self.path).absolute()), self.settings)))

    def list(self, visited: set[Identity]) -> RootListing:
        try:
            file = Path(self.path).resolve(strict=True)
            status = file.stat()
        except OSError as error:
            return RootListing(faults={self.path: _reason(error)})
        folders = frozenset({str(file.parent)})
        return RootListing({self.path: _signature(status)}, folders=folders, identity=_identity(status))

    def read(self, unit: str) -> FileParts:
        return {"": read_file(Path(unit))}

    def parse(self, unit: str, parts: FileParts, known: ParsedParts | None = None) -> Iterator[ParsedDocument]:
        try:
            item = self.decode(parts[""].decode("utf-8-sig"), Origin(self.source, printable(unit)))
        except UnicodeDecodeError:
            yield InvalidObject((Problem("", "is not UTF-8 text"),), self.key)
        except ConfigError as error:
            yield InvalidObject(error.problems, self.key, error.origin.line)
        except Exception as error:
            yield internal_error(error, Origin(self.source, printable(unit)), self.key)
        else:
            yield ValidObject(self.key, item)


class _Walk:
    """One walk through a tree: what was found on the way."""

    def __init__(self, visited: set[Identity], wanted: Callable[[str], bool]) -> None:
        self.units: dict[str, Signature] = {}
        self.faults: dict[str, str] = {}
        self.folders: set[str] = set()
        self.named: dict[str, tuple[str, Identity]] = {}
        """How paths in each folder begin, and its identity, by its real path."""
        self.has_links = False
        self._visited = visited
        self._wanted = wanted

    def enter(self, folder: str, depth: int = 1000) -> Identity | None:
        """Take in a folder and, `depth` levels down, those within; its identity, None where it can't be entered."""
        try:
            identity = _identity(Path(folder).stat())
            if identity in self._visited:
                return identity
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            self.faults[folder] = _reason(error)
            return None
        self._visited.add(identity)
        real = os.path.realpath(folder)
        self.folders.add(real)
        self.named[real] = (folder if folder.endswith(os.sep) else folder + os.sep, identity)
        for entry in entries:
            if not _is_hidden(entry.name):
                self._take(entry, depth)
        return identity

    def _take(self, entry: os.DirEntry[str], depth: int) -> None:
        wanted = self._wanted(entry.name)
        self.has_links = self.has_links or entry.is_symlink()
        try:
            if entry.is_dir():
                if depth:
                    self.enter(entry.path, depth - 1)
                return
            if not wanted:
                return
            status = entry.stat()
        except FileNotFoundError:
            if wanted and entry.is_symlink():
                self.faults[entry.path] = "is a symbolic link to nothing"
            return
        except OSError as error:
            self.faults[entry.path] = _reason(error)
            return
        if stat.S_ISREG(status.st_mode):
            self.units[entry.path] = _signature(status)
            if entry.is_symlink():
                self.folders.add(str(Path(entry.path).resolve().parent))


def is_config_file(name: str) -> bool:
    """True for the name of a file that a folder of configuration is read for."""
    return name.lower().endswith((".yaml", ".yml", ".json"))


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "#"))


def plain_file(path: str) -> Signature | None:
    """The signature of a file in a plain folder, or None if it is gone or is not configuration.

    Raises OSError, also for what may be more than one unit, or none: a folder, a link, a file with several names.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise OSError(errno.EINVAL, "not a plain file", path)
    name = path.rpartition(os.sep)[2]
    return _signature(status) if is_config_file(name) and not _is_hidden(name) else None


def read_file(path: Path) -> bytes:
    """All of a file. Raises OSError, also where it is too large to be configuration."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_FILE_BYTES >> 20} MiB")
    return data


def files_of(signature: Signature) -> frozenset[Identity]:
    """The identities of the files of a signature."""
    return frozenset(zip(signature[::_SIGNATURE_SIZE], signature[1::_SIGNATURE_SIZE], strict=True))


def _signature(status: os.stat_result) -> Signature:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _identity(status: os.stat_result) -> Identity:
    return (status.st_dev, status.st_ino)


def _reason(error: OSError) -> str:
    return f"can't be read: {error.strerror or error}"
