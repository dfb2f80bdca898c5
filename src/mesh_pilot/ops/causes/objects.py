"""Objects: which of them are not in force as they are written, and what analysis finds in them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.object_problems import rejected_lines, rejected_name
from mesh_pilot.explain.truth.facts import PlaneFacts
from mesh_pilot.explain.truth.fleet import Fleet, FleetTruth
from mesh_pilot.explain.truth.states import Truth, TruthState
from mesh_pilot.model.config import SHADOWED, Config, ConfigKey
from mesh_pilot.model.counts import counted
from mesh_pilot.model.events import Rejected
from mesh_pilot.ops.causes.cause import NAMED, Cause, CauseKind, CauseReach, CauseSubject, assessed, reach
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.values.assessments import Assessment, Gravity
from mesh_pilot.ops.values.truth import ObjectTruth
from mesh_pilot.safety.quarantine.verdicts import name_of

Key = tuple[str, ...]

FAULTY = "faulty"
"""The state of an object that is in force and has an error that analysis finds."""
REFUSED, FOUND, CONFLICT = "refused object", "finding", "conflict"
"""Kinds of what is remembered as seen first."""


GRAVITIES: Mapping[TruthState, Gravity] = {
    TruthState.WITHHELD: Gravity.ERROR,
    TruthState.TAKEN_BACK: Gravity.ERROR,
    TruthState.REFUSED: Gravity.ERROR,
    TruthState.HELD: Gravity.WARNING,
    TruthState.STALE: Gravity.WARNING,
    TruthState.CONFLICTING: Gravity.WARNING,
    TruthState.WARMING: Gravity.WARNING,
}
"""How bad states of objects are; all others are well, or on their way."""


def assess_object(state: PlaneState, truth: ObjectTruth, errors: Sequence[AnalysisMessage] = ()) -> Assessment:
    """The assessment of an object from the truth about it; ``errors``: those that analysis finds in it."""
    severity = GRAVITIES.get(truth.state, Gravity.OK)
    if severity is Gravity.OK and errors:
        return _faulty(state, errors)
    return assessed(truth.state, severity, truth.why, truth.since)


def kept_back(facts: PlaneFacts) -> list[Key]:
    """The objects that quarantine withholds, or a rollout has taken back."""
    taken_back = (change.key for change in facts.changes if change.is_held)
    return [*dict.fromkeys((*(withheld.key for _, withheld in facts.verdicts), *taken_back))]


def object_causes(
    state: PlaneState, facts: PlaneFacts, fleet: Fleet, errors: Sequence[AnalysisMessage]
) -> Iterator[Cause]:
    """The causes about objects. ``fleet``: where those are that are ``kept_back``; ``errors``: of the analyzers."""
    # One of two objects of a name is refused at its file, which has no key: findings tell which object it is.
    rejections = [each for each in state.world.rejections() if each.key is not None or not _is_shadowed(each)]
    state.first_seen.look(REFUSED, [_identity(each) for each in rejections])
    yield from (_refused_cause(state, each) for each in rejections)
    yield from _withheld_causes(facts, fleet)
    for change in facts.changes:
        if change.is_held:
            yield Cause(
                kind=CauseKind.OBJECT,
                subject=subject_of(change.key),
                assessment=assessed(TruthState.TAKEN_BACK, Gravity.ERROR, facts.reason),
                touches=_touched(fleet, change.key, TruthState.TAKEN_BACK),
                where=change.origin,
                command="mesh-pilot rollout status",
                more="all proxies have the version before",
            )
    told = {problem.reason for each in rejections for problem in each.problems}
    wrong = by_object(each for each in errors if each.text not in told)
    state.first_seen.look(FOUND, wrong)
    yield from (_found_cause(state, messages) for messages in wrong.values())


def conflict_causes(state: PlaneState, found: Sequence[tuple[Key, Truth]]) -> Iterator[Cause]:
    """Objects that several sources have in different versions."""
    since = state.first_seen.look(CONFLICT, [key for key, _ in found])
    for key, truth in found:
        item = next((each for each in state.world.current(key) if isinstance(each, Config)), None)
        yield Cause(
            kind=CauseKind.OBJECT,
            subject=subject_of(key),
            assessment=assessed(truth.state, Gravity.WARNING, truth.why, since[key]),
            touches=reach("objects", [name_of(key)]),
            where=str(item.origin) if item is not None else "",
            command=describe_command(subject_of(key)),
            more=truth.fix,
        )


def subject_of(key: Key) -> CauseSubject:
    """The subject of an item."""
    if key[0] == "config":
        return CauseSubject(*key[1:])
    if key[0] in ("service", "endpoints"):
        return CauseSubject("Service", key[2], key[1])
    if key[0] in ("secret", "health", "credential"):
        return CauseSubject(key[0], *key[1:])
    return CauseSubject({"mesh": "MeshConfig", "networks": "MeshNetworks"}.get(key[0], key[0]), "", "/".join(key[1:]))


def describe_command(subject: CauseSubject) -> str:
    """The command that shows all about an object."""
    name = "/".join(filter(None, (subject.kind, subject.namespace, subject.name)))
    return f"mesh-pilot describe {shlex.quote(name)}"


def _identity(rejected: Rejected) -> tuple[str, str]:
    return rejected.source, str(rejected.key or rejected.origin.location)


def _reasons(rejected: Rejected) -> str:
    """The first reasons, each with its field."""
    return _first(": ".join(filter(None, (line.get("field"), line["reason"]))) for line in rejected_lines(rejected))


def _is_shadowed(rejected: Rejected) -> bool:
    """True if nothing is wrong but that another object has the name."""
    return all(SHADOWED in problem.reason for problem in rejected.problems)


def _refused(state: PlaneState, rejected: Rejected) -> Assessment:
    since = state.first_seen.since(REFUSED, _identity(rejected))
    if _is_shadowed(rejected):
        return assessed(TruthState.CONFLICTING, Gravity.WARNING, _reasons(rejected), since)
    return assessed(TruthState.REFUSED, Gravity.ERROR, _reasons(rejected), since)


def _refused_cause(state: PlaneState, rejected: Rejected) -> Cause:
    key = rejected.key
    is_named = isinstance(key, tuple) and key[0] == "config"
    subject = subject_of(key) if isinstance(key, tuple) else CauseSubject("", "", rejected.origin.location)
    is_in_force = isinstance(key, tuple) and state.world.item_of(rejected.source, key) is not None
    line = next(rejected_lines(rejected), {})
    return Cause(
        kind=CauseKind.OBJECT,
        subject=subject,
        assessment=_refused(state, rejected),
        touches=reach("objects", [rejected_name(rejected) or rejected.origin.location]),
        where=line.get("where", str(rejected.origin)),
        command=describe_command(subject) if is_named else "mesh-pilot analyze",
        more="the last good version is kept" if is_in_force else "nothing of it is in force",
    )


def _touched(fleet: Fleet, key: Key, state: TruthState) -> CauseReach:
    """The proxies at which an object is in a state, of all that it applies to."""
    found = fleet.get(key, FleetTruth())
    return CauseReach(found.count(state), found.proxies, "proxies", sorted(found.names(state))[:NAMED])


def _withheld_causes(facts: PlaneFacts, fleet: Fleet) -> Iterator[Cause]:
    """A cause for each withheld object, whichever groups of proxies it is withheld from."""
    for withheld in {withheld.key: withheld for _, withheld in facts.verdicts}.values():
        refusal = withheld.refusal
        why = f"{refusal.proxy} refused it: {refusal.words}"
        yield Cause(
            kind=CauseKind.OBJECT,
            subject=subject_of(withheld.key),
            assessment=assessed(TruthState.WITHHELD, Gravity.ERROR, why, refusal.at),
            touches=_touched(fleet, withheld.key, TruthState.WITHHELD),
            where=withheld.origin,
            command=describe_command(subject_of(withheld.key)),
            more=f"served instead: {withheld.in_its_place}",
        )


def by_object(errors: Iterable[AnalysisMessage]) -> dict[ConfigKey, list[AnalysisMessage]]:
    """The findings by the object that is at fault."""
    found: dict[ConfigKey, list[AnalysisMessage]] = {}
    for message in errors:
        found.setdefault(message.config.key, []).append(message)
    return found


def _faulty(state: PlaneState, messages: Sequence[AnalysisMessage]) -> Assessment:
    why = _first(f"{each.text} [{each.type.code}]" for each in messages)
    since = state.first_seen.since(FOUND, messages[0].config.key)
    if all(SHADOWED in each.text for each in messages):
        return assessed(TruthState.CONFLICTING, Gravity.WARNING, why, since)
    return assessed(FAULTY, Gravity.ERROR, why, since)


def _found_cause(state: PlaneState, messages: Sequence[AnalysisMessage]) -> Cause:
    first = messages[0]
    subject = CauseSubject(*first.config.key)
    if not subject.name and SHADOWED in first.text:  # a file's message, which begins with the name of the object
        kind, *space, name = first.text.partition(" ")[0].split("/")
        subject = CauseSubject(kind, "/".join(space), name)
    return Cause(
        kind=CauseKind.OBJECT,
        subject=subject,
        assessment=_faulty(state, messages),
        touches=reach("objects", [first.object]),
        where=str(first.origin),
        command=describe_command(subject) if subject.name else "mesh-pilot analyze",
        more=first.fix,
    )


def _first(reasons: Iterable[str]) -> str:
    """The first of some reasons, and the number of the others."""
    found = [*dict.fromkeys(reasons)]
    more = f"; and {counted(len(found) - 2, 'more problem')}" if len(found) > 2 else ""
    return "; ".join(found[:2]) + more
