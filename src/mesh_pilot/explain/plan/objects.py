"""Objects that a plan changes: which ones, in which source, and the fields that differ."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from mesh_pilot.explain.inspection.places import field_place
from mesh_pilot.explain.plan.differences import FieldDifference, differences
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config, Origin
from mesh_pilot.model.events import (
    Delete,
    Event,
    Item,
    MeshConfigValue,
    MeshNetworksValue,
    Secret,
    Upsert,
    item_key,
)
from mesh_pilot.model.json import Json
from mesh_pilot.safety.state.reader import name_of

Key = tuple[str, ...]

FILES = "files"
"""The source that new objects are of, unless another is named."""
MESH = "mesh"
"""The source of the mesh config and the networks."""

CONFIGURATION = frozenset(("config", "secret", "mesh", "networks"))
"""The collections that files may hold."""


PLACED = 20
"""Fields of an object whose lines are looked up: the file is read again for each."""


class ObjectAction(StrEnum):
    ADD = "add"
    UPDATE = "update"
    DELETE = "delete"


@attrs.frozen(slots=False)
class ObjectChange:
    """An object that is new, changed or gone."""

    source: str
    key: Key
    before: Item | None
    after: Item | None

    @property
    def action(self) -> ObjectAction:
        if self.before is None:
            return ObjectAction.ADD
        return ObjectAction.DELETE if self.after is None else ObjectAction.UPDATE

    @property
    def name(self) -> str:
        """The name for people: ``VirtualService/shop/reviews``."""
        return name_of(self.key)

    @property
    def event(self) -> Event:
        """The event by which its source would tell."""
        return Delete(self.source, self.key) if self.after is None else Upsert(self.source, self.after)

    @property
    def origin(self) -> Origin:
        """The place of the object: in the proposal, or where it was."""
        found = getattr(self.after if self.after is not None else self.before, "origin", None)
        return found if isinstance(found, Origin) else Origin(self.source)

    @cached_property
    def fields(self) -> tuple[FieldDifference, ...]:
        """The fields that differ; none for one that is new or gone."""
        if self.before is None or self.after is None:
            return ()
        return tuple(differences(item_json(self.before), item_json(self.after)))

    @cached_property
    def lines(self) -> tuple[int, ...]:
        """The lines of the first `PLACED` of these fields; 0 where it is not known."""
        config = self.after
        if not isinstance(config, Config) or not Path(config.origin.location).is_file():
            return ()
        return tuple(field_place(config.origin, config.key, each.indexed).line for each in self.fields[:PLACED])

    @property
    def place(self) -> str:
        """The file and lines that are new: those of the fields that differ, if they are known."""
        lines = sorted(set(self.lines) - {0})
        if not lines:
            return str(self.origin)
        return f"{attrs.evolve(self.origin, line=0)}:{','.join(map(str, lines))}"


def changes_of(
    current: Mapping[str, Mapping[Key, Item]],
    proposed: Iterable[Item],
    *,
    source: str = "",
    deletes: bool = False,
    kept: Collection[Key] = (),
) -> list[ObjectChange]:
    """The changes that come of laying proposed objects over those of sources, by name.

    An object stays in the source whose object of this key is in force, unless a `source` is named for objects. A new
    one is of the files; a new mesh config is of the mesh. With `deletes`, objects of the source that are not proposed
    go, but for those that are to be `kept`.
    """
    found: list[ObjectChange] = []
    home = source or FILES
    seen: set[Key] = set(kept)
    for item in proposed:
        key = item_key(item)
        if key in seen:
            continue
        seen.add(key)
        named, own = ("", MESH) if key[0] in ("mesh", "networks") else (source, home)
        holder = named or next((name for name, items in current.items() if key in items), own)
        before = current.get(holder, {}).get(key)
        if before != item:
            found.append(ObjectChange(holder, key, before, item))
    if deletes:
        for key, item in current.get(home, {}).items():
            if key not in seen and key[0] in ("config", "secret"):
                found.append(ObjectChange(home, key, item, None))
    return sorted(found, key=lambda change: (change.name, change.source))


def item_json(item: Item) -> Json:
    """An object as JSON, without keys of TLS."""
    match item:
        case Config():
            metadata: dict[str, Any] = {}
            if item.labels:
                metadata["labels"] = dict(item.labels)
            if item.annotations:
                metadata["annotations"] = dict(item.annotations)
            shown: dict[str, Any] = {"metadata": metadata} if metadata else {}
            return {**shown, "spec": to_json(item.spec)}
        case MeshConfigValue(config=message) | MeshNetworksValue(networks=message):
            of_mesh: Json = to_json(message)
            return of_mesh
        case Secret():
            parts = {
                "certificateChain": item.certificate_chain,
                "privateKey": item.private_key,
                "caCertificates": item.ca_certificates,
                "crl": item.crl,
                "dockerConfig": item.docker_config,
            }
            digests = {name: f"sha256 {hashlib.sha256(part).hexdigest()[:16]}" for name, part in parts.items() if part}
            grants = [[grant.namespace, grant.service_account] for grant in item.grants]
            return {**digests, **({"grants": grants} if grants else {})}
    return {}


def configuration(items: Mapping[Key, Item]) -> Iterator[Item]:
    """The objects of a source that files may hold."""
    return (item for key, item in items.items() if key[0] in CONFIGURATION)
