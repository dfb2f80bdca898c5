"""Who is admitted at which address, without connections."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from mesh_pilot.identity.trust.callers import TrustDomains
from mesh_pilot.model.events import Upsert
from mesh_pilot.model.proxy import Proxy, parse_proxy
from mesh_pilot.model.service import Locality
from mesh_pilot.replicas.registration.admission import MAX_AT_ADDRESS, AdmissionRules, admitted, reported_entries
from mesh_pilot.replicas.registration.records import Record, RegisteredWorkload, items_of
from mesh_pilot.replicas.registration.registrar import WorkloadAdmission
from mesh_pilot.world import World
from mesh_pilot.world.service_entries import AUTO_REGISTRATION
from mesh_pilot.xds.ads.messages import Code, StreamError
from tests.support.worlds import world_of

GROUP = """
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: shop}
spec: {metadata: {labels: {app: web}}, template: {ports: {http: 8080}}}
"""
SERVICE = """
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
"""
WRITTEN = """
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: NAME, namespace: shop}
spec: {address: ADDRESS}
"""
DOMAINS = TrustDomains("cluster.local", frozenset({"old.local"}))
PLAIN, NAT = AdmissionRules(), AdmissionRules(any_address=True)


def node(
    address: str = "10.0.0.1", account: str = "web", domain: str = "cluster.local", ips: str = "", **metadata: Any
) -> Proxy:
    given = {"NAMESPACE": "shop", "AUTO_REGISTER_GROUP": "web", "INSTANCE_IPS": ips or address, **metadata}
    found = parse_proxy(f"sidecar~{address}~vm-1.shop~shop.svc.cluster.local", given)
    return attrs.evolve(found, identity=f"spiffe://{domain}/ns/shop/sa/{account}")


def admit(proxy: Proxy, world: World, peer: str = "10.0.0.1:4000", rules: AdmissionRules = PLAIN) -> RegisteredWorkload:
    found = admitted(proxy, peer, world, DOMAINS, rules)
    assert found is not None
    return found


def refused(proxy: Proxy, world: World, peer: str = "10.0.0.1:4000", rules: AdmissionRules = PLAIN) -> str:
    with pytest.raises(StreamError) as error:
        admitted(proxy, peer, world, DOMAINS, rules)
    assert error.value.code is Code.PERMISSION_DENIED
    return str(error.value)


def register(world: World, workload: RegisteredWorkload) -> None:
    world.apply(Upsert(AUTO_REGISTRATION, item) for item in items_of(Record(workload=workload, controller="r1")))


def test_the_address_is_the_one_that_the_connection_comes_from_over_ipv6_too() -> None:
    world = world_of(GROUP)
    assert admit(node(), world).key.name == "web-10.0.0.1"
    assert admit(node("2001:db8::1"), world, "[2001:db8::1]:4000").key.name == "web-2001-db8--1"
    assert "comes from 10.0.0.2" in refused(node(), world, "10.0.0.2:4000")
    assert "comes from [2001:db8::2]" in refused(node("2001:db8::1"), world, "[2001:db8::2]:4000")
    assert admit(node(), world, "10.0.0.2:4000", NAT).address == "10.0.0.1"


@pytest.mark.parametrize("address", ["2001:DB8::1", "2001:db8:0::1", "::ffff:10.0.0.1", "::ffff:a00:1"])
def test_an_address_has_one_entry_however_it_is_written(address: str) -> None:
    assert "is not as the address is usually written" in refused(node(address), world_of(GROUP), rules=NAT)


def test_another_network_that_only_one_of_two_claims_makes_no_other_address() -> None:
    world = world_of(GROUP)
    register(world, admit(node(), world))
    assert "is registered for spiffe://cluster.local/ns/shop/sa/web" in refused(node(account="thief"), world)
    assert "is registered for" in refused(node(account="thief", NETWORK="elsewhere"), world)


def test_entries_at_an_address_are_bounded_and_so_are_names_and_texts() -> None:
    world = world_of(GROUP)
    for number in range(MAX_AT_ADDRESS):
        register(world, admit(node(NETWORK=f"n{number}"), world))
    own = "spiffe://cluster.local/ns/shop/sa/web"
    assert f"registered {MAX_AT_ADDRESS} times for {own} already" in refused(node(NETWORK="more"), world)
    assert admit(node(NETWORK="n0"), world).network == "n0", "that is the same one"
    assert admit(node(account="other", NETWORK="more"), world).network == "more", "each identity has its own limit"
    world = world_of(GROUP)
    assert "not a name of a network" in refused(node(NETWORK="n" * 64), world)
    labels = {f"key{number}": "x" * 1000 for number in range(17)}
    assert "its labels and locality have more than" in refused(node(LABELS=labels), world)
    far = attrs.evolve(node(), locality=Locality("r" * 20_000))
    assert "its labels and locality have more than" in refused(far, world)


def test_an_alias_of_the_trust_domain_is_no_other_workload() -> None:
    world = world_of(GROUP + SERVICE)
    first = admit(node(domain="old.local"), world)
    register(world, first)
    assert world.endpoints_at.peek("10.0.0.1"), "it is an endpoint"
    assert admit(node(domain="old.local"), world) == admit(node(), world) == first
    assert "is not for spiffe://foreign.local" in refused(node(domain="foreign.local"), world)


def test_reports_count_for_entries_at_the_address_of_the_connection_only() -> None:
    mine, other = (WRITTEN.replace("NAME", f"vm-{n}").replace("ADDRESS", f"10.0.0.{n}") for n in (1, 2))
    world = world_of(GROUP + mine + other)
    proxy = node(ips="10.0.0.1,10.0.0.2")

    def found(peer: str, rules: AdmissionRules = PLAIN) -> list[str]:
        return [key.name for key in reported_entries(proxy, peer, world, DOMAINS, rules)]

    assert found("10.0.0.1:4000") == ["vm-1"]
    assert found("10.0.0.3:4000") == []
    assert found("10.0.0.3:4000", NAT) == ["vm-1", "vm-2"]
    assert found("127.0.0.1:4000", AdmissionRules(trust_local=True)) == ["vm-1", "vm-2"]


def test_an_annotation_too_long_to_be_read_says_nothing() -> None:
    """YAML of a megabyte would hold everybody up for seconds."""
    world = world_of(GROUP)
    short = "readinessProbe: {httpGet: {port: 8080}}\n"
    for text, is_checked in ((short, True), (short + "#" * 20_000, False)):
        annotations = {"proxy.istio.io/config": text}
        assert admit(node(ANNOTATIONS=annotations), world).is_checked == is_checked
        assert admit(node(PROXY_CONFIG=text), world).is_checked == is_checked


def test_entries_of_streams_that_are_not_in_the_world_yet_count() -> None:
    door = WorkloadAdmission(world_of(GROUP), lambda: DOMAINS, AdmissionRules(), lambda message: None)
    for number in range(MAX_AT_ADDRESS):
        door.joining(number, node(NETWORK=f"n{number}"), "10.0.0.1:4000")
    door.joining(100, node(NETWORK="n0"), "10.0.0.1:4000")
    door.joining(101, node(account="other", NETWORK="more"), "10.0.0.1:4000")
    with pytest.raises(StreamError, match=f"registered {MAX_AT_ADDRESS} times for spiffe"):
        door.joining(102, node(NETWORK="more"), "10.0.0.1:4000")
    door.left(0)
    with pytest.raises(StreamError):
        door.joining(103, node(NETWORK="more"), "10.0.0.1:4000")
    door.left(100)
    door.left(102)
    door.joining(104, node(NETWORK="more"), "10.0.0.1:4000")
