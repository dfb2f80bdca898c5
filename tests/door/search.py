"""The search: shows random objects, and reduces what is refused to the least that is."""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any

import attrs

from mesh_pilot.model.config import Config, ConfigError
from tests.door.envoys import Door, Refusal
from tests.door.objects import MESH, NETWORKS, Candidate, Json, accepted, random_object

_OF_THE_MACHINE = (
    "Address already in use",
    "Cannot assign requested address",
    "Permission denied",
    "Address family not supported",
    "unable to add filesystem watch",
    "unable to open file",
    "Invalid path",
    "failed to open netns file",
    "Setting socket options failed",
)
"""Refusals that this machine causes: its addresses, ports, files and sockets."""

_LEFT_TO_QUARANTINE = (
    # Lua has its own grammar.
    "script load error",
    # These are not known from one resource: clusters, virtual hosts that are sent apart, what an Envoy has already.
    "unknown cluster",
    "Unknown cluster specifier plugin name",
    "Only a single wildcard domain is permitted",
    "Only unique values for domains are permitted",
    "reuse port cannot be changed during an update",
    # Extensions of this Envoy's build.
    "Didn't find a registered",
    "no factory found for a required type URL",
    "Unknown address resolver",
    # A limit that a deprecated field sets.
    "Increase configured max program size",
)
"""Refusals of resources with patches that no rule can foresee, or none should."""

_RESTART_AFTER = 400
"""Examples after which the Envoys are started again, in the other variant."""

_SHAPES = 3
"""Findings of one class that are reduced field by field: they may come from different fields."""

_TRIES = 150
_FRESH_COST = 4
"""Trials of one reduction; what one with Envoys just started counts as."""

_LONG = 60
"""Characters of a string above which it is shortened."""


@attrs.frozen
class Finding:
    """A class of refusals, with the least objects that cause it."""

    cause: str
    """Type, kinds and Envoy's words without names and numbers: findings with one cause are the same."""
    words: str
    proxy: str
    objects: tuple[Candidate, ...]
    before: tuple[Candidate, ...] = ()
    """What must be shown before them."""
    is_fresh: bool = False
    """True: only an Envoy that was just started refuses it. One that has refused a secret is not sent it again."""
    is_repeated: bool = True
    """False: it was not refused again when it was tried."""


@attrs.define
class Totals:
    examples: int = 0
    objects: int = 0
    apart: int = 0
    """Examples with refusals that no rule is for."""
    unreduced: str = ""
    """What was refused and is being reduced."""
    seen: dict[str, int] = attrs.field(factory=dict)
    """How often each cause was met."""


def cause_of(refusal: Refusal, texts: Sequence[str] = ()) -> str:
    """Envoy's words without what differs from case to case, such as `texts` of the objects."""
    text = _of_our_making(refusal.words) or refusal.words
    if constraint := re.search(r"Proto constraint validation failed \((.*?)\)(?:\n|: |, |$)", text, re.DOTALL):
        fields = re.findall(r"(\w+)ValidationError\.(\w+)", constraint[1])
        text = f"constraint {'.'.join(map('.'.join, fields[-2:]))}: {constraint[1].rpartition(': ')[2]}"
    else:
        text = re.sub(r"goo\.gle/debug\w+\s*", "", text)
        text = re.sub(r"Error adding/updating (listener|cluster)\(s\) [^\s]+: ", r"\1: ", text.split("\n")[0])
        for part in texts:
            text = text.replace(part, "_")
        text = re.sub(r"(?<!\w)(?:'[^']*'|\"[^\"]*\")", "_", text)
        text = re.sub(r"(?:outbound|inbound|virtual)\S*|\b\d[\d.:_]*\S*", "_", text)
        text = re.sub(r"_[_\W]*_", "_", text)
        if again := re.match(r"(\w+: )(.{5,}?), \S+ \2", text):
            text = again[1] + again[2]
    return f"{refusal.type} {text[:200].strip()}"


def texts_of(candidates: Sequence[Candidate]) -> list[str]:
    """The texts that objects contain and Envoy may quote, the longest first."""
    found = set()
    for candidate in candidates:
        for path in _places(candidate.document, []):
            value = _at(candidate.document, path)
            if isinstance(value, str) and len(value) > 4:
                found.add(value)
    return sorted(found, key=len, reverse=True)


def _of_our_making(words: str, *, patched: bool = True) -> str:
    """Envoy's words but for the lines on what no rule is for: it says a line for each listener."""
    apart = _OF_THE_MACHINE + _LEFT_TO_QUARANTINE if patched else _OF_THE_MACHINE
    return "\n".join(line for line in words.split("\n") if not any(text in line for text in apart))


async def search(
    door: Door,
    pick: random.Random,
    kinds: Sequence[str],
    *,
    size: int = 6,
    examples: float = math.inf,
    totals: Totals | None = None,
) -> AsyncIterator[Finding]:
    """Show so many examples; each new finding as it is made. `size` is the most objects of an example."""
    totals = totals or Totals()
    shapes: dict[str, set[str]] = {}
    before: list[Candidate] = []
    while totals.examples < examples:
        if totals.examples and totals.examples % _RESTART_AFTER == 0:
            door.turn += 1
            await door.start()
            before = []
        totals.examples += 1
        example = _example(pick, kinds, size)
        totals.objects += len(example)
        while example and (refusals := await door.show(_items(example))):
            patched = any(candidate.kind == "EnvoyFilter" for candidate in example)
            ours = [refusal for refusal in refusals if _of_our_making(refusal.words, patched=patched)]
            if not ours:
                totals.apart += 1
                named = _named(example, refusals)
                example = [candidate for candidate in example if named and candidate not in named]
                continue
            totals.unreduced = ours[0].words
            found = await _reduced(door, before, example, ours[0])
            example, before = [candidate for candidate in example if candidate not in found.objects], []
            totals.seen[found.cause] = totals.seen.get(found.cause, 0) + 1
            known = shapes.setdefault(found.cause, set())
            if len(known) < _SHAPES:
                least = await _least_fields(door, found)
                if _shape(least.objects) not in known:
                    known.add(_shape(least.objects))
                    yield least
            totals.unreduced = ""
        before = example


def _named(example: Sequence[Candidate], refusals: Sequence[Refusal]) -> list[Candidate]:
    """The objects that refused resources were made from."""
    keys = {key for refusal in refusals for key in refusal.configs}
    return [c for c in example if isinstance(c.item, Config) and c.item.key in keys]


def _example(pick: random.Random, kinds: Sequence[str], size: int) -> list[Candidate]:
    chosen = [pick.choice(kinds) for _ in range(pick.randint(1, size))]
    once = [kind for kind in (MESH, NETWORKS) if kind in chosen]
    chosen = [kind for kind in chosen if kind not in once] + once
    made = [random_object(pick, kind, f"g{number}") for number, kind in enumerate(chosen)]
    return [candidate for candidate in made if candidate is not None]


def _items(candidates: Sequence[Candidate]) -> list[Any]:
    return [candidate.item for candidate in candidates]


async def _refused_again(
    door: Door, before: Sequence[Candidate], shown: Sequence[Candidate], cause: str, is_fresh: bool
) -> Refusal | None:
    """The refusal for this cause when objects are shown after others that were shown over the fixed mesh; or None."""
    if is_fresh:
        await door.start()
    else:
        await door.show(())
    if before:
        await door.show(_items(before))
    texts = texts_of(shown)
    return next((each for each in await door.show(_items(shown)) if cause_of(each, texts) == cause), None)


async def _reduced(door: Door, before: list[Candidate], example: list[Candidate], refusal: Refusal) -> Finding:
    """The fewest objects of an example that are refused for the same cause."""
    cause = cause_of(refusal, texts_of(example))
    ways: list[tuple[list[Candidate], bool]] = [([], False), (before, False), ([], True), (before, True)]
    for first, is_fresh in ways:
        again = await _refused_again(door, first, example, cause, is_fresh)
        if again is not None:
            before = first
            break
    else:
        return Finding(f"* {cause}", refusal.words, refusal.proxy, tuple(example), tuple(before), is_repeated=False)
    named = _named(example, [refusal])
    for few in [[c] for c in named] + ([named] if 1 < len(named) < len(example) else []):
        if (answer := await _refused_again(door, before, few, cause, is_fresh)) is not None:
            example, again = few, answer
            break
    for candidate in list(example) if len(example) > 1 or before else ():
        fewer = [c for c in example if c is not candidate]
        if (answer := await _refused_again(door, before, fewer, cause, is_fresh)) is not None:
            example, again = fewer, answer
    for candidate in list(before):
        fewer = [c for c in before if c is not candidate]
        if (answer := await _refused_again(door, fewer, example, cause, is_fresh)) is not None:
            before, again = fewer, answer
    kinds = "+".join(sorted(c.kind for c in example))
    after = f" after {'+'.join(sorted(c.kind for c in before))}" if before else ""
    return Finding(f"{kinds}{after}: {cause}", again.words, again.proxy, tuple(example), tuple(before), is_fresh)


async def _least_fields(door: Door, finding: Finding) -> Finding:
    """A finding with as few fields, as short, as still cause it."""
    cause = finding.cause.partition(": ")[2]
    tries = _TRIES if finding.is_repeated else 0
    while tries > 0:
        for trial in _smaller_findings(finding):
            tries -= _FRESH_COST if trial.is_fresh else 1
            answer = await _refused_again(door, trial.before, trial.objects, cause, trial.is_fresh)
            if answer is not None:
                finding = attrs.evolve(trial, words=answer.words)
                break
            if tries <= 0:
                break
        else:
            break
    return finding


def _smaller_findings(finding: Finding) -> Iterator[Finding]:
    """A finding with one of its objects made smaller, in all ways that validation accepts."""
    for name in ("before", "objects"):
        candidates = getattr(finding, name)
        for number, candidate in enumerate(candidates):
            for smaller in _smaller(candidate.document):
                with suppress(ConfigError):
                    trial = accepted(candidate.kind, smaller)
                    changed = (*candidates[:number], trial, *candidates[number + 1 :])
                    yield attrs.evolve(finding, **{name: changed})


def _smaller(document: Json) -> Iterator[Json]:
    """Copies of an object, each with something left out, then each with a string shortened; the largest parts first."""
    root = ["spec"] if "spec" in document else []
    places = sorted(_places(document, root), key=len)
    for path in places:
        trial = copy.deepcopy(document)
        holder = _at(trial, path[:-1])
        del holder[path[-1]]
        yield trial
    for path in places:
        value = _at(document, path)
        if isinstance(value, str) and len(value) > _LONG:
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
