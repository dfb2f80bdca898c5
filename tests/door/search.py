"""The search: shows random objects, and reduces what is refused to the least that is."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import attrs

from mesh_pilot.model.config import Config, ConfigError
from mesh_pilot.model.events import item_key
from tests.door.envoys import Door, Refusal
from tests.door.objects import MESH, NETWORKS, Candidate, Json, accepted, random_object

_OF_THE_MACHINE = (
    "Address already in use",
    "Cannot assign requested address",
    "Permission denied",
    "Address family not supported",
    "unable to add filesystem watch",
    "/nonexistent/door",
)
"""Refusals that this machine causes: its addresses, ports and files."""

_RESTART_AFTER = 400
"""Examples after which the Envoys are started anew, in the other variant."""

_SHAPES = 3
"""Findings of one class that are reduced field by field: they may come from different fields."""

_TRIES = 150
"""Trials of one reduction."""


@attrs.frozen
class Finding:
    """A class of refusals, with the least objects that cause it."""

    cause: str
    """Type, kinds and Envoy's words without names and numbers: findings with one cause are the same."""
    words: str
    proxy: str
    objects: tuple[Candidate, ...]
    is_repeated: bool = True
    """False: it was refused only after what was shown before it."""


@attrs.define
class Totals:
    examples: int = 0
    objects: int = 0
    of_the_machine: int = 0
    seen: dict[str, int] = attrs.field(factory=dict)
    """How often each cause was met."""


def cause_of(refusal: Refusal, texts: Sequence[str] = ()) -> str:
    """Envoy's words without what differs from case to case, such as `texts` of the objects."""
    text = refusal.words
    for part in texts:
        text = text.replace(part, "_")
    if constraint := re.search(r"Proto constraint validation failed \((.*?)\):? ", text, re.DOTALL):
        text = "constraint: " + " < ".join(re.findall(r"(\w+ValidationError\.\w+)", constraint[1]))
        text += ": " + constraint[1].rpartition(": ")[2]
    text = re.sub(r"Error adding/updating (listener|cluster)\(s\) [^\s]+: ", r"\1: ", text.split("\n")[0])
    text = re.sub(r"(?<!\w)(?:'[^']*'|\"[^\"]*\")", "_", text)
    text = re.sub(r"(?:outbound|inbound|virtual)\S*|\b\d[\d.:_]*\S*", "_", text)
    text = re.sub(r"_[_\W]*_", "_", text)
    if again := re.match(r"(\w+: )(.{5,}?), \S+ \2", text):
        text = again[1] + again[2]
    return f"{refusal.type} {text[:120]}"


def texts_of(candidates: Sequence[Candidate]) -> list[str]:
    """The texts that objects contain and Envoy may quote, the longest first."""
    found = set()
    for candidate in candidates:
        for path in _places(candidate.document, []):
            value = _at(candidate.document, path)
            if isinstance(value, str) and len(value) > 2:
                found.add(value)
    return sorted(found, key=len, reverse=True)


async def search(
    door: Door, pick: random.Random, kinds: Sequence[str], *, size: int = 6, totals: Totals | None = None
) -> AsyncIterator[Finding]:
    """Show examples for ever; each new finding as it is made. `size` is the number of objects of an example."""
    totals = totals or Totals()
    shapes: dict[str, set[str]] = {}
    while True:
        if totals.examples and totals.examples % _RESTART_AFTER == 0:
            await door.start()
        totals.examples += 1
        example = _example(pick, kinds, size)
        totals.objects += len(example)
        while example and (refusals := await door.show(_items(example))):
            found = await _reduced(door, example, refusals[0], totals, shapes)
            example = [candidate for candidate in example if candidate not in found.objects]
            if any(text in found.words for text in _OF_THE_MACHINE):
                totals.of_the_machine += 1
                continue
            totals.seen[found.cause] = totals.seen.get(found.cause, 0) + 1
            least = await _least_fields(door, found) if len(shapes.setdefault(found.cause, set())) < _SHAPES else None
            if least is not None and (shape := _shape(least.objects)) not in shapes[found.cause]:
                shapes[found.cause].add(shape)
                yield least


def _example(pick: random.Random, kinds: Sequence[str], size: int) -> list[Candidate]:
    chosen = [pick.choice(kinds) for _ in range(pick.randint(1, size))]
    once = [kind for kind in (MESH, NETWORKS) if kind in chosen]
    chosen = [kind for kind in chosen if kind not in once] + once
    made = [random_object(pick, kind, f"g{number}") for number, kind in enumerate(chosen)]
    return [candidate for candidate in made if candidate is not None]


def _items(candidates: Sequence[Candidate]) -> list[Any]:
    return [candidate.item for candidate in candidates]


async def _reduced(
    door: Door, example: list[Candidate], refusal: Refusal, totals: Totals, shapes: dict[str, set[str]]
) -> Finding:
    """The fewest objects of an example that are refused for the same cause."""
    texts = texts_of(example)
    wanted = cause_of(refusal, texts)

    async def refused(candidates: list[Candidate]) -> Refusal | None:
        found = await door.show_alone(_items(candidates))
        return next((each for each in found if cause_of(each, texts) == wanted), None)

    named = [c for c in example if isinstance(c.item, Config) and c.item.key in refusal.configs]
    best, words = list(example), await refused(list(example))
    if words is None:
        kinds = "+".join(sorted(c.kind for c in named or example))
        return Finding(f"{kinds}: {wanted}", refusal.words, refusal.proxy, tuple(example), is_repeated=False)
    for few in [[c] for c in named] + ([named] if 1 < len(named) < len(example) else []):
        if (answer := await refused(few)) is not None:
            best, words = few, answer
            break
    for candidate in list(best) if len(best) > 1 else ():
        fewer = [c for c in best if c is not candidate]
        if fewer and (answer := await refused(fewer)) is not None:
            best, words = fewer, answer
    kinds = "+".join(sorted(c.kind for c in best))
    return Finding(f"{kinds}: {wanted}", words.words, words.proxy, tuple(best))


async def _least_fields(door: Door, finding: Finding) -> Finding:
    """A finding with as few fields, as short, as still cause it."""
    if not finding.is_repeated:
        return finding
    wanted = finding.cause.partition(": ")[2]
    objects, words = list(finding.objects), finding.words
    tries = 0
    progress = True
    while progress and tries < _TRIES:
        progress = False
        for number, candidate in enumerate(objects):
            for smaller in _smaller(candidate.document):
                if tries >= _TRIES:
                    break
                try:
                    trial = accepted(candidate.kind, smaller)
                except ConfigError:
                    continue
                tries += 1
                shown = [*objects[:number], trial, *objects[number + 1 :]]
                found = await door.show_alone(_items(shown))
                texts = texts_of(shown)
                same = next((each for each in found if cause_of(each, texts) == wanted), None)
                if same is not None:
                    objects, words, progress = shown, same.words, True
                    break
            if progress:
                break
    return attrs.evolve(finding, objects=tuple(objects), words=words)


def _smaller(document: Json) -> Iterator[Json]:
    """Copies of an object, each with something left out, then each with a text shortened; the largest parts first."""
    root = ["spec"] if "spec" in document else []
    places = sorted(_places(document, root), key=len)
    for path in places:
        trial = copy.deepcopy(document)
        holder = _at(trial, path[:-1])
        del holder[path[-1]]
        yield trial
    for path in places:
        value = _at(document, path)
        if isinstance(value, str) and len(value) > 3:
            for part in (value[: len(value) // 2], value[len(value) // 2 :], value[:-1], value[1:]):
                trial = copy.deepcopy(document)
                _at(trial, path[:-1])[path[-1]] = part
                yield trial


def _places(document: Any, under: list[Any]) -> Iterator[list[Any]]:
    node = _at(document, under)
    steps = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for step in steps:
        yield [*under, step]
        yield from _places(document, [*under, step])


def _at(node: Any, path: Sequence[Any]) -> Any:
    for step in path:
        node = node[step]
    return node


def _shape(objects: Sequence[Candidate]) -> str:
    """The fields of objects, without their values."""
    paths = set()
    for candidate in objects:
        for path in _places(candidate.document, ["spec"] if "spec" in candidate.document else []):
            paths.add(".".join(str(step) for step in path if not isinstance(step, int)))
    return " ".join(sorted(paths))


def key_of(candidate: Candidate) -> tuple[str, ...]:
    return item_key(candidate.item)
