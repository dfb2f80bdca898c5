"""Rules for regular expressions: RE2 itself judges them, as it does in proxies."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Protocol, cast

import re2

MAX_REGEX = 16 * 1024
"""Maximum characters of a regular expression: every proxy compiles it and matches every request against it."""

MAX_UNICODE_CLASSES = 256
"""Maximum classes such as ``\\pL`` in a regular expression: each has hundreds of ranges."""

MAX_INSTRUCTIONS = 32768
"""Instructions that Envoy takes with our bootstrap and with Istio's (``re2.max_program_size.error_level``)."""

MAX_REPEATED = 6_000
"""Instructions that a regular expression may have besides one for each of its characters, compiled for bytes.

A few characters can repeat so often that Envoy needs seconds to compile them: ``x{0,1000}`` has 2,000.
"""

_INSTRUCTION_BYTES = 12
"""RE2's share of memory for an instruction: it fails when two thirds of its memory do not suffice."""

_BYTES, _UNICODE = re2.Options.Encoding.LATIN1, re2.Options.Encoding.UTF8
"""How Envoys compile: newer ones for bytes, older ones for UTF-8.

``envoy.reloadable_features.re2_use_latin1_mode`` says which.
"""

_QUOTED = 200
"""Characters of a pattern in a reason."""

_REFERENCE = re.compile(r"\\(.?)", re.DOTALL)
_META = re.compile(r"[\\.+*?()|\[\]{}^$]")


class Regex(Protocol):
    """A compiled regular expression."""

    @property
    def groups(self) -> int: ...
    def search(self, text: str) -> object | None: ...
    def fullmatch(self, text: str) -> object | None: ...


def regex_reason(pattern: str) -> str:
    """The reason why some Envoy refuses a regular expression, or takes long to compile it; or an empty string."""
    if len(pattern) > MAX_REGEX:
        return f"the regular expression has {len(pattern)} characters, allowed are {MAX_REGEX}"
    if pattern.count("\\p") + pattern.count("\\P") > MAX_UNICODE_CLASSES:
        return f"the regular expression has more than {MAX_UNICODE_CLASSES} Unicode classes (\\p, \\P)"
    encoded = pattern.encode(errors="surrogatepass")
    for_bytes = _complaint(encoded, _BYTES, min(MAX_REPEATED + len(encoded), MAX_INSTRUCTIONS))
    if for_bytes.startswith("pattern too large"):
        return f"the regular expression {_short(pattern)} is too large: x{{1000}} counts as a thousand x"
    reason = _complaint(encoded, _UNICODE, MAX_INSTRUCTIONS)
    if reason.startswith("pattern too large"):
        return f"the regular expression {_short(pattern)} compiles to more than {MAX_INSTRUCTIONS} instructions"
    if for_bytes and not reason:
        reason = f"{for_bytes} (newer Envoys match bytes: write characters above \\xff as such)"
    return f"{_short(pattern)} is not a regular expression that RE2 takes: {reason}" if reason else ""


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= _QUOTED else f"{pattern[:_QUOTED]}...")


def _complaint(pattern: bytes, encoding: object, instructions: int) -> str:
    try:
        re2.compile(pattern, _options(encoding, instructions))
    except re2.error as error:
        return cast(bytes, error.args[0]).decode(errors="replace")
    return ""


def quoted(text: str) -> str:
    """The regular expression that a string is matched by, as Go quotes it."""
    return _META.sub(r"\\\g<0>", text)


def rewrite_reason(pattern: str, rewrite: str) -> str:
    """The reason why Envoy replaces nothing by a substitution for what a valid pattern matches, or an empty string."""
    regex = compiled(pattern)
    groups = regex.groups if regex is not None else 0
    for character in _REFERENCE.findall(rewrite):
        if character != "\\" and not ("0" <= character <= "9"):
            return f'{rewrite!r} has a "\\" that is followed by neither the number of a group nor a second "\\"'
        if character != "\\" and int(character) > groups:
            return f'{rewrite!r} has "\\{character}", but match has {groups} groups'
    return ""


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Regex | None:
    """A regular expression that matches in this process, in linear time; None if the pattern is not valid."""
    try:
        return cast(Regex, re2.compile(pattern, _options(_UNICODE, MAX_INSTRUCTIONS)))
    except re2.error:
        return None


def _options(encoding: object, instructions: int) -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.encoding = encoding
    options.max_mem = instructions * _INSTRUCTION_BYTES
    return options
