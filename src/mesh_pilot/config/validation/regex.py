"""Rules for regular expressions in RE2's syntax.

The expression is split into tokens in one pass, in linear time. The rest is checked by Python's compiler, which accepts
most of RE2's syntax.
"""

from __future__ import annotations

import re

MAX_REGEX = 16 * 1024
"""Maximum characters of a regular expression: every proxy compiles it and matches every request against it."""

MAX_VERSION_REGEX = 1024
"""Maximum characters of a regular expression for versions."""

MAX_REPEATS = 4
"""Maximum repeats in one of those."""

_MAX_REPEAT = 1000
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_REPEATING = re.compile(r"(?<!\()[*+?{]")
_PART = re.compile(r"\\|\[")
_CLASS = re.compile(r"\[\^?+\]?+(?:\[:\^?[a-z]++:\]|\\.|[^\]\\])*+\]", re.DOTALL)
_NOT_IN_RE2 = re.compile(r"\(\?(?:[=!>(#]|<[=!]|P=)|[*+?}]\+")
_ONLY_IN_RE2 = re.compile(r"\(\?[ims-]*+U|\(\?<")
_IN_CLASSES = ("\\p", "\\P", "\\x{")
"""Escapes in character classes that only RE2 has; names such as ``[:alpha:]`` are apart."""

_FLAGS = re.compile(r"\(\?[imsU]*+(?:-[imsU]++)?\)")
_REPEAT = re.compile(r"\{([0-9]++)(?:,([0-9]*+))?\}")
_DOUBTFUL = re.compile(r"(\\.)|(\[|[-&~|](?=[-&~|]))", re.DOTALL)
"""In a class: syntax that Python warns of, because its meaning may change."""


def regex_reason(pattern: str) -> str:
    """The reason why a regular expression is invalid, or an empty string.

    Syntax that RE2 lacks is an error. Syntax that only RE2 has is accepted unchecked.
    """
    if len(pattern) > MAX_REGEX:
        return f"the regular expression has {len(pattern)} characters, allowed are {MAX_REGEX}"
    parts = _Tokens()
    if not parts.cut(pattern):
        return f'{pattern!r} is not a regular expression: a "[" has no "]"'
    bare = "".join(parts.bare)
    found = parts.back_reference or ((match := _NOT_IN_RE2.search(bare)) is not None and match[0])
    if found:
        return f'the regular expression {pattern!r} uses "{found}", which RE2 does not have'
    if any(_is_above(number) for repeat in _REPEAT.findall(bare) for number in repeat):
        return f"the regular expression {pattern!r} repeats more than {_MAX_REPEAT} times, which RE2 does not allow"
    if parts.only_re2 or _ONLY_IN_RE2.search(bare):
        return ""
    try:
        re.compile(_FLAGS.sub("", "".join(parts.python)))
    except (re.error, RecursionError, OverflowError) as error:
        return f"{pattern!r} is not a regular expression: {error}"
    return ""


def version_regex_reason(pattern: str) -> str:
    """The reason why a regular expression that is matched in this process is refused, or an empty string.

    Python's matcher backtracks, so nested or adjacent repeats could take exponential time.
    """
    if len(pattern) > MAX_VERSION_REGEX:
        return f"has {len(pattern)} characters, allowed are {MAX_VERSION_REGEX}"
    if reason := regex_reason(pattern):
        return reason
    parts = _Tokens()
    parts.cut(pattern)
    bare = "".join(parts.bare)
    if _REPEATED_GROUP.search(bare) or len(_REPEATING.findall(bare)) > MAX_REPEATS:
        return f"{pattern!r} repeats a group, or has more than {MAX_REPEATS} repeats; no version takes that to match"
    return ""


class _Tokens:
    """A pattern, split into escapes, classes and the rest."""

    def __init__(self) -> None:
        self.bare: list[str] = []
        """The pattern with ``_`` in place of every class and escape."""
        self.python: list[str] = []
        """The pattern with its classes in a form that Python accepts without a warning."""
        self.back_reference = ""
        self.only_re2 = False
        """True if it has syntax that Python does not support."""

    def cut(self, pattern: str) -> bool:
        """Parse a pattern; False if a class has no end."""
        position = 0
        while (part := _PART.search(pattern, position)) is not None:
            start = part.start()
            self._rest(pattern[position:start])
            if part[0] == "[":
                match = _CLASS.match(pattern, start)
                if match is None:
                    return False
                position = match.end()
                self._class(match[0])
            else:
                position = start + 2
                if pattern.startswith("\\Q", start):
                    end = pattern.find("\\E", position)
                    position = len(pattern) if end < 0 else end + 2
                    self.only_re2 = True
                self.only_re2 = self.only_re2 or pattern.startswith("\\x{", start)
                self._escape(pattern[start:position])
        self._rest(pattern[position:])
        return True

    def _rest(self, text: str) -> None:
        self.bare.append(text)
        self.python.append(text)

    def _escape(self, text: str) -> None:
        self.bare.append("_")
        self.python.append(text)
        self.only_re2 = self.only_re2 or text[1:] in ("p", "P", "C", "z")
        if text[1:].isdecimal() and text[1:] != "0":
            self.back_reference = self.back_reference or text

    def _class(self, text: str) -> None:
        self.bare.append("_")
        self.only_re2 = self.only_re2 or "[:" in text[1:] or any(part in text for part in _IN_CLASSES)
        head = 2 if text.startswith("[^") else 1
        body = _DOUBTFUL.sub(lambda match: match[1] or f"\\{match[2]}", text[head:])
        self.python.append(text[:head] + body)


def _is_above(number: str) -> bool:
    digits = number.lstrip("0")
    return len(digits) > len(str(_MAX_REPEAT)) or int(digits or 0) > _MAX_REPEAT
