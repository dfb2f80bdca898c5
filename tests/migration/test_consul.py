"""Config entries, intentions and catalogs of Consul: what becomes of them, and what is listed."""

from __future__ import annotations

import json
from typing import Any

from mesh_pilot.istio.reading.yaml_text import yaml_text
from tests.migration.dumps import dump_of, left, migrate, reasons, specs


def entry(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"Kind": kind, "Name": name, **fields}


def of(*found: Any, **flags: Any) -> Any:
    return migrate("consul", json.dumps(found), **flags)


def intention(source: str, destination: str, action: str) -> dict[str, Any]:
    return {"SourceName": source, "DestinationName": destination, "Action": action, "Precedence": 9, "ID": "x"}


def test_chains_are_what_consul_mesh_makes_of_them() -> None:
    found = dump_of("consul")
    (route,) = specs(found, "VirtualService")["consul-reviews"]["http"]
    weights = {each["destination"]["subset"]: each["weight"] for each in route["route"]}
    assert weights == {"v1": 90, "v2": 10}
    subsets = specs(found, "DestinationRule")["consul-reviews"]["subsets"]
    assert subsets == [{"name": name, "labels": {"version": name}} for name in ("v1", "v2")]


def test_intentions_of_the_api_and_of_entries_are_the_same() -> None:
    source = {"Name": "web", "Action": "deny", "Precedence": 9, "Type": "consul"}
    by_entry = of(entry("service-intentions", "db", Sources=[source]))
    by_api = of(intention("web", "db", "deny"))
    assert specs(by_entry, "AuthorizationPolicy") == specs(by_api, "AuthorizationPolicy") != {}
    both = of(entry("service-intentions", "db", Sources=[source]), intention("web", "db", "deny"))
    assert left(both) == []


def test_the_default_of_intentions_decides_about_others() -> None:
    allowed = intention("web", "db", "allow")
    assert specs(of(allowed), "AuthorizationPolicy") == {}
    denied = specs(of(allowed, consul_intention_default="deny"), "AuthorizationPolicy")["consul-db"]
    assert denied["rules"] == [{"from": [{"source": {"notPrincipals": ["cluster.local/ns/default/sa/web"]}}]}]


def test_services_stay_in_consul_unless_they_are_wanted() -> None:
    assert set(specs(dump_of("consul"), "ServiceEntry")) == {"consul-payments"}
    entries = specs(dump_of("consul", services=True), "ServiceEntry")
    assert [each["address"] for each in entries["consul-reviews"]["endpoints"]] == ["10.0.0.11", "10.0.0.12"]
    assert entries["consul-reviews"]["ports"][0]["protocol"] == "HTTP"


def test_upstreams_become_the_hosts_of_a_sidecar() -> None:
    found = dump_of("consul")
    assert specs(found, "Sidecar")["consul-web"]["egress"] == [{"hosts": ["*/reviews.service.consul"]}]
    definition = {"service": {"name": "api", "connect": {"sidecar_service": {"proxy": {"upstreams": [
        {"destination_name": "db", "local_bind_port": 5432}]}}}}}  # fmt: skip
    found = migrate("consul", json.dumps(definition))
    assert specs(found, "Sidecar")["consul-api"]["egress"] == [{"hosts": ["*/db.service.consul"]}]
    assert any("local_bind_port" in field for field in reasons(found))


def test_an_ingress_gateway_serves_hosts_and_no_listener_of_tls_in_plain_text() -> None:
    found = dump_of("consul")
    (server,) = specs(found, "Gateway")["consul-edge"]["servers"]
    assert (server["port"]["number"], server["hosts"]) == (8080, ["shop.example"])
    assert "ingress-gateway/edge: Listeners[1]" in reasons(found)


CHAIN = (
    entry("service-defaults", "reviews", Protocol="http"),
    entry(
        "service-resolver",
        "reviews",
        DefaultSubset="v1",
        Subsets={name: {"Filter": f"Service.Meta.version == {name}"} for name in ("v1", "v2")},
    ),
    entry(
        "service-splitter",
        "reviews",
        Splits=[{"Weight": 70, "ServiceSubset": "v1"}, {"Weight": 30, "ServiceSubset": "v2"}],
    ),
    entry(
        "service-router",
        "reviews",
        Routes=[
            {
                "Match": {"HTTP": {"PathPrefix": "/v2"}},
                "Destination": {"ServiceSubset": "v2", "RequestHeaders": {"Set": {"x-version": "2"}}},
            }
        ],
    ),
)


def test_a_listener_has_the_routes_of_its_service() -> None:
    services = [{"Name": "reviews", "Hosts": ["reviews.example"], "RequestHeaders": {"Set": {"x-edge": "1"}}}]
    gateway = entry("ingress-gateway", "edge", Listeners=[{"Port": 8080, "Protocol": "http", "Services": services}])
    made = specs(of(*CHAIN, gateway), "VirtualService")
    special, default = made["consul-edge-8080-0"]["http"]
    assert special["match"] == [{"uri": {"prefix": "/v2"}, "port": 8080}]
    assert special["route"][0]["destination"]["subset"] == "v2"
    assert special["headers"] == {"request": {"set": {"x-edge": "1", "x-version": "2"}}}
    assert default["match"] == [{"port": 8080}]
    assert {each["destination"]["subset"]: each["weight"] for each in default["route"]} == {"v1": 70, "v2": 30}
    assert default["headers"] == {"request": {"set": {"x-edge": "1"}}}
    # The mesh's own routes are as they were.
    assert made["consul-reviews"]["http"][0]["match"] == [{"uri": {"prefix": "/v2"}}]


def test_a_listener_of_tcp_has_the_redirect_and_the_default_subset_of_its_service() -> None:
    resolver = entry("service-resolver", "db", Redirect={"Service": "db-new"})
    target = entry(
        "service-resolver", "db-new", DefaultSubset="v2", Subsets={"v2": {"Filter": "Service.Meta.version == v2"}}
    )
    gateway = entry("ingress-gateway", "edge", Listeners=[{"Port": 5432, "Services": [{"Name": "db"}]}])
    (route,) = specs(of(resolver, target, gateway), "VirtualService")["consul-edge-5432-0"]["tcp"]
    assert route["match"] == [{"port": 5432}]
    assert route["route"] == [{"destination": {"host": "db-new.service.consul", "subset": "v2"}}]


def test_a_listener_of_a_service_without_a_chain_leads_to_all_its_instances() -> None:
    services = [{"Name": "web", "Hosts": ["a.example"]}, {"Name": "reviews", "Hosts": ["b.example"]}]
    gateway = entry("ingress-gateway", "edge", Listeners=[{"Port": 80, "Protocol": "http", "Services": services}])
    made = specs(of(*CHAIN, gateway), "VirtualService")
    (route,) = made["consul-edge-80-0"]["http"]
    assert route == {"match": [{"port": 80}], "route": [{"destination": {"host": "web.service.consul"}}]}
    assert len(made["consul-edge-80-1"]["http"]) == 2


def test_a_destination_of_a_terminating_gateway_is_called_over_tls() -> None:
    tls = specs(dump_of("consul"), "DestinationRule")["consul-legacy"]["trafficPolicy"]["tls"]
    assert tls == {"mode": "SIMPLE", "caCertificates": "/etc/certs/ca.pem", "sni": "legacy.example"}
    for sni, told in (({}, 1), ({"SNI": "legacy.example"}, 0)):
        service = {"Name": "legacy", "CAFile": "/ca.pem", **sni}
        found = of(entry("terminating-gateway", "egress", Services=[service]))
        assert sum("has to be for that name" in change.text for change in found.changes) == told


def test_resources_of_consul_on_kubernetes_are_entries() -> None:
    resource = {
        "apiVersion": "consul.hashicorp.com/v1alpha1",
        "kind": "ServiceSplitter",
        "metadata": {"name": "web"},
        "spec": {"splits": [{"weight": 60, "service": "web-a"}, {"weight": 40, "service": "web-b"}]},
    }
    found = migrate("consul", yaml_text([resource]))
    (route,) = specs(found, "VirtualService")["consul-web"]["http"]
    assert [each["weight"] for each in route["route"]] == [60, 40]


def test_every_kind_that_is_left_has_a_reason_and_unknown_ones_are_named() -> None:
    found = of(entry("api-gateway", "edge"), entry("nonsense", "x"), {"hello": "world"})
    assert reasons(found) == {
        "api-gateway/edge": "listeners of Consul's API gateway",
        "nonsense/x": "'nonsense' is not a kind of config entry that is known",
        "": "is nothing of Consul's",
    }


def test_names_of_services_alone_are_listed_with_what_to_dump() -> None:
    (found,) = left(migrate("consul", json.dumps({"web": ["v1"], "consul": []})))
    assert (found.object, found.do) == ("service/web", "dump /v1/health/service/NAME of each")


def test_an_entry_that_says_ignore_is_not_there() -> None:
    found = of(entry("service-splitter", "web", Splits=[], Meta={"mesh-pilot": "ignore"}))
    assert (left(found), found.objects) == ([], ())


def test_a_field_without_counterpart_has_its_line() -> None:
    found = dump_of("consul")
    (each,) = (each for each in left(found) if each.field == "MaxInboundConnections")
    assert each.where == "entries.json:3"
