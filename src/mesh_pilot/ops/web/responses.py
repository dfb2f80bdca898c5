"""Responses of the pages: text and JSON.

Each passes `redacted`. Names come from file systems, registries and proxies, and may contain bytes that are not UTF-8;
Python represents them as lone surrogates. They are escaped here (``\\xff``, ``\\ud800``), so that no name breaks a
page.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from starlette.responses import PlainTextResponse, Response

from mesh_pilot.model.json import Json
from mesh_pilot.model.redaction import redacted

PRETTY_BYTES = 256 * 1024
"""JSON up to this size is indented. Indenting is slow in Python, so larger JSON has one list entry per line instead."""

GZIP_BYTES = 1000
"""JSON of this size and more is compressed for clients that take that."""

GZIP_LEVEL = 3
"""JSON is as small as with 9 within a tenth, in a third of the time."""


class NotFound(Exception):
    """Answered with status 404 and its text."""


def text(content: str, *, status: int = 200) -> Response:
    return PlainTextResponse(redacted(content).encode("utf-8", ESCAPED), status_code=status)


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """True if a client takes gzip."""
    offers = headers.get("accept-encoding", "").lower().replace(" ", "").split(",")
    return any(each.partition(";")[0] == "gzip" and not each.endswith(("q=0", "q=0.0")) for each in offers)


def json_response(value: Json, *, pretty: bool | None = None, is_gzip: bool = False) -> Response:
    """A JSON response, ending with a newline. ``pretty``: indented, or one list entry per line; by default depends on
    size. ``is_gzip``: the client takes gzip.

    An entry that cannot be written (it is nested too deeply) is replaced by an error.
    """
    entries = "".join(_written(_shown(value)))
    if pretty or (pretty is None and len(entries) <= PRETTY_BYTES):
        with suppress(RecursionError, ValueError):
            entries = json.dumps(json.loads(entries), ensure_ascii=False, indent=2)
    body, headers = (entries + "\n").encode("utf-8", ESCAPED_IN_JSON), {"vary": "accept-encoding"}
    if is_gzip and len(body) >= GZIP_BYTES:
        body, headers = gzip.compress(body, GZIP_LEVEL), {**headers, "content-encoding": "gzip"}
    return Response(body, media_type="application/json", headers=headers)


def _shown(value: Json) -> Json:
    """The value, redacted. What is nested too deeply to be looked at is not shown either."""
    with suppress(RecursionError):
        found: Json = redacted(value)
        return found
    if isinstance(value, dict):
        return {name: _shown_member(name, each) for name, each in value.items()}
    return _shown_member("", value)


def _shown_member(name: str, member: Json) -> Json:
    """A member that may be too deep; of a list, only the entries that are."""
    with suppress(RecursionError):
        found: Json = redacted({name: member})[name]
        return found
    return [_shown_entry(each) for each in member] if isinstance(member, list) and len(member) > 1 else _DEEP


def _shown_entry(entry: Json) -> Json:
    with suppress(RecursionError):
        found: Json = redacted(entry)
        return found
    return _DEEP


def _written(value: Json) -> Iterator[str]:
    """JSON in chunks, with one line for each entry of a list (of the value itself, or of an object's member)."""
    if isinstance(value, list):
        yield from _in_lines(value)
    elif isinstance(value, dict):
        separator = "{\n"
        for key, member in value.items():
            yield f"{separator}{json.dumps(str(key), ensure_ascii=False)}: "
            yield from _in_lines(member) if isinstance(member, list) else (_entry(member),)
            separator = ",\n"
        yield "\n}" if value else "{}"
    else:
        yield _entry(value)


def _in_lines(entries: Sequence[Json]) -> Iterator[str]:
    if not entries:
        yield "[]"
        return
    separator = "[\n"
    for entry in entries:
        yield separator
        yield _entry(entry)
        separator = ",\n"
    yield "\n]"


def _entry(value: Json) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_as_text)
    except ValueError:  # a number that JSON does not have
        pass
    except RecursionError:
        return _TOO_DEEP
    try:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_as_text)
    except (RecursionError, ValueError):
        return _TOO_DEEP


_DEEP: Json = {"error": "nested too deeply to be shown"}
_TOO_DEEP = json.dumps(_DEEP)


def _as_text(value: object) -> str:
    return str(redacted(str(value)))


def _finite(value: Json) -> Json:
    """The same with infinities and NaN as strings, as in protobuf's JSON mapping."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return value


def _escape(error: UnicodeError, backslash: str) -> tuple[str, int]:
    """Lone surrogates as text: escapes of file name bytes as that byte, others as a code point."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = map(ord, error.object[error.start : error.end])
    shown = (f"{backslash}x{c - 0xDC00:02x}" if 0xDC80 <= c <= 0xDCFF else f"{backslash}u{c:04x}" for c in found)
    return "".join(shown), error.end


ESCAPED = "mesh_pilot.escaped"
"""Error handler for ``str.encode``: writes lone surrogates as ``\\xff`` or ``\\ud800``."""
ESCAPED_IN_JSON = "mesh_pilot.escaped_in_json"
"""The same with a doubled backslash, for JSON strings."""

codecs.register_error(ESCAPED, lambda error: _escape(error, "\\"))
codecs.register_error(ESCAPED_IN_JSON, lambda error: _escape(error, "\\\\"))


def printable(content: str) -> str:
    """Text with lone surrogates escaped."""
    return content if content.isascii() else content.encode("utf-8", ESCAPED).decode()
