"""Matches of VirtualServices that are never used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import betterproto2

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.mesh_context import AnalysisContext, found
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config

_COMPARED = 200
"""Matches of one VirtualService that are compared with each other; each with all before it."""


def unreachable(survey: AnalysisContext) -> Iterator[AnalysisMessage]:
    """Rules that an earlier one hides, matches that an earlier one has or overlaps."""
    for config in survey.of("VirtualService"):
        spec = config.spec
        for kind, rules in (("http", spec.http), ("tcp", spec.tcp), ("tls", spec.tls)):
            yield from _duplicates(config, f"spec.{kind}", rules)
        yield from _overlaps(config)


def _duplicates(config: Config, path: str, rules: Sequence[Any]) -> Iterator[AnalysisMessage]:
    seen: dict[str, int] = {}
    empty = -1
    for number, rule in enumerate(rules):
        here, name = f"{path}[{number}]", _name(rule, number)
        if not rule.match:
            if empty >= 0:
                yield found(codes.UNREACHABLE_RULE, config, here, name, "only the last rule can have no matches")
            empty = number
            continue
        duplicates = 0
        for index, match in enumerate(rule.match):
            if empty >= 0:
                yield found(codes.UNREACHABLE_RULE, config, here, name, "route without matches defined before")
                break
            key = _key(match)
            is_repeated = key in seen
            first = seen.setdefault(key, number)
            if is_repeated:
                duplicates += 1
                arguments = name, _name(match, index), _name(rules[first], first)
                yield found(codes.INEFFECTIVE_MATCH, config, f"{here}.match[{index}]", *arguments)
        if duplicates == len(rule.match):
            yield found(codes.UNREACHABLE_RULE, config, here, name, "all matches used by prior rules")


def _key(match: betterproto2.Message) -> str:
    value = to_json(match)
    if isinstance(match, api.HttpMatchRequest) and isinstance(value, dict):
        value.pop("name", None)
    return json.dumps(value, sort_keys=True)


def _name(named: Any, number: int) -> str:
    name = getattr(named, "name", "")
    return f'"{name}"' if name else f"#{number}"


@attrs.frozen
class PlacedMatch:
    """A match of an HTTP rule, and where it stands."""

    rule: int
    index: int
    path: str
    rule_name: str
    name: str
    match: api.HttpMatchRequest


def _placed(config: Config) -> Iterator[PlacedMatch]:
    for rule, http in enumerate(config.spec.http):
        for index, match in enumerate(http.match):
            path = f"spec.http[{rule}].match[{index}]"
            yield PlacedMatch(rule, index, path, _name(http, rule), _name(match, index), match)


def _overlaps(config: Config) -> Iterator[AnalysisMessage]:
    """Prefixes within earlier prefixes (Istio's message), and other matches within earlier ones (ours)."""
    before: list[PlacedMatch] = []
    told: set[str] = set()
    for placed in _placed(config):
        for earlier in before[:_COMPARED]:
            if placed.path in told or not _covers(earlier.match, placed.match):
                continue
            if _key(earlier.match) == _key(placed.match):
                continue
            told.add(placed.path)
            prefix, wider = _prefix(placed.match), _prefix(earlier.match)
            if prefix is not None and wider is not None:
                name = f"{placed.name} of prefix {prefix}"
                other = f"{earlier.name} of prefix {wider} on {earlier.rule_name}"
                yield found(codes.INEFFECTIVE_MATCH, config, placed.path, placed.rule_name, name, other)
            else:
                yield found(codes.SHADOWED_MATCH, config, placed.path, earlier.path.removeprefix("spec."))
        before.append(placed)


def _prefix(match: api.HttpMatchRequest) -> str | None:
    return match.uri.prefix if match.uri is not None else None


def _covers(wide: api.HttpMatchRequest, narrow: api.HttpMatchRequest) -> bool:
    """True if each request that `narrow` matches is one that `wide` matches. False where that is hard to say."""
    # One test for each condition of a match: all have to be wider. A doubt is a no, for the message says "never used".
    if wide.ignore_uri_case != narrow.ignore_uri_case and wide.uri is not None:
        return False
    if wide.port not in (0, narrow.port) or wide.source_namespace not in ("", narrow.source_namespace):
        return False
    if wide.gateways and not set(narrow.gateways or [""]) <= set(wide.gateways):
        return False
    if not wide.source_labels.items() <= narrow.source_labels.items():
        return False
    plain = ("uri", "scheme", "method", "authority")
    if not all(_covers_text(getattr(wide, field), getattr(narrow, field)) for field in plain):
        return False
    if any(narrow.without_headers.get(key) != value for key, value in wide.without_headers.items()):
        return False
    return _covers_all(wide.headers, narrow.headers) and _covers_all(wide.query_params, narrow.query_params)


def _covers_all(wide: Mapping[str, api.StringMatch], narrow: Mapping[str, api.StringMatch]) -> bool:
    return all(key in narrow and _covers_text(value, narrow[key]) for key, value in wide.items())


def _covers_text(wide: api.StringMatch | None, narrow: api.StringMatch | None) -> bool:
    if wide is None or wide == narrow:
        return True
    if narrow is None:
        return False
    if wide.prefix is not None:
        text = narrow.prefix if narrow.prefix is not None else narrow.exact
        return text is not None and text.startswith(wide.prefix)
    return False
