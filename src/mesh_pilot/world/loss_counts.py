"""The counts of a guard: things of one sort, how many there are, and how many there were at most of late. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

Key = tuple[str, ...]

Sort = tuple[str, str]
"""Things that are counted together: what they are, and which (empty: all of that)."""

OBJECTS: Sort = ("objects", "")

_WORDS = {
    "namespace": "objects of namespace {} went at once",
    "kind": "objects of kind {} went at once",
    "config": "objects of configuration went at once",
    "service": "services went at once",
    "secret": "credentials went at once",
    "settings": "settings went at once",
    "endpoints": "services lost all endpoints at once",
    "objects": "objects went at once",
}
"""The sorts, the narrowest first, with the words for a loss."""

_WIDTHS = {name: width for width, name in enumerate(_WORDS)}


def in_words(sort: Sort) -> str:
    return _WORDS[sort[0]].format(sort[1])


def sorts_of(key: Key) -> tuple[Sort, ...]:
    match key[0]:
        case "config":
            return (("namespace", key[2]), ("kind", key[1]), ("config", ""), OBJECTS)
        case "endpoints":
            return (("endpoints", ""),)
        case "service" | "secret":
            return ((key[0], ""), OBJECTS)
        case _:
            return (("settings", ""), OBJECTS)


def by_width(keys: Iterable[Key]) -> list[Sort]:
    return sorted({sort for key in keys for sort in sorts_of(key)}, key=lambda sort: (_WIDTHS[sort[0]], sort))


def files_of(key: Key) -> Sort:
    """The files with configs of an object's namespace."""
    return ("files of namespace", key[2])


class FileCounts:
    """The files of a source with configs.

    State: `_files`, where each object is; `_objects`, how many there are in each.
    """

    def __init__(self) -> None:
        self._files: dict[Key, tuple[Sort, str]] = {}
        self._objects: Counter[tuple[Sort, str]] = Counter()

    def sorts(self, key: Key) -> tuple[Sort, ...]:
        """The sort of the file of an object that has one."""
        return (self._files[key][0],) if key in self._files else ()

    def put(self, key: Key, place: str) -> Iterator[tuple[Sort, int]]:
        """Note where an object is (empty: nowhere). By how many the files of a sort grow with that."""
        if (old := self._files.pop(key, None)) is not None:
            self._objects[old] -= 1
            if not self._objects[old]:
                del self._objects[old]
                yield old[0], -1
        if place:
            new = self._files[key] = (files_of(key), place)
            if new not in self._objects:
                yield new[0], 1
            self._objects[new] += 1


class SlidingCount:
    """The number of things of one sort in a source, the number of held ones, and the recent maximum."""

    def __init__(self) -> None:
        self.now = 0
        self.held = 0
        self._were: deque[tuple[float, int]] = deque()
        """Numbers before they fell, with the time until which they held: each smaller and later than the one before."""

    @property
    def in_force(self) -> int:
        return self.now + self.held

    def fell(self, before: int, at: float) -> None:
        while self._were and self._were[-1][1] <= before:
            self._were.pop()
        self._were.append((at, before))

    def moved(self, count: int) -> None:
        """Leave ``count`` of the earlier items out of the loss."""
        self._were = deque((until, number - count) for until, number in self._were)

    def forget(self) -> None:
        """Nothing has fallen as far as is known."""
        self._were.clear()

    def peak(self, horizon: float) -> int:
        """The most that were in force since then."""
        while self._were and self._were[0][0] < horizon:
            self._were.popleft()
        return max(self.in_force, self._were[0][1]) if self._were else self.in_force
