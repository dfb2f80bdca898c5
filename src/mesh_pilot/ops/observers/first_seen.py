"""Since when things are wrong that do not say so themselves: a service without endpoints, a finding of an analyzer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


class FirstSeen:
    """State: what was wrong at the last look, by kind, with the time of the first look at which it was.

    Right to within the interval of looks: one a minute, and more while somebody watches.
    """

    def __init__(self, *, now: Callable[[], datetime] = _utc_now) -> None:
        self._now = now
        self._found: dict[str, dict[Hashable, datetime]] = {}

    def __repr__(self) -> str:
        return f"<FirstSeen { ({kind: len(found) for kind, found in self._found.items()}) }>"

    def look(self, kind: str, wrong: Iterable[Hashable]) -> Mapping[Hashable, datetime]:
        """All of a kind that is wrong now, with the time since when; what is not named is well."""
        before, now = self._found.get(kind, {}), self._now()
        found = self._found[kind] = {key: before.get(key, now) for key in wrong}
        return found

    def since(self, kind: str, key: Hashable) -> datetime | None:
        """Since when something has been wrong; None if it was not at the last look."""
        return self._found.get(kind, {}).get(key)
