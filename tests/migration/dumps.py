"""The dumps next to this file, and migrations of texts, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mesh_pilot.istio.reading.yaml_text import yaml_text
from mesh_pilot.migration.base.reading import ForeignObject, read_text
from mesh_pilot.migration.base.record import Migration, Untaken
from mesh_pilot.migration.folder.sources import ForeignFiles, convert

HERE = Path(__file__).parent
SYSTEMS = ("kubernetes", "consul", "kuma")
DEFAULTS: Mapping[str, Any] = {
    "services": None,
    "secrets": False,
    "domain": "cluster.local",
    "consul_domain": "consul",
    "consul_datacenter": "",
    "consul_mesh_namespace": "default",
    "consul_intention_default": "auto",
}
"""The flags of the command as they are without any."""


def read(texts: Mapping[str, str | bytes]) -> ForeignFiles:
    """The objects of texts, by the names of their files."""
    objects: list[ForeignObject] = []
    unread: list[tuple[str, str]] = []
    for name, text in texts.items():
        for found in read_text(text if isinstance(text, bytes) else text.encode(), name):
            if isinstance(found, ForeignObject):
                objects.append(found)
            else:
                unread.append((found.where, found.reason))
    return ForeignFiles(tuple(objects), tuple(unread))


def migrate(system: str, text: str | bytes, **flags: Any) -> Migration:
    """What becomes of a string of a mesh."""
    return convert(read({"dump": text}), system, {**DEFAULTS, **flags})


def dump_of(system: str, **flags: Any) -> Migration:
    """What becomes of the dump of a mesh."""
    texts = {file.name: file.read_text() for file in sorted((HERE / system).iterdir()) if file.is_file()}
    return convert(read(texts), system, {**DEFAULTS, **flags})


def specs(migration: Migration, kind: str) -> dict[str, Any]:
    """The specs of the objects of a kind, by name."""
    found = (made.document for made in migration.objects)
    return {each["metadata"]["name"]: each.get("spec") for each in found if each["kind"] == kind}


def left(migration: Migration, *, needless: bool = False) -> list[Untaken]:
    return [each for each in migration.untaken if each.is_needless == needless]


def reasons(migration: Migration) -> dict[str, str]:
    """The reasons of what is not taken, by object and field."""
    return {f"{each.object}: {each.field}".removesuffix(": "): each.reason for each in left(migration)}


def as_text(migration: Migration) -> str:
    """The objects as one text of YAML."""
    return yaml_text(made.document for made in migration.objects)
