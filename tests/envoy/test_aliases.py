"""Kubernetes' Services of type ExternalName: aliases of services of the mesh, or names outside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.events import Delete, Upsert, item_key
from mesh_pilot.model.service import Port, Protocol, Service, ServiceKey
from mesh_pilot.world import World
from tests.envoy.test_kubernetes_services import sent
from tests.support.kube_objects import add_kubernetes
from tests.support.worlds import SOURCE, world_of

DOMAIN = "shop.svc.cluster.local"
PORTS = ", ".join(f"{{name: {name}, port: {80 + n}}}" for n, name in enumerate(("http", "auto", "tcp", "tls", "https")))


def external(name: str, target: str, namespace: str = "shop", spec: str = "", **metadata: str) -> str:
    extra = "".join(f", {key}: {value}" for key, value in metadata.items())
    return f"""
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: 2024-03-01T00:00:00Z{extra}}}
spec: {{type: ExternalName, externalName: {target}, {spec}}}
"""


def concrete(ports: str = PORTS, ip: str = "1.2.3.4") -> str:
    return f"""
---
apiVersion: v1
kind: Service
metadata: {{name: concrete, namespace: shop, creationTimestamp: 2024-03-01T00:00:00Z}}
spec: {{clusterIP: {ip}, ports: [{ports}]}}
"""


ALIAS = external("alias", f"concrete.{DOMAIN}")


def mesh(*services: str, config: str = "") -> World:
    world = world_of(config)
    add_kubernetes(world, "".join(services))
    return world


def routed(found: Mapping[str, Mapping[str, Any]], host: str, table: str = "80", path: str = "/") -> str:
    """The name and cluster of the route for a host."""
    hosts = found["routes"][table]["virtual_hosts"]
    virtual_host = (
        next(v for v in hosts.values() if host in v["domains"])
        if isinstance(hosts, dict)
        else next(v for v in hosts if host in v["domains"])
    )
    for route in virtual_host["routes"]:
        if path.startswith(route["match"].get("prefix", "/")):
            return f"{route.get('name', '')} {route['route']['cluster']}"
    raise AssertionError(virtual_host)


def test_the_names_of_an_alias_are_domains_of_the_service_that_it_stands_for() -> None:
    found = sent(mesh(concrete(), ALIAS))
    for host in (f"alias.{DOMAIN}", f"alias.{DOMAIN}.", "alias", "alias.shop", "alias.shop.svc", "concrete"):
        assert routed(found, host) == f"default outbound|80||concrete.{DOMAIN}"
    assert not [name for name in found["clusters"] if "alias" in name]
    assert {name for name in found["listeners"] if name.startswith("1.2.3.4")} == {
        "1.2.3.4_81",
        "1.2.3.4_82",
        "1.2.3.4_83",
        "1.2.3.4_84",
    }


VIRTUAL_SERVICE = f"""
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: alias, namespace: shop}}
spec:
  hosts: [HOST]
  http:
  - name: one
    match: [{{uri: {{prefix: /one}}}}]
    route: [{{destination: {{host: DESTINATION}}}}]
  - name: rest
    route: [{{destination: {{host: concrete.{DOMAIN}}}}}]
"""


def test_a_virtual_service_for_an_alias_applies_to_its_full_name_alone() -> None:
    config = VIRTUAL_SERVICE.replace("HOST", f"alias.{DOMAIN}").replace("DESTINATION", "concrete")
    found = sent(mesh(concrete(), ALIAS, config=config))
    to = f"outbound|80||concrete.{DOMAIN}"
    assert routed(found, f"alias.{DOMAIN}", path="/one") == f"one {to}"
    for host in ("alias.shop", f"concrete.{DOMAIN}"):
        assert routed(found, host, path="/one") == f"default {to}"


@pytest.mark.parametrize("destination", ["alias", f"alias.{DOMAIN}", "chained"])
def test_a_destination_that_is_an_alias_is_the_service_that_it_stands_for(destination: str) -> None:
    config = VIRTUAL_SERVICE.replace("HOST", "store.example").replace("DESTINATION", destination)
    config += """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec: {egress: [{hosts: ["./store.example"]}]}
"""
    services = (concrete("{name: http, port: 80}"), ALIAS, external("chained", f"alias.{DOMAIN}"))
    found = sent(mesh(*services, config=config.partition("---")[0]))
    assert routed(found, "store.example", path="/one") == f"one outbound|80||concrete.{DOMAIN}"
    narrowed = sent(mesh(*services, config=config))
    assert {name for name in narrowed["clusters"] if name.startswith("outbound")} == {f"outbound|80||concrete.{DOMAIN}"}


def test_aliases_of_aliases_and_those_of_other_namespaces_have_their_names() -> None:
    chained = external("chained", f"alias.{DOMAIN}", "other")
    hidden = external("hidden", f"concrete.{DOMAIN}", "other", annotations='{networking.istio.io/exportTo: "."}')
    found = sent(mesh(concrete(), ALIAS, chained, hidden))
    assert routed(found, "chained.other.svc.cluster.local") == f"default outbound|80||concrete.{DOMAIN}"
    with pytest.raises(StopIteration):
        routed(found, "hidden.other.svc.cluster.local")


def test_a_sidecar_that_does_not_import_an_alias_has_not_its_names() -> None:
    config = f"""
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: shop}}
spec: {{egress: [{{hosts: ["./concrete.{DOMAIN}", "./second.{DOMAIN}"]}}]}}
"""
    found = sent(mesh(concrete(), ALIAS, external("second", f"concrete.{DOMAIN}"), config=config))
    assert routed(found, f"second.{DOMAIN}") == f"default outbound|80||concrete.{DOMAIN}"
    with pytest.raises(StopIteration):
        routed(found, f"alias.{DOMAIN}")


@pytest.mark.parametrize(
    "names",
    [{"alias": "www.example.com"}, {"alias": f"alias.{DOMAIN}"}, {"alias": f"b.{DOMAIN}", "b": f"alias.{DOMAIN}"}],
)
def test_a_name_outside_the_mesh_or_in_a_circle_is_resolved_by_proxies(names: Mapping[str, str]) -> None:
    services = [external(name, target, spec="ports: [{name: http, port: 80}]") for name, target in names.items()]
    found = sent(mesh(concrete(), *services))
    assert found["clusters"][f"outbound|80||alias.{DOMAIN}"]["type"] == "STRICT_DNS"
    assert routed(found, f"alias.{DOMAIN}") == f"default outbound|80||alias.{DOMAIN}"


def test_server_names_of_tls_services_without_addresses_have_those_of_aliases() -> None:
    entry = """
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tls, namespace: shop}
spec:
  hosts: [tls.example]
  ports: [{number: 9443, name: tls, protocol: TLS}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1}]
"""
    found = sent(mesh(external("alias", "tls.example"), config=entry))
    listener = found["listeners"]["0.0.0.0_9443"]
    assert f"alias.{DOMAIN}" in str(listener["filter_chains"]) and "'alias.shop'" in str(listener["filter_chains"])


HOSTS = ("a", "b", "c", "d")
steps = st.lists(st.tuples(st.sampled_from(HOSTS), st.sampled_from([*HOSTS, "", "outside", None])), max_size=12)


@given(steps)
def test_following_changes_ends_where_reading_them_anew_does(changes: list[tuple[str, str | None]]) -> None:
    followed, state = world_of(), dict[str, str | None]()
    for host, name in changes:
        state[host] = name
        service = _service(host, name or "")
        event = Delete(SOURCE, item_key(service)) if name is None else Upsert(SOURCE, service)
        followed.apply([event])
        anew = world_of()
        anew.apply([Upsert(SOURCE, _service(each, name)) for each, name in state.items() if name is not None])
        for each in HOSTS:
            key = ServiceKey(each, "shop")
            assert followed.services.peek(key) == anew.services.peek(key)


def _service(host: str, external_name: str) -> Service:
    ports = (Port(80, "http", Protocol.HTTP),)
    return Service(host, "shop", ports, declared_by_users=False, external_name=external_name)
