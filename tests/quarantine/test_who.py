"""Whose refusals cost whom what: each line of "Who can cost whom what" about quarantine, with hostile clients."""

from __future__ import annotations

from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, LISTENER
from mesh_pilot.safety.quarantine import verdicts
from mesh_pilot.safety.quarantine.clients import domains_of
from mesh_pilot.safety.quarantine.hints import may_be_the_machine
from mesh_pilot.safety.quarantine.options import QuarantineOptions
from mesh_pilot.xds.ads.messages import Variant
from tests.quarantine.fleet import MARK, Fleet, RefusingClient
from tests.quarantine.test_controller import GATEWAY, edge_of, has, route
from tests.quarantine.test_controller_restart import restarted
from tests.support.worlds import sidecar

WEB = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 18080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.1.1}, {address: 127.0.1.2}, {address: 127.0.1.3}]
"""

TAKEN = "Error adding/updating listener(s) 127.0.1.1_18080: cannot bind '127.0.1.1:18080': Address already in use"
WEB_CLUSTER = "outbound|18080||web.test"

VICTIM = "spiffe://cluster.local/ns/bank/sa/bank"

ALL = frozenset({"web.test"})
NOTHING: frozenset[str] = frozenset()


@pytest.fixture(params=list(Variant))
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


def caller(name: str = "caller", *, at: str = "10.0.0.9") -> Proxy:
    return attrs.evolve(sidecar(at, name=name, namespace="other"), peer=at)


def at_web(name: str, *, namespace: str = "shop", at: str = "127.0.1.1") -> Proxy:
    """A sidecar whose inbound listener is made from the ServiceEntry."""
    return attrs.evolve(sidecar("127.0.1.1", name=name, namespace=namespace, INTERCEPTION_MODE="NONE"), peer=at)


def is_served(client: RefusingClient) -> bool:
    return WEB_CLUSTER in client.has[CLUSTER]


class RefusingListeners(RefusingClient):
    """Refuses listeners alone: of the rest it takes everything."""

    def objects_to(self, response):  # type: ignore[no-untyped-def]
        return super().objects_to(response) if response.type_url == LISTENER else ""


def join_attacker(fleet: Fleet, proxy: Proxy, variant: Variant, *, words: str, identity: str) -> RefusingClient:
    proven = f"spiffe://cluster.local/ns/{proxy.namespace}/sa/{identity}" if identity else ""
    client = RefusingListeners(
        fleet, attrs.evolve(proxy, identity=proven), variant, ALL, build="envoy 1.40.0", words=words
    )
    fleet.clients.append(client)
    return client


@pytest.mark.parametrize("words", [TAKEN, "I do not like it"])
@pytest.mark.parametrize("identity", ["", "mallory"])
def test_a_service_stays_with_its_callers_whatever_one_sidecar_refuses(
    variant: Variant, words: str, identity: str
) -> None:
    """M1: by accident (a port that is taken) and on purpose, in plaintext and with a certificate."""
    fleet = Fleet()
    fleet.edit(WEB)
    old = fleet.join(caller(), variant, NOTHING, identity="caller" if identity else "")
    fleet.settle()
    attacker = join_attacker(fleet, at_web("evil"), variant, words=words, identity=identity)
    happens = True
    while happens:
        happens = fleet.step()
        assert is_served(old)
    fleet.settle()
    assert attacker.refusals and fleet.withheld()
    assert is_served(old)
    fleet.reconnect(old)
    fleet.settle()
    assert is_served(old)
    new = fleet.join(caller("new", at="10.0.0.10"), variant, NOTHING, identity="caller" if identity else "")
    fleet.settle()
    assert is_served(new)
    fleet.leave(attacker)
    fleet.settle()
    assert is_served(old) and is_served(new)


def test_a_machines_reason_is_its_own_even_if_all_of_an_identity_give_it(variant: Variant) -> None:
    fleet = Fleet()
    fleet.edit(WEB)
    for name in ("one", "two"):
        join_attacker(fleet, at_web(name), variant, words=TAKEN, identity=name)
    fleet.settle()
    assert all(domain.endswith(" alone") for domain in fleet.withheld())
    third = fleet.join(at_web("three"), variant, NOTHING, identity="one")
    fleet.settle()
    assert is_served(third)


def test_a_proxy_is_sent_what_its_machine_did_not_take_when_it_connects_again(variant: Variant) -> None:
    fleet = Fleet()
    fleet.edit(WEB)
    sidecar = join_attacker(fleet, at_web("web"), variant, words=TAKEN, identity="web")
    fleet.settle()
    assert fleet.withheld() and not is_served(sidecar)
    fleet.reconnect(sidecar)
    fleet.settle()
    assert sidecar.refusals == 1, "not at once"
    sidecar.marks = NOTHING
    fleet.quarantine._now = lambda: datetime.now(UTC) + verdicts.RETRIED_AFTER
    fleet.reconnect(sidecar)
    fleet.settle()
    assert is_served(sidecar)
    assert not fleet.withheld() and not fleet.world.overlays


def test_what_an_identity_refuses_is_withheld_from_its_proxies_that_begin_later(variant: Variant) -> None:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("bad", "bad-1"))
    fleet.join(edge_of("edge-1"), variant)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    later = fleet.join(edge_of("edge-2"), variant)
    fleet.settle()
    assert later.refusals == 0 and has(later, "bad-1")
    other = fleet.join(edge_of("edge-3"), variant, NOTHING, identity="other")
    fleet.settle()
    assert has(other, MARK)


def test_the_build_goes_without_what_two_identities_refuse_but_those_that_have_accepted_it(variant: Variant) -> None:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("bad", "bad-1"))
    has_it = fleet.join(edge_of("has-it"), variant, NOTHING, identity="has-it")
    one = fleet.join(edge_of("one"), variant, identity="one")
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    later = fleet.join(edge_of("later"), variant, NOTHING, identity="later")
    fleet.settle()
    assert has(later, MARK), "one identity has refused it"
    two = fleet.join(edge_of("two"), variant, identity="two")
    fleet.settle()
    assert two.refusals == 1 and "all proxies of envoy 1.40.0" in fleet.withheld()
    for client in (has_it, later):
        assert has(client, MARK)
        fleet.reconnect(client)
        fleet.settle()
        assert has(client, MARK)
    last = fleet.join(edge_of("last"), variant, NOTHING, identity="last")
    plain = fleet.join(edge_of("plain"), variant, NOTHING, identity="")
    fleet.settle()
    assert not has(last, MARK) and not has(plain, MARK)
    has_it.marks = frozenset({MARK})
    has_it = fleet.restart(has_it)
    fleet.settle()
    assert has_it.refusals and not has(has_it, MARK), "it keeps it until it refuses it itself"
    assert one.refusals


def test_what_proxies_keep_is_kept_over_a_restart_of_the_control_plane(variant: Variant) -> None:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("bad", "bad-1"))
    has_it = fleet.join(edge_of("has-it"), variant, NOTHING, identity="has-it")
    for name in ("one", "two"):
        fleet.join(edge_of(name), variant, identity=name)
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    after = restarted(fleet)
    assert after.withheld() == fleet.withheld()
    again = after.join(has_it.proxy, variant, NOTHING)
    other = after.join(edge_of("other"), variant, NOTHING, identity="other")
    after.settle()
    assert has(again, MARK) and has(other, "bad-1")
    after.edit(route("bad", "bad-2"))
    after.settle()
    assert after.withheld() == {} and not after.world.overlays


def test_in_plaintext_each_proxy_withholds_from_itself_also_when_it_connects_again(variant: Variant) -> None:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("bad", "bad-1"))
    proxies = [attrs.evolve(edge_of(f"edge-{n}"), peer=f"10.0.0.{n}") for n in range(3)]
    first, second, third = (fleet.join(p, variant, frozenset({MARK}), identity="") for p in proxies)
    third.marks = NOTHING
    fleet.settle()
    fleet.edit(route("bad", MARK))
    fleet.settle()
    assert has(first, "bad-1") and has(second, "bad-1") and has(third, MARK)
    assert len(fleet.world.overlays) == 1, "who is without the same reads the same overlay"
    refusals = first.refusals
    again = fleet.restart(first)
    fleet.settle()
    assert again.refusals == 0 and refusals == 1
    elsewhere = fleet.join(attrs.evolve(first.proxy, peer="10.0.0.99"), variant, NOTHING)
    fleet.settle()
    assert has(elsewhere, MARK), "the same name at another address is somebody else"


def test_invented_builds_and_names_leave_the_groups_to_others(variant: Variant) -> None:
    """R2: one party has a quarter of the groups, whatever it calls itself."""
    fleet = Fleet(QuarantineOptions(max_groups=8))
    fleet.edit(GATEWAY + "".join(route(f"evil-{n}", f"{MARK}-{n}") for n in range(20)) + route("bank", "bank-1"))
    for number in range(20):
        mallory = attrs.evolve(edge_of(f"m-{number}"), peer="10.6.6.6")
        marks = frozenset({f"{MARK}-{number}"})
        fleet.join(mallory, variant, marks, build=f"envoy {number}", identity="" if number % 2 else "mallory")
        fleet.settle()
    assert len(fleet.world.overlays) <= 4
    bank = fleet.join(edge_of("bank"), variant, frozenset({"broken"}), identity="bank")
    fleet.settle()
    fleet.edit(route("bank", "broken"))
    fleet.settle()
    assert has(bank, "bank-1")
    assert "VirtualService/bank/bank" in {name for names in fleet.withheld().values() for name in names}


@given(st.data())
def test_no_name_or_build_of_a_client_is_a_domain_of_another_one(data: st.DataObject) -> None:
    """A client chooses its node id and its build, with texts of the victim's domains in any place."""
    victims = [attrs.evolve(edge_of("victim"), build="envoy 1", identity=who, peer="10.0.0.1") for who in ("", VICTIM)]
    known = [domains_of(victim, 1) for victim in victims]
    words = [*(word for domains in known for d in domains for word in (d, *d.split(" "))), " ", "proxy ", "x"]
    text = st.lists(st.sampled_from(words), min_size=1, max_size=5).map("".join)
    claimed = attrs.evolve(victims[0], id=data.draw(text), build=data.draw(text), peer="10.6.6.6")
    for who in ("", "spiffe://cluster.local/ns/evil/sa/mallory"):
        *own, _ = domains_of(attrs.evolve(claimed, identity=who), 2)
        for domains in known:
            assert not {*own} & {*domains}


def test_who_accepts_everything_hides_nothing_from_others_of_its_scope(variant: Variant) -> None:
    """The first answers of a new client are compared with what its own party has accepted, and nobody else's."""
    fleet = Fleet()
    fleet.edit(GATEWAY + route("good", "good-1") + route("bad", MARK))
    fleet.join(edge_of("liar"), variant, NOTHING, identity="")
    fleet.settle()
    honest = fleet.join(edge_of("honest"), variant, identity="honest")
    fleet.settle()
    assert has(honest, "good-1") and not has(honest, MARK)
    assert [names for d, names in fleet.withheld().items() if "honest" in d] == [["VirtualService/bad/bad"]]


class Silent(RefusingClient):
    """Refuses once, and says nothing to trials."""

    def look(self) -> bool:
        return False if self.refusals else super().look()


def test_who_does_not_answer_trials_holds_up_its_own_address(variant: Variant) -> None:
    fleet = Fleet()
    fleet.edit(GATEWAY + route("bad", MARK) + route("good", "good-1"))
    for number in range(20):
        node = attrs.evolve(edge_of(f"m-{number}"), peer="10.6.6.6", identity="")
        fleet.clients.append(Silent(fleet, node, variant, frozenset({MARK}), build="envoy 1.40.0"))
        fleet.step()
    honest = fleet.join(edge_of("honest"), variant, identity="honest")
    for _ in range(60):
        fleet.step()
    assert fleet.time == 0.0, "without waiting for anybody"
    assert has(honest, "good-1") and not has(honest, MARK)


def test_plaintext_from_many_addresses_leaves_half_of_the_groups_to_proven_identities(variant: Variant) -> None:
    fleet = Fleet(QuarantineOptions(max_groups=8))
    fleet.edit(GATEWAY + "".join(route(f"evil-{n}", f"{MARK}-{n}-") for n in range(16)) + route("bank", "bank-1"))
    for number in range(16):
        mallory = attrs.evolve(edge_of(f"m-{number}"), peer=f"10.6.6.{number % 4}")
        fleet.join(mallory, variant, frozenset({f"{MARK}-{number}-"}), identity="")
        fleet.settle()
    assert len(fleet.world.overlays) == 4
    bank = fleet.join(edge_of("bank"), variant, frozenset({"broken"}), identity="bank")
    fleet.settle()
    fleet.edit(route("bank", "broken"))
    fleet.settle()
    assert has(bank, "bank-1")
    assert not [held for held in fleet.quarantine.held() if held.proxy == bank.proxy.name]


def test_who_comes_and_goes_under_ever_new_names_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, variant: Variant
) -> None:
    monkeypatch.setattr(verdicts, "MAX_LEFT", 8)
    fleet = Fleet()
    fleet.edit(GATEWAY + route("bad", MARK))
    for number in range(10):
        client = fleet.join(attrs.evolve(edge_of(f"m-{number}"), peer="10.6.6.6"), variant, identity="")
        fleet.settle()
        fleet.leave(client)
        fleet.settle()
    assert len(fleet.withheld()) == 2


@pytest.mark.parametrize(
    "words",
    [
        TAKEN,
        "cannot bind '[::1]:80': Cannot assign requested address",
        "unable to open file '/dev/stdout': Permission denied",
        "unable to read file: /etc/certs/key.pem",
        "Invalid path: /etc/certs/cert-chain.pem",
        "paths must refer to an existing path in the system: '/etc/certs' does not exist",
        "file /usr/share/geo.mmdb does not exist",
        "Failed to open log-file '/var/log/x'. e.what(): Too many open files",
        "listener x: setting socket option failed: Operation not permitted",
    ],
)
def test_a_reason_about_ports_files_and_descriptors_may_be_the_machines(words: str) -> None:
    assert may_be_the_machine(words)


@pytest.mark.parametrize(
    "words",
    [
        "Error adding/updating listener(s) 0.0.0.0_80: Didn't find a registered implementation for 'envoy.filters.x'",
        "route: unknown cluster 'outbound|80||web.test'",
        "Proto constraint validation failed (RouteConfiguration.Name: value length must be at least 1 characters)",
        "Failed to load certificate chain from <inline>, at most one certificate of a given type may be specified",
        "script load error: [string \"x\"]:1: '=' expected near 'file'",
    ],
)
def test_a_reason_about_the_resource_is_not_the_machines(words: str) -> None:
    assert not may_be_the_machine(words)
