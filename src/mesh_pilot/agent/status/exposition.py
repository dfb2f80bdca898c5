"""One page of metrics out of several: Prometheus' text format or OpenMetrics, piece by piece, in bounded memory.

Pure: bytes in, bytes out. Lines that are no metrics are left out and counted, because Prometheus refuses a whole page
for one of them. HELP and TYPE of a family are kept once. Sources: Prometheus, "Exposition formats"; OpenMetrics 1.0.
"""

from __future__ import annotations

import re
import sys

MOST_LINE_BYTES = 256 * 1024
MOST_FAMILIES = 50_000
"""Families whose HELP and TYPE are remembered; those of others are left out."""

# Possessive: numbers of many digits that are none would cost the square of their length. Before 3.11.5, which Debian 12
# has, a possessive repeat of a group does not go back where the group has failed half-way.
_AGAIN = rb"*+" if sys.version_info >= (3, 11, 5) else rb"*"
_VALUE = rb"[-+]?(?:(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?|[iI]nf|[nN]a[nN])"
_NAME = rb"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = rb'[a-zA-Z_][a-zA-Z0-9_]*+[ \t]*+=[ \t]*+"(?:[^"\\\n]++|\\[^\n])' + _AGAIN + rb'"[ \t]*+'
_LABELS = rb"\{[ \t]*+(?:" + _LABEL + rb"(?:,[ \t]*+|(?=\})))" + _AGAIN + rb"\}"
_SAMPLE = rb"(" + _NAME + rb"(?:[ \t]*" + _LABELS + rb")?)[ \t]+(" + _VALUE + rb")"
_LINE_OF_TEXT = rb"(?:" + _SAMPLE + rb"(?:[ \t]+-?[0-9]{1,18}+)?)?[ \t]*\n|#[^\n]*\n"
_SAMPLES_OF_TEXT = re.compile(rb"(?>" + _LINE_OF_TEXT + rb")" + _AGAIN)
"""Lines of the text format, comments and empty lines included."""
_MOMENT = rb"-?[0-9.]++(?:[eE][-+]?[0-9]++)?"
_EXEMPLAR = rb"#[ \t]*" + _LABELS + rb"[ \t]+" + _VALUE + rb"(?:[ \t]+" + _MOMENT + rb")?"
_LINE = re.compile(_SAMPLE + rb"(?:[ \t]+(" + _MOMENT + rb"))?(?:[ \t]+(" + _EXEMPLAR + rb"))?[ \t]*")
"""A sample of either format: series, value, timestamp, exemplar."""
_COMMENT = re.compile(rb"^#[^\n]*\n", re.MULTILINE)
_MILLISECONDS = re.compile(rb"-?[0-9]{1,18}+")
"""A timestamp of the text format: Prometheus refuses a page with others."""
_MOST_SECONDS = 1e15
_METADATA = re.compile(rb"#[ \t]+(HELP|TYPE|UNIT)[ \t]+(\S+)(?:[ \t]+([^\n]*))?")

_RENAMED = b"envoy_wasmcustom_istio_"
"""The beginning of the names that a stock Envoy gives Istio's metrics: of requests, from its stats access logger."""
_OF_ISTIO = re.compile(rb"^(# (?:TYPE|HELP) )?envoy_wasmcustom_(?=istio_)", re.MULTILINE)

_TEXT_TYPES = frozenset((b"counter", b"gauge", b"histogram", b"summary", b"untyped"))
_OPEN_TYPES = frozenset((b"counter", b"gauge", b"histogram", b"gaugehistogram", b"summary", b"info", b"stateset"))


class ExpositionError(ValueError):
    """A page that is no metrics: a line without end. The message is for users."""


class Exposition:
    """A page in the making: ``part`` for each page that it consists of, one after the other, then ``end``."""

    def __init__(self, *, openmetrics: bool) -> None:
        self.openmetrics = openmetrics
        self.left_out = 0
        """Lines that were no metrics."""
        self._seen: set[tuple[bytes, bytes]] = set()

    def part(self, *, openmetrics: bool, of_envoy: bool = False) -> Part:
        """A page to be included, which is in OpenMetrics or in the text format.

        ``of_envoy``: Istio's metrics get Istio's names.
        """
        return Part(self, openmetrics, of_envoy)

    def end(self) -> bytes:
        """The last bytes of the whole."""
        return b"# EOF\n" if self.openmetrics else b""

    def first_mention(self, keyword: bytes, family: bytes) -> bool:
        """True once for the HELP, TYPE or UNIT of each family."""
        if (keyword, family) in self._seen or len(self._seen) >= MOST_FAMILIES:
            return False
        self._seen.add((keyword, family))
        return True


class Part:
    """One page on its way into the whole. State: the beginning of a line whose end has not come yet."""

    def __init__(self, whole: Exposition, openmetrics: bool, of_envoy: bool) -> None:
        self._whole = whole
        self._open = openmetrics
        self._of_envoy = of_envoy
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """The bytes that go into the whole for these. Raises ExpositionError for a line that does not end."""
        end = data.rfind(b"\n") + 1
        if not end:
            self._rest += data
            if len(self._rest) > MOST_LINE_BYTES:
                raise ExpositionError(f"it has a line of more than {MOST_LINE_BYTES} bytes")
            return b""
        lines, self._rest = self._rest + data[:end], data[end:]
        if self._of_envoy and _RENAMED in lines:
            lines = _OF_ISTIO.sub(rb"\1", lines)
        if not self._open and not self._whole.openmetrics and _SAMPLES_OF_TEXT.fullmatch(lines) and _is_utf8(lines):
            return _COMMENT.sub(lambda found: self._comment(found[0][:-1]), lines)
        return b"".join(map(self._line, lines[:-1].split(b"\n")))

    def end(self) -> bytes:
        """The bytes for a last line that has no line feed."""
        return self.feed(b"\n") if self._rest else b""

    def _line(self, line: bytes) -> bytes:
        if not line.strip():
            return b""
        if not _is_utf8(line):
            self._whole.left_out += 1
            return b""
        if line.startswith(b"#"):
            return self._comment(line)
        found = _LINE.fullmatch(line)
        if found is None:
            self._whole.left_out += 1
            return b""
        series, value, timestamp, exemplar = found.groups()
        if not self._is_moment(timestamp) or (exemplar and not self._open):
            self._whole.left_out += 1
            return b""
        if self._open == self._whole.openmetrics:
            return line.rstrip() + b"\n"
        if timestamp is None:
            return series + b" " + value + b"\n"
        # seconds in OpenMetrics, milliseconds in the text format
        number = float(timestamp)
        moment = f"{number / 1000:.3f}" if self._whole.openmetrics else f"{number * 1000:.0f}"
        return series + b" " + value + b" " + moment.encode() + b"\n"

    def _is_moment(self, timestamp: bytes | None) -> bool:
        """True if the format of this page has such timestamps, or if there is none."""
        if timestamp is None:
            return True
        if not self._open:
            return _MILLISECONDS.fullmatch(timestamp) is not None
        try:
            return abs(float(timestamp)) < _MOST_SECONDS
        except ValueError:
            return False

    def _comment(self, line: bytes) -> bytes:
        """HELP, TYPE or UNIT in the form of the whole; nothing for other comments, and for those that were there."""
        found = _METADATA.fullmatch(line)
        if found is None:
            return b""
        keyword, family, text = found[1], found[2], (found[3] or b"").strip()
        if keyword == b"TYPE":
            family, text = self._type(family, text)
        elif self._whole.openmetrics and not self._open:
            return b""  # the name that it would have depends on the type, which comes later
        elif keyword == b"UNIT" and not self._whole.openmetrics:
            return b""
        if not self._whole.first_mention(keyword, family):
            return b""
        return b"# " + keyword + b" " + family + (b" " + text if text else b"") + b"\n"

    def _type(self, family: bytes, kind: bytes) -> tuple[bytes, bytes]:
        """The family and its type as the format of the whole has them."""
        if not self._whole.openmetrics:
            return family, kind if kind in _TEXT_TYPES else b"untyped"
        if not self._open and kind == b"counter":
            # Samples of OpenMetrics' counters end in _total; Envoy's do not.
            return (family.removesuffix(b"_total"), kind) if family.endswith(b"_total") else (family, b"unknown")
        return family, kind if kind in _OPEN_TYPES else b"unknown"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
