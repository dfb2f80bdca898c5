"""What a regular expression in RE2's syntax may be.

The expression is cut into its parts in one pass, so that the time to check it grows with its length and no faster,
whatever it holds. What is left is for Python's own compiler, which knows most of RE2's syntax.
"""

from __future__ import annotations

import re

MAX_REGEX = 16 * 1024
"""Characters of a regular expression. Every proxy compiles it, and every request is matched against it."""

MAX_VERSION_REGEX = 1024
"""Characters of a regular expression that versions are matched against."""

MAX_REPEATS = 4
"""In one of those."""

_MAX_REPEAT = 1000
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_REPEATING = re.compile(r"(?<!\()[*+?{]")
_PART = re.compile(r"\\|\[")
_CLASS = re.compile(r"\[\^?+\]?+(?:\[:\^?[a-z]++:\]|\\.|[^\]\\])*+\]", re.DOTALL)
_NOT_IN_RE2 = re.compile(r"\(\?(?:[=!>(#]|<[=!]|P=)|[*+?}]\+")
_ONLY_IN_RE2 = re.compile(r"\(\?[ims-]*+U|\(\?<")
_IN_CLASSES = ("\\p", "\\P", "\\x{")
"""What only RE2 has in classes, besides names such as ``[:alpha:]``."""

_FLAGS = re.compile(r"\(\?[imsU]*+(?:-[imsU]++)?\)")
_REPEAT = re.compile(r"\{([0-9]++)(?:,([0-9]*+))?\}")
_DOUBTFUL = re.compile(r"(\\.)|(\[|[-&~|](?=[-&~|]))", re.DOTALL)
"""Inside of a class: what Python warns of, because it may mean something else one day."""


def regex_reason(pattern: str) -> str:
    """What is wrong with a regular expression, or an empty string.

    What RE2 does not have is refused; what only RE2 has can't be checked here and is let through.
    """
    if len(pattern) > MAX_REGEX:
        return f"the regular expression has {len(pattern)} characters, allowed are {MAX_REGEX}"
    parts = _Parts()
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
    """What is wrong with a regular expression that is matched here, and not in a proxy: Python's way of matching can
    take for ever where repeats follow, or are in, one another."""
    if len(pattern) > MAX_VERSION_REGEX:
        return f"has {len(pattern)} characters, allowed are {MAX_VERSION_REGEX}"
    if reason := regex_reason(pattern):
        return reason
    parts = _Parts()
    parts.cut(pattern)
    bare = "".join(parts.bare)
    if _REPEATED_GROUP.search(bare) or len(_REPEATING.findall(bare)) > MAX_REPEATS:
        return f"{pattern!r} repeats a group, or has more than {MAX_REPEATS} repeats; no version takes that to match"
    return ""


class _Parts:
    """A pattern cut into escapes, classes and the rest."""

    def __init__(self) -> None:
        self.bare: list[str] = []
        """The pattern with ``_`` for every class and every escape."""
        self.python: list[str] = []
        """The pattern with classes as Python takes them without a warning."""
        self.back_reference = ""
        self.only_re2 = False
        """Whether it has something that Python does not know."""

    def cut(self, pattern: str) -> bool:
        """Take the pattern in; False where a class has no end."""
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
