"""Rules for durations, percentages, string matches, headers and protocols."""

from __future__ import annotations

import re
from datetime import timedelta

from mesh_pilot.api.istio.networking.v1alpha3 import Percent, StringMatch
from mesh_pilot.config.validation.regex import regex_reason
from mesh_pilot.model.service import Protocol

MILLISECOND = timedelta(milliseconds=1)

MAX_HEADER_VALUE = 16 * 1024
"""Characters of a header's value: Envoy refuses requests with more than 60 KiB of headers."""

_HEADER_VARIABLE = re.compile(
    r"%(?:%"
    r"|[^%(]*+%"
    r'|[^%(]*+\((?: *+\[ *+"(?:\\.|[^"\\])*+" *+(?:, *+"(?:\\.|[^"\\])*+" *+)*+\] *+'
    r"|(?:\\.|[^\\)\[])(?:\\.|[^\\)])*+)?\) *+%)"
)
"""Possessive quantifiers: no backtracking, so linear time."""


def duration_reason(value: timedelta) -> str:
    """For durations of at least a millisecond, in whole milliseconds."""
    if value < MILLISECOND:
        return "must be at least 1ms"
    return "must be in whole milliseconds" if value % MILLISECOND else ""


def duration_or_zero_reason(value: timedelta) -> str:
    """For durations where zero means no limit."""
    return "" if not value else duration_reason(value).replace("at least", "0s or at least")


def percent_reason(value: float) -> str:
    return "" if 0 <= value <= 100 else f"{value:g} is not a percentage, allowed are 0 to 100"


def percentage_reason(value: Percent) -> str:
    """For a `Percent`, which Envoy resolves to a ten thousandth."""
    if 0 < value.value < 0.0001:
        return f"{value.value:g} is too small; allowed are 0 and 0.0001 to 100"
    return percent_reason(value.value)


def string_match_reason(match: StringMatch, *, empty_prefix: bool = False) -> str:
    """For a StringMatch: its regular expression is valid, and it is not empty."""
    if match.regex is not None:
        return regex_reason(match.regex) if match.regex else "regex must not be empty"
    if match.prefix == "" and not empty_prefix:
        return "prefix must not be empty"
    return ""


def is_authority(header: str) -> bool:
    return header.lower() in (":authority", "host")


def header_name_reason(name: str) -> str:
    return "" if name else "a header name must not be empty"


def changed_header_reason(name: str, *, authority: bool = False) -> str:
    """For a header that is set, added or removed; `authority`: the host may be changed there."""
    if not name:
        return "a header name must not be empty"
    if is_authority(name):
        return "" if authority else f"the {name} header can't be changed here"
    return f'the header {name} can\'t be changed: it starts with ":"' if name.startswith(":") else ""


def header_value_reason(value: str) -> str:
    """For a value in Envoy's header format: `%` starts a variable, `%%` is a percent sign."""
    if len(value) > MAX_HEADER_VALUE:
        return f"has {len(value)} characters, allowed are {MAX_HEADER_VALUE}"
    position = value.find("%")
    while position >= 0:
        variable = _HEADER_VARIABLE.match(value, position)
        if variable is None:
            return f'{value!r} has a "%" that neither ends a variable such as %PROTOCOL% nor is written as "%%"'
        position = value.find("%", variable.end())
    return ""


def protocol_reason(protocol: str, *, empty: bool) -> str:
    """For a port's protocol; `empty`: it may be left to detection."""
    if not protocol:
        return "" if empty else "is missing"
    if Protocol.parse(protocol) is Protocol.AUTO:
        known = ", ".join(p.value for p in Protocol if p is not Protocol.AUTO)
        return f'"{protocol}" is not a protocol; known: {known}'
    return ""
