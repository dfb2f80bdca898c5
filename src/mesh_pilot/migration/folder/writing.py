"""The folder that ``mesh-pilot migrate`` writes: analyzed first, never over a file that is not its own.

A hidden file in the folder holds a digest of each file that was written, so that ``--merge`` knows its own.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from mesh_pilot.base.reading import as_object
from mesh_pilot.migration.base.record import Migration
from mesh_pilot.migration.folder.report import (
    CONFIG,
    MESH_FILE,
    NETWORKS_FILE,
    REPORT_FILE,
    SECRETS,
    FolderOutcome,
    as_markdown,
    files_of,
    is_secret,
)

DIGESTS = ".mesh-pilot-migration.json"
_SETTINGS = {"mesh": MESH_FILE, "networks": NETWORKS_FILE}


class FolderError(Exception):
    """A folder that can't be written; the text is for people."""


class NotEmptyError(FolderError):
    """A folder that has files already."""


def write_folder(
    migration: Migration, folder: Path, *, is_dry: bool, is_forced: bool, is_merged: bool
) -> FolderOutcome:
    """Write the files of a migration, and its report. Raises FolderError."""
    files = files_of(migration)
    findings = _findings(files)
    try:
        known = _digests(folder)
        if not is_forced and not is_merged and folder.exists() and any(folder.iterdir()):
            raise NotEmptyError(f"{folder} is not empty: give --merge to keep its files, or --force to write over them")
        # A file that somebody has edited since the last migration is theirs: it is kept unless --force says otherwise.
        kept = () if is_forced else tuple(path for path in files if not _is_ours(folder / path, known.get(path)))
        written = tuple(path for path in files if path not in kept)
        outcome = FolderOutcome(written, kept, findings)
        report = {REPORT_FILE: as_markdown(migration, outcome).encode()}
        if not is_forced and not _is_ours(folder / REPORT_FILE, known.get(REPORT_FILE)):
            outcome = FolderOutcome(written, (*kept, REPORT_FILE), findings)
            report = {}
        if not is_dry:
            content = {**{path: files[path] for path in written}, **report}
            for path, data in content.items():
                _write(folder, path, data)
            digests = known | {path: _digest(data) for path, data in content.items()}
            _write(folder, DIGESTS, json.dumps(dict(sorted(digests.items())), indent=1).encode() + b"\n")
    except OSError as error:
        raise FolderError(f"cannot write {error.filename or folder}: {error.strerror or error}") from None
    return outcome


def _findings(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The lines of an analysis of the files, as ``mesh-pilot analyze`` has them."""
    from mesh_pilot.explain.analysis.command_line import analyze
    from mesh_pilot.explain.analysis.findings import Level

    with tempfile.TemporaryDirectory(prefix="mesh-pilot-migrate-") as scratch:
        root = Path(scratch)
        for path, data in files.items():
            _write(root, path, data)
        paths = [str(root / name) for name in (CONFIG, MESH_FILE, NETWORKS_FILE) if (root / name).exists()]
        secrets = [str(root / SECRETS)] if (root / SECRETS).exists() else []
        if not paths:
            return ()
        found = analyze(paths, io.BytesIO(), secrets=secrets)
        lines = [f"{each} [{each.code}]" for each in found.findings if each.level is not Level.INFO]
        return tuple(line.replace(f"{scratch}/", "") for line in lines)


def _is_ours(path: Path, digest: str | None) -> bool:
    """True if there is nothing, or what this command wrote there."""
    if not os.path.lexists(path):
        return True
    return digest is not None and path.is_file() and _digest(path.read_bytes()) == digest


def _digests(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / DIGESTS).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return {str(path): str(digest) for path, digest in as_object(found).items()}


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _write(folder: Path, path: str, data: bytes) -> None:
    """Write a file in one step; credentials are for their owner only."""
    target = folder / path
    secret = is_secret(path)
    missing = [parent for parent in (target.parent, *target.parent.parents) if not parent.exists()]
    for parent in reversed(missing):
        is_private = secret and parent.is_relative_to(folder / SECRETS)
        parent.mkdir(mode=0o700 if is_private else 0o777)
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)
    fresh.replace(target)
