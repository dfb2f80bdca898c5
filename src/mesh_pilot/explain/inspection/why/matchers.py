"""Envoy's matchers on a request: strings, headers, query parameters, shares. Rules: Envoy's API reference of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import attrs
import re2

from mesh_pilot.explain.inspection.why.request import WhyRequest

Message: TypeAlias = "Mapping[str, Any]"
"""A message of Envoy's API as JSON, fields named as in proto files."""

_OLD_KINDS = ("exact", "prefix", "suffix", "contains")
DENOMINATORS = {"HUNDRED": 100, "TEN_THOUSAND": 10_000, "MILLION": 1_000_000}


@attrs.frozen
class Criterion:
    """A condition of a route or chain, and whether the request meets it."""

    text: str
    """In words: ``header x-a is "b"``."""
    is_met: bool
    found: str = ""
    """The request's value, in words: ``"c"`` or ``absent``."""
    share: float | None = None
    """The percentage of requests that meet it, where it is not all or none; None: it is certain."""

    @property
    def miss(self) -> str:
        """The condition and what was found instead."""
        return f"{self.text}; it is {self.found}" if self.found else self.text


@attrs.frozen
class RequestFacts:
    """The parts of a request that matchers look at, as the proxy sees them."""

    headers: Mapping[str, Sequence[str]]
    """Values by lower-case name, with ``:method``, ``:authority``, ``:path`` and ``:scheme``."""

    @property
    def path(self) -> str:
        return self.headers[":path"][0]

    @property
    def bare_path(self) -> str:
        """The path without query and fragment."""
        return self.path.partition("#")[0].partition("?")[0]

    def header(self, name: str) -> str | None:
        """The value of a header, several joined by commas; None without any."""
        values = self.headers.get(name.lower())
        return ",".join(values) if values else None

    def values(self, name: str) -> Sequence[str]:
        """The values of a header."""
        return self.headers.get(name.lower(), ())

    def parameter(self, name: str) -> str | None:
        """The first value of a query parameter, as it was sent; None without it."""
        for part in self.path.partition("#")[0].partition("?")[2].split("&"):
            key, _, value = part.partition("=")
            if key == name and part:
                return value
        return None


def request_facts(request: WhyRequest, *, scheme: str, path: str, authority: str) -> RequestFacts:
    """The facts of a request, with what a connection manager makes of its scheme, path and authority."""
    headers: dict[str, list[str]] = {}
    for name, value in request.headers:
        if name not in ("host", ":authority"):
            headers.setdefault(name, []).append(value)
    headers.setdefault("x-forwarded-proto", [scheme])
    pseudo = {":method": request.method, ":scheme": scheme, ":path": path, ":authority": authority}
    return RequestFacts({**headers, **{name: [value] for name, value in pseudo.items()}})


# -- strings


def quoted(text: str | None) -> str:
    return "absent" if text is None else f'"{text}"'


def string_condition(subject: str, matcher: Message, value: str) -> Criterion:
    """A StringMatcher on a value; ``subject`` names the value."""
    for kind in _OLD_KINDS:
        if kind in matcher:
            wanted = str(matcher[kind])
            ignore = bool(matcher.get("ignore_case"))
            text = f"{subject} {_WORDS[kind]} {quoted(wanted)}{', in any case' if ignore else ''}"
            return Criterion(text, _compares(kind, wanted, value, ignore), quoted(value))
    if "safe_regex" in matcher:
        return regex_condition(subject, matcher["safe_regex"], value)
    if not matcher:
        # An empty message is `exact: ""`, whose default JSON leaves out.
        return Criterion(f'{subject} is ""', value == "", quoted(value))
    return Criterion(f"{subject} meets {next(iter(matcher))}, which is not evaluated", False)


_WORDS = {"exact": "is", "prefix": "begins with", "suffix": "ends with", "contains": "contains"}


def _compares(kind: str, wanted: str, value: str, ignore_case: bool) -> bool:
    if ignore_case:
        wanted, value = wanted.lower(), value.lower()
    match kind:
        case "exact":
            return value == wanted
        case "prefix":
            return value.startswith(wanted)
        case "suffix":
            return value.endswith(wanted)
        case _:
            return wanted in value


def regex_condition(subject: str, matcher: Message, value: str) -> Criterion:
    """A RegexMatcher: all of the value must match."""
    pattern = str(matcher.get("regex", ""))
    return Criterion(f"{subject} matches {quoted(pattern)}", full_match(pattern, value), quoted(value))


def full_match(pattern: str, value: str) -> bool:
    """True if all of a value matches, by RE2. False for a pattern that Envoy would have refused."""
    compiled = _compiled(pattern)
    return compiled is not None and compiled.fullmatch(value.encode(errors="surrogateescape")) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = 64 << 20
    try:
        return re2.compile(pattern.encode(errors="surrogateescape"), options)
    except re2.error:
        return None


# -- headers and query parameters


def header_condition(matcher: Message, facts: RequestFacts) -> Criterion:
    """A HeaderMatcher on a request."""
    name = str(matcher.get("name", ""))
    value = facts.header(name)
    inverted = bool(matcher.get("invert_match"))
    plain = _plain_condition(matcher, name, facts)
    if not inverted:
        return plain
    presence = _is_presence(matcher)
    if value is None and not presence and not matcher.get("treat_missing_header_as_empty"):
        met = False
    else:
        met = not plain.is_met
    return Criterion(f"not ({plain.text})", met, plain.found)


def _plain_condition(matcher: Message, name: str, facts: RequestFacts) -> Criterion:
    """The condition without its inversion."""
    subject, value = f"header {name}", facts.header(name)
    if _is_presence(matcher):
        wanted = matcher.get("present_match", True) is not False
        text = f"{subject} is there" if wanted else f"{subject} is not there"
        return Criterion(text, (value is not None) is wanted, quoted(value))
    given = facts.values(name)
    if not given and matcher.get("treat_missing_header_as_empty"):
        given = ("",)
    string = _string_of(matcher)
    if string is not None:
        found = string_condition(subject, string, "")
        # Any of the values will do. Envoys before 1.39 compare the values joined by commas.
        is_met = any(string_condition(subject, string, each).is_met for each in given)
        return attrs.evolve(found, is_met=is_met, found=quoted(value))
    if "range_match" in matcher:
        low, high = int(matcher["range_match"].get("start", 0)), int(matcher["range_match"].get("end", 0))
        is_met = any(_is_integer(each) and low <= int(each) < high for each in given)
        return Criterion(f"{subject} is a number from {low} to {high - 1}", is_met, quoted(value))
    return Criterion(f"{subject} meets a condition that is not evaluated", False, quoted(value))


def _is_presence(matcher: Message) -> bool:
    kinds = {"string_match", "safe_regex_match", "range_match", *(f"{kind}_match" for kind in _OLD_KINDS)}
    return "present_match" in matcher or not kinds & matcher.keys()


def _string_of(matcher: Message) -> Message | None:
    """The StringMatcher of a HeaderMatcher, also of its deprecated forms."""
    if "string_match" in matcher:
        string: Message = matcher["string_match"]
        return string
    for kind in _OLD_KINDS:
        if f"{kind}_match" in matcher:
            return {kind: matcher[f"{kind}_match"]}
    return {"safe_regex": matcher["safe_regex_match"]} if "safe_regex_match" in matcher else None


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()


def parameter_condition(matcher: Message, facts: RequestFacts) -> Criterion:
    """A QueryParameterMatcher on a request."""
    name = str(matcher.get("name", ""))
    value = facts.parameter(name)
    subject = f"query parameter {name}"
    if "string_match" not in matcher:
        wanted = matcher.get("present_match", True) is not False
        text = f"{subject} is there" if wanted else f"{subject} is not there"
        return Criterion(text, (value is not None) is wanted, quoted(value))
    found = string_condition(subject, matcher["string_match"], value or "")
    return attrs.evolve(found, is_met=found.is_met and value is not None, found=quoted(value))


# -- shares


def percentage(fraction: Message | None) -> float:
    """A FractionalPercent as a percentage."""
    if not fraction:
        return 0.0
    return (
        100.0 * int(fraction.get("numerator", 0)) / DENOMINATORS.get(str(fraction.get("denominator", "HUNDRED")), 100)
    )


def shown_percentage(value: float) -> str:
    return f"{value:.4g} %"


def met(conditions: Iterator[Criterion]) -> tuple[bool, tuple[Criterion, ...]]:
    """(whether all are met, the conditions)."""
    found = tuple(conditions)
    return all(condition.is_met for condition in found), found
