"""Who owns a host that several namespaces claim: no time that an author writes takes it from who has it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from envoy.config.route.v3 import route_pb2
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.mesh.reach.visibility import visible_service
from mesh_pilot.mesh.virtual_services.rules import http_rules
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import HostClaim, HostOwners, Synced
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import ENDPOINT, ROUTE
from mesh_pilot.world.host_owners import GRACE, Claim, succession
from tests.support.owned import OwnedWorld
from tests.support.worlds import configs, sidecar

TIMES = ("", "creationTimestamp: '2019-01-01T00:00:00Z'", "creationTimestamp: '2999-01-01T00:00:00Z'")
"""None, one before all others, one after."""

CLIENT = sidecar(namespace="bank")
EDGE = sidecar("10.1.9.9", name="edge", namespace="edges", labels={"app": "edge"}, node_type="router")

GATEWAY = """
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edges}
spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
"""


def entry(namespace: str, time: str = "", host: str = "be.test", export: str = "", name: str = "be") -> str:
    to = f"exportTo: [{export}]" if export else ""
    return f"""
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: {namespace}, {time}}}
spec:
  hosts: [{host}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP}}]
  endpoints: [{{address: {address(namespace)}}}]
  {to}
"""


def address(namespace: str) -> str:
    return {"shop": "10.0.0.1", "evil": "10.0.0.2", "zevil": "10.0.0.3", "bank": "10.0.0.4", "dev": "10.0.0.5"}[
        namespace
    ]


def routes(
    namespace: str, time: str = "", hosts: str = "pay.test", gateways: str = "mesh", export: str = "", name: str = "own"
) -> str:
    to = f"exportTo: [{export}]" if export else ""
    return f"""
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: {namespace}, {time}}}
spec:
  hosts: [{hosts}]
  gateways: [{gateways}]
  {to}
  http: [{{name: of-{namespace}, directResponse: {{status: 200, body: {{string: {namespace}}}}}}}]
"""


def provider(owned: OwnedWorld, namespace: str = "bank", host: str = "be.test") -> str:
    """The namespace whose service a client means by a host: the endpoints that it is sent agree."""
    service = visible_service(owned.world.view, namespace, host)
    proxy = sidecar(namespace=namespace)
    name = f"outbound|80||{host}"
    held = WorldCatalog(owned.world).open(proxy).set(ENDPOINT)
    assert held is not None
    found = held.select(frozenset((name,))).entries
    if service is None:
        assert not found
        return ""
    assert address(service.namespace).encode() in found[name].body
    return service.namespace


def server(owned: OwnedWorld, proxy: Proxy = CLIENT, host: str = "pay.test", table: str = "80") -> str:
    """The namespace whose routes are first for a host in a proxy's table."""
    held = WorldCatalog(owned.world).open(proxy).set(ROUTE)
    assert held is not None
    body = held.select(frozenset((table,))).entries[table].body
    at = body.lower().index(host.encode())
    places = {each: body.find(f"of-{each}".encode(), at) for each in ("shop", "evil", "zevil", "bank", "dev")}
    return min((place, each) for each, place in places.items() if place >= 0)[1]


def routes_of(body: bytes) -> dict[str, str]:
    """The cluster of the first route of each domain in a table."""
    table = route_pb2.RouteConfiguration.FromString(body)
    return {domain: host.routes[0].route.cluster for host in table.virtual_hosts for domain in host.domains}


# -- the rule


@pytest.mark.parametrize("owner_time", TIMES)
@pytest.mark.parametrize("thief_time", TIMES)
@pytest.mark.parametrize("thief", ["evil", "zevil"])
def test_a_service_stays_with_the_namespace_that_had_it(owner_time: str, thief_time: str, thief: str) -> None:
    owned = OwnedWorld(entry("shop", owner_time))
    owned.put(entry(thief, thief_time))
    assert provider(owned) == "shop"
    assert provider(owned, thief) == thief  # its own clients get its own, as in Istio
    owned.put(entry("shop", owner_time, host="be.test, other.test"))
    owned.put(entry(thief, TIMES[1]))
    assert provider(owned) == provider(owned.restarted()) == "shop"


@pytest.mark.parametrize("owner_time", TIMES)
@pytest.mark.parametrize("thief_time", TIMES)
@pytest.mark.parametrize("thief", ["evil", "zevil"])
@pytest.mark.parametrize(("gateway", "proxy"), [("mesh", CLIENT), ("edges/edge", EDGE)])
def test_routes_stay_with_the_namespace_that_had_the_host(
    owner_time: str, thief_time: str, thief: str, gateway: str, proxy: Proxy
) -> None:
    owned = OwnedWorld(GATEWAY + routes("shop", owner_time, gateways=gateway))
    table = "80" if gateway == "mesh" else "http.80"
    owned.put(routes(thief, thief_time, gateways=gateway))
    assert server(owned, proxy, table=table) == "shop"
    owned.put(routes(thief, TIMES[1], gateways=gateway, name="a"))
    assert server(owned, proxy, table=table) == server(owned.restarted(), proxy, table=table) == "shop"


def test_neither_a_wildcard_nor_upper_case_nor_a_second_host_takes_a_host() -> None:
    for hosts in ('"*.test"', '"*"', "PAY.test", '"*.test", thief.example', "thief.test, pay.test"):
        mesh = [] if hosts == '"*"' else [("mesh", CLIENT, "80")]  # sidecars have no routes for it
        for gateway, proxy, table in (*mesh, ("edges/edge", EDGE, "http.80")):
            owned = OwnedWorld(GATEWAY + routes("shop", TIMES[2], gateways=gateway))
            owned.put(routes("evil", TIMES[1], hosts=hosts, gateways=gateway))
            assert server(owned, proxy, table=table) == "shop", (hosts, gateway)


def test_a_service_in_other_case_takes_no_host() -> None:
    owned = OwnedWorld(entry("shop", TIMES[2]))
    owned.put(entry("evil", TIMES[1], host="BE.test"))
    held = WorldCatalog(owned.world).open(CLIENT).set(ROUTE)
    assert held is not None
    body = held.select(frozenset(("80",))).entries["80"].body
    assert routes_of(body)["be.test"] == "outbound|80||be.test"


def test_each_of_two_namespaces_keeps_its_host_where_both_name_both() -> None:
    owned = OwnedWorld(routes("shop", hosts="pay.test") + routes("evil", hosts="gain.test"))
    owned.put(routes("shop", hosts="pay.test, gain.test") + routes("evil", hosts="gain.test, pay.test"))
    assert server(owned, host="pay.test") == "shop"
    assert server(owned, host="gain.test") == "evil"


@pytest.mark.parametrize("claim", [entry, routes])
def test_what_few_see_gives_no_right_to_a_host_for_others(claim: object) -> None:
    find = provider if claim is entry else server
    early = entry("evil", export="dev") if claim is entry else routes("evil", export="dev")
    owner, late = (entry("shop"), entry("evil")) if claim is entry else (routes("shop"), routes("evil"))
    owned = OwnedWorld(early)
    owned.put(owner)
    owned.put(late)
    assert find(owned) == "shop"
    named = entry("evil", export="bank") if claim is entry else routes("evil", export="bank")
    owned.put(named)  # what is exported by name goes before what is public, but not before the owner's
    assert find(owned) == "shop"


def test_a_namespace_that_narrows_its_exports_keeps_its_host() -> None:
    owned = OwnedWorld(entry("shop"))
    owned.put(entry("evil", TIMES[1]))
    owned.put(entry("shop", export="bank"))
    assert provider(owned) == "shop"
    assert provider(owned, "dev") == "evil"


def test_a_namespace_decides_for_its_own_clients_by_what_it_keeps_private() -> None:
    owned = OwnedWorld(routes("shop"))
    owned.put(routes("bank", export='"."'))
    assert server(owned, sidecar(namespace="bank")) == "bank"
    assert server(owned, sidecar(namespace="dev")) == "shop"


# -- passing on


def test_a_host_passes_on_when_its_owner_has_had_nothing_for_ten_minutes() -> None:
    owned = OwnedWorld(entry("shop"))
    owned.put(entry("evil", TIMES[1]))
    owned.remove(("ServiceEntry", "shop", "be"))
    assert provider(owned) == "evil"  # traffic is not held up
    owned.pass_time(minutes=9)
    owned.put(entry("shop"))
    assert provider(owned) == "shop"
    owned.remove(("ServiceEntry", "shop", "be"))
    owned.pass_time(minutes=11)
    owned.put(entry("shop", TIMES[1]))
    assert provider(owned) == "evil"
    assert [claim.namespace for item in owned.owners() for claim in item.order] == ["evil", "shop"]


def test_an_owner_that_was_alone_comes_back_to_its_host_in_time() -> None:
    for minutes, owner in ((9, "shop"), (11, "evil")):
        owned = OwnedWorld(routes("shop"))
        owned.remove(("VirtualService", "shop", "own"))
        owned.pass_time(minutes=minutes / 2)
        owned.put(routes("evil"))
        owned.pass_time(minutes=minutes / 2)
        owned.put(routes("shop", TIMES[1]))
        assert server(owned) == owner


def test_places_of_those_who_left_are_forgotten() -> None:
    owned = OwnedWorld("".join(entry("shop", host=f"s{n}.test", name=f"s{n}") for n in range(20)))
    owned.remove(*(("ServiceEntry", "shop", f"s{n}") for n in range(20)))
    assert not owned.owners() and len(owned.quarantine._orders) == 20
    owned.pass_time(minutes=11)
    owned.put(entry("bank", host="x.test"))
    assert not owned.quarantine._orders and not owned.quarantine._leaving


# -- at the start


def test_what_is_seen_together_goes_by_age_and_then_by_name_and_is_said() -> None:
    for times, owner in (((TIMES[2], TIMES[1]), "evil"), ((TIMES[1], TIMES[2]), "shop"), (("", ""), "evil")):
        with capture_logs() as logs:
            owned = OwnedWorld(entry("shop", times[0]) + entry("evil", times[1]))
        assert provider(owned) == owner
        (said,) = [log for log in logs if log["event"] == "host claimed by several namespaces"]
        assert said["log_level"] == "warning" and said["host"] == "be.test"
        assert {*said["owner"], *said["others"]} == {"ServiceEntry/shop/be", "ServiceEntry/evil/be"}
        assert said["owner"] == [f"ServiceEntry/{owner}/be"]


def test_a_first_look_changes_no_bytes() -> None:
    """The owners of what is seen together are who had the hosts without owners."""
    texts = [claim(ns, time) for claim in (entry, routes) for ns in ("shop", "evil", "bank") for time in TIMES[:1]]
    owned = OwnedWorld(GATEWAY + "".join(texts))
    assert owned.owners()
    before = {place: value for place, value in owned.world.host_owners.items() if value}
    assert set(before) == {("", "be.test"), ("mesh", "pay.test")}
    for place in [*before]:
        assert [namespace for namespace, _ in before[place]] == ["bank", "evil", "shop"]


def test_a_contest_is_said_once_and_names_both() -> None:
    owned = OwnedWorld(routes("shop"))
    with capture_logs() as logs:
        owned.put(routes("evil"))
        owned.put(routes("evil", TIMES[1]))
    (said,) = [log for log in logs if log["event"] == "host claimed by several namespaces"]
    assert (said["owner"], said["others"]) == (["VirtualService/shop/own"], ["VirtualService/evil/own"])


def test_an_edit_that_claims_nothing_new_costs_no_item() -> None:
    owned = OwnedWorld(routes("shop"))
    revision = owned.apply([])
    owned.put(routes("shop").replace("200", "201"))
    assert owned.world.revision == revision.number + 1
    assert not owned.owners()
    assert http_rules(owned.world.view, ConfigKey("VirtualService", "shop", "own"))


def test_a_restored_order_stands_against_a_picture_that_says_otherwise() -> None:
    order = (HostClaim("shop"), HostClaim("evil"))
    owned = OwnedWorld(entry("shop", TIMES[2]) + entry("evil", TIMES[1]), kept=[HostOwners("", "be.test", order)])
    assert provider(owned) == "shop"
    owned.apply([Synced("owners")])  # the keeper confirms its own picture, not what it was said to be
    assert provider(owned) == "shop" and owned.owners()


# -- the order itself

NAMESPACES = ("a", "b", "c")
TO = st.frozensets(st.sampled_from(("*", "a", "x")), min_size=1, max_size=2)
HELD = st.dictionaries(st.sampled_from(NAMESPACES), TO, max_size=3)


def claims(held: dict[str, frozenset[str]], seed: int) -> list[Claim]:
    times = random.Random(seed)
    return [
        Claim(ConfigKey("VirtualService", ns, f"n{times.random()}"), to, datetime.fromtimestamp(times.random(), UTC))
        for ns, to in held.items()
    ]


@given(st.lists(st.tuples(HELD, st.integers(0, 15), st.integers(0, 99)), min_size=1, max_size=8))
def test_who_comes_later_is_never_before_who_stayed(steps: list[tuple[dict[str, frozenset[str]], int, int]]) -> None:
    now, order, had = datetime(2026, 1, 1, tzinfo=UTC), (), []
    for held, minutes, seed in steps:
        now += timedelta(minutes=minutes)
        has = claims(held, seed)
        before, order = order, succession(order, had, has, now)
        there = {(ns, to) for ns, names in held.items() for to in names - {ns}}
        places = [(claim.namespace, claim.to) for claim in order]
        assert len({*places}) == len(places) and there <= {*places}
        stayed = [(c.namespace, c.to) for c in before if c.left is None or now - c.left <= GRACE]
        assert [place for place in places if place in stayed] == stayed
        newcomers = [place for place in places if place not in stayed and (place[0], "*") not in stayed]
        assert places[len(places) - len(newcomers) :] == newcomers
        had = has


def test_what_the_plane_makes_owns_nothing_against_an_author() -> None:
    """A chain of Consul's, however long it is there, gives way to an author's routes, by wildcard, too."""
    (made,) = configs(routes("shop", TIMES[1]))
    made = attrs.evolve(made, made_from=(ConfigKey("service-router", "shop", "pay"),))
    for hosts in ("pay.test", '"*.test"'):
        owned = OwnedWorld(entry("dev", host="pay.test"), objects=[made])
        owned.put(routes("bank", TIMES[2], hosts=hosts))
        assert server(owned, sidecar(namespace="dev")) == "bank"
        assert not owned.owners()
