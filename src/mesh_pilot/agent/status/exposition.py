"""One page of metrics out of several: Prometheus' text format or OpenMetrics, piece by piece, in bounded memory.

Pure: bytes in, bytes out. Istio's agent concatenates pages, and Prometheus refuses the whole for one bad line of an
application; so lines that are not metrics are left out and counted. Each piece is judged as a whole, because Envoy's
page has a hundred thousand good lines, for which a step of Python each would cost a second. HELP and TYPE of a family
are kept once. Sources: Prometheus, "Exposition formats"; OpenMetrics 1.0.
"""

from __future__ import annotations

import re

MOST_LINE_BYTES = 256 * 1024
MOST_FAMILIES = 50_000
"""Families whose HELP and TYPE are remembered; those of others are left out."""

# Repeats are possessive where what follows could begin with the same: a long number that is none would cost its square.
_VALUE = rb"[-+]?(?:(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?|[iI]nf|[nN]a[nN])"
_LABEL = rb'[a-zA-Z_][a-zA-Z0-9_]*+[ \t]*+=[ \t]*+"(?:[^"\\\n]++|\\[^\n])*"[ \t]*+'
_LABELS = rb"\{[ \t]*+(?:" + _LABEL + rb"(?:,[ \t]*+|(?=\})))*\}"
_SAMPLE = rb"([a-zA-Z_:][a-zA-Z0-9_:]*(?:[ \t]*" + _LABELS + rb")?)[ \t]+(" + _VALUE + rb")"
_EXEMPLAR = rb"#[ \t]*" + _LABELS + rb"[ \t]+" + _VALUE + rb"(?:[ \t]+-?[0-9.]++(?:[eE][-+]?[0-9]++)?)?"
_MILLISECONDS = rb"-?[0-9]{1,18}+"
_SECONDS = rb"-?(?:[0-9]{1,15}+(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9])?"
"""Timestamps of the text format and of OpenMetrics: Prometheus refuses a page with others."""
_LINE_OF_TEXT = _SAMPLE + rb"(?:[ \t]+(" + _MILLISECONDS + rb"))?[ \t]*\n"
_LINE_OF_OPEN = _SAMPLE + rb"(?:[ \t]+(" + _SECONDS + rb"))?(?:[ \t]+" + _EXEMPLAR + rb")?[ \t]*\n"
"""Lines with a series, its value, and a timestamp."""


def _by_format(pattern: bytes) -> dict[bool, re.Pattern[bytes]]:
    """The pattern with ``%b`` for a sample, compiled: by whether it is for OpenMetrics."""
    lines = ((True, _LINE_OF_OPEN), (False, _LINE_OF_TEXT))
    return {openmetrics: re.compile(pattern % line, re.MULTILINE) for openmetrics, line in lines}


_SAMPLES = _by_format(rb"^%b")
_GOOD = _by_format(rb"(?>%b|#[^\n]*\n|[ \t\r]*\n)*")
_BAD = _by_format(rb"^(?!%b|#|[ \t\r]*\n)[^\n]*\n")
_EMPTY = re.compile(rb"^[ \t\r]*\n", re.MULTILINE)
_COMMENT = re.compile(rb"^#(?:[ \t]+(HELP|TYPE|UNIT)[ \t]+(\S+)(?:[ \t]+([^\n]*))?|[^\n]*)\n", re.MULTILINE)

_RENAMED = b"envoy_wasmcustom_istio_"
"""The beginning of the names that a stock Envoy gives Istio's metrics: of requests, from its stats access logger."""
_OF_ISTIO = re.compile(rb"^(# (?:TYPE|HELP) )?envoy_wasmcustom_(?=istio_)", re.MULTILINE)

_TEXT_TYPES = frozenset((b"counter", b"gauge", b"histogram", b"summary", b"untyped"))
_OPEN_TYPES = frozenset((b"counter", b"gauge", b"histogram", b"gaugehistogram", b"summary", b"info", b"stateset"))


class ExpositionError(ValueError):
    """A page that is not metrics: a line without end. The message is for users."""


class Exposition:
    """A page in the making: ``part`` for each page that it consists of, one after the other, then ``end``."""

    def __init__(self, *, openmetrics: bool) -> None:
        self.openmetrics = openmetrics
        self.left_out = 0
        """Lines that were not metrics."""
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
        if not _is_utf8(lines):
            lines = b"".join(line if _is_utf8(line) else b"\xff\n" for line in lines.splitlines(keepends=True))
        if not _GOOD[self._open].fullmatch(lines):
            lines, left_out = _BAD[self._open].subn(b"", lines)
            self._whole.left_out += left_out
        if self._whole.openmetrics:
            lines = _EMPTY.sub(b"", lines)
        if self._open != self._whole.openmetrics:
            lines = _SAMPLES[self._open].sub(self._converted, lines)
        return _COMMENT.sub(self._comment, lines)

    def end(self) -> bytes:
        """The bytes for a last line that has no line feed."""
        return self.feed(b"\n") if self._rest else b""

    def _converted(self, found: re.Match[bytes]) -> bytes:
        """A sample in the other format, which has its timestamps in another unit, and exemplars or none."""
        series, value, timestamp = found.groups()
        if timestamp is None:
            return series + b" " + value + b"\n"
        # seconds in OpenMetrics, milliseconds in the text format
        number = float(timestamp)
        moment = f"{number / 1000:.3f}" if self._whole.openmetrics else f"{number * 1000:.0f}"
        return series + b" " + value + b" " + moment.encode() + b"\n"

    def _comment(self, found: re.Match[bytes]) -> bytes:
        """HELP, TYPE or UNIT in the form of the whole; nothing for other comments, and for those that were there."""
        keyword, family, text = found[1], found[2], (found[3] or b"").strip()
        if keyword is None:
            return b""
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
