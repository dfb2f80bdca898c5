"""A client of one Envoy's admin interface: HTTP/1.1 on one connection that is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping

import h11
import trio

_READ_SIZE = 64 * 1024
_LIMIT = 16 * 1024 * 1024
_PATIENCE_SECONDS = 5.0


class AdminError(Exception):
    """The admin interface did not answer, or with an error."""


class AdminClient:
    """Asks one at a time. A connection that was lost is made again by the next question."""

    def __init__(self, address: str) -> None:
        """``address``: what Envoy writes to ``--admin-address-path``: ``host:port``, or the path of a Unix socket."""
        self.address = address
        self._lock = trio.Lock()
        self._stream: trio.SocketStream | None = None
        self._http = h11.Connection(h11.CLIENT)

    def __repr__(self) -> str:
        return f"<AdminClient {self.address}>"

    async def get(self, path: str) -> bytes:
        """Raises AdminError, as the others do."""
        return await self._ask("GET", path)

    async def post(self, path: str) -> bytes:
        return await self._ask("POST", path)

    async def state(self) -> str:
        """Envoy's own state: ``LIVE``, ``DRAINING``, ``PRE_INITIALIZING`` or ``INITIALIZING``."""
        return (await self._ask("GET", "/ready", (200, 503))).decode(errors="replace").strip()

    async def stats(self, regex: str) -> Mapping[str, int]:
        """Counters and gauges that were used, those that the regular expression finds."""
        page = await self.get(f"/stats?format=json&usedonly&filter={regex}")
        try:
            rows = json.loads(page).get("stats", ())
        except (ValueError, AttributeError) as error:
            raise AdminError(f"Envoy's admin interface on {self.address} gives no statistics: {error}") from error
        return {row["name"]: row["value"] for row in rows if isinstance(row.get("value"), int)}

    def abort(self) -> None:
        """Close the connection, if there is one, without waiting."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.socket.close()

    async def _ask(self, method: str, path: str, accepted: tuple[int, ...] = (200,)) -> bytes:
        async with self._lock:
            with trio.move_on_after(_PATIENCE_SECONDS) as scope:
                try:
                    kept = self._stream is not None
                    status, body = await self._attempt(method, path)
                    if status == 0 and kept:  # the kept connection was closed meanwhile
                        status, body = await self._attempt(method, path)
                except (OSError, h11.RemoteProtocolError) as error:
                    self.abort()
                    raise AdminError(f"no answer from Envoy's admin interface on {self.address}: {error}") from error
                except BaseException:
                    self.abort()
                    raise
            if scope.cancelled_caught or status == 0:
                self.abort()
                raise AdminError(f"no answer from Envoy's admin interface on {self.address}")
            if status not in accepted:
                words = body[:200].decode(errors="replace").strip()
                raise AdminError(f"Envoy's admin interface answers {path} with {status}: {words}")
            return body

    async def _attempt(self, method: str, path: str) -> tuple[int, bytes]:
        """Status and body; status 0 if the connection was lost before an answer."""
        try:
            if self._stream is None:
                self._stream = await _connect(self.address)
                self._http = h11.Connection(h11.CLIENT)
            request = h11.Request(method=method, target=path, headers=[("host", "envoy"), ("content-length", "0")])
            data = self._http.send(request) or b""
            await self._stream.send_all(data + (self._http.send(h11.EndOfMessage()) or b""))
            return await self._answer(self._stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.abort()
            return 0, b""

    async def _answer(self, stream: trio.SocketStream) -> tuple[int, bytes]:
        status, body = 0, bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await stream.receive_some(_READ_SIZE)
                if not data and not status:
                    raise trio.BrokenResourceError
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _LIMIT:
                    raise OSError("the answer is too large")
            else:
                if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
                else:
                    self.abort()
                return status, bytes(body)


async def _connect(address: str) -> trio.SocketStream:
    if address.startswith(("/", "@")):
        return await trio.open_unix_socket("\0" + address[1:] if address.startswith("@") else address)
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host.strip("[]"), int(port))
