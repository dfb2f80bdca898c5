"""Fields of a config entry: read in either of Consul's spellings, with a note of those that were not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import attrs

from mesh_pilot.istio.meaning.durations import describe, read_duration
from mesh_pilot.model.config import Problem, Severity

IGNORED = frozenset(("kind", "name", "meta", "createindex", "modifyindex", "hash", "id", "legacyid", "legacymeta"))
"""Fields of every entry that need no counterpart."""

OURS = ("", "default")
"""The values of a peer and of a sameness group that name nothing."""


@attrs.frozen
class Tenant:
    """The namespace and the partition of Consul Enterprise that are read; elsewhere all is in the default ones."""

    namespace: str = "default"
    partition: str = "default"

    def has(self, field: str, value: str) -> bool:
        """True if a field, such as ``SourceNS`` or ``DestinationPartition``, names this tenant or says nothing."""
        if "partition" in field.lower():
            return value in ("", self.partition)
        return value in (("", self.namespace) if field.lower().endswith(("namespace", "ns")) else OURS)


DEFAULT_TENANT = Tenant()


class Fields:
    """An object of an entry. ``path`` is for people; problems are appended to a list that the whole entry shares.

    State: which fields were read.
    """

    def __init__(self, data: object, path: str, problems: list[Problem], tenant: Tenant = DEFAULT_TENANT) -> None:
        self.path = path
        self.tenant = tenant
        self.problems = problems
        self._values: dict[str, tuple[str, object]] = {}
        self._read: set[str] = set()
        self._children: list[Fields] = []
        if isinstance(data, Mapping):
            for name, value in data.items():
                self._values.setdefault(_plain(str(name)), (str(name), value))
        elif not _is_unset(data):
            self.problem("", f"expected an object, got {describe(data)}; it is ignored")

    def has(self, name: str) -> bool:
        """True if a field is set."""
        return not _is_unset(self._peek(name))

    def text(self, name: str) -> str:
        return self._of(name, str, "a string") or ""

    def flag(self, name: str) -> bool:
        return bool(self._of(name, bool, "true or false"))

    def integer(self, name: str) -> int:
        """A number that is not negative; 0 where there is none."""
        found = self.number(name)
        if found < 0 or found != int(found):
            self.problem(name, f"expected a whole number that is not negative, got {found:g}; it is ignored")
            return 0
        return int(found)

    def number(self, name: str) -> float:
        value = self._take(name)
        if _is_unset(value):
            return 0.0
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
            self.problem(name, f"expected a number, got {describe(value)}; it is ignored")
            return 0.0
        return float(value)

    def duration(self, name: str) -> str:
        """A duration as Istio's objects have it; empty where there is none. Numbers are nanoseconds."""
        value = self._take(name)
        if _is_unset(value):
            return ""
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63:
            return seconds_text(timedelta(microseconds=value / 1000))
        try:
            found = read_duration(value)
        except ValueError as error:
            self.problem(name, f"{error}; it is ignored")
            return ""
        return seconds_text(found) if found > timedelta() else ""

    def strings(self, name: str) -> list[str]:
        found = self._of(name, list, "a list") or []
        good = [each for each in found if isinstance(each, str)]
        if len(good) < len(found):
            self.problem(name, "expected a list of strings; other values are ignored")
        return good

    def integers(self, name: str) -> list[int]:
        found = self._of(name, list, "a list") or []
        good = [each for each in found if isinstance(each, int) and not isinstance(each, bool) and 0 < each < 2**31]
        if len(good) < len(found):
            self.problem(name, "expected a list of numbers; other values are ignored")
        return good

    def string_map(self, name: str) -> dict[str, str]:
        found = self._of(name, Mapping, "an object") or {}
        good = {str(key): value for key, value in found.items() if isinstance(value, str)}
        if len(good) < len(found):
            self.problem(name, "expected strings by name; other values are ignored")
        return dict(sorted(good.items()))

    def part(self, name: str) -> Fields | None:
        """The object of a field; None if it is not set."""
        value = self._take(name)
        return None if _is_unset(value) else self._child(value, self._spelled(name))

    def parts(self, name: str) -> list[Fields]:
        found = self._of(name, list, "a list") or []
        return [self._child(each, f"{self._spelled(name)}[{index}]") for index, each in enumerate(found)]

    def by_name(self, name: str) -> Iterator[tuple[str, Fields]]:
        """The objects of a map, by name."""
        found = self._of(name, Mapping, "an object") or {}
        for key in sorted(map(str, found)):
            yield key, self._child(found[key], f"{self._spelled(name)}[{key}]")

    def other_tenant(self, *names: str) -> str:
        """The Enterprise namespace, partition, or peer that is named; empty if it is ours. ``names``: only these."""
        for name in names or ("Namespace", "Partition", "Peer", "SamenessGroup"):
            value = self._take(name)
            if isinstance(value, str) and not self.tenant.has(name, value):
                return f"{name.lower()} {value!r}"
        return ""

    def problem(self, name: str, reason: str, severity: Severity = Severity.ERROR) -> None:
        """Note a problem of a field."""
        self.problems.append(Problem(self._path(self._spelled(name)), reason, severity))

    def warn(self, name: str, reason: str) -> None:
        """Note that a field can't be said, and what is done instead."""
        self.problem(name, reason, Severity.WARNING)

    def finish(self, reasons: Mapping[str, str | None]) -> None:
        """Note every field that is set and was not read.

        ``reasons``: why it has no effect, by name in small letters without ``_``; None: it need not have one.
        """
        for plain, (name, value) in self._values.items():
            if plain in self._read or plain in IGNORED or _is_unset(value):
                continue
            if plain in ("namespace", "partition") and isinstance(value, str) and self.tenant.has(plain, value):
                continue
            reason = reasons.get(plain, "has no counterpart in Istio's API; it has no effect")
            if reason is not None:
                self.warn(name, reason)
        for child in self._children:
            child.finish(reasons)

    def _child(self, value: object, name: str) -> Fields:
        child = Fields(value, self._path(name), self.problems, self.tenant)
        self._children.append(child)
        return child

    def _of(self, name: str, type: type, what: str) -> Any:
        value = self._take(name)
        if _is_unset(value):
            return None
        if not isinstance(value, type):
            self.problem(name, f"expected {what}, got {describe(value)}; it is ignored")
            return None
        return value

    def _take(self, name: str) -> object:
        self._read.add(_plain(name))
        return self._peek(name)

    def _peek(self, name: str) -> object:
        return self._values.get(_plain(name), ("", None))[1]

    def _spelled(self, name: str) -> str:
        return self._values.get(_plain(name), (name, None))[0] or name

    def _path(self, name: str) -> str:
        return ".".join(filter(None, (self.path, name)))


def seconds_text(value: timedelta) -> str:
    """A duration as Istio's objects have it."""
    return f"{value / timedelta(seconds=1):.6f}".rstrip("0").rstrip(".") + "s"


def _plain(name: str) -> str:
    """A field's name without its spelling: ``path_prefix`` is ``PathPrefix``."""
    return name.replace("_", "").lower()


def _is_unset(value: object) -> bool:
    """True for what Consul writes where nothing was set."""
    if isinstance(value, Mapping):
        return all(map(_is_unset, value.values()))
    if isinstance(value, list):
        return not value
    return value in (None, "", "0s", False) or value == 0
