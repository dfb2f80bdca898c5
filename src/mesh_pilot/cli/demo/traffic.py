"""The demo's requests: a steady stream through each Envoy, and a tally of who answered."""

from __future__ import annotations

from collections import Counter
from functools import partial

import attrs
import httpx
import trio


@attrs.frozen
class Door:
    """A way into the mesh: an address that an Envoy listens on, and the host that is asked for there."""

    name: str
    address: str
    host: str


@attrs.define
class Tally:
    """Answers counted since the last ``restart``; requests and failures since the start."""

    answers: dict[str, Counter[str]] = attrs.field(factory=dict)
    """The numbers of answers of each backend, by door."""
    requests: int = 0
    failures: list[str] = attrs.field(factory=list)
    """The errors, one text for each failed request."""

    def restart(self) -> None:
        for counter in self.answers.values():
            counter.clear()

    @property
    def fewest(self) -> int:
        """Answers counted at the door that has the fewest."""
        return min((counter.total() for counter in self.answers.values()), default=0)

    def share(self, version: str) -> float:
        """Per cent of all counted answers that backends of a version gave."""
        total = sum(counter.total() for counter in self.answers.values())
        got = sum(count for c in self.answers.values() for name, count in c.items() if name.startswith(version))
        return 100 * got / total if total else 0.0


async def keep_asking(door: Door, tally: Tally, *, per_second: int = 100) -> None:
    """Send requests through a door until cancelled, one after the other, each to be answered within 5 seconds."""
    answers = tally.answers.setdefault(door.name, Counter())
    async with httpx.AsyncClient(timeout=5, trust_env=False, headers={"host": door.host}) as client:
        while True:
            next_at = trio.current_time() + 1 / per_second
            try:
                reply = await client.get(f"http://{door.address}/")
            except httpx.HTTPError as error:
                failure = f"{door.name}: {type(error).__name__} {error}"
            else:
                failure = f"{door.name}: HTTP {reply.status_code} {reply.text}" if reply.status_code != 200 else ""
            tally.requests += 1
            if failure:
                tally.failures.append(failure)
            else:
                answers[reply.text] += 1
            await trio.sleep_until(next_at)


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
    """One keep-alive connection. Requests have no body, so an empty line ends them."""
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
