"""The rejections of one source that stand, as its events make and end them."""

from __future__ import annotations

from collections.abc import Iterable

from mesh_pilot.model.config import SHADOWED
from mesh_pilot.model.events import Accepted, Delete, Event, Rejected, Replace, Upsert, item_key

Key = tuple[str, ...]


class StandingRejections:
    """Rejections by subject: the key of an object, or the location of what could not be identified."""

    def __init__(self) -> None:
        self._by_subject: dict[Key | str, Rejected] = {}

    def __repr__(self) -> str:
        return f"<StandingRejections of {len(self)}>"

    def __len__(self) -> int:
        return len(self._by_subject)

    def all(self) -> Iterable[Rejected]:
        return self._by_subject.values()

    def has(self, key: Key, location: str) -> bool:
        """True if an object of this key is rejected, or may be in what can't be read of its location.

        A location that only has objects which others shadow was read in full.
        """
        if key in self._by_subject:
            return True
        rejected = self._by_subject.get(location) if location else None
        return rejected is not None and not all(SHADOWED in problem.reason for problem in rejected.problems)

    def take(self, event: Event) -> None:
        """Follow an event of the source."""
        match event:
            case Rejected():
                self._by_subject[event.key or event.origin.location] = event
            case Upsert(item=item):
                self._by_subject.pop(item_key(item), None)
            case Delete(key=key):
                self._by_subject.pop(key, None)
            case Replace(collection=collection):
                for subject in list(self._by_subject):
                    if not collection or (isinstance(subject, tuple) and subject[: len(collection)] == collection):
                        del self._by_subject[subject]
            case Accepted(location=location):
                for subject, rejected in list(self._by_subject.items()):
                    if rejected.origin.location == location:
                        del self._by_subject[subject]
