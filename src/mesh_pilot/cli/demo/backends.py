"""The demo's backends: HTTP servers so small that each answers with nothing but its own name."""

from __future__ import annotations

from functools import partial

import attrs
import trio


@attrs.frozen
class Backend:
    """A running backend. ``stop()`` closes its port and its connections at once, like a crash."""

    name: str
    port: int
    _scope: trio.CancelScope = attrs.field(repr=False)

    def stop(self) -> None:
        self._scope.cancel()


async def run_backend(name: str, port: int, *, task_status: trio.TaskStatus[Backend]) -> None:
    """Answer every HTTP request on a port of the loopback (0: a free one) with ``name``, until stopped."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
            task_status.started(Backend(name, listeners[0].socket.getsockname()[1], scope))
            nursery.start_soon(trio.serve_listeners, partial(_answer, name), listeners)


async def _answer(name: str, stream: trio.SocketStream) -> None:
    """One connection, kept alive: a request of ours is a head without a body, so its end is an empty line."""
    body = name.encode()
    reply = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    waiting = b""
    try:
        async for data in stream:
            *heads, waiting = (waiting + data).split(b"\r\n\r\n")
            if heads:
                await stream.send_all(reply * len(heads))
    except trio.BrokenResourceError:
        pass
    finally:
        await trio.aclose_forcefully(stream)
