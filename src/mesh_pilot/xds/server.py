"""The discovery services over gRPC: ADS and one service for each type, State of the World and Delta.

    server = XdsServer(catalog, identifier="mesh-pilot 0.1.0")
    reducer.on_publish(lambda published: server.status.published(published.published_at))
    await serve(server.services(), listeners)

``Fetch*`` is not implemented.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

import attrs
import structlog
import trio

from mesh_pilot.model.bounds import BoundError, check, check_labels
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET
from mesh_pilot.rpc import Cardinality, GRPCError, Handler, Peer, Servable, ServerStream, Status
from mesh_pilot.rpc.token_bucket import TokenBucket
from mesh_pilot.security.authentication import AuthenticationError
from mesh_pilot.xds import held, kept
from mesh_pilot.xds.encode import Encoder, EncoderStatistics
from mesh_pilot.xds.generators import Generator, Replayed, generator_of
from mesh_pilot.xds.log_limiter import LogLimiter
from mesh_pilot.xds.messages import Code, StreamError, Variant
from mesh_pilot.xds.peer_scopes import PeerScopes, host_of
from mesh_pilot.xds.session import DEFAULT_OPTIONS, REASON_LOGGED, Call, Session, XdsOptions, stream_error
from mesh_pilot.xds.sets import Catalog
from mesh_pilot.xds.status import Connection, StatusRegistry, XdsStatistics

log = structlog.get_logger(scope="xds")

RawStream = ServerStream[bytes, bytes]

Admit = Callable[[Proxy, Peer], Proxy]
"""Notes the identity of a proxy, given its connection; raises AuthenticationError to refuse it."""

METHODS: Mapping[str, tuple[str, str | None]] = {
    "envoy.service.discovery.v3.AggregatedDiscoveryService": ("AggregatedResources", None),
    "envoy.service.cluster.v3.ClusterDiscoveryService": ("Clusters", CLUSTER),
    "envoy.service.endpoint.v3.EndpointDiscoveryService": ("Endpoints", ENDPOINT),
    "envoy.service.listener.v3.ListenerDiscoveryService": ("Listeners", LISTENER),
    "envoy.service.route.v3.RouteDiscoveryService": ("Routes", ROUTE),
    "envoy.service.secret.v3.SecretDiscoveryService": ("Secrets", SECRET),
    "envoy.service.extension.v3.ExtensionConfigDiscoveryService": ("ExtensionConfigs", EXTENSION),
}
"""Services, each with what ``Stream...`` and ``Delta...`` are followed by, and its type (None: all)."""

PRESENCE_RATE, PRESENCE_BURST = 20.0, 400.0
"""Lines ``connected`` and ``gone`` a second, and at once: a fleet that reconnects, or a flood of streams."""

BYTES_A_RESOURCE = 1000
"""What a resource takes in an encoded response, roughly."""


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

    Mutable state: the open sessions, whether it is draining, the scopes of each peer, and what bounds the rates of new
    streams and of log lines.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        identifier: str,
        options: XdsOptions = DEFAULT_OPTIONS,
        admit: Admit = lambda proxy, peer: proxy,
        generators: Mapping[str, Generator] = MappingProxyType({}),
        scope_of: Callable[[Proxy], Hashable] = lambda proxy: proxy.namespace,
    ) -> None:
        """``identifier`` names this control plane to its clients; ``admit`` says who each of them is.

        ``generators`` serve the streams on ADS whose node metadata ``GENERATOR`` names them. ``scope_of`` gives what
        decides which resources are made for a proxy besides its own: of such scopes a peer may have so many.
        """
        self.status = StatusRegistry()
        self._catalog = catalog
        self._options = options
        self._admit = admit
        self._encoder = Encoder(identifier)
        self._generators = generators
        self._sessions: set[Session] = set()
        self._new: set[trio.CancelScope] = set()
        self._is_draining = False
        self._scopes = PeerScopes(scope_of, options.bounds)
        self._new_streams = TokenBucket(options.bounds.streams_per_second, options.stream_burst)
        self._entry = trio.Lock()
        self._turn = trio.Lock()
        self._nack_log = LogLimiter()
        self._refusal_log = LogLimiter()
        self._presence_log = LogLimiter(seconds=0, rate=PRESENCE_RATE, burst=PRESENCE_BURST)

    def __repr__(self) -> str:
        return f"<XdsServer {len(self._sessions)} streams{' draining' if self._is_draining else ''}>"

    def services(self) -> list[Servable]:
        """What to hand to ``rpc.serve``; may be served at several addresses."""
        return [self]

    def __mapping__(self) -> Mapping[str, Handler]:
        handlers = {}
        for service, (what, only) in METHODS.items():
            for prefix, variant in (("Stream", Variant.SOTW), ("Delta", Variant.DELTA)):
                handle = partial(self._handle, variant=variant, only=only)
                handlers[f"/{service}/{prefix}{what}"] = Handler(handle, Cardinality.STREAM_STREAM, bytes, bytes)
        return handlers

    def statistics(self) -> XdsServerStatistics:
        return XdsServerStatistics(
            len(self._sessions) + len(self._new),
            self._is_draining,
            self.status.statistics(),
            self._encoder.statistics(),
            sum(log.suppressed for log in (self._nack_log, self._refusal_log, self._presence_log)),
        )

    def trim(self) -> int:
        """Let go of what was kept for the next stream in the same state and not used since the last call. Returns how
        much that was, roughly in resources. Call it every half a minute or so."""
        return kept.trim() + held.trim() + self._encoder.trim() // BYTES_A_RESOURCE

    def drain(self) -> None:
        """End every stream with UNAVAILABLE once what there is to send is sent, and refuse new ones likewise.

        Clients then connect to another replica. Call it beside ``Server.drain``, which waits for the streams.
        """
        self._is_draining = True
        for scope in self._new:
            scope.cancel()
        for session in self._sessions:
            session.end(_shutting_down())

    async def _handle(self, call: RawStream, *, variant: Variant, only: str | None) -> None:
        """One stream, from its first request to its end."""
        if self._is_draining:
            raise _grpc_error(_shutting_down())
        try:
            check(self._options.bounds, "max_streams", "streams", len(self._sessions) + len(self._new) + 1)
            await self._wait_for_admission()
            await self._serve_what_is_asked(call, variant, only)
        except (StreamError, BoundError) as raised:
            error = stream_error(raised)
            self._note_refused(call, error)
            raise _grpc_error(error) from error

    async def _wait_for_admission(self) -> None:
        """Let so many new streams begin in a second, and no more: a first request may cost much. The others wait.

        They wait in line, so that a stream that gives up delays nobody behind it.
        """
        if not self._entry.locked() and self._new_streams.take(1, trio.current_time()):
            return
        self.status.delayed_streams += 1
        with self._interrupted_by_drain():
            async with self._entry:
                await trio.sleep(self._new_streams.reserve(1, trio.current_time()))
            return
        raise _shutting_down()

    async def _serve_what_is_asked(self, call: RawStream, variant: Variant, only: str | None) -> None:
        if only is not None or not self._generators:
            await self._serve(call, call, variant, only)
            return
        first = await self._first_request(call)
        serve = self._generators.get(generator_of(first or b"", variant, self._options.bounds))
        replayed = Replayed(call, first)
        if serve is not None:
            await serve(replayed, call.peer.address, variant)
        else:
            await self._serve(replayed, call, variant, only)

    @contextmanager
    def _interrupted_by_drain(self) -> Iterator[None]:
        """A stream that is not a session yet. The block is left early when the server begins to drain."""
        with trio.CancelScope() as scope:
            self._new.add(scope)
            try:
                yield
            finally:
                self._new.discard(scope)

    async def _first_request(self, call: RawStream) -> bytes | None:
        """Wait for a request, which says what the stream is for."""
        with self._interrupted_by_drain():
            return await call.recv_message()
        raise _shutting_down()

    async def _serve(self, messages: Call, call: RawStream, variant: Variant, only: str | None) -> None:
        """A stream for Envoy's resources."""
        connection = self.status.connect(variant, call.peer.address)
        session = Session(
            messages,
            self._catalog,
            variant,
            only=only,
            encoder=self._encoder,
            registry=self.status,
            connection=connection,
            options=self._options,
            admit=partial(self._admit_from, call.peer, connection),
            turn=self._turn,
            nack_log=self._nack_log,
            presence_log=self._presence_log,
        )
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            self._scopes.leave(connection)
            self.status.disconnect(connection)
            session.stream.close()
            session.gone()

    def _admit_from(self, peer: Peer, connection: Connection, proxy: Proxy) -> Proxy:
        check_labels(self._options.bounds, proxy.labels)
        try:
            proxy = self._admit(proxy, peer)
            self._scopes.enter(connection, peer.address, proxy)
            return proxy
        except AuthenticationError as error:
            raise StreamError(Code.UNAUTHENTICATED, str(error)) from error

    def _note_refused(self, call: RawStream, error: StreamError) -> None:
        self.status.refused_streams[error.code.name] += 1
        if error.bound:
            self.status.exceeded_bounds[error.bound] += 1
        if error.code is Code.UNAVAILABLE:
            return
        suppressed = self._refusal_log.admit((host_of(call.peer.address), call.path, error.code), trio.current_time())
        if suppressed is not None:
            log.warning(
                "stream refused",
                peer=call.peer.address,
                path=call.path,
                status=error.code.name,
                reason=str(error)[:REASON_LOGGED],
                **({"suppressed": suppressed} if suppressed else {}),
            )


def _shutting_down() -> StreamError:
    return StreamError(Code.UNAVAILABLE, "the control plane is shutting down")


def _grpc_error(error: StreamError) -> GRPCError:
    return GRPCError(Status(error.code), error.message)
