"""The kinds of objects that can't be read at present, since when and why."""

from __future__ import annotations

import structlog
import trio

log = structlog.get_logger(scope="sources")


class ReadTroubles:
    """The failures that reflectors report. State: by kind, since when and why it can't be read; failures so far."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._now: dict[str, tuple[float, str]] = {}
        self.count = 0
        """Lists and watches that failed, since the start."""

    def __repr__(self) -> str:
        return f"<ReadTroubles of {self._source}: {', '.join(sorted(self._now)) or 'none'}>"

    @property
    def reason(self) -> str:
        """The reason of the longest; empty while all can be read."""
        return min(self._now.values(), default=(0.0, ""))[1]

    @property
    def seconds(self) -> float:
        """The time for which some kind can't be read; 0 while all can."""
        return trio.current_time() - min(self._now.values())[0] if self._now else 0.0

    def clear(self) -> None:
        """A new run begins."""
        self._now.clear()

    def lost(self, kind: str, reason: str) -> None:
        self.count += 1
        if kind not in self._now:
            write = log.debug if self._now else log.warning  # one line is enough if all kinds fail at once
            write(
                "Kubernetes list or watch failed; its last objects are kept",
                source=self._source,
                kind=kind,
                why=reason,
            )
            self._now[kind] = (trio.current_time(), reason)

    def found(self, kind: str) -> None:
        self._now.pop(kind, None)
