"""Real Envoys on a control plane within this process, which are shown objects and say what they refuse.

async with open_door(folder) as door:
    refusals = await door.show([item])     # over the fixed mesh; () when every Envoy took everything
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import attrs
import trio
import trio.testing

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.identity.authority.authority import Authority
from mesh_pilot.identity.certificates.secrets import Issuer
from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, Event, Item, Synced, Upsert, item_key
from mesh_pilot.model.proxy import Interception, NodeType, Proxy
from mesh_pilot.model.resource import RESOURCE_TYPES
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import open_listeners, serve
from mesh_pilot.net.rpc.net import address_of
from mesh_pilot.world import World
from mesh_pilot.xds.ads.context import XdsOptions
from mesh_pilot.xds.ads.messages import Nack
from mesh_pilot.xds.ads.server import XdsServer
from tests.door.mesh import ROUTER, SIDECAR, fixed_items
from tests.support.envoy import RealEnvoy, eventually, real_envoy

SOURCE = "door"

_CUSHION_SECONDS = 0.002
"""Quiet after which this process has nothing more to do."""

_AFTERTHOUGHT_SECONDS = 0.01
"""The time after its last answer within which an Envoy asks for what it then needs, such as secrets."""

_CUT = "...(truncated)"
"""The end of long words of an Envoy."""

_LOG_SECONDS = 0.1
_FLAGS = ("--file-flush-interval-msec", "20")
"""The wait for an Envoy's log, and how often it writes that."""

_TAIL = 500_000
"""Characters of a log that are searched."""

_ANSWER_SECONDS = 30.0
"""The longest wait for an Envoy's answers."""


class DoorError(Exception):
    """The fixed mesh itself is refused, so that nothing can be found; the text says why."""


@attrs.frozen
class Refusal:
    """A resource that an Envoy refused, or its end."""

    proxy: str
    """The name of the Envoy."""
    type: str
    """The short name of the type, such as `RDS`; `END` for an Envoy that ended or does not answer."""
    words: str
    """What Envoy says."""
    configs: tuple[ConfigKey, ...] = ()
    """The objects that the resource was made from, as far as they are known."""


class Door:
    """A control plane and its Envoys. State: the World, what was shown over the fixed mesh, the Envoys that run."""

    def __init__(self, folder: Path, world: World, server: XdsServer, address: str, turn: int) -> None:
        self.folder = folder
        self.world = world
        self.server = server
        self.address = address
        self.envoys: list[RealEnvoy] = []
        self.turn = turn
        """A number for each way in which the Envoys talk and listen."""
        self.starts = 0
        self.shown = 0
        """Changes that the Envoys were shown."""
        self._fixed = {item_key(item): item for item in fixed_items(folder)}
        self._held: dict[tuple[str, ...], Item] = dict(self._fixed)
        self._stack = AsyncExitStack()
        world.apply([*(Upsert(SOURCE, item) for item in self._fixed.values()), Synced(SOURCE)])

    async def start(self) -> None:
        """Start the Envoys again, in the way of this turn. Raises DoorError."""
        await self.stop()
        self._apply({})
        self.starts += 1
        for number, node in enumerate((SIDECAR, ROUTER)):
            delta = (number + self.turn) % 2 == 1
            if delta and self.turn % 4 < 2:
                node = attrs.evolve(node, metadata={"VIRTUAL_HOSTS": "split"})
            if node.type is NodeType.SIDECAR and self.turn % 3 == 2:
                node = attrs.evolve(node, interception=Interception.NONE)
            name = f"{node.name}-{self.starts}"
            running = real_envoy(self.address, self.folder, node, delta=delta, name=name, flags=_FLAGS)
            self.envoys.append(await self._stack.enter_async_context(running))
        before = self.server.status.totals.rejects.total()
        with trio.fail_after(60):
            for envoy in self.envoys:
                await envoy.wait_live()
                await eventually(envoy.takes_traffic, what="workers run")
        refusals = await self._settled(before)
        if refusals:
            raise DoorError(f"the fixed mesh is refused: {refusals[0].words}")

    async def stop(self) -> None:
        """End the Envoys."""
        await self._stack.aclose()
        self._stack, self.envoys = AsyncExitStack(), []

    async def show(self, items: Iterable[Item]) -> tuple[Refusal, ...]:
        """What the Envoys refuse once the mesh is the fixed one with these objects over it, and no others.

        An Envoy that ended is reported, and all are started again.
        """
        before = self.server.status.totals.rejects.total()
        self._apply({item_key(item): item for item in items})
        self.shown += 1
        refusals = await self._settled(before)
        if any(refusal.type == "END" for refusal in refusals):
            await self.start()
        return refusals

    async def show_alone(self, items: Iterable[Item]) -> tuple[Refusal, ...]:
        """The same, coming from the fixed mesh alone."""
        await self.show(())
        return await self.show(items)

    def _apply(self, over: dict[tuple[str, ...], Item]) -> None:
        wanted = {**self._fixed, **over}
        events: list[Event] = [Delete(SOURCE, key) for key in self._held if key not in wanted]
        events += [Upsert(SOURCE, item) for key, item in wanted.items() if self._held.get(key) is not item]
        self._held = wanted
        self.world.apply(events)

    async def _settled(self, before: int) -> tuple[Refusal, ...]:
        """Wait until every response is answered; what was refused since there were `before` refusals."""
        refusals: list[Refusal] = []
        sent = -1
        with trio.move_on_after(_ANSWER_SECONDS) as scope:
            while True:
                await trio.testing.wait_all_tasks_blocked(_CUSHION_SECONDS)
                if gone := [envoy for envoy in self.envoys if envoy.process.poll() is not None]:
                    refusals += [_end_of(envoy) for envoy in gone]
                    break
                waiting = [connection.waiting for connection in self.server.status.connections()]
                if len(waiting) == len(self.envoys) and not any(w.acks or w.endpoints or w.node for w in waiting):
                    if sent == self.server.status.totals.pushes.total():
                        break
                    sent = self.server.status.totals.pushes.total()
                    await trio.sleep(_AFTERTHOUGHT_SECONDS)
                await trio.sleep(_CUSHION_SECONDS)
        if scope.cancelled_caught:
            slow = [c for c in self.server.status.connections() if c.waiting.acks]
            words = "; ".join(f"{c.proxy.id if c.proxy else '?'} waits: {c.waiting}" for c in slow)
            refusals.append(Refusal("", "END", f"no answer within {_ANSWER_SECONDS} s: {words}"))
        count = self.server.status.totals.rejects.total() - before
        for record in self.server.status.recent_nacks()[-count:] if count else ():
            nack = record.nack
            words = await self._whole_words(nack) if nack.reason.endswith(_CUT) else nack.reason
            refusals.append(Refusal(nack.proxy.name, RESOURCE_TYPES[nack.type_url].short, words, nack.configs))
        return tuple(refusals)

    async def _whole_words(self, nack: Nack) -> str:
        """The reason of a NACK that Envoy cut short, from its log."""
        await trio.sleep(_LOG_SECONDS)
        begin = nack.reason.removesuffix(_CUT)
        (log,) = [e.log for e in self.envoys if nack.proxy.name.startswith(e.log.stem.rpartition("-")[0])]
        tail = log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
        at = tail.rfind(begin[:1000])
        return re.split(r"\n\[\d{4}-", tail[at:], maxsplit=1)[0] if at >= 0 else nack.reason


def _end_of(envoy: RealEnvoy) -> Refusal:
    """The end of an Envoy, with what it logged as critical besides the addresses of its stack."""
    lines = envoy.log.read_text(encoding="utf-8", errors="replace").splitlines()
    words = [line.rpartition("] ")[2] for line in lines if "[critical]" in line and "#" not in line]
    said = "; ".join(word for word in words if "Caught" in word or "assert" in word) or "; ".join(words)
    return Refusal(envoy.log.stem, "END", f"envoy ended with {envoy.process.returncode}: {said[:1000]}")


@asynccontextmanager
async def open_door(folder: Path, turn: int = 0) -> AsyncIterator[Door]:
    """A door with its Envoys running, for the length of the block. Raises DoorError.

    By `turn` they take State of the World or Delta, whole route tables or split ones, and intercept traffic or do not.
    """
    world = World()
    world.expect(SOURCE)
    trust, now = TrustStore(), partial(datetime.now, UTC)
    issuer = Issuer(Authority.ephemeral(now=now, trust=trust), trust, now=now)
    # Nothing waits: not after a refusal, and not for endpoints that an Envoy does not ask for.
    options = XdsOptions(nack_backoff_seconds=0.0, warming_seconds=0.3, reconnect_grace_seconds=0.05)
    server = XdsServer(WorldCatalog(world, issuer), identifier="door", options=options, authenticate=_certify)
    listeners = await open_listeners("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: serve(server.services(), listeners, task_status=task_status))
        nursery.start_soon(issuer.run)
        door = Door(folder, world, server, address_of(listeners[0].socket), turn)
        try:
            await door.start()
            yield door
        finally:
            with trio.CancelScope(shield=True):
                await door.stop()
            nursery.cancel_scope.cancel()


async def _certify(_: object) -> Callable[[Proxy], Proxy]:
    return _certified


def _certified(proxy: Proxy) -> Proxy:
    return attrs.evolve(proxy, identity=str(Identity("cluster.local", proxy.namespace, proxy.name.partition(".")[0])))
