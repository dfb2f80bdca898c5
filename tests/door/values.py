"""Values of fields: mostly what people write, now and then what nobody should."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.door.fields import FIELDS

_NASTY_REGEXES = (
    "(",
    "(?=a)",
    r"(a)\1",
    "a{1001}",
    "[z-a]",
    "*",
    "a**",
    r"\q",
    "(?<x>y)",
    "x{0,1000}{0,9}",
    r"\C",
    "\\",
)
_TEXTS = ("a", "name-1", "http", "x", "Some text", "v1")
_NASTY = (
    "",
    " ",
    "%",
    "\x00",
    "\r\n",
    "ä",
    "日本語",
    "A.B",
    "a..b",
    "-",
    ".",
    "*",
    "a" * 64,
    "a" * 256,
    "b" * 5000,
    "c" * 70000,
    "/",
    "//",
    "..",
    "a/b",
    "a:b",
    ":",
    "a b",
    "'",
    '"',
    "{",
    "}",
    "{}",
    "%FOO%",
    "\t",
    "|",
    "a|b",
    "__proto__",
    "_",
    "unix:///tmp/" + "s" * 120,
    "unix:///tmp/door",
    "unix://@abstract",
    "300.1.1.1",
    "::ffff:1.2.3.4",
    "1.2.3.4/33",
    "\x7f",
    "ẞ.test",
    "xn--",
    "a.test.",
    "EVIL.TEST",
    "$",
    "\\",
    "#",
    "?",
    "😀",
    "false",
    "0",
    "-1",
    "1e400",
    "~",
)
_DURATIONS = ("1s", "3s", "0.5s", "10s", "1h0m0s", "0s", "100ms")
_NASTY_DURATIONS = (
    "0s",
    "-1s",
    "0.000001s",
    "0.0009s",
    "1us",
    "315576000000s",
    "315576000001s",
    "4294968s",
    "9000000h",
    "-0.5s",
)
_INTEGERS = (1, 2, 3, 10, 100)
_NASTY_INTEGERS = (
    0,
    -1,
    99,
    101,
    200,
    599,
    600,
    1024,
    5000011,
    5000012,
    8388609,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
)
_NASTY_LONGS = (2**32, 2**53, 2**63 - 1, 2**64 - 1)
_NUMBERS = (0.0, 0.1, 1.0, 50.0, 99.9, 100.0)
_NASTY_NUMBERS = (-1.0, 100.1, 1e-9, 1e9, 1e308, "NaN", "Infinity", 0.00001)

_SCALARS: Mapping[str, tuple[Sequence[Any], Sequence[Any]]] = {
    "string": (_TEXTS, _NASTY),
    "bytes": (("aGVsbG8=",), ("", "eA==", "eA" * 4000)),
    "bool": ((True, False), ()),
    "int32": (_INTEGERS, (*_NASTY_INTEGERS, -(2**31))),
    "uint32": (_INTEGERS, _NASTY_INTEGERS),
    "int64": (_INTEGERS, (*_NASTY_INTEGERS, *_NASTY_LONGS)),
    "uint64": (_INTEGERS, (*_NASTY_INTEGERS, *_NASTY_LONGS)),
    "double": (_NUMBERS, _NASTY_NUMBERS),
    "float": (_NUMBERS, _NASTY_NUMBERS),
    "duration": (_DURATIONS, _NASTY_DURATIONS),
}


class Values:
    """A source of values. `nasty` is the share of those that nobody should write."""

    def __init__(self, pick: random.Random, nasty: float = 0.0) -> None:
        self.pick = pick
        self.nasty = nasty

    def chance(self, share: float) -> bool:
        return self.pick.random() < share

    def scalar(self, kind: str, message: str, field: str) -> Any:
        """A value of a field: `kind` is its type as descriptors name it, or `duration`."""
        common, nasty = _SCALARS.get(kind, _SCALARS["int64"])
        common = self.known(message, field) or common
        if not self.chance(self.nasty):
            return self.pick.choice(common)
        if kind == "string":
            return self._nasty_text(field, str(self.pick.choice(common)))
        return self.pick.choice(nasty or common)

    def known(self, message: str, field: str) -> Sequence[Any]:
        """What people write into a field; empty where that is anything of its type."""
        return FIELDS.get(f"{message}.{field}", FIELDS.get(field, ()))

    def _nasty_text(self, field: str, text: str) -> str:
        if field in ("path", "accessLogFile"):
            return self.pick.choice(("", "/nonexistent/door", "\x00"))  # Envoy creates the files that it is told
        if field in ("regex", "match", "proxyVersion", "inclusionRegexps") and self.chance(0.7):
            return self.pick.choice(_NASTY_REGEXES)
        change: Callable[[str], str] = self.pick.choice(_CHANGES)
        return self.pick.choice(_NASTY) if self.chance(0.5) else change(text)

    def nasty_key(self, key: str) -> str:
        """A key of a map, now and then one that nobody should write."""
        return self._nasty_text("", key) if self.chance(self.nasty) else key


_CHANGES: tuple[Callable[[str], str], ...] = (
    str.upper,
    str.swapcase,
    lambda text: text + ".",
    lambda text: text + " ",
    lambda text: " " + text,
    lambda text: "*" + text,
    lambda text: text + "*",
    lambda text: text + "%",
    lambda text: f"%{text}%",
    lambda text: text + "\n",
    lambda text: text + "\x00",
    lambda text: text + ":80",
    lambda text: (text + ".") * 40,
    lambda text: text[:1],
    lambda text: text[::-1],
    lambda text: text.replace(".", ".."),
    lambda text: text + "\\",
    lambda text: text + "ä",
    lambda text: text.join(string.punctuation[:6]),
)
