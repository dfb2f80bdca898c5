"""A plan as plain JSON and as lines of text.

Names and values come from files, registries and proxies: what is not printable in them is escaped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

import attrs

from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.inspection.places import field_place
from mesh_pilot.explain.plan.differences import ABSENT, FieldDifference, differences
from mesh_pilot.explain.plan.objects import ObjectChange, item_json
from mesh_pilot.explain.plan.planning import Plan, PlannedResource, ProxyPlan
from mesh_pilot.model.json import Json
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.xds.ads.config_dump import resource_json

FIELDS_SHOWN = 12
"""Fields of an object or a resource that are shown, unless all are wanted."""
LINES_SHOWN = 8
"""Lines of a value that are shown, unless all are wanted."""
RESOURCES_SHOWN = 40
"""Resources that are shown, unless all are wanted."""
NAMED = 2
"""Proxies that are named where many get the same."""
WIDTH = 100
"""Characters of a value on the line of its field."""

_SIGNS = {"add": "+", "update": "~", "delete": "-"}


@attrs.frozen
class Refused:
    """An object, or a file, that validation refuses: what it says stays without effect."""

    where: str
    reason: str
    object: str = ""
    field: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.where, self.object, self.field, self.reason)))

    def as_json(self) -> dict[str, Json]:
        return {key: value for key, value in attrs.asdict(self).items() if value}


# -- JSON


def plan_json(plan: Plan, refused: Sequence[Refused] = ()) -> dict[str, Json]:
    """All of a plan: for the check of a pull request, and for programs."""
    resources = [_resource_json(each) for each in plan.resources]
    numbers = {each.change.key: number for number, each in enumerate(plan.resources)}
    return {
        "changes": bool(plan.objects),
        "objects": [_object_json(change, plan.kept_back.get(change.name, "")) for change in plan.objects],
        "refused": [each.as_json() for each in refused],
        "findings": {
            "new": [_finding_json(message) for message in plan.new_findings],
            "gone": [_finding_json(message) for message in plan.gone_findings],
        },
        "proxies": [
            {
                "proxy": each.proxy.name,
                "id": each.proxy.id,
                "bytes": each.received.bytes,
                "responses": each.received.responses,
                "counts": counts(each),
                "resources": [numbers[change.key] for change in each.changes],
            }
            for each in plan.touched
        ],
        "untouched": len(plan.proxies) - len(plan.touched),
        "resources": resources,
        "bytes": plan.bytes,
        "failures": list(plan.failures),
    }


def _object_json(change: ObjectChange, kept_back: str) -> Json:
    return {
        "object": change.name,
        "action": change.action.value,
        "source": change.source,
        "where": str(change.origin),
        **({"now": kept_back} if kept_back else {}),
        "fields": [
            {**each.as_json(), **({"line": line} if line else {})}
            for each, line in zip_longest(change.fields, change.lines)
        ],
    }


def _resource_json(planned: PlannedResource) -> Json:
    change = planned.change
    return {
        "type": change.short,
        "name": change.name,
        "action": _action(planned),
        "before": change.before.version if change.before else None,
        "after": change.after.version if change.after else None,
        "size": len(change.after.body) if change.after else 0,
        "proxies": list(planned.proxies),
        "causes": [{"object": cause.name, "where": cause.place} for cause in planned.causes],
        "fields": [each.as_json() for each in resource_fields(planned)],
    }


def _finding_json(message: AnalysisMessage) -> Json:
    return {
        "code": message.type.code,
        "level": message.type.level.value,
        "object": message.object,
        "where": finding_place(message),
        "field": message.path,
        "reason": message.text,
        "fix": message.fix,
    }


def finding_place(message: AnalysisMessage) -> str:
    """The file and line of a finding."""
    if message.line:
        return str(message.origin)
    return str(field_place(message.config.origin, message.config.key, message.path))


def counts(proxy: ProxyPlan) -> dict[str, Json]:
    """The numbers of resources that a proxy gets, gets again, and loses, by type."""
    found: dict[str, Counter[str]] = {}
    for change in proxy.changes:
        action = "added" if change.before is None else "removed" if change.after is None else "changed"
        found.setdefault(change.short, Counter())[action] += 1
    return {short: dict(of) for short, of in found.items()}


def resource_fields(planned: PlannedResource) -> list[FieldDifference]:
    """The fields of a resource that differ; all of it where it is new or gone."""
    before, after = (resource_json(side) if side else ABSENT for side in (planned.change.before, planned.change.after))
    if before is ABSENT or after is ABSENT:
        return [FieldDifference("", "", before, after)]
    return list(differences(before, after))


def _action(planned: PlannedResource) -> str:
    change = planned.change
    return "add" if change.before is None else "delete" if change.after is None else "update"


# -- text


def plan_lines(plan: Plan, refused: Sequence[Refused] = (), *, full: bool = False) -> Iterator[str]:
    """A plan for people. `full`: nothing is left out for brevity."""
    if refused:
        yield f"Refused, and without effect ({len(refused)}):"
        yield from (f"  {printable(str(each))}" for each in refused)
        yield ""
    if not plan.objects:
        yield "No object changes."
    else:
        actions = Counter(change.action.value for change in plan.objects)
        yield f"Objects: {actions['add']} to add, {actions['update']} to update, {actions['delete']} to delete"
        for change in plan.objects:
            yield from _object_lines(change, plan.kept_back.get(change.name, ""), full)
    yield from _finding_lines("The analyzers newly say", "+", plan.new_findings)
    yield from _finding_lines("The analyzers no longer say", "-", plan.gone_findings)
    for failure in plan.failures:
        yield f"internal error, please report it: {printable(failure)}"
    yield ""
    yield from _proxy_lines(plan, full)


def _object_lines(change: ObjectChange, kept_back: str, full: bool) -> Iterator[str]:
    yield printable(f"  {_SIGNS[change.action]} {change.name}  ({change.origin})")
    if kept_back:
        yield printable(f"      now {kept_back}")
    if full and change.action == "add" and change.after is not None:
        yield from _value_lines(item_json(change.after), "      ", full)
    placed = zip_longest(change.fields, change.lines)
    for each, line in placed if full else islice(placed, FIELDS_SHOWN):
        yield from _field_lines(each, "      ", full, line)
    if not full and len(change.fields) > FIELDS_SHOWN:
        yield f"      and {len(change.fields) - FIELDS_SHOWN} more fields (--full)"


def _finding_lines(title: str, sign: str, messages: Sequence[AnalysisMessage]) -> Iterator[str]:
    if messages:
        yield ""
        yield f"{title} ({len(messages)}):"
    for message in messages:
        yield printable(
            f"  {sign} {finding_place(message)}: {message.type.level}: {message.type.code}: {message.object}:"
            f" {message.text}"
        )


def _proxy_lines(plan: Plan, full: bool) -> Iterator[str]:
    touched = plan.touched
    if not plan.proxies:
        yield "There are no proxies to plan for."
        return
    if not touched:
        yield f"No proxy is sent anything ({_proxies(len(plan.proxies))} looked at)."
        return
    yield (
        f"Proxies: {len(touched)} of {len(plan.proxies)} are sent something, {size(plan.bytes)} in all"
        if len(plan.proxies) > 1
        else f"Proxies: {touched[0].proxy.name} is sent {size(plan.bytes)}"
    )
    yield from _summary_lines(touched, full)
    yield ""
    shown = plan.resources if full else plan.resources[:RESOURCES_SHOWN]
    for planned in shown:
        yield from _resource_lines(planned, full)
    if len(shown) < len(plan.resources):
        yield f"and {len(plan.resources) - len(shown)} more resources (--full, or -o json)"


def _summary_lines(touched: Sequence[ProxyPlan], full: bool) -> Iterator[str]:
    """Proxies with the same counts on one line."""
    groups: dict[str, list[ProxyPlan]] = {}
    for each in touched:
        groups.setdefault(_counted(counts(each)), []).append(each)
    for counted, members in groups.items():
        sizes = sorted(each.received.bytes for each in members)
        each_gets = size(sizes[0]) if sizes[0] == sizes[-1] else f"{size(sizes[0])} to {size(sizes[-1])}"
        names = _named([each.proxy.name for each in members], full)
        yield printable(f"  {names}: {counted or 'nothing new'}, {each_gets}{' each' if len(members) > 1 else ''}")


def _counted(found: Mapping[str, Any]) -> str:
    parts = []
    for resource_type in RESOURCE_TYPES.values():
        if of := found.get(resource_type.short):
            parts.append(f"{resource_type.short} {', '.join(f'{number} {action}' for action, number in of.items())}")
    return "; ".join(parts)


def _resource_lines(planned: PlannedResource, full: bool) -> Iterator[str]:
    change = planned.change
    causes = ", ".join(f"{cause.name} ({cause.place})" for cause in planned.causes)
    yield printable(f"{_SIGNS[_action(planned)]} {change.short} {change.name}  [{_named(planned.proxies, full)}]")
    if causes:
        yield printable(f"    because of {causes}")
    fields = resource_fields(planned)
    for each in fields if full else fields[:FIELDS_SHOWN]:
        if each.path or full:
            yield from _field_lines(each, "    ", full)
        else:
            whole = change.after or change.before
            yield f"    {size(len(whole.body)) if whole else ''}"
    if not full and len(fields) > FIELDS_SHOWN:
        yield f"    and {len(fields) - FIELDS_SHOWN} more fields (--full)"


def _field_lines(each: FieldDifference, indent: str, full: bool, line: int | None = None) -> Iterator[str]:
    """A field on a line if it is short; else its value, or the fields that differ, beneath it."""
    at = f"  (line {line})" if line else ""
    before, after = (_short(side) for side in (each.before, each.after))
    path = printable(each.path)
    if each.sign == "~" and len(before) + len(after) <= WIDTH:
        yield f"{indent}~ {path}: {before} -> {after}{at}"
    elif each.sign == "~":
        yield f"{indent}~ {path}:{at}"
        yield from _value_lines(each.before, f"{indent}  - ", full)
        yield from _value_lines(each.after, f"{indent}  + ", full)
    else:
        value = each.after if each.sign == "+" else each.before
        text = after if each.sign == "+" else before
        if len(text) <= WIDTH:
            yield f"{indent}{each.sign} {path}: {text}{at}"
        else:
            yield f"{indent}{each.sign} {path}:{at}"
            yield from _value_lines(value, f"{indent}  {each.sign} ", full)


def _value_lines(value: Any, indent: str, full: bool) -> Iterator[str]:
    lines = json.dumps(value, indent=2, ensure_ascii=False, default=str).splitlines()
    shown = lines if full or len(lines) <= LINES_SHOWN + 1 else lines[:LINES_SHOWN]
    yield from (f"{indent}{printable(line)}" for line in shown)
    if len(shown) < len(lines):
        yield f"{indent}and {len(lines) - len(shown)} more lines (--full)"


def _short(value: Any) -> str:
    return "" if value is ABSENT else printable(json.dumps(value, ensure_ascii=False, default=str))


def _named(names: Sequence[str], full: bool) -> str:
    """``web-1.shop and 41 more``."""
    shown = names if full or len(names) <= NAMED + 1 else names[:1]
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return f"{', '.join(shown)}{more}"


def _proxies(number: int) -> str:
    return "1 proxy" if number == 1 else f"{number} proxies"


def size(count: int) -> str:
    """A number of bytes for people."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def printable(text: str) -> str:
    """The string as one line, in which what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
