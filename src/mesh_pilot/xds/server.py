"""The discovery services over gRPC: ADS and one service for each type, State of the World and Delta.

    server = XdsServer(catalog, identifier="mesh-pilot 0.1.0")
    reducer.on_publish(lambda published: server.status.published(published.published_at))
    await serve(server.services(), listeners)

``Fetch*`` is not implemented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import attrs
import structlog
import trio

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET
from mesh_pilot.rpc import Cardinality, GRPCError, Handler, Peer, ServerStream, Service, Status
from mesh_pilot.security.authentication import AuthenticationError
from mesh_pilot.xds.encode import Encoder, EncoderStatistics
from mesh_pilot.xds.generators import Generator, Replayed, generator_of
from mesh_pilot.xds.messages import Code, StreamError, Variant
from mesh_pilot.xds.session import DEFAULT_OPTIONS, Call, Session, XdsOptions
from mesh_pilot.xds.sets import Catalog
from mesh_pilot.xds.status import StatusRegistry, XdsStatistics

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


@attrs.frozen
class XdsServerStatistics:
    streams: int
    """Streams that are open, those that have not sent a request yet included."""
    draining: bool
    xds: XdsStatistics
    encoder: EncoderStatistics


class XdsServer:
    """All discovery services over one catalog.

    Mutable state: the open sessions, and whether it is draining.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        identifier: str,
        options: XdsOptions = DEFAULT_OPTIONS,
        admit: Admit = lambda proxy, peer: proxy,
        generators: Mapping[str, Generator] = MappingProxyType({}),
    ) -> None:
        """``identifier`` names this control plane to its clients; ``admit`` says who each of them is.

        ``generators`` serve the streams on ADS whose node metadata ``GENERATOR`` names them.
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

    def __repr__(self) -> str:
        return f"<XdsServer {len(self._sessions)} streams{' draining' if self._is_draining else ''}>"

    def services(self) -> list[Service]:
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
        )

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
        if len(self._sessions) + len(self._new) >= self._options.max_streams:
            refusal = StreamError(Code.RESOURCE_EXHAUSTED, f"all {self._options.max_streams} streams are taken")
            self._note_refused(call, refusal)
            raise _grpc_error(refusal)
        if only is None and self._generators:
            replayed = await self._first_request(call)
            serve = self._generators.get(generator_of(replayed.first or b"", variant))
            if serve is not None:
                await serve(replayed, call.peer.address, variant)
                return
            await self._serve(replayed, call, variant, only)
        else:
            await self._serve(call, call, variant, only)

    async def _first_request(self, call: RawStream) -> Replayed:
        """Wait for a request, which says what the stream is for."""
        with trio.CancelScope() as scope:
            self._new.add(scope)
            try:
                return Replayed(call, await call.recv_message())
            finally:
                self._new.discard(scope)
        raise _grpc_error(_shutting_down())

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
            admit=partial(self._admit_from, call.peer),
        )
        self._sessions.add(session)
        began = trio.current_time()
        try:
            await session.run()
        except StreamError as error:
            self._note_refused(call, error)
            raise _grpc_error(error) from error
        finally:
            self._sessions.discard(session)
            self.status.disconnect(connection)
            session.stream.close()
            if connection.proxy is not None:
                log.info(
                    "gone", proxy=connection.proxy.id, stream=connection.id, after=round(trio.current_time() - began, 3)
                )

    def _admit_from(self, peer: Peer, proxy: Proxy) -> Proxy:
        try:
            return self._admit(proxy, peer)
        except AuthenticationError as error:
            raise StreamError(Code.UNAUTHENTICATED, str(error)) from error

    def _note_refused(self, call: RawStream, error: StreamError) -> None:
        self.status.refused_streams[error.code.name] += 1
        if error.code is not Code.UNAVAILABLE:
            log.warning(
                "stream refused", peer=call.peer.address, path=call.path, status=error.code.name, reason=str(error)
            )


def _shutting_down() -> StreamError:
    return StreamError(Code.UNAVAILABLE, "the control plane is shutting down")


def _grpc_error(error: StreamError) -> GRPCError:
    return GRPCError(Status(error.code), error.message)
