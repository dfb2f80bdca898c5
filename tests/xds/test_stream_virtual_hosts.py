"""Virtual hosts that come by themselves: asked for once for all route tables, sent after their table, let go with it.

How Envoy takes them was seen of Envoy 1.40, see ``docs/large-meshes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE, VIRTUAL_HOST, table_of
from mesh_pilot.world import World
from mesh_pilot.xds.ads.messages import Code, Node, Response, StreamError, Variant
from mesh_pilot.xds.ads.references import references_of
from tests.support.worlds import update, world_of
from tests.xds.driver import Delta, Sotw, names

METADATA = {"NAMESPACE": "shop", "VIRTUAL_HOSTS": "split"}
CLIENT = Node("sidecar~10.1.1.1~web-1.shop~shop.svc.cluster.local", METADATA, version="1.40.0")


def service(name: str, port: int) -> str:
    return f"""
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.test]
  ports: [{{number: {port}, name: http, protocol: HTTP}}]
  resolution: STATIC
  endpoints: [{{address: 10.0.0.1}}]
"""


def routes(name: str, status: int = 203) -> str:
    return f"""
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.test]
  http: [{{directResponse: {{status: {status}}}}}]
"""


@pytest.fixture
def world() -> World:
    return world_of(service("a", 80) + service("b", 80) + service("c", 9000) + routes("a"))


@pytest.fixture
def catalog(world: World) -> WorldCatalog:
    return WorldCatalog(world)


@pytest.fixture
def client(catalog: WorldCatalog) -> Delta:
    return Delta(catalog, node=CLIENT)


A, B, C = "80/a.test:80", "80/b.test:80", "9000/c.test:9000"
REST80, REST9000 = "80/allow_any", "9000/allow_any"


def start(client: Delta, *tables: str) -> dict[str, Response]:
    """An Envoy that has everything; the last response of each type."""
    client.ask(CLUSTER)
    found = client.settle()
    client.ask(ENDPOINT, *(n for n in client.stream.client_state(CLUSTER) if n.startswith("outbound|")))
    client.ask(LISTENER)
    client.ask(ROUTE, *tables)
    found += client.settle()
    client.ask(VIRTUAL_HOST)
    found += client.settle()
    return {response.type_url: response for response in found}


def kinds(responses: list[Response]) -> list[str]:
    return [response.type_url for response in responses]


def test_one_request_without_names_is_for_the_hosts_of_all_tables_that_the_client_asks_for(client: Delta) -> None:
    responses = start(client, "80", "9000")
    assert names(responses[VIRTUAL_HOST]) == sorted([A, B, C, REST80, REST9000])
    assert all(b"test" not in resource.body for resource in responses[ROUTE].resources)


def test_an_edit_sends_one_virtual_host(client: Delta, world: World) -> None:
    start(client, "80", "9000")
    update(world, routes("a", 218))
    (response,) = client.settle()
    assert (response.type_url, names(response), response.removed) == (VIRTUAL_HOST, [A], ())


def test_hosts_of_a_new_table_follow_the_table_unasked(client: Delta) -> None:
    start(client, "80")
    client.ask(ROUTE, "9000")
    table, hosts = client.settle()
    assert (names(table), sorted(names(hosts))) == (["9000"], [REST9000, C])


def test_hosts_of_a_table_that_waits_for_an_answer_wait_too(client: Delta) -> None:
    """Envoy drops what comes for a table that it has not got."""
    start(client, "80")
    client.ask(ROUTE, "9000")
    first = client.next()
    assert first is not None and names(first) == ["9000"]
    client.ask(ROUTE, "9001")
    hosts = client.next()
    assert hosts is None, "9001 was not sent yet"
    client.ack(first)
    second, hosts = client.responses()
    assert names(second) == ["9001"]
    assert {table_of(name) for name in names(hosts)} == {"9000", "9001"}


def test_hosts_of_a_table_that_the_client_lets_go_of_are_removed(client: Delta) -> None:
    """Envoy would present their versions when it comes back, and not have them."""
    start(client, "80", "9000")
    client.ask(ROUTE, unsubscribe=["9000"])
    (response,) = client.settle()
    assert (response.type_url, response.resources, sorted(response.removed)) == (VIRTUAL_HOST, (), [REST9000, C])


def test_hosts_of_a_table_that_is_gone_stay_as_long_as_the_client_asks_for_the_table(
    client: Delta, world: World
) -> None:
    """A listener that drains keeps its table, of which Envoy takes no removal; of virtual hosts it would."""
    start(client, "80", "9000")
    guarded = """
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: b, namespace: shop}
spec:
  parentRefs: [{group: networking.istio.io, kind: ServiceEntry, name: b}]
  rules:
  - filters:
    - type: ExternalAuth
      externalAuth:
        protocol: HTTP
        backendRef: {group: networking.istio.io, kind: Hostname, name: c.test, port: 9000}
        http: {}
    backendRefs: [{group: networking.istio.io, kind: Hostname, name: b.test, port: 80}]
"""
    update(world, guarded)
    listener, table = client.settle()
    assert (listener.type_url, table.type_url, table.resources, table.removed) == (LISTENER, ROUTE, (), ("80",))
    update(world, routes("a", 218))
    assert client.settle() == []
    (name,) = references_of(listener.resources[0]).of(ROUTE)
    client.ask(ROUTE, name)
    table, hosts = client.settle()
    assert (names(table), len(hosts.resources), hosts.removed) == ([name], 3, ())
    client.ask(ROUTE, unsubscribe=["80"])
    (response,) = client.settle()
    assert (response.type_url, response.resources, sorted(response.removed)) == (VIRTUAL_HOST, (), [A, REST80, B])


def test_a_table_that_is_asked_for_again_gets_all_its_hosts_again(client: Delta) -> None:
    start(client, "80", "9000")
    client.ask(ROUTE, unsubscribe=["9000"])
    client.ask(ROUTE, "9000")
    table, hosts = client.settle()
    assert (names(table), sorted(names(hosts))) == (["9000"], [REST9000, C])
    client.ask(ROUTE, "9000")
    table, hosts = client.settle()
    assert (names(table), sorted(names(hosts))) == (["9000"], [REST9000, C])


def versions(response: Response) -> dict[str, str]:
    return dict(zip(names(response), response.versions(), strict=True))


def come_back(catalog: WorldCatalog, has: Mapping[str, Response], tables: tuple[str, ...]) -> Delta:
    """The client on a new stream, which presents what it had; it asks in Envoy's order."""
    client = Delta(catalog, node=CLIENT)
    for type_url in (CLUSTER, ENDPOINT, LISTENER):
        named = names(has[type_url]) if type_url == ENDPOINT else ()
        client.ask(type_url, *named, has=versions(has[type_url]))
    client.ask(ROUTE, *tables, has={n: v for n, v in versions(has[ROUTE]).items() if n in tables})
    return client


def test_a_client_that_comes_back_is_sent_nothing_or_what_changed(catalog: WorldCatalog, world: World) -> None:
    first = Delta(catalog, node=CLIENT)
    has = start(first, "80", "9000")
    first.stream.close()
    client = come_back(catalog, has, ("80", "9000"))
    client.ask(VIRTUAL_HOST, has=versions(has[VIRTUAL_HOST]))
    assert client.settle() == []
    client.stream.close()
    update(world, routes("a", 218) + routes("b"))
    client = come_back(catalog, has, ("80", "9000"))
    client.ask(VIRTUAL_HOST, has=versions(has[VIRTUAL_HOST]))
    sent = {response.type_url: names(response) for response in client.settle()}
    assert sent[VIRTUAL_HOST] == [A, B]
    assert ROUTE not in sent


@pytest.mark.parametrize("late", [False, True])
def test_a_client_is_not_believed_to_have_hosts_of_a_table_that_it_comes_back_without(
    catalog: WorldCatalog, late: bool
) -> None:
    """Envoy presents them, though it let go of them with their table."""
    first = Delta(catalog, node=CLIENT)
    has = start(first, "80", "9000")
    first.stream.close()
    client = come_back(catalog, has, ("80",))
    if late:
        client.ask(VIRTUAL_HOST, has=versions(has[VIRTUAL_HOST]))
    client.ask(ROUTE, "9000")
    sent = []
    if not late:
        sent = client.settle()
        client.ask(VIRTUAL_HOST, has=versions(has[VIRTUAL_HOST]))
    sent += client.settle()
    assert kinds(sent) == [ROUTE, VIRTUAL_HOST]
    assert [sorted(names(response)) for response in sent] == [["9000"], [REST9000, C]]


def test_hosts_that_went_while_the_client_was_away_are_removed(world: World) -> None:
    first = Delta(WorldCatalog(world), node=CLIENT)
    has = start(first, "80", "9000")
    first.stream.close()
    after = WorldCatalog(world_of(service("b", 80) + service("c", 9000)))
    client = come_back(after, has, ("80", "9000"))
    client.ask(VIRTUAL_HOST, has=versions(has[VIRTUAL_HOST]))
    sent = {response.type_url: response for response in client.settle()}
    assert (sent[VIRTUAL_HOST].resources, sent[VIRTUAL_HOST].removed) == ((), (A,))


def test_a_cluster_goes_only_after_the_virtual_host_that_names_it(client: Delta, world: World) -> None:
    start(client, "80", "9000")
    world.apply([Delete("test", ("config", "ServiceEntry", "shop", "b"))])
    removed = [response.type_url for response in client.settle() if response.removed]
    assert removed.index(VIRTUAL_HOST) < removed.index(CLUSTER)


def test_a_refusal_names_the_virtual_host_and_what_it_was_made_from(client: Delta, world: World) -> None:
    start(client, "80", "9000")
    update(world, routes("a", 218))
    (response,) = client.responses()
    client.nack(response, "no such thing")
    (nack,) = client.observer.nacks
    assert (nack.type_url, nack.names) == (VIRTUAL_HOST, (A,))
    assert ConfigKey("VirtualService", "shop", "a") in nack.configs
    assert client.responses() == [], "what was refused is not sent again as it is"
    update(world, routes("a", 219))
    (response,) = client.settle()
    assert names(response) == [A]


def test_nothing_waits_for_a_client_that_never_asks_for_them(client: Delta, world: World) -> None:
    client.ask(CLUSTER)
    client.settle()
    client.ask(LISTENER)
    client.ask(ROUTE, "80")
    client.settle()
    update(world, routes("a", 218) + service("d", 80))
    assert VIRTUAL_HOST not in kinds(client.settle())


@pytest.mark.parametrize("variant", [Variant.SOTW, Variant.DELTA])
def test_who_cannot_take_them_gets_whole_tables_and_none_of_them(catalog: WorldCatalog, variant: Variant) -> None:
    """State of the World, and a stream for one type."""
    client = Sotw(catalog, node=CLIENT) if variant is Variant.SOTW else Delta(catalog, only=ROUTE, node=CLIENT)
    client.ask(ROUTE, "80")
    (table,) = client.settle()
    assert b"a.test" in table.resources[0].body
    if variant is Variant.SOTW:
        client.ask(VIRTUAL_HOST)
        assert [names(response) for response in client.settle()] == [[]]
        return
    with pytest.raises(StreamError) as refused:
        client.ask(VIRTUAL_HOST)
    assert refused.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("said", "version", "split"),
    [
        ("split", "1.40.0", True),
        ("Split", "1.41.2", True),
        ("split", "", True),
        ("split", "1.39.9", False),
        ("whole", "1.40.0", False),
        ("", "1.40.0", False),
    ],
)
def test_those_get_them_that_ask_and_whose_version_can_take_them(
    world: World, said: str, version: str, split: bool
) -> None:
    metadata = {"NAMESPACE": "shop", **({"VIRTUAL_HOSTS": said} if said else {})}
    client = Delta(WorldCatalog(world), node=attrs.evolve(CLIENT, metadata=metadata, version=version))
    client.ask(ROUTE, "80")
    (table,) = client.settle()
    assert (b"a.test" not in table.resources[0].body) == split
