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

    def refuses(self, key: Key) -> bool:
        """True if the present version of an object is rejected."""
        return key in self._by_subject

    def take(self, event: Event) -> tuple[Key | str, ...]:
        """Follow an event of the source: the subjects whose rejection began or ended with it."""
        # An object that is told of is read well now, whatever it is; only a source knows when a location is.
        ended: list[Key | str] = []
        match event:
            case Rejected():
                subject = event.key or event.origin.location
                is_new = subject not in self._by_subject
                self._by_subject[subject] = event
                return (subject,) if is_new else ()
            case Upsert(item=item):
                ended = [item_key(item)]
            case Delete(key=key):
                ended = [key]
            case Replace(collection=collection):
                for subject in self._by_subject:
                    if not collection or (isinstance(subject, tuple) and subject[: len(collection)] == collection):
                        ended.append(subject)
            case Accepted(location=location):
                ended = [s for s, rejected in self._by_subject.items() if rejected.origin.location == location]
        return tuple(subject for subject in ended if self._by_subject.pop(subject, None) is not None)
