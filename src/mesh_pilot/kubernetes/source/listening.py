"""How a source listens to several reflectors at once: one of them speaks at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import attrs
import trio

from mesh_pilot.kubernetes.apiserver import ApiResource, Object
from mesh_pilot.kubernetes.source.readers import PREFIX, ConfigMapReader
from mesh_pilot.sources.base.published import Key

_FORBIDDEN = ": 403 "
"""In the reason of an API server that does not let us read something."""


class Listening(Protocol):
    """The source behind the listeners; a title names what one of them reads."""

    turn: trio.Lock
    """Held while something that the server said is taken in and told."""

    def listed(self, title: str) -> None:
        """All of it was taken in."""

    def lost(self, title: str, reason: str) -> None:
        """It can't be read at present."""

    def forbidden(self, resource: ApiResource, title: str) -> None:
        """We may not read it."""

    def found(self, title: str) -> None:
        """It can be read."""


Take = Callable[[ApiResource, str, Sequence[Object], bool | None], Awaitable[None]]
"""Takes in objects in a version of the API: all there are (None), or one that is there or not."""


@attrs.frozen(eq=False)
class TurnListener:
    """The listener of one reflector: one of them speaks at a time."""

    source: Listening
    title: str
    take: Take

    async def listed(self, resource: ApiResource, version: str, objects: list[Object]) -> None:
        async with self.source.turn:
            await self.take(resource, version, objects, None)
            self.source.listed(self.title)

    async def changed(self, resource: ApiResource, version: str, found: Object, *, there: bool) -> None:
        async with self.source.turn:
            await self.take(resource, version, [found], there)

    def lost(self, resource: ApiResource, reason: str) -> None:
        self.source.lost(self.title, reason)
        if _FORBIDDEN in reason:
            self.source.forbidden(resource, self.title)

    def found(self, resource: ApiResource) -> None:
        self.source.found(self.title)


def map_title(name: str) -> str:
    return f"ConfigMap {name}"


def title_of(resource: ApiResource) -> str:
    """A resource for people, as CRDs are named."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def reader_name(key: Key) -> str:
    """The name of the reader of a key."""
    if key[0] == "config":
        return key[1]
    return ConfigMapReader.name if key[-1].startswith(PREFIX) else key[0]
