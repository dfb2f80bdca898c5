"""An app that is loaded and built at its first request: most processes are asked for few of their pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mesh_pilot.base.later import load
from mesh_pilot.net.http.connection import App


class LaterApp:
    """An ASGI app in place of the one that is built from a module. State: that app, once it is built."""

    def __init__(self, module: str, build: Callable[[], App]) -> None:
        self._module = module
        self._build = build
        self._app: App | None = None

    def __repr__(self) -> str:
        return f"<LaterApp of {self._module}{'' if self._app is None else ', built'}>"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            await load(self._module)
        if self._app is None:  # nobody else has built it meanwhile
            self._app = self._build()
        await self._app(scope, receive, send)
