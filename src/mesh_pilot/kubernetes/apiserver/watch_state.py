"""The state of one list, and of one watch, of a reflector."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from mesh_pilot.kubernetes.apiserver.decoding import LineBuffer


@attrs.define(eq=False)
class ListState:
    """A list as far as it was read. State: the version of each object, and those that are to be told at its end."""

    versions: dict[str, str] = attrs.field(factory=dict)
    objects: dict[str, Any] = attrs.field(factory=dict)

    def forget(self, key: str) -> None:
        self.versions.pop(key, None)
        self.objects.pop(key, None)


@attrs.define(eq=False)
class WatchState:
    """State: the list at its beginning, until that is read; the text that is not a line yet; what it has shown."""

    listing: ListState | None
    began: float
    seconds: int
    silence: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    lines: LineBuffer = attrs.field(factory=LineBuffer)
    is_open: bool = False
    has_news: bool = False
