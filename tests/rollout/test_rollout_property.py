"""Rollouts over streams under any order of edits, refusals, orders, restarts and time: as from scratch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.events import Item, RolloutPlan, Synced, Upsert
from mesh_pilot.safety.rollout.progress import Progress, RolloutError, RolloutPhase, allowed
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Variant
from tests.quarantine.fleet import RefusingClient
from tests.quarantine.test_controller_property import BASE, KINDS, NEW, TENANTS, clients, written
from tests.rollout.fleet import RolloutFleet
from tests.support.envoy_model import EnvoyModel
from tests.support.sample import examples
from tests.support.worlds import SOURCE, sidecar

PLAN = RolloutPlan((25.0, 60.0, 100.0), 60.0)

Key = tuple[str, ...]


def served(fleet: RolloutFleet, client: RefusingClient) -> dict[Key, Item]:
    """The items as a client is to be served them."""
    items = fleet.world.items_of(SOURCE)
    for each in fleet.world.old_values(client.proxy.id):
        _replace(items, each.key, each.new, each.old)
    domains = fleet.quarantine._memory.clients[client._number].proxy.domains
    for withheld in fleet.world.withheld_from(domains):
        _replace(items, withheld.key, withheld.refused, withheld.served)
    return items


def _replace(items: dict[Key, Item], key: Key, value: tuple[Item, ...], other: tuple[Item, ...]) -> None:
    if tuple(filter(None, [items.get(key)])) == value:
        items.pop(key, None)
        if other:
            items[key] = other[0]


class RolledOut(RuleBasedStateMachine):
    """Proxies outside the canary keep their bytes; all have what a World from scratch gives for what is served."""

    @initialize(variants=st.lists(st.sampled_from(list(Variant)), min_size=5, max_size=5), always=st.booleans())
    def start(self, variants: list[Variant], always: bool) -> None:
        self.fleet = RolloutFleet()
        self.fleet.edit(BASE)
        self.fleet.rollouts.progress._always = PLAN if always else None
        self.count = 0
        more = {"name": "edge-2", "namespace": "infra", "labels": {"app": "edge"}, "node_type": "router"}
        for (given, _, words), variant in zip([*clients(), (more, "", "")], variants, strict=True):
            proxy = sidecar(**given)  # type: ignore[arg-type]
            self.fleet.join(proxy, variant, frozenset((NEW,)), words=words)
        self.fleet.settle()

    def text(self, kind: str, tenant: str, mark: str) -> str:
        self.count += 1
        return written(kind, tenant, f"{mark or 'fine'}-{self.count}")

    @rule(
        edits=st.lists(
            st.tuples(st.sampled_from(KINDS), st.sampled_from(TENANTS), st.sampled_from(["", "", "", NEW])),
            min_size=1,
            max_size=3,
        )
    )
    def edit(self, edits: list[tuple[str, str, str]]) -> None:
        self.fleet.settle()
        before = {client._number: client.held for client in self.fleet.clients}
        quiet = not self.fleet.withheld()
        watched = self.fleet.phase in (RolloutPhase.ARMED, RolloutPhase.RUNNING, RolloutPhase.PAUSED)
        had = {client._number for client in self.fleet.canary()}
        self.fleet.edit("\n---\n".join(self.text(*each) for each in edits))
        canary = {client._number for client in self.fleet.canary()}
        self.fleet.settle()
        if quiet and watched and self.fleet.rollouts.progress.state is not None and not self.fleet.withheld():
            for client in self.fleet.clients:
                if client._number not in had | canary:
                    assert client.held == before[client._number], client

    @rule(kind=st.sampled_from(KINDS), tenant=st.sampled_from(TENANTS))
    def delete(self, kind: str, tenant: str) -> None:
        self.fleet.delete(kind, "istio-system" if kind == "EnvoyFilter" else tenant, tenant)

    @rule(tenant=st.sampled_from(TENANTS))
    def endpoints(self, tenant: str) -> None:
        """Endpoints of a ServiceEntry that is not part of a rollout reach all at once."""
        self.count += 1
        documents = [text for text in BASE.split("---") if f"{tenant}.example.com" in text]
        self.fleet.edit(documents[0].replace("10.9.9.9", f"10.8.0.{self.count % 250}"))

    @rule()
    def arm(self) -> None:
        if self.fleet.phase is RolloutPhase.OFF:
            self.fleet.arm(PLAN)

    @rule(order=st.sampled_from(["pause", "resume", "promote", "abort"]))
    def order(self, order: str) -> None:
        orders: dict[str, Callable[[Progress], None]] = {
            "pause": lambda progress: progress.pause(),
            "resume": lambda progress: progress.resume(self.fleet.time),
            "promote": lambda progress: progress.promote(),
            "abort": lambda progress: progress.abort("an operator"),
        }
        with suppress(RolloutError):
            self.fleet.rollouts.order(orders[order], order)

    @rule(steps=st.integers(1, 3))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.fleet.step()

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0]))
    def later(self, seconds: float) -> None:
        self.fleet.later(seconds)
        self.check()

    @rule(number=st.integers(0, 4))
    def reconnect(self, number: int) -> None:
        self.fleet.reconnect(self.fleet.clients[number])

    @rule(number=st.integers(0, 4))
    def restart(self, number: int) -> None:
        self.fleet.restart(self.fleet.clients[number])

    @rule()
    def settle(self) -> None:
        self.fleet.settle()
        self.check()

    def check(self) -> None:
        state = self.fleet.rollouts.progress.state
        assert self.fleet.world.item_of("rollout", ("rollout",)) is state
        if state is not None and state.is_running and state.share < 100:
            assert len(state.canary) <= allowed(60.0, len(self.fleet.clients))
        for client in self.fleet.clients:
            held = {r.body for found in client.has.values() for r in found.values()}
            assert not any(mark.encode() in body for body in held for mark in client.marks), client
            fresh_world = World()
            fresh_world.apply([*(Upsert(SOURCE, item) for item in served(self.fleet, client).values()), Synced(SOURCE)])
            fresh = EnvoyModel(WorldCatalog(fresh_world), client.proxy, client.variant)
            fresh.settle()
            assert client.held == fresh.held, client

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        self.settle()
        if self.fleet.phase is not RolloutPhase.OFF:
            self.order("abort")
            self.order("promote")
            self.settle()
        assert self.fleet.phase is RolloutPhase.OFF
        assert self.fleet.rollouts.progress.is_idle or self.fleet.rollouts.progress.state is None
        assert not [name for name in self.fleet.world.overlays if "canary" in name]


class TestRolledOut(RolledOut.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=examples(120), stateful_step_count=20, deadline=None, derandomize=True)
