"""The search itself, against a door that refuses what it is told to."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, cast

import betterproto2
import pytest

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.meaning.descriptors import descriptor_of
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Item
from tests.door.envoys import Door, Refusal
from tests.door.fields import FIELDS
from tests.door.objects import MESH, NAMES, NETWORKS, Writer, random_object
from tests.door.search import cause_of, search
from tests.door.values import Values

_BY_HAND = ("EnvoyFilter",)
"""Kinds whose patches are written from Envoy's descriptors."""


def message_of(kind: str) -> type[betterproto2.Message]:
    return {MESH: MeshConfig, NETWORKS: MeshNetworks}.get(kind) or KINDS[kind].message


def every_field(message: type[betterproto2.Message], found: set[type[betterproto2.Message]]) -> Iterator[str]:
    """The fields of a message and of all below it."""
    if message in found:
        return
    found.add(message)
    for field in descriptor_of(message).fields:
        yield f"{message.__name__}.{field.json_name}"
        inner = (field.value or field).message
        if inner is not None:
            yield from every_field(inner, found)


def written_fields(message: type[betterproto2.Message], data: Any) -> Iterator[str]:
    for name, value in data.items():
        field = descriptor_of(message).by_name[name]
        yield f"{message.__name__}.{name}"
        inner = (field.value or field).message
        if inner is not None:
            parts = value.values() if field.value is not None else value if field.repeated else [value]
            for part in parts:
                yield from written_fields(inner, part)


@pytest.mark.parametrize("kind", NAMES)
def test_objects_of_every_kind_are_made_that_validation_accepts(kind: str) -> None:
    made = [random_object(random.Random(seed), kind, "a") for seed in range(30)]
    assert sum(candidate is not None for candidate in made) > 25
    again = [random_object(random.Random(seed), kind, "a") for seed in range(30)]
    assert [c and c.document for c in made] == [c and c.document for c in again]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == MESH)) for name in NAMES if name not in _BY_HAND],
)
def test_every_field_is_written_sooner_or_later(kind: str) -> None:
    message = message_of(kind)
    missing = {name for name in every_field(message, set()) if FIELDS.get(name.rpartition(".")[2]) != ()}
    pick = random.Random(1)
    for _ in range(20_000):
        missing -= set(written_fields(message, Writer(Values(pick)).message(message, 0)))
        if not missing:
            break
    assert {name for name in missing if not name.startswith("ConfigSource.")} == set()


class Picky:
    """A door that refuses objects in which a string is found."""

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong
        self.turn = 0

    async def start(self) -> None:
        pass

    async def show(self, items: Iterable[Item]) -> tuple[Refusal, ...]:
        bad = [item for item in items if isinstance(item, Config) and self.wrong in str(item.spec)]
        return tuple(Refusal("web", "RDS", f"I do not take '{item.key}'", (item.key,)) for item in bad)


async def test_what_is_refused_is_reduced_to_the_one_field_of_the_one_object() -> None:
    door = cast("Door", Picky("%FOO%"))
    found = [each async for each in search(door, random.Random(1), ["VirtualService"], examples=80)]
    assert found
    for finding in found:
        (candidate,) = finding.objects
        assert finding.cause == "VirtualService: RDS I do not take _"
        (route,) = candidate.document["spec"]["http"]
        assert str(candidate.document).count("%FOO%") == 1, candidate.document
        assert len(route) <= 2


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (
            "Duplicate entry of domain evil.test in route http.31080",
            "LDS Duplicate entry of domain evil.test in route http._",
        ),
        ("Error adding/updating listener(s) 0.0.0.0_80: bad 'x'\n0.0.0.0_81: bad 'y'", "LDS listener: bad _"),
        ("Error adding/updating cluster(s) a|b: no such thing, c|d: no such thing", "LDS cluster: no such thing"),
        (
            'name: "x"\n: Proto constraint validation failed (AValidationError.Bs[0]: embedded message failed '
            "validation | caused by BValidationError.Name: value is required)",
            "LDS constraint A.Bs.B.Name: value is required",
        ),
        (
            "Error adding/updating listener(s) a: cannot bind '1.2.3.4:80': Address already in use\nb: no chains",
            "LDS b: no chains",
        ),
    ],
)
def test_words_of_envoy_that_mean_the_same_are_one_cause(words: str, cause: str) -> None:
    assert cause_of(Refusal("web", "LDS", words)) == cause
