"""Suggestions as YAML with comments, to be looked at, changed and applied as any file; and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from mesh_pilot.explain.analysis.traffic import length_of
from mesh_pilot.explain.plan.report import printable, size
from mesh_pilot.explain.suggestions.costs import SidecarCost
from mesh_pilot.explain.suggestions.observed import Observed, Suggestion, Suggestions
from mesh_pilot.explain.suggestions.workloads import named
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.istio.reading.yaml_text import yaml_text
from mesh_pilot.model.json import Json, as_json

NEXT = "Look at it, say what it would do with mesh-pilot plan FILE, and apply it with mesh-pilot apply FILE."
NO_COSTS: Mapping[str, SidecarCost] = {}


def warnings(seen: Observed, silent: Sequence[str]) -> Iterator[str]:
    """Sentences about what was not seen; ``silent``: names of connected proxies that do not report."""
    if seen.is_short:
        length = length_of(seen.until - seen.since)
        yield f"Traffic has been counted for {length}, and {length_of(seen.asked)} were asked for."
    if seen.has_gaps:
        yield "Some counts are missing, as after a restart of a proxy or the control plane: perhaps of rare calls."
    if silent:
        yield f"{named(silent)} {'does not report its' if len(silent) == 1 else 'do not report their'} calls."


def lines(
    found: Suggestions, seen: Observed, silent: Sequence[str], costs: Mapping[str, SidecarCost] = NO_COSTS
) -> Iterator[str]:
    """All of it as a file."""
    since, until = (f"{time:%Y-%m-%d %H:%M}" for time in (seen.since, seen.until))
    yield f"# Suggested by mesh-pilot: traffic from {since} until {until} UTC ({length_of(seen.until - seen.since)})."
    yield f"# {NEXT}"
    for sentence in warnings(seen, silent):
        yield _comment(sentence)
    for each in found.skipped:
        yield _comment(f"Nothing is suggested for {each.workload}: {each.reason}.")
    for suggestion in found.objects:
        yield "---"
        if suggestion.proxies:
            yield _comment(f"For {named(suggestion.proxies)}.")
        cost = costs.get(str(suggestion.config.key))
        if cost is not None:
            yield from map(_comment, _cost_sentences(cost))
        yield from map(_comment, suggestion.notes)
        yield from _object_lines(suggestion)


def _object_lines(suggestion: Suggestion) -> Iterator[str]:
    for line in yaml_text([_object(suggestion)]).splitlines():
        why = suggestion.why.get(line.strip().removeprefix("- ").strip("'"))
        yield f"{line}  {_comment(why)}" if why else line


def _comment(sentence: str) -> str:
    return f"# {printable(sentence)}"


def _cost_sentences(cost: SidecarCost) -> Iterator[str]:
    before, after = cost.before, cost.after
    numbers = (
        f"{name} {getattr(before, name):,} to {getattr(after, name):,}" for name in ("listeners", "clusters", "routes")
    )
    yield f"{cost.proxy}: {', '.join(numbers)}, {size(before.bytes)} to {size(after.bytes)}."
    if cost.lost:
        yield f"It would lose clusters that were used, please report it: {', '.join(cost.lost)}"


def document(
    found: Suggestions, seen: Observed, silent: Sequence[str], costs: Mapping[str, SidecarCost] = NO_COSTS
) -> dict[str, Json]:
    """All of it for programs."""
    return {
        "since": seen.since.isoformat(),
        "until": seen.until.isoformat(),
        "days": seen.asked / timedelta(days=1),
        "warnings": [*warnings(seen, silent)],
        "objects": [_suggestion_json(each, costs.get(str(each.config.key))) for each in found.objects],
        "skipped": [as_json(each) for each in found.skipped],
    }


def _suggestion_json(suggestion: Suggestion, cost: SidecarCost | None) -> Json:
    return {
        "object": _object(suggestion),
        "proxies": [*suggestion.proxies],
        "why": dict(suggestion.why),
        "notes": [*suggestion.notes],
        **({"cost": as_json(cost)} if cost is not None else {}),
    }


def _object(suggestion: Suggestion) -> dict[str, Any]:
    config = suggestion.config
    return {
        "apiVersion": config.api_version,
        "kind": config.key.kind,
        "metadata": {"name": config.name, "namespace": config.namespace},
        "spec": to_json(config.spec),
    }
