"""Files as a source: folders of Istio YAML, credentials, the mesh configuration.

    source = file_source(["/etc/mesh/config"], credentials=["/etc/mesh/credentials"])
    await source.run(events)

Each part is usable and tested alone: `roots` lists and reads folders and files, `scan`
finds what changed since the last look, `objects` and `secrets` parse, `index` decides what is in force and turns
changes into events (pure), `watch` gets changes from the operating system, and `source` runs it all.
"""

from __future__ import annotations

from collections.abc import Iterable

from mesh_pilot.sources.files.roots import ConfigRoot, CredentialsRoot, Root
from mesh_pilot.sources.files.source import FileSource, FileSourceStatistics
from mesh_pilot.sources.files.waiting import FileTiming

__all__ = ["NAME", "FileSource", "FileSourceStatistics", "FileTiming", "file_source"]

NAME = "files"
"""Name of the source of folders, unless it is given another."""


def file_source(
    folders: Iterable[str],
    *,
    credentials: Iterable[str] = (),
    name: str = NAME,
    default_namespace: str = "default",
    timing: FileTiming | None = None,
    poll: bool = False,
) -> FileSource:
    """The source of all config folders and credential folders.

    One source for all, so that an object in two folders is noticed: the earlier folder wins. `folders` hold
    YAML and JSON files, at any depth; `credentials` hold a folder of PEM files for each credential. `poll`: look for
    changes every second instead of waiting for events of the operating system.
    """
    roots: list[Root] = [ConfigRoot(folder, name, default_namespace) for folder in folders]
    roots += [CredentialsRoot(folder, name) for folder in credentials]
    return FileSource(name, roots, timing=timing, poll=poll)
