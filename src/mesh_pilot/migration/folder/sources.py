"""The sources of ``mesh-pilot migrate``: files, folders, standard input, a Consul agent; and how each is converted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from mesh_pilot.consul.source import Agent, ConsulSettings
from mesh_pilot.migration.base.reading import ForeignObject, foreign_object, read_text
from mesh_pilot.migration.base.record import Migration, MigrationRecord
from mesh_pilot.migration.consul.entries import LEFT_KINDS, TAKEN_KINDS, migrate_consul
from mesh_pilot.migration.consul.values import ConsulOptions
from mesh_pilot.migration.folder.detection import MeshSystem
from mesh_pilot.migration.kubernetes.objects import ClusterOptions, migrate_kubernetes
from mesh_pilot.sources.files.content import printable

_ENDINGS = (".yaml", ".yml", ".json")
_OBJECTS = re.compile(rb"^(---\s*\n)?(apiVersion|kind|items|type):", re.MULTILINE)
"""The beginning of a file without an ending, as bug reports have them, that holds objects."""
_HEAD = 4096
_STDIN = "stdin"


class SourceFileError(Exception):
    """A source that can't be read; the text is for people."""


@attrs.frozen
class ForeignFiles:
    """The objects of sources, in order, and what is not an object."""

    objects: tuple[ForeignObject, ...]
    unread: tuple[tuple[str, str], ...]
    """Places and reasons."""
    passed_over: tuple[str, ...] = ()
    """Files that are not YAML and no JSON."""


def read_files(sources: Sequence[str], stdin: BinaryIO) -> ForeignFiles:
    """The objects at these paths; ``-`` is standard input. Raises SourceFileError for a path that can't be read."""
    objects: list[ForeignObject] = []
    unread: list[tuple[str, str]] = []
    passed_over: list[str] = []
    for place, data in _texts(sources, stdin, unread, passed_over):
        for found in read_text(data, place):
            if isinstance(found, ForeignObject):
                objects.append(found)
            else:
                unread.append((found.where, found.reason))
    return ForeignFiles(tuple(objects), tuple(unread), tuple(passed_over))


def _texts(
    sources: Sequence[str], stdin: BinaryIO, unread: list[tuple[str, str]], passed_over: list[str]
) -> Iterator[tuple[str, bytes]]:
    for source in sources:
        if source == "-":
            yield _STDIN, stdin.read()
            continue
        path = Path(source)
        try:
            if not path.is_dir():
                yield printable(source), path.read_bytes()
                continue
            files = sorted(each for each in _files(path))
        except OSError as error:
            raise SourceFileError(f"cannot read {printable(source)}: {error.strerror or error}") from None
        for file in files:
            try:
                if file.suffix.lower() in _ENDINGS or (not file.suffix and _OBJECTS.search(_head(file))):
                    yield printable(str(file)), file.read_bytes()
                else:
                    passed_over.append(printable(str(file)))
            except OSError as error:
                unread.append((printable(str(file)), f"can't be read: {error.strerror or error}"))


def _files(folder: Path) -> Iterator[Path]:
    """The regular files beneath a folder, without hidden ones; raises OSError if the folder itself can't be read."""
    any(folder.iterdir())
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(_HEAD)


def read_live_consul(agent: Agent, flags: Mapping[str, Any]) -> tuple[ForeignFiles, Mapping[str, Any]]:
    """The objects of a Consul agent, and flags that it answers itself. Raises SourceFileError."""
    import trio

    from mesh_pilot.consul.client.client import ConsulError
    from mesh_pilot.consul.source.dump import read_consul

    settings = ConsulSettings(agent=agent, datacenter=flags["consul_datacenter"])
    try:
        dump = trio.run(read_consul, settings, (*TAKEN_KINDS, *LEFT_KINDS))
    except ConsulError as error:
        raise SourceFileError(f"cannot read Consul at {agent.address}: {error}") from None
    more: dict[str, Any] = {"consul_datacenter": flags["consul_datacenter"] or dump.datacenter}
    unread = list(dump.unread)
    if flags["consul_intention_default"] == "auto":
        if dump.default_allow is None:
            reason = "Consul does not say what holds without an intention; allow is taken: --consul-intention-default"
            unread.append(("consul", reason))
        more["consul_intention_default"] = "deny" if dump.default_allow is False else "allow"
    # The API's list of intentions has those of service-intentions entries, too.
    objects = [foreign_object(data, place) for place, data in dump.objects if data.get("Kind") != "service-intentions"]
    return ForeignFiles(tuple(objects), tuple(unread)), more


def convert(found: ForeignFiles, system: str, flags: Mapping[str, Any]) -> Migration:
    """The objects as ours."""
    record = MigrationRecord()
    for place, reason in found.unread:
        record.leave(place, "", "", reason, "fix it and migrate again")
    for path in found.passed_over:
        record.leave(path, "", "", "is neither YAML nor JSON", is_needless=True)
    match MeshSystem(system):
        case MeshSystem.KUBERNETES:
            services = flags["services"] is not False
            options = ClusterOptions(domain=flags["domain"], services=services, secrets=flags["secrets"])
            migrate_kubernetes(found.objects, record, options)
        case MeshSystem.CONSUL:
            migrate_consul(found.objects, record, _consul_options(flags))
        case MeshSystem.KUMA:
            from mesh_pilot.migration.kuma import migrate_kuma

            migrate_kuma(found.objects, record)
    return record.result(system)


def _consul_options(flags: Mapping[str, Any]) -> ConsulOptions:
    return ConsulOptions(
        domain=flags["consul_domain"].strip("."),
        datacenter=flags["consul_datacenter"],
        namespace=flags["consul_mesh_namespace"],
        services=bool(flags["services"]),
        default_allow=flags["consul_intention_default"] != "deny",
        is_default_said=flags["consul_intention_default"] != "auto",
    )
