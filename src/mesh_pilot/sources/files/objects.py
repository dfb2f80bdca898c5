"""The objects of one file: Istio configs and Kubernetes Secrets out of YAML or JSON."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import attrs
import structlog

import mesh_pilot
from mesh_pilot import __version__
from mesh_pilot.istio.kinds import KindError, lookup
from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.istio.reading.yaml import Document, load_part, split
from mesh_pilot.model.config import Config, ConfigError, Origin, Problem
from mesh_pilot.model.events import Item, item_key
from mesh_pilot.sources.base.published import InvalidObject, Key, ValidObject
from mesh_pilot.sources.files.content import IgnoredObject, ParsedDocument
from mesh_pilot.sources.files.secrets import read_config_map, read_secret_object

log = structlog.get_logger(scope="sources")

_IDENTITY = ("apiVersion", "kind", "metadata", "metadata.name", "metadata.namespace")
"""Fields that identify an object: if one of them is wrong, it is unknown which object it is."""


_READERS = ("api", "base", "istio", "model", "sources/files")
"""The code that decides which object is read."""

ParsedParts = dict[bytes, tuple[ParsedDocument, ...]]
"""The documents of the parts of a file as last read, by the digest of all that decides how a part is read."""


def read_objects(
    data: bytes, origin: Origin, default_namespace: str, known: ParsedParts | None = None
) -> Iterator[ParsedDocument]:
    """Every object of a file, one at a time, in order.

    Parts of a file between separators that are as they were before are not read again: ``known`` says what stood in
    them, and is brought up to date once all is read. A config that has a part to itself remembers the part's digest, so
    that it may be known over a restart.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}"
        yield InvalidObject((Problem("", reason, line=line),), line=line)
        return
    if origin.location.lower().endswith(".json"):
        # JSON may be indented with tabs, YAML may not; inside JSON strings there can be none.
        text = text.replace("\t", " ")
    fresh: ParsedParts = {}
    for offset, part in split(text):
        digest = _digest(part, offset, default_namespace)
        entries = known.get(digest) if known else None
        if entries is None:
            read: list[ParsedDocument] = []
            documents = list(load_part(part, offset, origin))
            at = attrs.evolve(origin, digest=digest) if len(documents) == 1 else origin
            for document in documents:
                if isinstance(document, ConfigError):
                    read.append(_faulty(document))
                else:
                    read.append(_read(document, at, default_namespace))
                yield read[-1]
            entries = tuple(read)
        else:
            yield from entries
        fresh[digest] = entries
    if known is not None:
        known.clear()
        known.update(fresh)


def restored_parts(items: Iterable[Item]) -> dict[str, ParsedParts]:
    """The parts of which the only object is an item of an earlier run, by file."""
    found: defaultdict[str, ParsedParts] = defaultdict(dict)
    for item in items:
        if isinstance(item, Config) and item.origin.digest:
            found[item.origin.location][item.origin.digest] = (ValidObject(item_key(item), item, item.origin.line),)
    return found


def _digest(part: str, offset: int, default_namespace: str) -> bytes:
    text = f"{offset} {default_namespace} {part}".encode()
    return hashlib.blake2b(text, digest_size=16, key=_what_reads()).digest()


@cache
def _what_reads() -> bytes:
    """A key that another version of what reads and validates objects does not have, also in a checkout."""
    digest = hashlib.blake2b(__version__.encode(), digest_size=16)
    for room in _READERS:
        for file in sorted((Path(mesh_pilot.__file__).parent / room).rglob("*.*")):
            if file.suffix in (".py", ".yaml"):
                status = file.stat()
                digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.digest()


def _read(document: Document, origin: Origin, default_namespace: str) -> ParsedDocument:
    api_version, kind = document.data.get("apiVersion"), document.data.get("kind")
    if api_version == "v1" and kind == "Secret":
        return read_secret_object(document, default_namespace)
    if api_version == "v1" and kind == "ConfigMap":
        return read_config_map(document, default_namespace)
    if isinstance(api_version, str) and isinstance(kind, str) and api_version and kind:
        try:
            if lookup(api_version, kind) is None:
                return IgnoredObject(api_version, kind, document.line, _has_name(document))
        except KindError:
            pass  # decoding says it, with line and path
    try:
        config = decode_document(document, origin=origin, default_namespace=default_namespace)
    except ConfigError as error:
        return _faulty(error)
    except Exception as error:
        return internal_error(error, attrs.evolve(origin, line=document.line))
    return ValidObject(item_key(config), config, config.origin.line)


def _has_name(document: Document) -> bool:
    metadata = document.data.get("metadata")
    return isinstance(metadata, Mapping) and bool(metadata.get("name") or metadata.get("generateName"))


def internal_error(error: Exception, origin: Origin, key: Key | None = None) -> InvalidObject:
    """The object that an internal error while decoding costs; no other is lost. Logs the error."""
    log.error("internal error while decoding an object", file=origin.location, line=origin.line, exc_info=error)
    reason = f"internal error of mesh-pilot while decoding it ({type(error).__name__}: {error}); please report it"
    return InvalidObject((Problem("", reason, line=origin.line),), key, origin.line)


def _faulty(error: ConfigError) -> InvalidObject:
    certain = error.key is not None and not any(problem.path in _IDENTITY for problem in error.problems)
    key = ("config", *error.key) if error.key is not None and certain else None
    return InvalidObject(error.problems, key, error.origin.line)
