"""The requests that two lists of matches have in common, as matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mesh_pilot.api.istio.networking import v1alpha3 as api

_NEVER = "never"


class RegexOverlapError(ValueError):
    """The strings that match a regular expression and another match can't be said as a match."""


def overlap(
    outer: Sequence[api.HttpMatchRequest], inner: Sequence[api.HttpMatchRequest]
) -> list[api.HttpMatchRequest] | None:
    """The matches of requests that match one of each list; None if no request does. An empty list matches all requests.

    Raises RegexOverlapError.
    """
    if not outer or not inner:
        return list(outer or inner)
    pairs = (_both(one, other) for other in inner for one in outer)
    return [match for match in pairs if match is not None] or None


def _both(outer: api.HttpMatchRequest, inner: api.HttpMatchRequest) -> api.HttpMatchRequest | None:
    texts = {
        name: _narrower(getattr(outer, name), getattr(inner, name)) for name in ("uri", "method", "scheme", "authority")
    }
    maps = {name: _merged(getattr(outer, name), getattr(inner, name)) for name in ("headers", "query_params")}
    if any(found == _NEVER for found in (*texts.values(), *maps.values())):
        return None
    without = {**inner.without_headers, **outer.without_headers}
    if any(
        inner.without_headers[name] != outer.without_headers[name]
        for name in inner.without_headers.keys() & outer.without_headers
    ):
        raise RegexOverlapError
    return replace(
        outer,
        name="-".join(name for name in (outer.name, inner.name) if name),
        without_headers=without,
        ignore_uri_case=outer.ignore_uri_case if outer.uri is not None else inner.ignore_uri_case,
        **texts,  # type: ignore[arg-type]
        **maps,  # type: ignore[arg-type]
    )


def _merged(
    outer: Mapping[str, api.StringMatch], inner: Mapping[str, api.StringMatch]
) -> dict[str, api.StringMatch | None] | str:
    found = {name: _narrower(outer.get(name), inner.get(name)) for name in (*outer, *inner)}
    return _NEVER if _NEVER in found.values() else found  # type: ignore[return-value]


def _narrower(one: api.StringMatch | None, other: api.StringMatch | None) -> api.StringMatch | str | None:
    """The match of strings that match both; `_NEVER` if no string does."""
    if one is None or other is None or one == other:
        return one if one is not None else other
    for narrow, wide in ((one, other), (other, one)):
        if wide.prefix is not None and (text := _literal(narrow)) is not None and text.startswith(wide.prefix):
            return narrow
        if _takes_any(wide):
            return narrow
    if one.regex is not None or other.regex is not None:
        raise RegexOverlapError
    return _NEVER


def _literal(match: api.StringMatch) -> str | None:
    return match.exact if match.exact is not None else match.prefix


def _takes_any(match: api.StringMatch) -> bool:
    """True for any string; without a condition a header need only be there."""
    return match.regex in ("*", ".*") or (match.regex is None and _literal(match) is None)
