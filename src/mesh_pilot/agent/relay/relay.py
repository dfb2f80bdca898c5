"""Envoy's ADS, passed through as bytes while a control plane is connected, answered from disk while none is.

An Envoy's stream is joined to its own stream at the control plane. Messages are taken from one and given to the
other as they are, one at a time: a slow Envoy slows the control plane down by HTTP/2's flow control, and nothing piles
up here. When the control plane's stream ends, or another control plane takes over, Envoy's ends with the same status.
Envoy comes back on its own, within half a second, and says what it has; that needs no memory here, and no numbers of
one control plane reach another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.agent.identity.secret_service import check_peer
from mesh_pilot.agent.relay.ack_tracker import AckTracker, Interest
from mesh_pilot.agent.relay.answer_writer import AnswerWriter
from mesh_pilot.agent.relay.answers import Answers
from mesh_pilot.agent.relay.messages import Head, XdsProtocol, read_request
from mesh_pilot.agent.relay.offline import OfflineStream
from mesh_pilot.agent.relay.planes import Connected, Planes, event_of
from mesh_pilot.base.protowire import WireError
from mesh_pilot.model.resource import SECRET
from mesh_pilot.net.rpc import Cardinality, ClientCall, GRPCError, Handler, ServerStream, Status, StreamTerminatedError

log = structlog.get_logger(scope="agent.relay")

RawStream = ServerStream[bytes, bytes]
RawCall = ClientCall[bytes, bytes]

PATIENCE_SECONDS = 5.0
"""The time that a new stream waits for a control plane; 0 while every one was tried in vain."""
ANSWER_SECONDS = 10.0
"""The time that a control plane may take for its first answer to an Envoy that has nothing, if the disk has answers."""
START_SECONDS = 30.0
"""The time for which the disk serves an Envoy that did not get that answer, even if a control plane can be reached
again: otherwise the Envoy would start with a part of what it needs, and wait for the rest."""
SETTLED_SECONDS = 60.0
"""A stream that is this old subscribes to all that its Envoy needs."""
TEND_SECONDS = 600.0
"""The interval between looks for what is on disk and no longer needed."""
CONFIRM_SECONDS = 60.0


@attrs.define
class RelayStatistics:
    """The state of the relay, for metrics and debug pages."""

    streams: int = 0
    """Envoy's streams that are open."""
    offline: int = 0
    """Streams of them that are answered from disk."""
    offline_streams_total: int = 0
    accepted: int = 0
    """Responses that Envoy accepted, in all."""
    refused: int = 0
    """Responses that Envoy refused, in all."""
    kept: int = 0
    """Resources on disk."""
    age_seconds: float | None = None
    """Since a control plane last stood by them; None where there are none."""


@attrs.define(eq=False)
class _Passed:
    """The state of one stream that is passed on."""

    connected: Connected
    acceptance: AckTracker
    interest: Interest
    unanswered: list[bytes] | None
    """The requests so far, until the first response."""
    status: Status | None = None
    message: str | None = None
    is_late: bool = False
    """True if it ended because the control plane has not answered."""


class Relay:
    """The AggregatedDiscoveryService that Envoy is told of, SotW and Delta.

    Mutable state: counts, the interest of each stream that is passed on with the time of its begin, and what
    ``AnswerWriter`` has on disk.
    """

    def __init__(self, planes: Planes, answers: Answers) -> None:
        self._planes = planes
        self._writer = AnswerWriter(answers)
        self._interests: dict[Interest, float] = {}
        self._counts = RelayStatistics()

    def __repr__(self) -> str:
        return f"<Relay {self._counts.streams} streams, {self._counts.offline} offline>"

    def __mapping__(self) -> Mapping[str, Handler]:
        return {
            protocol.path: Handler(partial(self._serve, protocol=protocol), Cardinality.STREAM_STREAM, bytes, bytes)
            for protocol in XdsProtocol
        }

    async def run(self) -> None:
        """Write what Envoy has accepted to disk, off the path of the answers."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._writer.run)
            nursery.start_soon(self._tend)
            while True:
                await trio.sleep(CONFIRM_SECONDS)
                if self._counts.streams > self._counts.offline:
                    await self._writer.confirm()

    def statistics(self) -> RelayStatistics:
        return attrs.evolve(self._counts, kept=self._writer.known.resources, age_seconds=self._age())

    def _age(self) -> float | None:
        confirmed = self._writer.known.confirmed_at
        return max(0.0, round(time.time() - confirmed, 1)) if confirmed else None

    async def _serve(self, call: RawStream, *, protocol: XdsProtocol) -> None:
        """One stream of Envoy's."""
        check_peer(call.peer)
        self._counts.streams += 1
        try:
            first = await call.recv_message()
            if first is None:
                return
            requests: list[bytes] | None = [first]
            least_seconds = 0.0
            while requests is not None:
                connected = await self._planes.usable(PATIENCE_SECONDS)
                if connected is None:
                    await self._serve_offline(call, protocol, requests, least_seconds)
                    return
                passed = await self._pass_on(call, connected, protocol, requests)
                requests = passed.unanswered
                if passed.is_late:
                    least_seconds = START_SECONDS
        finally:
            self._counts.streams -= 1

    # -- with a control plane

    async def _pass_on(
        self, call: RawStream, connected: Connected, protocol: XdsProtocol, requests: list[bytes]
    ) -> _Passed:
        """Join a stream, of which ``requests`` have come, to one at the control plane until either ends.

        Returns with the requests that have come where none was answered, and another control plane is to be asked.
        Raises GRPCError, as the control plane did.
        """
        passed = _Passed(connected, AckTracker(protocol), Interest(protocol), requests)
        path, bidirectional = protocol.path, Cardinality.STREAM_STREAM
        metadata = dict(self._planes.call_metadata())
        async with connected.channel.request(path, bidirectional, bytes, bytes, metadata=metadata) as upstream:
            try:
                await upstream.send_request()
            except (GRPCError, StreamTerminatedError) as error:
                passed.status, passed.message = Status.UNAVAILABLE, str(error)
            else:
                self._interests[passed.interest] = trio.current_time()
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._end_when_moved, connected, nursery)
                        nursery.start_soon(self._when_late, passed, nursery)
                        nursery.start_soon(self._up, call, upstream, passed)
                        await self._down(call, upstream, passed)
                        nursery.cancel_scope.cancel()
                finally:
                    del self._interests[passed.interest]
        if passed.unanswered is None:
            await self._writer.confirm()
        if passed.status is None or passed.status is Status.OK:
            passed.unanswered = None
            return passed
        if passed.unanswered is None:
            raise GRPCError(passed.status, passed.message)
        if connected.channel.lost is None:
            reason = f"{passed.message or 'streams are refused'} ({passed.status.name})"
            self._planes.note_refused(connected, reason, event_of(passed.status))
        return passed

    async def _up(self, call: RawStream, upstream: RawCall, passed: _Passed) -> None:
        """Envoy's requests to the control plane."""
        try:
            for request in list(passed.unanswered or ()):
                self._note(request, passed)
                await upstream.send_message(request)
            while (received := await call.recv_message()) is not None:
                if passed.unanswered is not None:
                    passed.unanswered.append(received)
                await upstream.send_message(received)
                self._note(received, passed)
            await upstream.end()
        except (GRPCError, StreamTerminatedError):
            pass  # whoever receives learns why

    async def _down(self, call: RawStream, upstream: RawCall, passed: _Passed) -> None:
        """The control plane's responses to Envoy, and last its status."""
        try:
            while (response := await upstream.recv_message()) is not None:
                if passed.unanswered is not None:
                    passed.unanswered = None
                    self._planes.note_answered(passed.connected)
                passed.acceptance.sent(response)
                await call.send_message(response)
            passed.status = Status.OK
        except GRPCError as error:
            passed.status, passed.message = error.status, error.message
        except StreamTerminatedError as error:
            passed.status, passed.message = Status.UNAVAILABLE, str(error)

    def _note(self, request: bytes, passed: _Passed) -> None:
        """Take note of what Envoy asks for, and of what it accepted; a request that cannot be read is passed on."""
        try:
            head = passed.acceptance.head(request)
            passed.interest.note(request, head)
            accepted = passed.acceptance.answered(head)
        except (WireError, UnicodeDecodeError) as error:
            log.warning("a request of Envoy cannot be read", reason=str(error))
            return
        if accepted is not None:
            self._counts.accepted += 1
            if head.type_url != SECRET:
                self._writer.accepted(head, passed.acceptance.protocol, accepted)
        elif head.error is not None:
            self._note_refusal(head)

    def _note_refusal(self, head: Head) -> None:
        self._counts.refused += 1
        log.warning("envoy refuses an answer and keeps what it had", type=head.type_url, reason=head.error)

    async def _end_when_moved(self, connected: Connected, nursery: trio.Nursery) -> None:
        """End the stream once another channel is in use: Envoy comes back and is served there."""
        await self._planes.current.wait_for(lambda now: now is not None and now is not connected)
        nursery.cancel_scope.cancel()

    async def _when_late(self, passed: _Passed, nursery: trio.Nursery) -> None:
        """Doubt a control plane that does not answer, and give up on it where the disk can serve an Envoy that waits.

        One that has something already may have no answer to wait for.
        """
        await trio.sleep(ANSWER_SECONDS)
        if passed.unanswered is None:
            return
        self._planes.doubt(passed.connected)
        if self._writer.known.resources and _has_nothing(passed.unanswered[0], passed.acceptance.protocol):
            passed.is_late = True
            passed.status = Status.DEADLINE_EXCEEDED
            passed.message = f"no answer within {ANSWER_SECONDS:g} s"
            nursery.cancel_scope.cancel()

    async def _tend(self) -> None:
        """Drop from disk, now and then, what no Envoy subscribes to any more, once each subscribes to all it needs."""
        while True:
            await trio.sleep(TEND_SECONDS)
            if self._interests and trio.current_time() - max(self._interests.values()) >= SETTLED_SECONDS:
                await self._writer.forget_others(self._interests)

    # -- without one

    async def _serve_offline(
        self, call: RawStream, protocol: XdsProtocol, requests: list[bytes], least_seconds: float
    ) -> None:
        """Answer from disk until a control plane is back; the stream ends then, and Envoy continues there.

        It does not end for that within ``least_seconds``, nor before what Envoy has asked so far is answered: a
        control plane that takes connections and refuses streams is back again and again.
        """
        self._counts.offline += 1
        self._counts.offline_streams_total += 1
        await self._writer.look()
        if kept := self._writer.known.resources:
            event = "envoy is served from disk: no control plane serves it"
            log.warning(event, resources=kept, age_seconds=self._age())
        else:
            log.warning("no control plane serves envoy, and nothing is on disk: envoy waits")
        try:
            async with trio.open_nursery() as nursery:
                answered = trio.Event()
                nursery.start_soon(self._answer, call, protocol, requests, answered, nursery.cancel_scope)
                with trio.move_on_after(ANSWER_SECONDS):
                    await answered.wait()
                await trio.sleep(least_seconds)
                await self._planes.current.wait_for(lambda now: now is not None and now.channel.lost is None)
                nursery.cancel_scope.cancel()
        finally:
            self._counts.offline -= 1

    async def _answer(
        self,
        call: RawStream,
        protocol: XdsProtocol,
        requests: list[bytes],
        answered: trio.Event,
        scope: trio.CancelScope,
    ) -> None:
        """Answer ``requests``, say so, and answer those that come."""
        stream = OfflineStream(protocol)
        with suppress(StreamTerminatedError):  # Envoy is gone
            for request in requests:
                await self._answer_one(call, protocol, stream, request)
            answered.set()
            async for request in call:
                await self._answer_one(call, protocol, stream, request)
        scope.cancel()

    async def _answer_one(self, call: RawStream, protocol: XdsProtocol, stream: OfflineStream, data: bytes) -> None:
        try:
            request = read_request(data, protocol)
        except (WireError, UnicodeDecodeError) as error:
            raise GRPCError(Status.INVALID_ARGUMENT, f"the request {error}") from error
        if request.head.error is not None:
            self._note_refusal(request.head)
        wanted = stream.ask(request)
        if wanted is None:
            return
        found = await self._writer.find(wanted.type_url, wanted.names)
        if found is None and self._writer.known.resources == 0:
            return  # nothing was ever accepted: the first control plane is waited for
        version, answers = found or ("", [])
        if found is None and wanted.names is None:
            return
        response = stream.answer(wanted, version, answers)
        if response is not None:
            await call.send_message(response)


def _has_nothing(request: bytes, protocol: XdsProtocol) -> bool:
    """True if a first request comes from an Envoy that has nothing of its type."""
    try:
        read = read_request(request, protocol)
    except (WireError, UnicodeDecodeError):
        return False
    return not read.version and not read.held
