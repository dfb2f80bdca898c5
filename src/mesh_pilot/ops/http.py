"""Serves a Starlette app on Trio with Hypercorn's HTTP protocol, on sockets that are already open."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import wrap_app
from starlette.applications import Starlette


async def serve_http(
    app: Starlette,
    listeners: Sequence[trio.SocketListener],
    stop: trio.Event,
    *,
    grace_seconds: float,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer requests until ``stop``; then close idle connections and give busy ones ``grace_seconds``.

    Cancelled, it closes everything at once. The listeners are closed in any case.
    """
    config = Config()
    config.include_server_header = False
    config.errorlog = logging.getLogger("hypercorn.error")
    context = WorkerContext(None)
    application = wrap_app(app, config.wsgi_max_body_size, "asgi")

    async def converse(stream: trio.SocketStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_close_when_cancelled, stream)
            await TCPServer(application, config, context, {}, stream)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(partial(trio.serve_listeners, converse, list(listeners), handler_nursery=connections))
            task_status.started()
            await stop.wait()
            accepting.cancel_scope.cancel()
        await context.terminated.set()
        connections.cancel_scope.deadline = trio.current_time() + grace_seconds


async def _close_when_cancelled(stream: trio.SocketStream) -> None:
    """Hypercorn shields its sends from cancellation: a client that stopped reading is got rid of by its socket."""
    try:
        await trio.sleep_forever()
    finally:
        stream.socket.close()
