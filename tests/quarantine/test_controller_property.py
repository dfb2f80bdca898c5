"""Quarantine under any order of edits, restarts and reconnects, by clients that refuse whatever holds a mark."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import Synced, Upsert
from mesh_pilot.safety.quarantine.options import QuarantineOptions
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Variant
from tests.quarantine.fleet import Fleet, RefusingClient
from tests.support.envoy_model import EnvoyModel
from tests.support.sample import examples
from tests.support.worlds import SOURCE, configs, sidecar

TENANTS = ("a", "b", "c", "d")
KINDS = ("VirtualService", "DestinationRule", "EnvoyFilter", "Gateway")
OLD, NEW = "refused-by-old", "refused-by-all"
"""Marks: the old build refuses both, the new one only the second."""

BASE = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  selector: {app: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]
""" + "".join(
    f"""
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {tenant}, namespace: {tenant}}}
spec:
  hosts: [{tenant}.example.com]
  ports: [{{number: 80, name: http, protocol: HTTP}}]
  resolution: STATIC
  endpoints: [{{address: 10.9.9.9}}]
"""
    for tenant in TENANTS
)


def written(kind: str, tenant: str, value: str) -> str:
    """An object of a tenant with a string that ends in some resource."""
    version = "v1alpha3" if kind == "EnvoyFilter" else "v1"
    namespace = "istio-system" if kind == "EnvoyFilter" else tenant
    named = f"metadata: {{name: {tenant}, namespace: {namespace}}}"
    head = f"apiVersion: networking.istio.io/{version}\nkind: {kind}\n{named}\nspec:"
    match kind:
        case "VirtualService":
            return f"""{head}
  hosts: [{tenant}.example.com]
  gateways: [infra/edge, mesh]
  http:
  - headers: {{response: {{set: {{x-version: "{value}"}}}}}}
    route: [{{destination: {{host: {tenant}.example.com}}}}]
"""
        case "DestinationRule":
            return f"""{head}
  host: {tenant}.example.com
  trafficPolicy: {{tls: {{mode: SIMPLE, sni: "{value}"}}}}
"""
        case "Gateway":
            return f"""{head}
  selector: {{app: edge}}
  servers:
  - port: {{number: 81, name: tcp-{tenant}, protocol: TLS}}
    hosts: ["{value}.{tenant}.com"]
    tls: {{mode: PASSTHROUGH}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {tenant}-tls, namespace: {tenant}}}
spec:
  hosts: ["{value}.{tenant}.com"]
  gateways: [{tenant}]
  tls: [{{match: [{{sniHosts: ["{value}.{tenant}.com"]}}], route: [{{destination: {{host: {tenant}.example.com}}}}]}}]
"""
        case _:
            return f"""{head}
  configPatches:
  - applyTo: CLUSTER
    match: {{cluster: {{service: {tenant}.example.com}}}}
    patch: {{operation: MERGE, value: {{alt_stat_name: "{value}"}}}}
"""


def clients() -> list[tuple[dict[str, object], str, str]]:
    edge = {"name": "edge-1", "namespace": "infra", "labels": {"app": "edge"}, "node_type": "router"}
    return [
        (edge, "envoy old", ""),
        ({"name": "one", "namespace": "shop"}, "envoy old", ""),
        ({"name": "two", "namespace": "shop"}, "envoy old", "no, and I do not say why"),
        ({"name": "new", "namespace": "blog"}, "envoy new", ""),
    ]


class Quarantined(RuleBasedStateMachine):
    """Every unmarked object takes effect, no marked one is in force, and nobody else's is withheld."""

    @initialize(
        variants=st.lists(st.sampled_from(list(Variant)), min_size=4, max_size=4),
        identities=st.lists(st.sampled_from(["", "one", "two"]), min_size=4, max_size=4),
    )
    def start(self, variants: list[Variant], identities: list[str]) -> None:
        self.fleet = Fleet(QuarantineOptions(trials_per_minute=10_000))
        self.fleet.edit(BASE)
        self.count = 0
        self.marked = 0
        self.joins = 0
        for (given, build, words), variant, identity in zip(clients(), variants, identities, strict=True):
            marks = frozenset((OLD, NEW) if build == "envoy old" else (NEW,))
            proxy = sidecar(**given)  # type: ignore[arg-type]
            self.fleet.join(proxy, variant, marks, build=build, words=words, identity=identity)
        self.fleet.settle()

    def value(self, mark: str) -> str:
        self.count += 1
        self.marked += bool(mark)
        return f"{mark or 'fine'}-{self.count}"

    @rule(
        edits=st.lists(
            st.tuples(st.sampled_from(KINDS), st.sampled_from(TENANTS), st.sampled_from(["", "", "", OLD, NEW])),
            min_size=1,
            max_size=4,
        )
    )
    def edit(self, edits: list[tuple[str, str, str]]) -> None:
        self.fleet.edit("\n---\n".join(written(kind, tenant, self.value(mark)) for kind, tenant, mark in edits))

    @rule(kind=st.sampled_from(KINDS), tenant=st.sampled_from(TENANTS))
    def delete(self, kind: str, tenant: str) -> None:
        self.fleet.delete(kind, "istio-system" if kind == "EnvoyFilter" else tenant, tenant)

    @rule(steps=st.integers(1, 3))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.fleet.step()

    @rule(number=st.integers(0, 3))
    def restart(self, number: int) -> None:
        self.joins += 1
        self.fleet.restart(self.fleet.clients[number])

    @rule(number=st.integers(0, 3))
    def reconnect(self, number: int) -> None:
        self.joins += 1
        self.fleet.reconnect(self.fleet.clients[number])

    @rule()
    def settle(self) -> None:
        self.fleet.settle()
        self.check()

    def check(self) -> None:
        for quarantine in self.fleet.quarantine.withheld():
            for withheld in quarantine.withheld:
                assert any(mark in repr(withheld.refused) for mark in (OLD, NEW)), f"innocent: {withheld}"
        for client in self.fleet.clients:
            held = {r.body for found in client.has.values() for r in found.values()}
            assert not any(mark.encode() in body for body in held for mark in client.marks), client
            self.check_as_from_scratch(client)

    def check_as_from_scratch(self, client: RefusingClient) -> None:
        """The client has what it would have of a World in which the withheld objects are those that it is served."""
        domains = self.fleet.quarantine._memory.clients[client._number].proxy.domains
        withheld = self.fleet.world.withheld_from(domains)
        items = self.fleet.world.items_of(SOURCE)
        for each in withheld:
            items.pop(each.key, None)
            if each.served:
                items[each.key] = each.served[0]
        fresh_world = World()
        fresh_world.apply([*(Upsert(SOURCE, item) for item in items.values()), Synced(SOURCE)])
        fresh = EnvoyModel(WorldCatalog(fresh_world), client.proxy, client.variant)
        fresh.settle()
        assert client.held == fresh.held, client

    @invariant()
    def trials_are_few(self) -> None:
        if hasattr(self, "fleet"):
            proxies = 4
            assert self.fleet.quarantine.statistics().trials <= 8 * proxies * (self.marked + self.joins + 1)

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        self.settle()
        for item in self.fleet.world.items_of(SOURCE).values():
            tenant = item.key.name.removesuffix("-tls") if isinstance(item, Config) else ""
            if isinstance(item, Config) and tenant in TENANTS and item.key.kind in KINDS:
                kind = item.key.kind if tenant == item.key.name else "Gateway"  # may be gone without its VirtualService
                self.fleet.edit(written(kind, tenant, self.value("")))
        self.settle()
        assert not self.fleet.withheld() and not self.fleet.world.overlays
        assert not self.fleet.quarantine.held()


def test_a_refusal_that_a_trial_takes_away_counts_again_when_it_is_back() -> None:
    """The stream does not send it again, so the client of the new build does not say so again."""
    machine = Quarantined()
    machine.start([Variant.SOTW] * 4, ["one", "two", "two", "two"])
    machine.edit([("DestinationRule", "a", NEW), ("VirtualService", "a", "")])
    machine.settle()
    machine.edit([("DestinationRule", "a", NEW), ("VirtualService", "a", ""), ("VirtualService", "a", NEW)])
    machine.settle()
    both = ["DestinationRule/a/a", "VirtualService/a/a"]
    assert machine.fleet.withheld()["all proxies of envoy old"] == both
    assert machine.fleet.withheld()["proxies of spiffe://cluster.local/ns/blog/sa/two with envoy new"] == both


class TestQuarantined(Quarantined.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=examples(60), stateful_step_count=12, deadline=None, derandomize=True)


assert configs(BASE)
