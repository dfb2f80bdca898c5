"""The admin socket of a control plane, from its opening to the removal of its file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog
import trio

from mesh_pilot.app.access import AccessFiles, gate_of
from mesh_pilot.app.config_store import http_limits
from mesh_pilot.app.settings import Settings
from mesh_pilot.net.http.connection import App
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc import RpcError
from mesh_pilot.net.rpc.net import open_listeners
from mesh_pilot.ops.plane.state import PlaneState
from mesh_pilot.ops.web.later_app import LaterApp
from mesh_pilot.safety.state.settings import ADMIN_SOCKET

log = structlog.get_logger(scope="admin")

LONGEST_PATH = 100
"""The bytes that the path of a Unix socket may have on every system."""


async def serve_orders(settings: Settings, state: PlaneState, web: App) -> None:
    """Take orders until cancelled. A socket that is not available is logged: the mesh is served without it.

    ``web``: the app of the web port, which the socket serves too.
    """
    path = settings.admin_socket
    if path is None and settings.state is not None:
        path = settings.state.folder / ADMIN_SOCKET
    if path is None:
        return
    try:
        listeners = await open_admin_socket(path)
    except (RpcError, OSError) as error:
        log.error("no admin socket in this run: mesh-pilot admin does not work", socket=str(path), reason=str(error))
        return

    def build() -> App:
        from mesh_pilot.ops.admin import admin_app

        return admin_app(state, web)

    gate = gate_of(AccessFiles(), LaterApp("mesh_pilot.ops.admin", build), state, local=True)
    server = HttpServer(gate, port="admin", limits=http_limits(settings))
    state.http_servers.append(server)
    with _removed_at_the_end(path):
        await server.serve(listeners, trio.Event(), grace_seconds=0.0)


async def open_admin_socket(path: Path) -> list[trio.SocketListener]:
    """Listen at a path, for the owner of the process alone. Raises AddressError or OSError."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(f"the path has more than {LONGEST_PATH} bytes; choose a shorter one with --admin-socket")
    return await open_listeners(f"unix://{path}")


@contextmanager
def _removed_at_the_end(path: Path) -> Iterator[None]:
    """Remove the socket's file at the end, unless it is another process's by then."""
    mine = _identity(path)
    try:
        yield
    finally:
        if mine is not None and _identity(path) == mine:
            with suppress(OSError):  # a disk that is read-only by now: the next run replaces the file
                path.unlink()


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = path.lstat()
        return status.st_dev, status.st_ino
    return None
