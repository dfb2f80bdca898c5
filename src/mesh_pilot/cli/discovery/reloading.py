"""The settings file of a running control plane: what changes in it takes effect, where that is safe.

Few settings are safe to change under way: those that one part reads each time it decides, and that nothing else was
built from. A port, a source or a CA is built once, and bounds are in every worker. The log says which of the two a
changed setting is, and where a file is wrong, nothing in it counts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import structlog
import trio

from mesh_pilot.app.settings import Settings
from mesh_pilot.cli.discovery.flags import CLASSES, ProcessFlags
from mesh_pilot.cli.lib.settings_file import default_map, key_of
from mesh_pilot.model.flags import built, flags_of
from mesh_pilot.model.log_levels import SWITCH, LogLevels
from mesh_pilot.replicas.workers.questions import PageQuestion

if TYPE_CHECKING:
    from mesh_pilot.app.control_plane import ControlPlane

log = structlog.get_logger(scope="bootstrap")

POLL_SECONDS = 2.0
"""Often enough for somebody who waits for it, and one call of the system."""


class FollowedFile:
    """A settings file. State: `_written`, what it said when it was last right; `_seen`, the version that was read."""

    def __init__(
        self, ctx: click.Context, path: Path, leave: Collection[str], values: Mapping[str, Any], above: Collection[str]
    ) -> None:
        """``values``: those that the control plane has. ``above``: the names of parameters that a flag or a variable
        gives, so that the file does not count."""
        self._ctx, self._path, self._leave = ctx, path, leave
        self._values, self._above = dict(values), above
        self._written: Mapping[str, Any] = dict(ctx.default_map or {})
        self._seen = self._version()

    async def run(self, plane: ControlPlane) -> None:
        """Follow the file until cancelled."""
        while True:
            await trio.sleep(POLL_SECONDS)
            version = self._version()
            if version is not None and version != self._seen:
                self._seen = version
                await self.read(plane)

    async def read(self, plane: ControlPlane) -> None:
        """Read the file, and put into effect what can be."""
        try:
            written = default_map(self._ctx, self._path, self._leave)
        except click.UsageError as error:
            log.error("the settings file is wrong; nothing in it counts until it is right", reason=error.message)
            return
        before, self._written = self._written, written
        reloaded = {setting.parameter for each in CLASSES for setting in flags_of(each) if setting.reload}
        changed = False
        for param in self._ctx.command.params:
            name = str(param.name)
            if before.get(name) == written.get(name):
                continue
            if name in self._above:
                log.info("a setting has not changed: a flag or a variable gives it", setting=key_of(param))
            elif name not in reloaded:
                log.warning("a setting has changed, which takes effect at the next start", setting=key_of(param))
            else:
                text = written.get(name, param.get_default(self._ctx))
                self._values[name] = param.type_cast_value(self._ctx, text)
                log.info("a setting has changed", setting=key_of(param), value=str(text))
                changed = True
        if changed:
            await self._apply(plane)

    async def _apply(self, plane: ControlPlane) -> None:
        settings, reducer = built(Settings, self._values), plane.state.reducer
        if settings.guard is not None:
            reducer.intake.retune(settings.guard)
        reducer.debounce(settings.debounce_after, settings.debounce_max)
        levels: LogLevels = built(ProcessFlags, self._values).log_level
        if levels != SWITCH.started_with:
            SWITCH.begin(levels)
            if plane.workers is not None:
                body = json.dumps({"level": levels.text()}).encode()
                await plane.workers.ask(PageQuestion("/api/v1/logs", "POST", body))

    def _version(self) -> tuple[int, int, int] | None:
        with suppress(OSError):
            status = self._path.stat()
            return status.st_ino, status.st_mtime_ns, status.st_size
        return None
