"""The agent's own xDS stream: what it asks the control plane for itself, and what it reports.

It is a stream next to Envoy's, on the same connection, with the same node and metadata ``AGENT`` (the agent's version).
It is State of the World, as that of Istio's agents. Its own stream, and not requests slipped into Envoy's, because that
one has Envoy's nonces and its pace. Each answer is checked before it replaces the last one, and refused otherwise, so
that a control plane learns of it; the last ones are on disk, since DNS and the bootstrap need them before any control
plane can be reached. Reports travel as errors of requests, as Istio's ``HealthInformation`` does.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import structlog
import trio

from mesh_pilot import __version__
from mesh_pilot.agent.base.observable import Observable
from mesh_pilot.agent.base.wire import Parts
from mesh_pilot.agent.bootstrap.envoy_bootstrap import EnvoyNode
from mesh_pilot.agent.relay.messages import XdsProtocol, read_response, response_head
from mesh_pilot.agent.relay.node_message import AGENT, encode_node
from mesh_pilot.agent.relay.planes import Connected, Planes
from mesh_pilot.base.backoff import Backoff
from mesh_pilot.base.protowire import FIXED32, LEN, VARINT, WireError, field, fields, tag, varint
from mesh_pilot.model.resource import CLUSTER, SECRET, WARMING
from mesh_pilot.model.warming import WarmingResource, encode_report
from mesh_pilot.net.rpc import Cardinality, ClientCall, GRPCError, StreamTerminatedError
from mesh_pilot.net.rpc.rate_limits import LogLimiter

log = structlog.get_logger(scope="agent")

NAME_TABLE = "type.googleapis.com/istio.networking.nds.v1.NameTable"
PROXY_CONFIG = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
HEALTH = "type.googleapis.com/istio.v1.HealthInformation"

_CA_CERTIFICATES = 34
"""``ProxyConfig.caCertificatesPem``."""
_PORT = 1000
"""A field of ``NameInfo`` that mesh-pilot adds to Istio's: ``NUMBER/NAME`` of a port."""
_INTERNAL = 13
"""The code of an unhealthy report, as Istio's agent sends it."""

_CHECKSUM_TAG = tag(3, FIXED32)
"""The tag of the checksum at the end of a kept answer."""

SAME_LINE_SECONDS = 600.0
ROOTS = "ROOTCA"
"""The secret with the roots of the mesh. The agent asks for no other: those have private keys."""

ROWS_A_TURN = 250
"""Rows of the name table that are read before other tasks have their turn: about a millisecond."""


@attrs.frozen
class NameRow:
    """The addresses of a host name of the mesh. Source: Istio's ``nds.proto``."""

    addresses: tuple[str, ...]
    registry: str = ""
    short_name: str = ""
    namespace: str = ""
    ports: tuple[tuple[int, str], ...] = ()
    """Numbers and names of its ports, for SRV records. Only mesh-pilot tells them."""


@attrs.frozen
class ApplicationHealth:
    """The state of the application, as probes see it."""

    is_healthy: bool
    reason: str = ""


@attrs.frozen
class SubscriptionsStatistics:
    """The state of the subscriptions, for metrics and debug pages."""

    connected: bool
    names: int
    """Rows of the name table."""
    answers: int
    """Answers taken in, in all."""
    reports: int
    """Reports sent, in all: of health, and of what warms at Envoy."""


def hello(node: EnvoyNode) -> tuple[bytes, ...]:
    """Requests by which the agent learns whether a control plane works: the first is small, but unknown to some."""
    encoded = encode_node(node, {AGENT: __version__})
    return _request(PROXY_CONFIG, node=encoded), _request(CLUSTER)


class Subscriptions:
    """Keeps ``name_table``, ``proxy_config`` and ``trust_bundle`` current; the last ones survive a restart on disk.

    Mutable state: those, what is to be reported, and counts.
    """

    def __init__(self, node: EnvoyNode, planes: Planes, *, names: bool, folder: Path | None = None) -> None:
        """``names``: subscribe to the name table. ``folder``: of the last answers; without it none are kept."""
        self.name_table: Observable[dict[str, NameRow] | None] = Observable(None)
        self.proxy_config: Observable[bytes | None] = Observable(None)
        """``istio.mesh.v1alpha1.ProxyConfig`` of this proxy, encoded: ``defaultConfig`` and ProxyConfig objects merged.
        None before the first answer."""
        self.trust_bundle: Observable[tuple[str, ...]] = Observable(())
        self.root_secret: Observable[bytes | None] = Observable(None)
        """The encoded ``Secret`` with the roots and trust domains of the mesh, for Envoy."""
        self.is_current: Observable[bool] = Observable(False)
        """True once a control plane has said the proxy config."""
        self._node = encode_node(node, {AGENT: __version__})
        self._proxy = node.kept_for
        self._planes = planes
        self._types = (PROXY_CONFIG, SECRET, NAME_TABLE) if names else (PROXY_CONFIG, SECRET)
        self._folder = folder
        self._is_restored = False
        self._said: dict[str, str | None] = {}
        """The latest report of each type; None if all is well."""
        self._reported = trio.Event()
        self._connected = False
        self._answers = 0
        self._reports = 0
        self._lines = LogLimiter(seconds=SAME_LINE_SECONDS)

    def __repr__(self) -> str:
        return f"<Subscriptions {len(self._types)} types, {'connected' if self._connected else 'not connected'}>"

    def statistics(self) -> SubscriptionsStatistics:
        return SubscriptionsStatistics(self._connected, len(self.name_table.value or ()), self._answers, self._reports)

    async def run(self) -> None:
        """Subscribe, again on each new connection, forever."""
        await self.restore()
        backoff = Backoff()
        while True:
            connected = await self._planes.current.wait_for(lambda now: now is not None and now.channel.lost is None)
            assert connected is not None
            before = self._answers
            reason = await self._stream(connected)
            if self._answers > before:
                backoff.reset()
            if self._planes.current.value is connected and connected.channel.lost is None:
                self._say_ended(connected.pilot.address, reason, was_answered=self._answers > before)
            await trio.sleep(backoff.next_seconds())

    def _say_ended(self, address: str, reason: str, *, was_answered: bool) -> None:
        if was_answered:
            log.info("the agent's own stream ended", address=address, reason=reason)
        elif self._lines.admit(f"{address} {reason}", trio.current_time()) is not None:
            log.warning("the agent's own stream is refused", address=address, reason=reason, effect="it is tried again")

    async def report(self, health: ApplicationHealth) -> None:
        """Tell the control plane (``HealthInformation``); said again on each new connection."""
        await self._say(HEALTH, None if health.is_healthy else health.reason or "unhealthy")

    async def report_warming(self, found: Sequence[WarmingResource]) -> None:
        """Tell it what Envoy has accepted and does not use yet (``model.warming``); said again likewise."""
        await self._say(WARMING, encode_report(found))

    async def _say(self, type_url: str, report: str | None) -> None:
        if type_url not in self._said or self._said[type_url] != report:
            self._said[type_url] = report
            self._reported.set()
            self._reported = trio.Event()
        await trio.lowlevel.checkpoint()

    async def restore(self) -> None:
        """Take in the last answers that a former run got for this proxy; only once, before any other answer."""
        if self._is_restored:
            return
        self._is_restored = True
        for type_url, path in self._files().items():
            try:
                value = _read_kept(await trio.to_thread.run_sync(path.read_bytes), self._proxy)
                await self._take_in(type_url, value)
            except FileNotFoundError:
                continue
            except (OSError, WireError, UnicodeDecodeError) as error:
                reason = f"it {error}" if isinstance(error, WireError) else str(error)
                log.warning("a kept answer cannot be used and is left out", file=str(path), reason=reason)

    def _files(self) -> Mapping[str, Path]:
        if self._folder is None:
            return {}
        names = {PROXY_CONFIG: "proxy-config.pb", NAME_TABLE: "name-table.pb"}
        return {type_url: self._folder / names[type_url] for type_url in self._types if type_url in names}

    # -- the stream

    async def _stream(self, connected: Connected) -> str:
        """One stream until it ends, or another channel is in use; why."""
        metadata = dict(self._planes.call_metadata())
        reason = "another control plane is used"
        try:
            async with connected.channel.request(
                XdsProtocol.SOTW.path, Cardinality.STREAM_STREAM, bytes, bytes, metadata=metadata
            ) as call:
                sending = trio.Lock()
                for number, type_url in enumerate(self._types):
                    await call.send_message(_request(type_url, node=b"" if number else self._node))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._report, call, sending)

                    async def receive() -> None:
                        nonlocal reason
                        reason = await self._receive(call, sending)
                        nursery.cancel_scope.cancel()

                    nursery.start_soon(receive)
                    await self._planes.current.wait_for(lambda now: now is not connected)
                    nursery.cancel_scope.cancel()
        except (GRPCError, StreamTerminatedError) as error:
            reason = _why_ended(error)
        finally:
            self._connected = False
        return reason

    async def _receive(self, call: ClientCall[bytes, bytes], sending: trio.Lock) -> str:
        """Take answers in until the stream ends; why it did."""
        try:
            async for response in call:
                self._connected = True
                head = response_head(response)
                error, version = None, ""
                try:
                    version = await self._take_in_response(response)
                except (WireError, UnicodeDecodeError) as unreadable:
                    error = f"the {head.type_url.rpartition('.')[2]} {unreadable}"
                    log.warning("an answer to the agent is refused; the last one is kept", reason=error)
                async with sending:
                    await call.send_message(_request(head.type_url, version=version, nonce=head.nonce, error=error))
        except (GRPCError, StreamTerminatedError) as ended:
            return _why_ended(ended)
        except (WireError, UnicodeDecodeError) as unreadable:
            return f"a response {unreadable}"
        return "the control plane ended it"

    async def _take_in_response(self, response: bytes) -> str:
        """Take in an answer, and keep it; returns its version."""
        read = read_response(response, XdsProtocol.SOTW)
        self._answers += 1
        if read.type_url == PROXY_CONFIG:
            self.is_current.set(True)
        if not read.answers:
            return read.version
        value = Parts(read.answers[0].body).last(2)
        await self._take_in(read.type_url, value)
        path = self._files().get(read.type_url)
        if path is not None:
            try:
                await trio.to_thread.run_sync(_keep, path, value, self._proxy)
            except OSError as error:
                log.error("an answer is not kept for the next start", file=str(path), reason=error.strerror)
        return read.version

    async def _take_in(self, type_url: str, value: bytes) -> None:
        if type_url == NAME_TABLE:
            self.name_table.set(await read_name_table(value))
        elif type_url == PROXY_CONFIG:
            roots = Parts(value).texts(_CA_CERTIFICATES)
            self.proxy_config.set(value)
            self.trust_bundle.set(roots)
        elif type_url == SECRET:
            self.root_secret.set(value)

    async def _report(self, call: ClientCall[bytes, bytes], sending: trio.Lock) -> None:
        """Send all reports now, and each whenever it changes."""
        sent: dict[str, str | None] = {}
        while True:
            reported, said = self._reported, dict(self._said)
            for type_url, report in said.items():
                if type_url in sent and sent[type_url] == report:
                    continue
                try:
                    async with sending:
                        await call.send_message(_request(type_url, error=report))
                except (GRPCError, StreamTerminatedError):
                    return  # the receiver learns why
                sent[type_url] = report
                self._reports += 1
            await reported.wait()


def _why_ended(error: GRPCError | StreamTerminatedError) -> str:
    if isinstance(error, GRPCError):
        return f"{error.message} ({error.status.name})" if error.message else error.status.name
    return str(error)


async def read_name_table(data: bytes) -> dict[str, NameRow]:
    """A ``NameTable``. Raises WireError, UnicodeDecodeError."""
    table = {}
    for number, (outer, kind, start, end) in enumerate(fields(data)):
        if not (number + 1) % ROWS_A_TURN:
            await trio.lowlevel.checkpoint()
        if outer != 1 or kind != LEN:
            continue
        name, row = "", NameRow(())
        entry = data[start:end]
        for inner, _, inner_start, inner_end in fields(entry):
            if inner == 1:
                name = str(entry[inner_start:inner_end], "utf-8")
            elif inner == 2:
                row = _name_row(entry[inner_start:inner_end])
        table[name] = row
    return table


def _name_row(data: bytes) -> NameRow:
    # Not by ``Parts``, which take a third longer: tables have ten thousand rows.
    addresses: list[str] = []
    texts = ["", "", ""]
    ports: list[tuple[int, str]] = []
    for number, kind, start, end in fields(data):
        if kind != LEN:
            continue
        text = str(data[start:end], "utf-8")
        if number == 1:
            addresses.append(text)
        elif number == _PORT:
            port, _, name = text.partition("/")
            if port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65_536:
                ports.append((int(port), name))
        elif number <= 4:
            texts[number - 2] = text
    registry, short_name, namespace = texts
    return NameRow(tuple(addresses), registry, short_name, namespace, tuple(ports))


def _request(
    type_url: str, *, node: bytes = b"", version: str = "", nonce: str = "", error: str | None = None
) -> bytes:
    """A ``DiscoveryRequest``."""
    parts = [field(1, version.encode())] if version else []
    if node:
        parts.append(field(2, node))
    if type_url == SECRET:
        parts.append(field(3, ROOTS.encode()))
    parts.append(field(4, type_url.encode()))
    if nonce:
        parts.append(field(5, nonce.encode()))
    if error is not None:
        parts.append(field(6, tag(1, VARINT) + varint(_INTERNAL) + field(2, error.encode())))
    return b"".join(parts)


def _keep(path: Path, value: bytes, proxy: str) -> None:
    """Write a file of an answer: the proxy that it is for, the answer, and a checksum of both."""
    from mesh_pilot.identity.trust.private_files import own_folder, replace

    own_folder(path.parent)
    content = field(1, proxy.encode()) + field(2, value)
    replace(path, content + _CHECKSUM_TAG + struct.pack("<I", zlib.crc32(content)))


def _read_kept(content: bytes, proxy: str) -> bytes:
    """The answer in such a file. Raises WireError for one that is damaged, or for another proxy."""
    found = {number: content[start:end] for number, _, start, end in fields(content)}
    checked = content[: -len(_CHECKSUM_TAG) - 4]
    if found.keys() != {1, 2, 3} or found[3] != struct.pack("<I", zlib.crc32(checked)):
        raise WireError("is damaged")
    if found[1] != proxy.encode():
        raise WireError(f"is of another proxy, {str(found[1], 'utf-8', 'replace')!r}")
    return found[2]
