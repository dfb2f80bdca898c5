"""The discovery services over gRPC: ADS and one service for each type, State of the World and Delta.

    server = XdsServer(catalog, identifier="mesh-pilot 0.1.0")
    reducer.on_publish(lambda published: server.status.published(published.published_at))
    await serve(server.services(), listeners)

``Fetch*`` is not implemented.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType

import attrs
import structlog
import trio
from google.protobuf.message import DecodeError

from mesh_pilot.identity.trust.callers import host_of
from mesh_pilot.model.bounds import BoundError, check_labels
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.net.rpc import Cardinality, GRPCError, Handler, Peer, Servable, Status
from mesh_pilot.net.rpc.rate_limits import LogLimiter, TokenBucket
from mesh_pilot.xds.ads.admission import Admit, Authenticate, RawStream, StreamPlaces, admission
from mesh_pilot.xds.ads.context import DEFAULT_OPTIONS, SessionContext, XdsOptions
from mesh_pilot.xds.ads.decode import Decoder
from mesh_pilot.xds.ads.encode import Encoder, EncoderStatistics
from mesh_pilot.xds.ads.limits import PeerScopes, owner_of
from mesh_pilot.xds.ads.messages import Code, Request, StreamError, Variant
from mesh_pilot.xds.ads.observers import NO_ANSWER_OBSERVER, AnswerObserver, WorkloadObserver
from mesh_pilot.xds.ads.observing import MAX_REASON_LOGGED
from mesh_pilot.xds.ads.resources import Catalog
from mesh_pilot.xds.ads.session import Call, Session, stream_error
from mesh_pilot.xds.ads.statistics import XdsStatistics
from mesh_pilot.xds.ads.status import Connection

log = structlog.get_logger(scope="xds")

SERVICES: Mapping[str, tuple[str, str | None]] = {
    "envoy.service.discovery.v3.AggregatedDiscoveryService": ("AggregatedResources", None),
    **{t.service: (t.method, url) for url, t in RESOURCE_TYPES.items() if t.service},
}
"""Services, each with the name of its methods after ``Stream`` and ``Delta``, and its type (None: all)."""

BYTES_PER_RESOURCE = 1000
"""Rough size of a resource in an encoded response."""


@attrs.define
class ReplayedCall:
    """A stream whose first message was read already, and is given again."""

    call: RawStream
    first: bytes | None

    @property
    def has_message(self) -> bool:
        return self.first is not None or self.call.has_message

    @property
    def is_readable(self) -> bool:
        return self.first is not None or self.call.is_readable

    def receive_at_once(self, take: Callable[[bytes], bool], on_news: Callable[[], None], /) -> None:
        self.call.receive_at_once(take, on_news)

    async def recv_message(self) -> bytes | None:
        first, self.first = self.first, None
        return first if first is not None else await self.call.recv_message()

    def send_at_once(self, message: bytes, /) -> bool:
        return self.call.send_at_once(message)

    async def send_message(self, message: bytes, /) -> None:
        await self.call.send_message(message)


StreamHandler = Callable[[ReplayedCall, str, Variant], Awaitable[None]]
"""Serves one stream until it ends, given also its peer's address. Raises GRPCError."""


@attrs.frozen
class XdsServerStatistics:
    streams: int
    """Streams that are open, those that have not sent a request yet included."""
    draining: bool
    xds: XdsStatistics
    encoder: EncoderStatistics
    suppressed_log_lines: int
    """Lines that were not written because there were too many: NACKs, refused streams, proxies that come and go."""


class XdsServer:
    """All discovery services over one catalog.

    Mutable state: the open sessions, whether it is draining, the places and the scopes of each peer, and the limit on
    new streams; what its streams share is in a ``SessionContext``.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        identifier: str,
        options: XdsOptions = DEFAULT_OPTIONS,
        authenticate: Authenticate | None = None,
        handlers: Mapping[str, StreamHandler] = MappingProxyType({}),
        scope_of: Callable[[Proxy], Hashable] = lambda proxy: proxy.namespace,
        answers: AnswerObserver = NO_ANSWER_OBSERVER,
        workloads: WorkloadObserver | None = None,
    ) -> None:
        """``identifier`` names this control plane to its clients; without ``authenticate`` they are whoever they say.

        ``handlers`` serve the streams on ADS that want something else than Envoy's resources: node metadata
        ``GENERATOR`` names the handler, or the type of the first request does. ``scope_of`` gives the scope that a
        proxy shares resources with; the number of scopes per peer is limited. ``answers`` learns what clients accept
        and refuse, ``workloads`` who is connected and how the applications are.
        """
        self._context = SessionContext(
            catalog=catalog,
            decoder=Decoder(options.bounds),
            encoder=Encoder(identifier),
            options=options,
            answers=answers,
            workloads=workloads or WorkloadObserver(),
        )
        self.status = self._context.registry
        self._options = options
        self._authenticate = authenticate
        self._handlers = dict(handlers)
        self._sessions: set[Session] = set()
        self._new: set[trio.CancelScope] = set()
        self._is_draining = False
        self._scopes = PeerScopes(scope_of, options.bounds)
        self._places = StreamPlaces(options.bounds)
        self._new_streams = TokenBucket(options.bounds.max_requests_per_second, options.stream_burst)
        self._entry = trio.Lock()
        self._refusal_log = LogLimiter()

    def __repr__(self) -> str:
        return f"<XdsServer {len(self._sessions)} streams{' draining' if self._is_draining else ''}>"

    def hand_over(self, type_url: str, handler: StreamHandler) -> None:
        """Have the streams on ADS whose first request is of a type served by a handler."""
        self._handlers[type_url] = handler

    def services(self) -> list[Servable]:
        """The services for ``net.rpc.serve``; may be served at several addresses."""
        return [self]

    def __mapping__(self) -> Mapping[str, Handler]:
        handlers = {}
        for service, (method, only) in SERVICES.items():
            for prefix, variant in (("Stream", Variant.SOTW), ("Delta", Variant.DELTA)):
                handle = partial(self._handle, variant=variant, only=only)
                handlers[f"/{service}/{prefix}{method}"] = Handler(handle, Cardinality.STREAM_STREAM, bytes, bytes)
        return handlers

    def statistics(self) -> XdsServerStatistics:
        context = self._context
        return XdsServerStatistics(
            len(self._places),
            self._is_draining,
            self.status.statistics(),
            context.encoder.statistics(),
            sum(log.suppressed for log in (context.nack_log, self._refusal_log, context.presence_log)),
        )

    def trim(self) -> int:
        """Drop what was cached for the next stream in the same state and not used since the last call. Returns its
        size, roughly in resources. Call it every half a minute or so."""
        context = self._context
        return context.catalog.snapshots.trim() + context.decoder.trim() + context.encoder.trim() // BYTES_PER_RESOURCE

    def drain(self) -> None:
        """End every stream with UNAVAILABLE once what there is to send is sent, and refuse new ones likewise.

        Clients then connect to another replica. Call it together with ``Server.drain``, which waits for the streams.
        """
        self._is_draining = True
        for scope in self._new:
            scope.cancel()
        for session in self._sessions:
            session.end(_shutting_down())

    def push_again(self, wanted: Callable[[Proxy], bool]) -> list[str]:
        """Send the clients that are wanted all that they hold once more. Returns their names, one for each stream."""
        return [self._named(session, Session.push_again) for session in self._of(wanted)]

    def disconnect(self, wanted: Callable[[Proxy], bool]) -> list[str]:
        """End the streams of the clients that are wanted; they connect again. Returns as `push_again`."""
        error = StreamError(Code.UNAVAILABLE, "an operator ended this stream")
        return [self._named(session, lambda each: each.end(error)) for session in self._of(wanted)]

    def _of(self, wanted: Callable[[Proxy], bool]) -> list[Session]:
        return [each for each in self._sessions if each.stream.proxy is not None and wanted(each.stream.proxy)]

    def _named(self, session: Session, order: Callable[[Session], None]) -> str:
        assert session.stream.proxy is not None
        order(session)
        return session.stream.proxy.name

    async def _handle(self, call: RawStream, *, variant: Variant, only: str | None) -> None:
        """One stream, from its first request to its end."""
        if self._is_draining:
            raise _grpc_error(_shutting_down())
        try:
            with self._places.place(call) as place:
                await self._wait_for_admission()
                await self._dispatch(call, variant, only, place)
        except (StreamError, BoundError) as error:
            self._note_refused(call, stream_error(error))
            raise _grpc_error(stream_error(error)) from error

    async def _wait_for_admission(self) -> None:
        """Limit the rate of new streams: a first request may cost much.

        The others wait in line, so that a stream that gives up delays none behind it.
        """
        if not self._entry.locked() and self._new_streams.take(1, trio.current_time()):
            return
        self.status.totals.delayed_streams += 1
        with self._interrupted_by_drain():
            async with self._entry:
                await trio.sleep(self._new_streams.reserve(1, trio.current_time()))
            return
        raise _shutting_down()

    async def _dispatch(self, call: RawStream, variant: Variant, only: str | None, place: trio.CancelScope) -> None:
        """Serve Envoy's resources, or what the node metadata of the first request names."""
        self._places.shares.stall(place, trio.current_time())
        replayed = ReplayedCall(call, await self._first_request(call))  # nobody else keeps it: it may have 60 KB
        self._places.shares.resume(place)
        is_looked_at = only is None and bool(self._handlers)
        request = self._read(replayed.first, variant) if replayed.first and is_looked_at else None
        handler = self._handler_of(request) if request is not None else None
        if handler is not None:
            await handler(replayed, call.peer.address, variant)
        else:
            await self._serve(replayed, request, call, variant, only, place)

    def _read(self, first: bytes, variant: Variant) -> Request | None:
        """A request; None for bytes that cannot be read as one, as the session will find, too. Raises BoundError."""
        try:
            return self._context.decoder.decode(first, variant)
        except (DecodeError, UnicodeDecodeError):
            return None

    def _handler_of(self, request: Request) -> StreamHandler | None:
        """The handler that the node metadata ``GENERATOR`` of a first request names, or its type."""
        generator = request.node.metadata.get("GENERATOR") if request.node else None
        named = self._handlers.get(generator) if isinstance(generator, str) else None
        return named or self._handlers.get(request.type_url)

    @contextmanager
    def _interrupted_by_drain(self) -> Iterator[None]:
        """A block for a stream that is not a session yet, left early when the server begins to drain."""
        with trio.CancelScope() as scope:
            self._new.add(scope)
            try:
                yield
            finally:
                self._new.discard(scope)

    async def _first_request(self, call: RawStream) -> bytes | None:
        with self._interrupted_by_drain():
            return await call.recv_message()
        raise _shutting_down()

    async def _serve(
        self,
        messages: Call,
        first: Request | None,
        call: RawStream,
        variant: Variant,
        only: str | None,
        place: trio.CancelScope,
    ) -> None:
        """A stream for Envoy's resources; ``first`` is the first of its messages, if that was decoded."""
        admit = await self._admission(call)
        peer = call.peer
        since, end = peer.since if peer.tls else None, peer.certificate_end
        ends = datetime.fromtimestamp(end, UTC) if math.isfinite(end) else None
        connection = self.status.connect(variant, peer.address, since, ends)
        admit_here = partial(self._admit_from, admit, call.peer, connection, place)
        session = Session(messages, self._context, connection, only=only, admit=admit_here, first=first)
        self._sessions.add(session)
        call.when_retiring(session.retire)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            self._scopes.leave(connection)
            self._context.workloads.left(connection.id)
            self.status.disconnect(connection)
            session.close()

    async def _admission(self, call: RawStream) -> Admit:
        """Find out who makes a call."""
        with self._interrupted_by_drain():
            return await admission(self._authenticate, call)
        raise _shutting_down()

    def _admit_from(
        self, admit: Admit, peer: Peer, connection: Connection, place: trio.CancelScope, proxy: Proxy
    ) -> Proxy:
        check_labels(self._options.bounds, proxy.labels)
        proxy = attrs.evolve(admit(proxy), peer=host_of(peer.address))
        self._places.shares.add(place, owner_of(proxy.identity, peer.address))
        self._scopes.enter(connection, peer.address, proxy)
        self._context.workloads.joining(connection.id, proxy, peer.address)
        return proxy

    def _note_refused(self, call: RawStream, error: StreamError) -> None:
        self.status.totals.refused_streams[error.code.name] += 1
        if error.bound:
            self.status.totals.exceeded_bounds[error.bound] += 1
        if error.code is Code.UNAVAILABLE:
            return
        suppressed = self._refusal_log.admit((host_of(call.peer.address), call.path, error.code), trio.current_time())
        if suppressed is not None:
            log.warning(
                "stream refused",
                peer=call.peer.address,
                path=call.path,
                status=error.code.name,
                reason=str(error)[:MAX_REASON_LOGGED],
                **({"suppressed": suppressed} if suppressed else {}),
            )


def _shutting_down() -> StreamError:
    return StreamError(Code.UNAVAILABLE, "the control plane is shutting down")


def _grpc_error(error: StreamError) -> GRPCError:
    return GRPCError(Status(error.code), error.message)
