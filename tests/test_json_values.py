"""Values as JSON: an attrs class is written and described by its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

import attrs

from mesh_pilot.model.json import IF_GIVEN, SPREAD, Json, as_json, called, form_of, schemas_of, shown_as

T = TypeVar("T")


class Colour(StrEnum):
    RED = "red"


@attrs.frozen
class Leaf:
    """A leaf."""

    colour: Colour
    at: datetime | None = None
    """When it was
    seen."""


@attrs.frozen
class Tree(Generic[T]):
    """A tree, which may have others below it."""

    own: Leaf = attrs.field(metadata=SPREAD)
    below: Sequence[Tree[T]]
    labels: Mapping[str, int]
    anything: Json
    fruit: T | None = attrs.field(default=None, metadata={**called("from"), **IF_GIVEN})
    size: Any = attrs.field(default=7, metadata=shown_as(str, str))
    _hidden: int = 0


def test_fields_are_members_in_their_order_by_their_names() -> None:
    leaf = Leaf(Colour.RED, datetime(2026, 11, 22, tzinfo=UTC))
    tree = Tree[Leaf](leaf, (Tree(Leaf(Colour.RED), (), {}, None),), {"a": 1}, {"any": [1]}, leaf)
    written: Any = form_of(Tree[Leaf]).write(tree)
    assert list(written.items()) == [
        ("colour", "red"),
        ("at", "2026-11-22T00:00:00+00:00"),
        ("below", [{"colour": "red", "at": None, "below": [], "labels": {}, "anything": None, "size": "7"}]),
        ("labels", {"a": 1}),
        ("anything", {"any": [1]}),
        ("from", {"colour": "red", "at": "2026-11-22T00:00:00+00:00"}),
        ("size", "7"),
    ]
    assert as_json(leaf) == written["from"]


def test_docstrings_are_descriptions_and_each_class_is_described_once() -> None:
    found: Any = schemas_of([Tree[Leaf]])
    assert set(found) == {"Leaf", "TreeLeaf"}
    assert found["TreeLeaf"]["description"] == "A tree, which may have others below it."
    properties = found["TreeLeaf"]["properties"]
    assert properties["below"]["items"] == {"$ref": "#/components/schemas/TreeLeaf"}
    assert properties["colour"] == {"type": "string", "enum": ["red"]}
    assert properties["at"]["description"] == "When it was seen."
    assert properties["size"] == {"type": "string"} and properties["anything"] == {}
    assert "_hidden" not in properties
