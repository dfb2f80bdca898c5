"""Rules for durations, percentages, string matches, headers and protocols."""

from __future__ import annotations

import re
from datetime import timedelta

from mesh_pilot.api.istio.networking.v1alpha3 import Percent, StringMatch
from mesh_pilot.istio.meaning.claims import CLAIMS
from mesh_pilot.istio.rules.regex import regex_reason
from mesh_pilot.istio.rules.substitution import header_format_reason
from mesh_pilot.model.service import Protocol

MILLISECOND = timedelta(milliseconds=1)

MAX_DURATION = timedelta(seconds=2**63 // 10**9 - 1, milliseconds=999)
"""Envoy's longest duration: it counts nanoseconds in 64 bits."""

MAX_HEADER = 16 * 1024
"""Envoy's limit of the bytes of a header's name, and of its value, as they are configured."""

TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")
"""The names that HTTP allows for headers."""

PSEUDO_HEADERS = frozenset((":authority", ":method", ":path", ":scheme", ":status"))

NOT_IN_HEADERS = "\0\r\n"
"""Characters that Envoy refuses in all that becomes a part of a header."""


def duration_reason(value: timedelta) -> str:
    """The fault in a duration of at least a millisecond, in whole milliseconds."""
    if value < MILLISECOND:
        return "must be at least 1ms"
    if value > MAX_DURATION:
        return f"must be at most {int(MAX_DURATION.total_seconds())}s, the longest that Envoy counts"
    return "must be in whole milliseconds" if value % MILLISECOND else ""


def duration_or_zero_reason(value: timedelta) -> str:
    """The fault in a duration where zero means no limit."""
    return "" if not value else duration_reason(value).replace("at least", "0s or at least")


def percent_reason(value: float) -> str:
    return "" if 0 <= value <= 100 else f"{value:g} is not a percentage, allowed are 0 to 100"


def percentage_reason(value: Percent) -> str:
    """The fault in a `Percent`, which Envoy resolves to a ten thousandth."""
    if 0 < value.value < 0.0001:
        return f"{value.value:g} is too small; allowed are 0 and 0.0001 to 100"
    return percent_reason(value.value)


def string_match_reason(match: StringMatch, *, empty_prefix: bool = False) -> str:
    """The fault in a StringMatch: its regular expression is not valid, or it is empty."""
    if match.regex is not None:
        return regex_reason(match.regex) if match.regex else "regex must not be empty"
    if match.prefix == "" and not empty_prefix:
        return "prefix must not be empty"
    return ""


def is_authority(header: str) -> bool:
    return header.lower() in (":authority", "host")


def header_name_reason(name: str) -> str:
    return header_text_reason(name) if name else "a header name must not be empty"


def token_reason(name: str) -> str:
    """The fault of a name that a header of a request or response is to have."""
    if not name or TOKEN.fullmatch(name):
        return header_name_reason(name)
    return f'"{name[:80]}" is not a header name: letters, digits and !#$%&\'*+-.^_`|~'


def matched_header_reason(name: str) -> str:
    """The fault of a name in a match of headers. Pseudo-headers have none, nor has what is to be a claim of a token."""
    return "" if name in PSEUDO_HEADERS or name.lower().startswith(CLAIMS) else token_reason(name)


def changed_header_reason(name: str, *, authority: bool = False) -> str:
    """The fault in the name of a header that is set, added or removed; `authority`: the host may be changed there."""
    if is_authority(name):
        return "" if authority else f"the {name} header can't be changed here"
    if name.startswith(":"):
        return f'the header {name} can\'t be changed: it starts with ":"'
    return header_name_reason(name) or header_size_reason(name)


def header_value_reason(value: str) -> str:
    """The fault in a value in Envoy's substitution format: `%` starts a command, `%%` is a percent sign."""
    return header_size_reason(value) or header_text_reason(value) or header_format_reason(value)


def header_text_reason(text: str) -> str:
    """The fault in a string that becomes a header, or a part of one, as it is."""
    has = any(character in text for character in NOT_IN_HEADERS)
    return "has a line break or a zero byte, which no header can have" if has else ""


def header_size_reason(text: str) -> str:
    """The fault in a string that becomes the name or the value of a header, or of a cookie's attribute."""
    size = len(text.encode())
    return f"has {size} bytes, allowed are {MAX_HEADER}" if size > MAX_HEADER else ""


def protocol_reason(protocol: str, *, empty: bool) -> str:
    """The fault in a port's protocol; `empty`: it may be left to detection."""
    if not protocol:
        return "" if empty else "is missing"
    if Protocol.parse(protocol) is Protocol.AUTO:
        known = ", ".join(p.value for p in Protocol if p is not Protocol.AUTO)
        return f'"{protocol}" is not a protocol; known: {known}'
    return ""
