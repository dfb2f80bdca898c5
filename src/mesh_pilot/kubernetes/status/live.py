"""The objects as an API server has them, with their status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from mesh_pilot.base.reading import as_integer, as_object
from mesh_pilot.kubernetes.apiserver import ApiResource, Object
from mesh_pilot.model.config import ConfigKey

Json = Mapping[str, Any]


@attrs.frozen
class LiveObject:
    """An object, as far as its status needs it."""

    resource: ApiResource
    version: str
    """The version of the API in which it was read."""
    namespace: str
    name: str
    generation: int
    """0 where it has none."""
    resource_version: str
    status: Json = attrs.field(repr=False)


class LiveObjects:
    """The objects of the source of configuration; implements ``ObjectObserver``.

    State: the objects, who follows, and the versions of answers that the source has not told yet.
    """

    def __init__(self) -> None:
        self._objects: dict[ConfigKey, LiveObject] = {}
        self._ahead: dict[ConfigKey, str] = {}
        self._followers: list[Callable[[ConfigKey], None]] = []

    def __repr__(self) -> str:
        return f"<LiveObjects {len(self._objects)}>"

    def __contains__(self, key: ConfigKey) -> bool:
        return key in self._objects

    def get(self, key: ConfigKey) -> LiveObject | None:
        return self._objects.get(key)

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._objects)

    def follow(self, notice: Callable[[ConfigKey], None]) -> None:
        """Call ``notice`` when an object has come, changed or gone."""
        self._followers.append(notice)

    def take(self, key: ConfigKey, found: Object) -> None:
        """An object that is known, as the server has just answered. The source tells the same later."""
        before = self._objects.get(key)
        if before is not None:
            after = self._objects[key] = _live(before.resource, before.version, found)
            if after.resource_version != before.resource_version:
                self._ahead[key] = after.resource_version

    # -- ObjectObserver

    def seen(self, key: tuple[str, ...], resource: ApiResource, version: str, found: Object) -> None:
        if key[0] != "config":
            return
        config, live = ConfigKey(*key[1:]), _live(resource, version, found)
        ahead = self._ahead.get(config, "")
        if ahead and _is_older(live.resource_version, ahead):
            return  # the answer was newer; without one, a server restored from a backup tells older versions
        self._ahead.pop(config, None)
        self._objects[config] = live
        self._notice(config)

    def gone(self, key: tuple[str, ...]) -> None:
        if key[0] == "config" and self._objects.pop(ConfigKey(*key[1:]), None) is not None:
            self._ahead.pop(ConfigKey(*key[1:]), None)
            self._notice(ConfigKey(*key[1:]))

    def _notice(self, key: ConfigKey) -> None:
        for notice in self._followers:
            notice(key)


def _live(resource: ApiResource, version: str, found: Object) -> LiveObject:
    metadata = found["metadata"]
    return LiveObject(
        resource,
        version,
        str(metadata.get("namespace", "")),
        str(metadata.get("name", "")),
        as_integer(metadata, "generation"),
        str(metadata.get("resourceVersion", "")),
        as_object(found, "status"),
    )


def _is_older(version: str, other: str) -> bool:
    return version.isdigit() and other.isdigit() and int(version) < int(other)
