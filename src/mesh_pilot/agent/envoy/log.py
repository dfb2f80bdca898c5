"""Envoy's log lines, turned into events of our log.

Each line begins with a mark that is drawn for each Envoy, so that nothing that somebody else has put into a message
can pass for a line. Lines without it belong to the one before.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import attrs
import structlog

from mesh_pilot.net.rpc.rate_limits import TokenBucket

LINES_PER_SECOND, LINES_AT_ONCE = 200.0, 2000.0
LONGEST = 8 * 1024
"""Characters of an event; the rest of it is cut."""

_LEVELS = {"trace": "debug", "debug": "debug", "info": "info", "warning": "warning", "error": "error"}

log = structlog.get_logger(scope="envoy")


@attrs.frozen
class LogLine:
    level: str
    """A method of structlog."""
    logger: str
    """Envoy's, such as ``main``; empty for what was not logged by one."""
    text: str


class LogParser:
    """Bytes in, lines out. Holds at most one unfinished line."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._start = f"{mark}|".encode()
        self._rest = b""

    @classmethod
    def new(cls) -> LogParser:
        return cls(secrets.token_hex(4))

    @property
    def format(self) -> str:
        """Envoy's ``--log-format``."""
        return f"{self.mark}|%l|%n|%v"

    def feed(self, data: bytes) -> Iterator[LogLine]:
        """The lines that are complete; a message of several lines comes as one if it came at once."""
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest if len(rest) <= LONGEST else rest[:LONGEST]
        if newline:
            yield from self._lines(whole)

    def finish(self) -> Iterator[LogLine]:
        """The rest, at the end."""
        whole, self._rest = self._rest, b""
        if whole:
            yield from self._lines(whole)

    def _lines(self, whole: bytes) -> Iterator[LogLine]:
        message: list[bytes] = []
        for line in whole.split(b"\n"):
            if line.startswith(self._start) and message:
                yield self._line(message)
                message = []
            message.append(line)
        if any(part.strip() for part in message):
            yield self._line(message)

    def _line(self, parts: list[bytes]) -> LogLine:
        text = b"\n".join(parts)[:LONGEST].decode(errors="replace").rstrip()
        if not text.startswith(f"{self.mark}|"):
            return LogLine("warning", "", text)
        fields = text.split("|", 3)
        if len(fields) < 4:
            return LogLine("warning", "", text)
        return LogLine(_LEVELS.get(fields[1], "critical"), fields[2], fields[3])


class EnvoyLog:
    """Writes the lines of one Envoy, not more than ``LINES_PER_SECOND``, and remembers the last ones that matter."""

    def __init__(self, parser: LogParser, clock: Callable[[], float], *, silent: bool = False) -> None:
        """``silent``: write nothing."""
        self.parser = parser
        self._clock = clock
        self._silent = silent
        self._bucket = TokenBucket(LINES_PER_SECOND, LINES_AT_ONCE)
        self._left_out = 0
        self.left_out_total = 0
        self.last_error = ""
        """The last error, which may be the reason of an end."""
        self.last_line = ""

    def feed(self, data: bytes) -> None:
        for line in self.parser.feed(data):
            self._write(line)

    def finish(self) -> None:
        for line in self.parser.finish():
            self._write(line)
        self._tell()

    def _write(self, line: LogLine) -> None:
        if line.text:
            self.last_line = line.text
            is_stack = line.logger == "backtrace" and not line.text.startswith("Caught")
            if line.level in ("error", "critical") and not is_stack:
                self.last_error = line.text
        if self._silent:
            return
        if not self._bucket.take(1, self._clock()):
            self._left_out += 1
            self.left_out_total += 1
            return
        self._tell()
        scope = f"envoy.{line.logger}" if line.logger else "envoy"
        getattr(log, line.level)(line.text, scope=scope)

    def _tell(self) -> None:
        if self._left_out:
            log.warning("envoy logs too much: lines left out", lines=self._left_out)
            self._left_out = 0
