"""Envoy's SecretDiscoveryService on the agent's Unix socket."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

import structlog
import trio

from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.identity.secret_stream import DeltaSecretStream, SdsCounts, SdsError, Secrets, SecretStream
from mesh_pilot.net.rpc import Cardinality, GRPCError, Handler, Peer, ServerStream, Status, StreamTerminatedError
from mesh_pilot.net.rpc.rate_limits import LogLimiter

SERVICE = "/envoy.service.secret.v3.SecretDiscoveryService"

log = structlog.get_logger(scope="agent.identity")


def check_peer(peer: Peer) -> None:
    """Refuse processes of other users, whatever the modes of the socket and its folder. Raises GRPCError."""
    if peer.uid is not None and peer.uid not in (os.geteuid(), 0):
        raise GRPCError(Status.PERMISSION_DENIED, f"this socket is for Envoy, not for user {peer.uid}")


class SecretService:
    """Serves ``secrets`` to Envoy, and each change of them."""

    def __init__(self, secrets: Observable[Secrets]) -> None:
        self.counts = SdsCounts()
        self._secrets = secrets
        self._lines = LogLimiter()

    def __mapping__(self) -> Mapping[str, Handler]:
        return {
            f"{SERVICE}/StreamSecrets": Handler(self._state_of_the_world, Cardinality.STREAM_STREAM, bytes, bytes),
            f"{SERVICE}/DeltaSecrets": Handler(self._delta, Cardinality.STREAM_STREAM, bytes, bytes),
        }

    async def _state_of_the_world(self, call: ServerStream[bytes, bytes]) -> None:
        await self._serve(call, SecretStream(self.counts))

    async def _delta(self, call: ServerStream[bytes, bytes]) -> None:
        await self._serve(call, DeltaSecretStream(self.counts))

    async def _serve(self, call: ServerStream[bytes, bytes], stream: SecretStream) -> None:
        try:
            check_peer(call.peer)
        except GRPCError as error:
            self.counts.strangers += 1
            self._say({"event": "call refused", "reason": str(error.message)})
            raise
        sending = trio.Lock()
        failure: GRPCError | None = None

        async def push() -> None:
            with contextlib.suppress(StreamTerminatedError):
                async for secrets in self._secrets.changes():
                    async with sending:
                        if (response := stream.changed(secrets)) is not None:
                            await call.send_message(response)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(push)
            try:
                async for request in call:
                    async with sending:
                        response = stream.request(request, self._secrets.value)
                        if response is not None:
                            await call.send_message(response)
                    self._say_all(stream)
            except SdsError as error:
                failure = GRPCError(Status.NOT_FOUND if error.is_unknown else Status.INVALID_ARGUMENT, str(error))
            except GRPCError as error:
                failure = error
            except StreamTerminatedError:
                pass  # the client has gone
            self._say_all(stream)
            nursery.cancel_scope.cancel()
        if failure is not None:  # not within the nursery, which would wrap it in a group
            raise failure

    def _say_all(self, stream: SecretStream) -> None:
        for event in stream.events:
            self._say(event)
        stream.events.clear()

    def _say(self, event: Mapping[str, str]) -> None:
        if self._lines.admit(tuple(event.values()), trio.current_time()) is not None:
            details = {key: value for key, value in event.items() if key != "event"}
            log.warning(event["event"], **details)
