"""Plain data without lines, from a reader of YAML in Rust: the fast path of `yaml_marked`, with the same results.

The reader is libyaml in Rust: it refuses what PyYAML refuses, and makes no Python object for an event, on which PyYAML
spends most of its time. Plain scalars mean to it what they mean in YAML 1.2, where `yes` and `010` are strings. What
`scalar_value` takes for something else, and the reader for a string even without quotes, may be either: it is left to
`yaml_marked`, as anchors, tags, merges and errors are.
"""

from __future__ import annotations

import re
from functools import lru_cache

import ryaml

from mesh_pilot.istio.reading.yaml_marked import MAX_NODES, MAX_NUMBER, key_text, scalar_value

_BLANK = r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*"
_BEFORE_ROOT = re.compile(rf"{_BLANK}(?:---)?{_BLANK}")
_LONG_NUMBER = re.compile(rf"[0-9_.]{{{MAX_NUMBER - 9}}}")
"""One that is too long may have a sign, an exponent."""
_ODD_LINE_BREAK = re.compile("\r(?!\n)|[\x85\u2028\u2029\ufeff]")


MAX_OPENED = 2000
"""The most opening brackets and braces. The reader takes quadratic time for those inside each other, which it does not
bound: 100,000 take 20 s."""


class UncommonYamlError(Exception):
    """The text has to be read by `yaml_marked`."""


def read_document(text: str) -> tuple[dict[str, object], int]:
    """The data of the only document, an object, and the 0-based line on which it starts.

    Raises UncommonYamlError if `yaml_marked` has to read it (also for several documents, and for a list of objects,
    whose items each have a line), and NumberTooLongError.
    """
    has_odd_lines = ("\r" in text or not text.isascii()) and _ODD_LINE_BREAK.search(text)
    has_too_much = _may_have_too_many(text) or _may_have_long_number(text) or _may_be_deep(text)
    if "&" in text or "!" in text or has_odd_lines or has_too_much:
        raise UncommonYamlError  # it may have anchors, tags, lines that are counted otherwise, too much of something
    before = _BEFORE_ROOT.match(text)
    assert before is not None  # it matches nothing, too
    try:
        found = ryaml.loads_all(text)
    except ValueError:
        raise UncommonYamlError from None
    match found:
        case [dict() as data] if "items" not in data and not text.startswith("%", before.end()):
            return _object(data), text.count("\n", 0, before.end())
    raise UncommonYamlError


def _may_have_too_many(text: str) -> bool:
    """True if there may be more than MAX_NODES values: each but the first follows one of a few characters."""
    return len(text) > MAX_NODES and sum(map(text.count, "\n,:[{-?")) >= MAX_NODES


def _may_be_deep(text: str) -> bool:
    return text.count("[") + text.count("{") > MAX_OPENED


def _may_have_long_number(text: str) -> bool:
    """True if a number may be longer than is allowed: a fraction that was read does not show it."""
    is_long = any(len(line) > MAX_NUMBER for line in text.split("\n"))  # which few texts have
    return is_long and _LONG_NUMBER.search(text) is not None


def _object(data: dict[object, object]) -> dict[str, object]:
    found = {
        _text(key) if type(key) is str else _key(key): _text(item) if type(item) is str else _value(item)
        for key, item in data.items()
    }
    if len(found) != len(data):
        raise UncommonYamlError  # 5 and "5"
    return found


def _key(key: object) -> str:
    if key is None:
        raise UncommonYamlError
    return key_text(key, 0)


def _value(value: object) -> object:
    if type(value) is dict:
        return _object(value)
    if type(value) is list:
        return [_text(item) if type(item) is str else _value(item) for item in value]
    return value


@lru_cache(maxsize=4096)
def _text(text: str) -> str:
    """A string that means itself. Cached, as most occur many times."""
    if text == "<<" or _may_be_plain(text):
        raise UncommonYamlError
    return text


def _may_be_plain(text: str) -> bool:
    """True for a string that means something else to us if it was written without quotes, which can't be seen."""
    return type(scalar_value(text)) is not str and type(ryaml.loads(f"- {text}")[0]) is str
