"""A file of rules that is read again when it changes. A change that is wrong is logged; the rules before stay."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger(scope="admin")

LOOK_SECONDS = 1.0
"""The file is looked at for changes at most so often."""

T = TypeVar("T")


class AccessError(Exception):
    """The file, the line, and what is wrong there."""


class ReadAgain(Generic[T]):
    """The rules of a file. State: they, the file's stamp when it was read, and when it was looked at."""

    def __init__(self, path: Path, what: str, parse: Callable[[str, str], T]) -> None:
        """``parse`` makes rules of content and its place; ``what``: their name in the log. Raises AccessError."""
        self._path = path
        self._what = what
        self._parse = parse
        self._looked = time.monotonic()
        self._stamp = self._now()
        self._rules = self._read()

    def __repr__(self) -> str:
        return f"<ReadAgain {self._what} {self._path}>"

    def rules(self) -> T:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            stamp = self._now()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._rules = self._read()
                    log.info(f"{self._what} of the web port read again", file=str(self._path))
                except AccessError as error:
                    log.warning(
                        f"{self._what} of the web port cannot be read; those before are kept", reason=str(error)
                    )
        return self._rules

    def _now(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> T:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise AccessError(f"{self._path}: {reason}") from None
        return self._parse(text, str(self._path))
