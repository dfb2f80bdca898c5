"""The examples: objects that are in force together, and the fields without which proxies are sent something else."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import betterproto2
import yaml

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, descriptor_of
from mesh_pilot.istio.reading.field_warnings import DEPRECATED, WITHOUT_EFFECT
from mesh_pilot.model.config import Config, ConfigError
from mesh_pilot.model.events import Item
from tests.door.objects import MESH, NETWORKS, accepted
from tests.fields.mesh import Mesh
from tests.fields.places import FieldPath, Place, below, places, variants

FOLDER = Path(__file__).parent / "examples"
CREATED = "2024-03-01T00:00:00Z"

Field = str
"""Message and field, as `HttpRoute.timeout`."""

_TRIES = 6
"""Values that are tried in place of one that cannot be left out, or makes no difference."""


def message_of(kind: str) -> type[betterproto2.Message]:
    if kind in (MESH, NETWORKS):
        return MeshConfig if kind == MESH else MeshNetworks
    return KINDS[kind].message


def name_of(message: type[betterproto2.Message], field: FieldDescriptor) -> Field:
    return f"{message.__module__.removeprefix('mesh_pilot.api.')}.{message.__name__}.{field.json_name}"


def is_told(message: type[betterproto2.Message], field: FieldDescriptor) -> bool:
    """True if whoever sets the field is told that it has no effect."""
    return any(field.proto_name in table.get(message, ()) for table in (WITHOUT_EFFECT, DEPRECATED))


def fields_of(
    message: type[betterproto2.Message], found: set[type[betterproto2.Message]], ends: Container[Field] = ()
) -> Iterator[tuple[type[betterproto2.Message], FieldDescriptor]]:
    """The fields of a message and of all below it, but for those that are told to have no effect.

    What is below one of `ends`, by message and field, is left out.
    """
    if message in found:
        return
    found.add(message)
    for field in descriptor_of(message).fields:
        if is_told(message, field):
            continue
        yield message, field
        inner = (field.value or field).message
        if inner is not None and f"{message.__name__}.{field.json_name}" not in ends:
            yield from fields_of(inner, found, ends)


@attrs.frozen
class Example:
    """An object of a file of examples, as it is written."""

    kind: str
    spec: Mapping[str, Any]
    head: Mapping[str, Any]

    @property
    def name(self) -> tuple[str, ...]:
        metadata = self.head.get("metadata", {})
        return (self.kind, metadata.get("namespace", ""), metadata.get("name", ""))

    def read(self, spec: Any) -> Any:
        """The item of this object with another spec. Raises ConfigError."""
        return accepted(self.kind, spec if self.kind in (MESH, NETWORKS) else {**self.head, "spec": spec}).item


def scenes(path: Path) -> Iterator[list[Example]]:
    """The objects of a file; of several with one name each is in force in its own scene."""
    objects = _examples(path)
    names = [each.name for each in objects]
    common = [each for each in objects if names.count(each.name) == 1]
    ways = [[each for each in objects if each.name == name] for name in dict.fromkeys(names) if names.count(name) > 1]
    for number in range(max(map(len, ways), default=1)):
        yield [*common, *(way[min(number, len(way) - 1)] for way in ways)]


def _examples(path: Path) -> list[Example]:
    found = []
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        kind = document["kind"]
        head = {}
        if kind not in (MESH, NETWORKS):
            metadata = {"creationTimestamp": CREATED, **document["metadata"]}
            head = {"apiVersion": KINDS[kind].api_versions[-1], "kind": KINDS[kind].written, "metadata": metadata}
        found.append(Example(kind, document["spec"], head))
    return found


def _told(item: Item) -> set[str]:
    """The paths at which an object is said to have no effect."""
    return {w.path for w in item.warnings if "has no effect" in w.reason} if isinstance(item, Config) else set()


def _written(example: Example, path: FieldPath) -> str:
    """A path as in warnings."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"spec{steps}" if example.head else steps.removeprefix(".")


class Trial:
    """The objects of a file in force, and what proxies are sent then."""

    def __init__(self, mesh: Mesh, objects: Sequence[Example], found: set[Field]) -> None:
        self.mesh = mesh
        self.objects = objects
        self.found = found
        """Fields that have shown an effect, or are said to have none, in this trial or before."""
        self.refused: set[Field] = set()
        """Fields that have one value only, next to the other fields of an object."""
        self.items = [each.read(each.spec) for each in objects]
        self.base = mesh.seen_with(self.items)

    def run(self) -> None:
        for number, example in enumerate(self.objects):
            every = list(places(message_of(example.kind), example.spec))
            told = _told(self.items[number])
            for place in reversed(every):
                name = name_of(place[1], place[2])
                if _written(example, place[0]) in told or (
                    name not in self.found and self._has_effect(number, every, place)
                ):
                    self.found.add(name)

    def _has_effect(self, number: int, every: Sequence[Place], place: Place) -> bool:
        """Without the field, with another value of it, or with another part of it."""
        path, message, field = place
        example = self.objects[number]
        tries = 0
        for spec in variants(example.spec, path, message, field):
            try:
                other = example.read(spec)
            except ConfigError:
                continue
            if self.mesh.differs_with([*self.items[:number], other, *self.items[number + 1 :]], self.base):
                return True
            tries += 1
            if tries == _TRIES:
                break
        if not tries and field.message is None:
            self.refused.add(name_of(message, field))
        return any(self._has_effect(number, every, inner) for inner in below(every, path))
