"""The connection to a control plane: the nearest that answers, and back to the best when it returns.

A control plane is judged by its answers: each connection begins with a request of the agent's, and counts once that is
answered. It is asked again when a stream of Envoy's gets no answer. A connection alone says little: a proxy before the
control plane takes connections for servers that are gone, and a control plane may refuse this proxy only.

``Choice`` decides, as a pure machine; here are the connections. Each link is a task with a cancel scope, so that what
one control plane does costs no other. Streams are not moved from one channel to another, because versions and nonces of
one control plane mean nothing to another: they end, and Envoy comes back with what it has. Envoy could do this
itself, by outlier detection over several endpoints (as without an agent), but it does not return to a nearer one
before it loses the other, and would be without its last answers where none is left.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import structlog
import trio

from mesh_pilot.agent.base.observable import Observable, first_of
from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.relay.choice import DEFAULT_TIMINGS, Action, Choice, Connect, Release, Timings, Use
from mesh_pilot.agent.relay.messages import XdsProtocol
from mesh_pilot.agent.settings import PlaneSettings
from mesh_pilot.model.service import Locality
from mesh_pilot.net.rpc import (
    CLIENT_LIMITS,
    Cardinality,
    Channel,
    ConnectionLost,
    GRPCError,
    Limits,
    RpcError,
    Status,
    StreamTerminatedError,
    TlsSource,
    open_channel,
    parse_address,
)
from mesh_pilot.net.rpc.net import TcpAddress

log = structlog.get_logger(scope="agent.relay")

LIMITS = attrs.evolve(
    CLIENT_LIMITS, handshake_timeout_seconds=5.0, keepalive_interval_seconds=30.0, keepalive_timeout_seconds=10.0
)
"""A control plane that hangs is noticed within 40 s, as an Envoy that is connected to it directly notices it; istiod
allows a PING every 15 s."""

ANSWER_SECONDS = 10.0
"""The time that a control plane may take to answer the agent's request."""
HELLO_SECONDS = 2.0
"""Time for an answer to the first of the agent's requests, before the next is sent: not each plane knows its type."""

RELEASE_SECONDS = 10.0
"""Time for the streams of a channel that is left to end."""

NOT_REACHED = "control plane not reached"
REFUSES = "control plane refuses this proxy"
"""Events of the log: nothing answers there; it answers, and serves nothing."""
_OF_TLS = "if it is the port of TLS (15012), leave out --plaintext, and give --tls-ca"

REPEAT_SECONDS = 60.0
"""Between log lines about control planes that cannot be reached for the same reason."""


class StreamsRefused(ConnectionLost):
    """A control plane answers, and takes no stream of this proxy. The message says why."""


def event_of(status: Status) -> str:
    """The event of a stream's end by this status without an answer: a control plane that ends is unavailable."""
    return NOT_REACHED if status is Status.UNAVAILABLE else REFUSES


@attrs.frozen(eq=False)
class Connected:
    """A channel in use. Its streams end when it is lost, or when a better control plane takes over."""

    pilot: Pilot
    channel: Channel
    link: int = 0
    """The number of the link, for ``Planes``."""


@attrs.define(eq=False)
class _OpenLink:
    """A connection to a control plane, from the attempt to its end."""

    number: int
    pilot: Pilot
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    released: trio.Event = attrs.field(factory=trio.Event)
    """Set once it is to end as soon as its streams have."""
    doubted: trio.Event = attrs.field(factory=trio.Event)
    """Set where it is to be asked again whether it answers."""
    connected: Connected | None = None


@attrs.frozen
class PlanesStatistics:
    """The state of the connection, for metrics and debug pages."""

    connected: str
    """The address of the control plane in use; empty without one."""
    distance: int
    """0 in our zone, 1 in our region, else 2; -1 without one."""
    connects: int
    """Channels that were used, in all."""
    failures: int
    """Attempts that failed and channels that were lost, in all."""
    last_failure: str


class Planes:
    """``current`` is the channel that new streams use, None while no control plane can be reached.

    Mutable state: the choice, and the channel of each of its links.
    """

    def __init__(
        self,
        settings: PlaneSettings,
        locality: Locality,
        tls: Callable[[], TlsSource | None],
        call_metadata: Callable[[], Mapping[str, str]],
        *,
        hello: Sequence[bytes],
        timings: Timings = DEFAULT_TIMINGS,
        limits: Limits = LIMITS,
        lots: random.Random | None = None,
    ) -> None:
        """``hello``: the agent's requests (``DiscoveryRequest``), of which a control plane that works answers one."""
        self.current: Observable[Connected | None] = Observable(None)
        self.is_away: Observable[bool] = Observable(False)
        """True while no control plane answers, once each was tried."""
        self.call_metadata = call_metadata
        self._settings = settings
        self._hello = hello
        self._tls = tls
        self._limits = limits
        self._pilots = settings.addresses
        self._distances = [pilot.distance(locality) for pilot in self._pilots]
        self._timings = timings
        self._random = lots or random.Random()
        self._begin()
        self._connects = 0
        self._failures = 0
        self._last_failure = ""
        self._logged: dict[str, tuple[str, float]] = {}

    def __repr__(self) -> str:
        current = self.current.value
        return f"<Planes {len(self._pilots)}, {'none' if current is None else current.pilot.address} in use>"

    def _begin(self) -> None:
        """Know of no control plane and of no link."""
        self._choice = Choice(self._distances, timings=self._timings, lots=self._random)
        self._links: dict[int, _OpenLink] = {}
        self._happened = trio.Event()
        self._pending: list[Action] = []

    def statistics(self) -> PlanesStatistics:
        current = self.current.value
        return PlanesStatistics(
            connected="" if current is None else current.pilot.address,
            distance=-1 if current is None else self._distances[self._pilots.index(current.pilot)],
            connects=self._connects,
            failures=self._failures,
            last_failure=self._last_failure,
        )

    async def run(self) -> None:
        """Connect, watch, fail over, and come back, forever. If cancelled, all channels are closed.

        It may be run again after an exception: no link is left then.
        """
        self._begin()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._happened = trio.Event()
                    actions = self._pending + self._choice.decide(trio.current_time())
                    self._pending = []
                    for action in actions:
                        self._do(action, nursery)
                    if self._choice.used is None:
                        self.current.set(None)
                    self.is_away.set(self._choice.is_away)
                    with trio.CancelScope(deadline=self._choice.wake_at()):
                        await self._happened.wait()
        finally:
            self.current.set(None)

    def reconnect(self) -> None:
        """Make another channel, and leave this one then: the certificate was renewed."""
        self._choice.renew(trio.current_time())
        self._happened.set()

    def note_answered(self, connected: Connected) -> None:
        """Streams on this channel are answered."""
        self._choice.answered(connected.link)

    def note_refused(self, connected: Connected, reason: str, event: str = NOT_REACHED) -> None:
        """The control plane takes no streams though it is connected: another one is tried."""
        refused = self._choice.refused(connected.link, trio.current_time())
        if refused:
            self._note_failure(connected.pilot, reason, event)
            self._pending += refused
            self.current.set(None)
            self._happened.set()

    def doubt(self, connected: Connected) -> None:
        """A stream on this channel gets no answer: the control plane is asked again, and left if it is silent."""
        if (link := self._links.get(connected.link)) is not None:
            link.doubted.set()

    async def usable(self, patience: float) -> Connected | None:
        """A channel that takes new streams; None when no control plane answers, or none within ``patience`` seconds."""
        found: list[Connected | None] = []

        async def connected() -> None:
            found.append(await self.current.wait_for(_takes_streams))

        with trio.move_on_after(patience):
            await first_of(connected, partial(self.is_away.wait_for, bool))
        return found[0] if found else None

    # -- links

    def _do(self, action: Action, nursery: trio.Nursery) -> None:
        match action:
            case Connect():
                link = self._links[action.link] = _OpenLink(action.link, self._pilots[action.plane])
                nursery.start_soon(self._keep, link, name="control plane")
            case Use():
                connected = self._links[action.link].connected
                assert connected is not None, "it is ready"
                self._connects += 1
                self._logged.clear()
                log.info("control plane connected", address=connected.pilot.address)
                self.current.set(connected)
            case Release() if (found := self._links.get(action.link)) is not None:
                found.released.set()
                if found.connected is None:
                    found.scope.cancel()

    async def _keep(self, link: _OpenLink) -> None:
        """One link, from the attempt to its end."""
        pilot = link.pilot
        reason, event = "it was given up", NOT_REACHED
        try:
            with link.scope:
                try:
                    await self._connect(link)
                    reason = ""
                except StreamsRefused as error:
                    reason, event = str(error), REFUSES
                except RpcError as error:
                    reason = str(error)
                except OSError as error:  # of a name that does not resolve
                    reason = f"{pilot.address}: {error.strerror or error}"
                except UnicodeError:
                    reason = f"{pilot.address}: this is not a name of a host"
                except Exception as error:  # what one control plane causes costs no other
                    reason = f"{pilot.address}: {error}"
                    log.exception("internal error with a control plane; trying others", address=pilot.address)
        finally:
            del self._links[link.number]
            self._ended(link)
        if not link.released.is_set():
            self._note_failure(pilot, reason, event)

    async def _connect(self, link: _OpenLink) -> None:
        """Try the addresses of a name in a random order, and hold the first channel. Raises RpcError, OSError."""
        pilot = link.pilot
        tls = None if self._settings.plaintext else self._tls()
        addresses, host = await self._addresses(pilot)
        for number, address in enumerate(addresses):
            is_open = False
            try:
                async with open_channel(
                    address, tls=tls, server_hostname=self._settings.server_name or host, limits=self._limits
                ) as channel:
                    is_open = True
                    await self._greet(channel, pilot)
                    await self._hold(link, channel)
                return
            except RpcError as error:
                if number < len(addresses) - 1 and link.connected is None:
                    continue
                if isinstance(error, ConnectionLost) and self._settings.plaintext and not is_open:
                    raise ConnectionLost(f"{error}; {_OF_TLS}") from None
                raise

    async def _addresses(self, pilot: Pilot) -> tuple[list[str], str | None]:
        """The addresses behind a name, and the name, None for one that is an address already."""
        address = parse_address(pilot.address)
        if not isinstance(address, TcpAddress):
            return [pilot.address], None
        with trio.move_on_after(self._limits.handshake_timeout_seconds):
            found = await trio.socket.getaddrinfo(address.host, address.port, type=trio.socket.SOCK_STREAM)
            hosts = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
            if hosts == [address.host]:
                return [pilot.address], None
            self._random.shuffle(hosts)
            return [str(TcpAddress(host, address.port)) for host in hosts], address.host
        raise OSError(f"the name is not resolved within {self._limits.handshake_timeout_seconds:g} s")

    async def _greet(self, channel: Channel, pilot: Pilot) -> None:
        """Have a request of the agent's answered. Raises ConnectionLost where it is not."""
        if not self._hello:
            return
        path, bidirectional = XdsProtocol.SOTW.path, Cardinality.STREAM_STREAM
        metadata = dict(self.call_metadata())
        try:
            async with channel.request(path, bidirectional, bytes, bytes, metadata=metadata) as call:
                for number, hello in enumerate(self._hello, start=1):
                    so_far = HELLO_SECONDS * (number - 1)
                    with trio.move_on_after(ANSWER_SECONDS - so_far if number == len(self._hello) else HELLO_SECONDS):
                        await call.send_message(hello)
                        if await call.recv_message() is None:
                            raise ConnectionLost(f"{pilot.address}: it ends streams without an answer")
                        return
        except GRPCError as error:
            reason = f"{pilot.address}: {error.message or 'streams are refused'} ({error.status.name})"
            raise (StreamsRefused if event_of(error.status) is REFUSES else ConnectionLost)(reason) from None
        except StreamTerminatedError as error:
            if isinstance(error, ConnectionLost):
                raise
            raise ConnectionLost(f"{pilot.address}: {error}") from None
        raise ConnectionLost(f"{pilot.address}: connected, but no answer within {ANSWER_SECONDS:g} s")

    async def _watch_answers(self, link: _OpenLink, connected: Connected) -> None:
        """Leave a control plane that has become silent."""
        while True:
            link.doubted = trio.Event()
            await link.doubted.wait()
            try:
                await self._greet(connected.channel, connected.pilot)
            except ConnectionLost as error:
                self.note_refused(connected, str(error))

    async def _hold(self, link: _OpenLink, channel: Channel) -> None:
        """Keep a channel until it is lost, or released and done with."""
        pilot = link.pilot
        is_leaving = False

        async def watch_goaway() -> None:
            nonlocal is_leaving
            reason = await channel.wait_lost()
            is_leaving = not channel.is_gone
            log.debug("control plane takes no more streams", address=pilot.address, reason=reason)
            self._choice.leaving(link.number, trio.current_time())
            self._happened.set()

        async def until_released() -> None:
            await link.released.wait()
            with trio.move_on_after(RELEASE_SECONDS):
                await channel.wait_idle()

        link.connected = connected = Connected(pilot, channel, link.number)
        self._choice.ready(link.number, trio.current_time())
        self._happened.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch_goaway)
                nursery.start_soon(self._watch_answers, link, connected)
                await first_of(until_released, channel.wait_gone)
                nursery.cancel_scope.cancel()
        finally:
            link.connected = None
            if not link.released.is_set() and channel.lost is not None:
                if is_leaving:
                    log.debug("control plane has closed the connection", address=pilot.address)
                elif self._choice.used == link.number:
                    self._last_failure = f"{pilot.address}: {channel.lost}"
                    log.warning("control plane lost", address=pilot.address, reason=channel.lost)
            self._ended(link)

    def _ended(self, link: _OpenLink) -> None:
        """Tell the choice, which knows nothing of links that it released or was told of before."""
        self._choice.ended(link.number, trio.current_time())
        self._happened.set()

    def _note_failure(self, pilot: Pilot, reason: str, event: str) -> None:
        self._failures += 1
        if reason:
            self._last_failure = reason
        before, at = self._logged.get(pilot.address, ("", -math.inf))
        if reason and (reason != before or trio.current_time() - at >= REPEAT_SECONDS):
            self._logged[pilot.address] = (reason, trio.current_time())
            log.warning(event, address=pilot.address, reason=reason)


def _takes_streams(connected: Connected | None) -> bool:
    return connected is not None and connected.channel.lost is None
