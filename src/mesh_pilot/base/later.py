"""Modules that are imported when they are first needed, while the event loop continues.

Where a function needs a module only sometimes, it imports it inside. This is for what takes a tenth of a second and
more: the import runs in a thread, and whoever needs it waits.
"""

from __future__ import annotations

from importlib import import_module

import trio

_LOADED: set[str] = set()
"""Modules that have been loaded in full: one that is being imported is among Python's already."""


async def load(module: str) -> None:
    """Import a module, unless that has been done. If cancelled, the import is finished all the same."""
    if module not in _LOADED:
        await trio.to_thread.run_sync(import_module, module)
        _LOADED.add(module)
