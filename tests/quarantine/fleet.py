"""A World, its quarantine, and clients that refuse whatever holds a mark: in one thread, without a clock."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set

import attrs

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Delete, Event, Synced, Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.safety.quarantine.clients import in_words
from mesh_pilot.safety.quarantine.controller import QuarantineController
from mesh_pilot.safety.quarantine.options import DEFAULT_OPTIONS, QuarantineOptions
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Nack, Response, Variant
from mesh_pilot.xds.ads.stream import Stream
from tests.support.envoy_model import EnvoyModel
from tests.support.worlds import SOURCE, configs

MARK = "refuse-me"


Sent = tuple[str, tuple[tuple[str, bytes], ...], tuple[str, ...]]
"""A response: type, names with bytes, and names that are gone."""


def sent(response: Response) -> Sent:
    return response.type_url, tuple((r.name, r.body) for r in response.resources), tuple(response.removed)


class RefusingClient(EnvoyModel):
    """Refuses a response that holds one of its marks, as a whole."""

    def __init__(
        self, fleet: Fleet, proxy: Proxy, variant: Variant, marks: frozenset[str], *, build: str, words: str = ""
    ) -> None:
        self._fleet = fleet
        self._words = words
        self.marks = marks
        self.refusals = 0
        self.responses = 0
        self.log: list[Sent] = []
        super().__init__(fleet.catalog, attrs.evolve(proxy, build=build), variant)

    def new_stream(self) -> Stream:
        self._number = self._fleet.number()
        self.proxy = attrs.evolve(self.proxy, incremental=self.variant is Variant.DELTA)
        joining = self._fleet.quarantine.joining
        number = self._number
        stream = Stream(
            self._catalog,
            self.variant,
            admit=lambda _: joining(number, self.proxy),
            observer=self,
            trial_of=lambda: self._fleet.quarantine.trial_of(number),
        )
        self._joined = False
        self._new = stream
        return stream

    def objects_to(self, response: Response) -> str:
        self.responses += 1
        self.log.append(sent(response))
        found = sorted(mark for mark in self.marks if any(mark.encode() in r.body for r in response.resources))
        self.refusals += bool(found)
        return (self._words or f"I refuse {found[0]}") if found else ""

    def move(self, fleet: Fleet) -> None:
        """Connect to another control plane."""
        self.close()
        self._fleet, self._catalog = fleet, fleet.catalog
        self.connect()

    def leave(self) -> None:
        self.close()
        self._fleet.quarantine.left(self._number)

    def look(self) -> bool:
        """Take all that there is; True if there was anything, or anything to decide."""
        before = self.responses
        for _ in range(3):
            self.run()
            if not self.stream.waiting_for().referrers:
                break
            self.stream.end_reconnect_grace()
        keeper = self._fleet.quarantine
        if keeper.is_interested(self._number):
            keeper.settled(self._number)
        return self.responses != before

    def _check_named(self, response: Response) -> None:
        """A client that refuses clusters may be sent routes to them."""

    def _check_removed(self, removed: Set[str]) -> None:
        """Nor can it complain of clusters that are gone."""

    # -- observing the stream

    def connected(self, proxy: Proxy) -> None:
        self._fleet.quarantine.joined(self._number, proxy, self._new, lambda: None)

    def sent(self, response: Response) -> None:
        self._fleet.quarantine.sent(self._number, response.type_url)

    def acked(self, type_url: str, nonce: str, version: str) -> None:
        self._fleet.quarantine.accepted(self._number, type_url)

    def rejected(self, nack: Nack) -> None:
        self._fleet.quarantine.refused(self._number, nack)

    def reported(self, error: str | None) -> None: ...

    def warms(self, report: str | None) -> None: ...

    def unserved(self, type_url: str) -> None: ...


class Fleet:
    """A World with its quarantine, and clients."""

    def __init__(self, options: QuarantineOptions = DEFAULT_OPTIONS) -> None:
        self.world = World()
        self.world.expect(SOURCE)
        self.catalog = WorldCatalog(self.world)
        self.time = 0.0
        self.quarantine = QuarantineController(self.world, self._scope_of, options, clock=lambda: self.time)
        self.clients: list[RefusingClient] = []
        self._count = 0
        self.world.apply([Synced(SOURCE)])

    def _scope_of(self, proxy: Proxy) -> Hashable:
        return self.catalog.scope_of(proxy)

    def number(self) -> int:
        self._count += 1
        return self._count

    def join(
        self,
        proxy: Proxy,
        variant: Variant = Variant.DELTA,
        marks: frozenset[str] = frozenset((MARK,)),
        *,
        build: str = "envoy 1.40.0",
        words: str = "",
        identity: str | None = None,
    ) -> RefusingClient:
        """``identity``: the service account that its certificate proves; empty: nothing proves who it is."""
        if identity is not None:
            proven = f"spiffe://cluster.local/ns/{proxy.namespace}/sa/{identity}" if identity else ""
            proxy = attrs.evolve(proxy, identity=proven)
        proxy = attrs.evolve(proxy, peer=proxy.peer or proxy.ip_addresses[0])
        client = RefusingClient(self, proxy, variant, marks, build=build, words=words)
        self.clients.append(client)
        return client

    def take_over(self, client: RefusingClient) -> None:
        """A client of another fleet, whose control plane is gone, comes with what it has."""
        client.move(self)
        self.clients.append(client)

    def leave(self, client: RefusingClient) -> None:
        self.clients.remove(client)
        client.leave()

    def restart(self, client: RefusingClient) -> RefusingClient:
        """The client starts again, with nothing."""
        self.leave(client)
        return self.join(client.proxy, client.variant, client.marks, build=client.proxy.build)

    def reconnect(self, client: RefusingClient) -> None:
        """The client's stream breaks, and it comes back with what it has."""
        client.leave()
        client.connect()

    def apply(self, *events: Event) -> None:
        revision = self.world.apply(events)
        self.quarantine.revised(revision.changed)

    def edit(self, text: str) -> None:
        self.apply(*(Upsert(SOURCE, config) for config in configs(text)))

    def put(self, config: Config) -> None:
        self.apply(Upsert(SOURCE, config))

    def delete(self, *key: str) -> None:
        self.apply(Delete(SOURCE, ("config", *key)))

    def step(self) -> bool:
        """Everybody takes what there is once; True if anything happened."""
        happened = [client.look() for client in self.clients]
        events = self.quarantine.take_events()
        if events:
            self.apply(*events)
        return any(happened) or bool(events)

    def settle(self) -> None:
        """Until nothing happens any more, with all waiting over."""
        for _ in range(2000):
            if not self.step():
                if self.quarantine.deadline <= self.time + 3600:
                    self.time = max(self.time, self.quarantine.deadline)
                    self.quarantine.tick()
                    continue
                return
        raise AssertionError("never quiet")

    def withheld(self) -> Mapping[str, list[str]]:
        """Names of what is withheld, by domain."""
        return {in_words(q.domain): ["/".join(w.key[1:]) for w in q.withheld] for q in self.quarantine.withheld()}
