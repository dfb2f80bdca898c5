"""The debug pages over xDS, for ``istioctl``: types ``istio.io/debug``, and below it ``/syncz`` and ``/config_dump``.

Each has its own stream. As with istiod, every request is answered but those that acknowledge an answer of this stream,
and only callers whose identity is of the root namespace are answered. istioctl puts a made-up nonce into its first
request, so a nonce counts only where this stream has sent it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog
from envoy.admin.v3 import config_dump_shared_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.status.v3 import csds_pb2
from google.protobuf import any_pb2
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from mesh_pilot.explain.truth.facts import of_types
from mesh_pilot.explain.truth.states import TruthState
from mesh_pilot.model.bounds import Bounds
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, ENVOY_TYPES, LISTENER, PREFIX, ROUTE
from mesh_pilot.ops.istiod.debug_types import CONFIG_DUMP, DEBUG, DEBUG_TYPES, SYNCZ
from mesh_pilot.replicas.workers.questions import (
    Answer,
    ConnectionsQuestion,
    DumpQuestion,
    MeantQuestion,
    PageQuestion,
    WorkerPage,
)
from mesh_pilot.xds.ads.admission import Authenticate, admission
from mesh_pilot.xds.ads.config_dump import config_dump
from mesh_pilot.xds.ads.decode import Decoder
from mesh_pilot.xds.ads.messages import Code, DeltaRequest, Node, Request, StreamError, Variant, proxy_of
from mesh_pilot.xds.ads.proxy_names import MeantProxies, SeveralProxies
from mesh_pilot.xds.ads.server import ReplayedCall
from mesh_pilot.xds.ads.status import ConnectionStatus

_STATES = {
    TruthState.ABSENT: csds_pb2.NOT_SENT,
    TruthState.PENDING: csds_pb2.STALE,
    TruthState.WARMING: csds_pb2.STALE,  # Envoy's message has no word for it
    TruthState.IN_FORCE: csds_pb2.SYNCED,
    TruthState.REFUSED: csds_pb2.ERROR,
}

_OLD_FIELDS = {
    LISTENER: "listener_config",
    ROUTE: "route_config",
    ENDPOINT: "endpoint_config",
    CLUSTER: "cluster_config",
}
"""The types whose state Envoy's ``PerXdsConfig`` has, which older clients read."""

_NONCES = 100
"""Answers of one stream whose acknowledgement is recognised."""

_PAGE = re.compile(r"[A-Za-z_]+(\?[!-~]*)?")
"""A page below ``/debug/``, with its query: no other path can be reached."""

SECTIONS: Any = config_dump_shared_pb2
"""The messages of the sections, known by name since this is loaded."""

Found = list[tuple[str, any_pb2.Any]]
"""Resources with their names."""

log = structlog.get_logger(scope="ops")


class DebugStreams:
    """Serves the streams; implements ``xds.ads.server.StreamHandler``."""

    def __init__(
        self,
        ask: Answer,
        authenticate: Authenticate,
        root_namespace: Callable[[], str],
        bounds: Bounds,
        version: str,
    ) -> None:
        """``version`` is that of this control plane, as ``istioctl version`` shows it."""
        self._ask = ask
        self._authenticate = authenticate
        self._root_namespace = root_namespace
        self._decoder = Decoder(bounds)
        self._identifier = _identifier(version)

    async def serve(self, call: ReplayedCall, peer: str, variant: Variant) -> None:
        """Answer until the client ends the stream. Raises StreamError and BoundError."""
        sent: deque[str] = deque(maxlen=_NONCES)
        is_known = False
        while (data := await call.recv_message()) is not None:
            try:
                request = self._decoder.decode(data, variant)
            except (DecodeError, UnicodeDecodeError) as error:
                raise StreamError(Code.INVALID_ARGUMENT, f"the request cannot be decoded: {error}") from error
            if not is_known:
                await self._check(call, request.node)
                is_known = True
            names = request.subscribe if isinstance(request, DeltaRequest) else request.names
            if request.nonce in sent:
                continue
            nonce = secrets.token_hex(8)  # a client that made one up, or kept one of another plane, has none of ours
            sent.append(nonce)
            found = await self._found(request, names)
            log.info("debug request over xDS", type=request.type_url, names=names[:10], peer=peer)
            await call.send_message(self._response(variant, request.type_url, nonce, found))

    async def _check(self, call: ReplayedCall, node: Node | None) -> None:
        """Raise StreamError unless the caller is of the root namespace."""
        proxy = (await admission(self._authenticate, call.call))(proxy_of(node))
        root = self._root_namespace()
        if not proxy.identity:
            raise StreamError(
                Code.UNAUTHENTICATED, f"debug pages are for callers of namespace {root}; nothing proves that"
            )
        if proxy.namespace != root:
            raise StreamError(Code.PERMISSION_DENIED, f"debug pages are for namespace {root}, not {proxy.namespace}")

    async def _found(self, request: Request, names: tuple[str, ...]) -> Found:
        if request.type_url == SYNCZ:
            connections = await self._ask(ConnectionsQuestion())
            assert isinstance(connections, tuple)
            return list(_clients(connections))
        if request.type_url not in DEBUG_TYPES:
            return []
        if len(names) != 1:
            raise StreamError(Code.INVALID_ARGUMENT, f"{request.type_url} needs exactly one name, and has {len(names)}")
        if request.type_url == CONFIG_DUMP:
            return list(_sections(await self._dump(names[0])))
        if not _PAGE.fullmatch(names[0]):
            raise StreamError(Code.INVALID_ARGUMENT, f"there is no page {names[0][:100]!r}; try syncz")
        return [(names[0], any_pb2.Any(type_url=DEBUG, value=await self._page(f"/debug/{names[0]}")))]

    async def _dump(self, name: str) -> object:
        """The dump of the proxy of a name; None if none is connected."""
        meant = await self._ask(MeantQuestion(name))
        assert isinstance(meant, MeantProxies)
        try:
            proxy = meant.only(name)
        except SeveralProxies as error:
            raise StreamError(Code.INVALID_ARGUMENT, str(error)) from error
        return await self._ask(DumpQuestion(proxy)) if proxy is not None else None

    async def _page(self, path: str) -> bytes:
        page = await self._ask(PageQuestion(path))
        assert isinstance(page, WorkerPage)
        return page.body

    def _response(self, variant: Variant, type_url: str, nonce: str, found: Found) -> bytes:
        response: discovery_pb2.DiscoveryResponse | discovery_pb2.DeltaDiscoveryResponse
        if variant is Variant.SOTW:
            response = discovery_pb2.DiscoveryResponse(type_url=type_url, nonce=nonce, version_info=nonce)
            response.resources.extend(body for _, body in found)
        else:
            response = discovery_pb2.DeltaDiscoveryResponse(type_url=type_url, nonce=nonce)
            for name, body in found:
                response.resources.add(name=name, version=nonce, resource=body)
        response.control_plane.identifier = self._identifier
        encoded: bytes = response.SerializeToString()
        return encoded


def _identifier(version: str) -> str:
    """This process as istiod names itself (``IstioControlPlaneInstance``), which istioctl parses."""
    instance = os.environ.get("POD_NAME") or socket.gethostname()
    return json.dumps({"Component": "mesh-pilot", "ID": instance, "Info": {"version": version}})


def _clients(connections: tuple[ConnectionStatus, ...]) -> Iterator[tuple[str, any_pb2.Any]]:
    """The state of each proxy, as Envoy's ``ClientConfig``; named as istiod names it, by the third part of the id."""
    for connection in connections:
        proxy = connection.proxy
        if proxy is None or proxy.agent:
            continue
        client = csds_pb2.ClientConfig()
        client.node.id = proxy.name
        client.node.metadata.fields["NAMESPACE"].string_value = proxy.namespace  # for istioctl's --namespace
        for key in ("CLUSTER_ID", "ISTIO_VERSION"):
            if proxy.text(key):
                client.node.metadata.fields[key].string_value = proxy.text(key)
        states = {type_url: _STATES[each.state] for type_url, each in of_types(connection).items()}
        reasons = {nack.nack.type_url: nack.nack.reason for nack in connection.nacks}
        sent = {each.type_url: each.sent_at for each in connection.types}
        for type_url, state in states.items():
            config = client.generic_xds_configs.add(type_url=type_url, config_status=state)
            sent_at = sent.get(type_url)
            if sent_at is not None:
                config.last_updated.FromDatetime(sent_at)
            if state == csds_pb2.ERROR:
                config.error_state.details = reasons.get(type_url, "")
        for type_url, field in _OLD_FIELDS.items():
            old = client.xds_config.add(status=states.get(type_url, csds_pb2.NOT_SENT))
            getattr(old, field).SetInParent()
        yield proxy.name, _any(client)


def _sections(dumps: object) -> Iterator[tuple[str, any_pb2.Any]]:
    """The sections of a proxy's dump; none for one that is not connected here."""
    assert dumps is None or isinstance(dumps, tuple)
    shown = config_dump(dumps or ())
    assert isinstance(shown, Mapping)
    if dumps is not None:  # istioctl compares these three, and ends where one is not there
        known = {dump_type[0] for each in dumps if (dump_type := ENVOY_TYPES[each.type_url].dump) is not None}
        for empty in (SECTIONS.ClustersConfigDump, SECTIONS.ListenersConfigDump, SECTIONS.RoutesConfigDump):
            if empty.__name__ not in known:
                yield empty.__name__, _any(empty())
    for section in shown["configs"]:  # type: ignore[union-attr]
        assert isinstance(section, Mapping)
        try:
            yield str(section["@type"]), ParseDict(dict(section), any_pb2.Any(), ignore_unknown_fields=True)
        except (ParseError, TypeError) as error:
            log.warning("a section of a dump cannot be sent over xDS", section=section["@type"], reason=str(error))


def _any(message: Any) -> any_pb2.Any:
    return any_pb2.Any(type_url=PREFIX + message.DESCRIPTOR.full_name, value=message.SerializeToString())
