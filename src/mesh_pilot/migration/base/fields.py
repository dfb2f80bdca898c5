"""Fields of a foreign object, with a note of those that were not read.

Unlike ``consul.mesh.fields``, names have one spelling, and ``false`` and ``0`` say something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from mesh_pilot.consul.mesh.fields import seconds_text
from mesh_pilot.istio.meaning.durations import describe, read_duration

Leave = Callable[[str, str, str], None]
"""Lists what is not taken: the field, the reason, what to do."""

_LARGEST = 2**53

Reasons = Mapping[str, tuple[str, str]]
"""Why fields are not taken, and what to do, by their last name."""

NO_COUNTERPART = "has no counterpart in Istio's API"


class ForeignFields:
    """An object in a foreign object. State: which of its fields were read."""

    def __init__(self, data: object, leave: Leave, path: str = "") -> None:
        self.path = path
        self._leave = leave
        self._values: Mapping[str, object] = data if isinstance(data, Mapping) else {}
        self._read: set[str] = set()
        self._children: list[ForeignFields] = []
        if not isinstance(data, Mapping) and not is_unset(data):
            self.leave("", f"expected an object, got {describe(data)}")

    def __bool__(self) -> bool:
        return any(not is_unset(value) for value in self._values.values())

    def names(self) -> list[str]:
        """The names of the fields that are set, without reading any."""
        return [name for name, value in self._values.items() if not is_unset(value)]

    def has(self, name: str) -> bool:
        """True if a field is set; it counts as read only by another method."""
        return not is_unset(self._values.get(name))

    def says(self, name: str) -> bool:
        """True if a field is there, be it an empty object."""
        return self._values.get(name) is not None

    def value(self, name: str) -> object:
        """The value, of any type, with all that is in it."""
        self._read.add(name)
        return self._values.get(name)

    def text(self, name: str) -> str:
        return self._typed(name, str, "a string") or ""

    def flag(self, name: str) -> bool | None:
        """True or false; None where it is not said."""
        found = self._typed(name, bool, "true or false")
        return found if isinstance(found, bool) else None

    def integer(self, name: str) -> int | None:
        """A whole number that is not negative; None where there is none."""
        found = self.number(name)
        if found is not None and (found < 0 or found != int(found)):
            self.leave(name, f"expected a whole number that is not negative, got {found:g}")
            return None
        return None if found is None else int(found)

    def number(self, name: str) -> float | None:
        value = self.value(name)
        if is_unset(value):
            return None
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value.removesuffix("%"))
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
            self.leave(name, f"expected a number, got {describe(value)}")
            return None
        return float(value)

    def percent(self, name: str) -> Any:
        """A percentage as a number, whole where it is; None where there is none."""
        found = self.number(name)
        if found is None:
            return None
        if not 0 <= found <= 100:
            self.leave(name, f"expected a percentage, got {found:g}")
            return None
        return int(found) if found == int(found) else found

    def duration(self, name: str) -> str:
        """A duration as Istio's objects have it; empty where there is none."""
        value = self.value(name)
        if is_unset(value):
            return ""
        try:
            return seconds_text(read_duration(value))
        except (ValueError, OverflowError) as error:
            self.leave(name, str(error))
            return ""

    def texts(self, name: str) -> list[str]:
        found = self._typed(name, list, "a list") or []
        good = [each if isinstance(each, str) else str(each) for each in found if isinstance(each, str | int)]
        if len(good) < len(found):
            self.leave(name, "expected a list of strings; other values are not taken")
        return good

    def text_map(self, name: str) -> dict[str, str]:
        found = self._typed(name, Mapping, "an object") or {}
        good = {str(key): value for key, value in found.items() if isinstance(value, str)}
        if len(good) < len(found):
            self.leave(name, "expected strings by name; other values are not taken")
        return dict(sorted(good.items()))

    def part(self, name: str) -> ForeignFields:
        """The object of a field; an empty one if it is not set."""
        return self._child(self.value(name), name)

    def parts(self, name: str) -> list[ForeignFields]:
        found = self._typed(name, list, "a list") or []
        return [self._child(each, f"{name}[{index}]") for index, each in enumerate(found)]

    def by_name(self, name: str) -> Iterator[tuple[str, ForeignFields]]:
        """The objects of a map, by name."""
        found = self._typed(name, Mapping, "an object") or {}
        for key, value in sorted(found.items()):
            yield str(key), self._child(value, f"{name}[{key}]")

    def leave(self, name: str, reason: str, do: str = "") -> None:
        """List a field that is not taken."""
        self._read.add(name)
        self._leave(".".join(filter(None, (self.path, name))), reason, do)

    def pass_over(self, *names: str) -> None:
        """Say that no mesh needs these fields."""
        self._read.update(names)

    def finish(self, reasons: Reasons) -> None:
        """List every field that is set and was not read."""
        for name, value in self._values.items():
            if name not in self._read and not is_unset(value):
                reason, do = reasons.get(str(name), (NO_COUNTERPART, ""))
                self.leave(str(name), reason, do)
        for child in self._children:
            child.finish(reasons)

    def _child(self, value: object, name: str) -> ForeignFields:
        child = ForeignFields(value, self._leave, ".".join(filter(None, (self.path, name))))
        self._children.append(child)
        return child

    def _typed(self, name: str, type: type, what: str) -> Any:
        value = self.value(name)
        if is_unset(value):
            return None
        if not isinstance(value, type):
            self.leave(name, f"expected {what}, got {describe(value)}")
            return None
        return value


def is_unset(value: object) -> bool:
    """True for values that say nothing."""
    return value is None or value == "" or (isinstance(value, list | Mapping) and not value)
