"""Listings have istioctl's columns and filters, and never a key."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from mesh_pilot.explain.inspection.comparison import DifferenceKind, compare
from mesh_pilot.explain.inspection.dump import ConfigDump, dump_of
from mesh_pilot.explain.inspection.listings.clusters import ClusterFilter, list_clusters
from mesh_pilot.explain.inspection.listings.endpoints import EndpointFilter, list_endpoints
from mesh_pilot.explain.inspection.listings.listeners import ListenerFilter, destination_of, list_listeners, match_of
from mesh_pilot.explain.inspection.listings.listing import Listing
from mesh_pilot.explain.inspection.listings.routes import describe_domains, describe_match, list_routes
from mesh_pilot.explain.inspection.listings.secrets import list_secrets
from tests.inspection.dumps import assignment, clusters, endpoints, listeners, routes, secrets, section, socket
from tests.support.certificates import write_certificates

HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
TCP = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"


def dump(*sections: dict[str, Any], **more: Any) -> ConfigDump:
    found = dump_of({"configs": list(sections), **more})
    assert found is not None
    return found


def first_cells(listing: Listing) -> list[str]:
    return [row.cells[0] for row in listing.rows]


CLUSTERS = dump(
    clusters(
        {"name": "outbound|9080||reviews.test", "type": "EDS"},
        {"name": "outbound|9080|v1|reviews.test", "type": "EDS"},
        {"name": "outbound|80||a.test", "type": "STRICT_DNS"},
        {"name": "inbound|8080||", "type": "ORIGINAL_DST"},
        {"name": "PassthroughCluster", "type": "ORIGINAL_DST"},
        {"name": "odd", "cluster_type": {"name": "envoy.clusters.redis"}},
        made_from=("ServiceEntry/shop/reviews", "DestinationRule/shop/reviews"),
    ),
    origins={"ServiceEntry/shop/reviews": "config/reviews.yaml:3"},
)


def test_clusters_are_sorted_and_named_by_their_parts() -> None:
    found = list_clusters(CLUSTERS, ClusterFilter())
    assert [row.cells for row in found.rows] == [
        ("", "8080", "", "inbound", "ORIGINAL_DST", "reviews.shop"),
        ("PassthroughCluster", "", "", "", "ORIGINAL_DST", "reviews.shop"),
        ("a.test", "80", "", "outbound", "STRICT_DNS", "reviews.shop"),
        ("odd", "", "", "", "envoy.clusters.redis", "reviews.shop"),
        ("reviews.test", "9080", "", "outbound", "EDS", "reviews.shop"),
        ("reviews.test", "9080", "v1", "outbound", "EDS", "reviews.shop"),
    ]
    head, *lines = found.table(CLUSTERS)
    assert head[-1] == "MADE FROM"
    assert lines[0][-1] == "config/reviews.yaml:3, DestinationRule/shop/reviews", "the name where no place is known"
    assert lines[0][0] == "-"


def test_a_service_of_a_registry_names_it() -> None:
    found = dump(
        clusters({"name": "outbound|80||a.service.consul"}, made_from=("DestinationRule/shop/a",)),
        origins={"DestinationRule/shop/a": "consul mesh-pilot/config/a"},
        registries={"a.service.consul": "Consul"},
    )
    (_, row) = list_clusters(found, ClusterFilter()).table(found)
    assert row[-1] == "Consul, consul mesh-pilot/config/a"


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (ClusterFilter(fqdn="reviews"), ["reviews.test", "reviews.test"]),
        (ClusterFilter(port=80), ["a.test"]),
        (ClusterFilter(subset="v1"), ["reviews.test"]),
        (ClusterFilter(direction="Inbound"), [""]),
        (ClusterFilter(fqdn="nobody"), []),
    ],
)
def test_clusters_are_filtered(wanted: ClusterFilter, names: list[str]) -> None:
    assert first_cells(list_clusters(CLUSTERS, wanted)) == names


@pytest.mark.parametrize(
    ("match", "shown"),
    [
        ({}, "ALL"),
        ({"server_names": ["a.test", "b.test"], "transport_protocol": "tls"}, "SNI: a.test,b.test; Trans: tls"),
        ({"application_protocols": ["http/1.0", "http/1.1", "h2c"]}, "App: HTTP"),
        ({"application_protocols": ["x"], "destination_port": 80}, "App: x; Addr: *:80"),
        (
            {"prefix_ranges": [{"address_prefix": "10.0.0.0", "prefix_len": 8}], "destination_port": 1},
            "Addr: 10.0.0.0/8:1",
        ),
    ],
)
def test_matches_of_filter_chains(match: dict[str, Any], shown: str) -> None:
    assert match_of({"filter_chain_match": match}) == shown


def everything(cluster: str) -> dict[str, Any]:
    return {
        "virtual_hosts": [{"domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": cluster}}]}]
    }


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"@type": HCM, "rds": {"route_config_name": "9080"}}, "Route: 9080"),
        ({"@type": HCM, "route_config": everything("inbound|80||")}, "Cluster: inbound|80||"),
        ({"@type": HCM, "route_config": everything("PassthroughCluster")}, "PassthroughCluster"),
        (
            {
                "@type": HCM,
                "route_config": {"virtual_hosts": [{"domains": ["a"], "routes": [{"match": {"path": "/x"}}]}]},
            },
            "Inline Route: a /x",
        ),
        ({"@type": TCP, "cluster": "outbound|1||a"}, "Cluster: outbound|1||a"),
        ({"@type": TCP, "weighted_clusters": {"clusters": [{"name": "a", "weight": 9}]}}, "Clusters: a 9"),
        ({"@type": "x.Y"}, "Non-HTTP/Non-TCP"),
    ],
)
def test_destinations_of_filter_chains(config: dict[str, Any], shown: str) -> None:
    assert destination_of({"filters": [{"name": "any", "typed_config": config}]}) == shown


def test_listeners_are_sorted_by_port_and_filtered() -> None:
    http = [{"filters": [{"typed_config": {"@type": HCM}}]}]
    tcp = [{"filters": [{"typed_config": {"@type": TCP, "cluster": "a"}}]}]
    found = dump(
        listeners(
            {"name": "b", "address": socket("0.0.0.0:9080"), "filter_chains": http, "default_filter_chain": tcp[0]},
            {"name": "a", "address": socket("10.0.0.1:80"), "filter_chains": tcp},
            {"name": "c", "address": {"pipe": {"path": "/run/x"}}},
        )
    )
    short = list_listeners(found, ListenerFilter(), verbose=False)
    assert [row.cells for row in short.rows] == [
        ("unix:///run/x", "", "UNKNOWN"), ("10.0.0.1", "80", "TCP"), ("0.0.0.0", "9080", "HTTP+TCP"),
    ]  # fmt: skip
    assert first_cells(list_listeners(found, ListenerFilter(type="http+tcp"))) == ["0.0.0.0", "0.0.0.0"]
    assert first_cells(list_listeners(found, ListenerFilter(address="10.0.0.1"))) == ["10.0.0.1"]
    assert first_cells(list_listeners(found, ListenerFilter(port=1))) == []


@pytest.mark.parametrize(
    ("match", "shown"),
    [
        ({"prefix": "/"}, "/*"),
        ({"path": "/a"}, "/a"),
        ({"path_separated_prefix": "/a"}, "PathPrefix:/a"),
        ({"safe_regex": {"regex": "a+"}}, "regex a+"),
        ({}, ""),
    ],
)
def test_matches_of_routes(match: dict[str, Any], shown: str) -> None:
    assert describe_match(match) == shown


def test_domains_are_shown_without_ports_and_longer_forms() -> None:
    assert describe_domains(["*"]) == "*"
    long = [
        "web.shop.svc.cluster.local",
        "web.shop.svc.cluster.local:80",
        "web.shop",
        "web.shop.svc",
        "10.0.0.1",
        "web",
    ]
    assert describe_domains(long) == "web.shop, 10.0.0.1 + 1 more..."


def test_a_route_names_the_virtual_service_with_the_closest_host_and_only_its_place() -> None:
    def host(name: str, *routes: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "domains": [name.partition(":")[0], name], "routes": list(routes)}

    to = {"match": {"prefix": "/"}, "route": {"cluster": "x"}}
    table = {
        "name": "80",
        "virtual_hosts": [host("a.test:80", to, to), host("b.wild.test:80", to), host("c.test:80", to)],
    }
    last = {
        "name": "allow_any",
        "domains": ["*"],
        "routes": [{"match": {}, "route": {"cluster": "PassthroughCluster"}}],
    }
    table["virtual_hosts"] += [last, host("none.test:80")]
    wild, exact, entry = "VirtualService/x/wild", "VirtualService/x/exact", "ServiceEntry/x/c"
    found = dump(
        routes(table, {"name": "9"}, made_from=(wild, exact, entry)),
        origins={wild: "w.yaml:1", exact: "e.yaml:1", entry: "c.yaml:1"},
        hosts={wild: ["*.wild.test", "*.test"], exact: ["a.test"], entry: ["c.test"]},
    )
    listing = list_routes(found, "80")
    assert [(row[1], row[4], row[5]) for row in listing.table(found)[1:]] == [
        ("a.test:80", "exact.x", "e.yaml:1"),
        ("a.test:80", "exact.x", "e.yaml:1"),
        ("b.wild.test:80", "wild.x", "w.yaml:1"),
        ("c.test:80", "wild.x", "w.yaml:1, c.yaml:1"),
        ("none.test:80", "404", "w.yaml:1"),
    ]
    assert [row.cells for row in list_routes(found, verbose=False).rows] == [("9", "0"), ("80", "5")]


def test_a_table_with_authorizers_is_listed_by_its_plain_name() -> None:
    found = dump(routes({"name": "80|auth-1f0c3a5b8e7d6c90"}, {"name": "443"}, {"name": "9"}))
    assert [row.cells[0] for row in list_routes(found, "80", verbose=False).rows] == ["80|auth-1f0c3a5b8e7d6c90"]
    names = [row.cells[0] for row in list_routes(found, verbose=False).rows]
    assert names == ["9", "80|auth-1f0c3a5b8e7d6c90", "443"]


def test_endpoints_have_the_health_that_envoy_found() -> None:
    told = endpoints(
        assignment("a", "10.0.0.1:80", health_status="UNHEALTHY"), assignment("b", "10.0.0.2:80", "fd00::1:80")
    )
    static = clusters({"name": "c", "type": "STATIC", "load_assignment": assignment("c", "10.0.0.3:80")})
    found = list_endpoints(dump(told, static), EndpointFilter())
    assert [row.cells[:4] for row in found.rows] == [
        ("10.0.0.1:80", "UNHEALTHY", "", "a"),
        ("10.0.0.2:80", "HEALTHY", "", "b"),
        ("10.0.0.3:80", "HEALTHY", "", "c"),
        ("[fd00::1]:80", "HEALTHY", "", "b"),
    ]
    health = {"eds_health_status": "HEALTHY", "failed_outlier_check": True}
    failed = {"eds_health_status": "HEALTHY", "failed_active_health_check": True}
    hosts = [
        {"address": socket("10.0.0.1:80"), "health_status": health},
        {"address": socket("10.0.0.2:80"), "health_status": failed, "locality": {"region": "eu", "zone": "a"}},
    ]
    live = dump_of({"cluster_statuses": [{"name": "a", "host_statuses": hosts}]})
    assert live is not None
    assert [row.cells for row in list_endpoints(live, EndpointFilter()).rows] == [
        ("10.0.0.1:80", "HEALTHY", "FAILED", "a", ""),
        ("10.0.0.2:80", "UNHEALTHY", "OK", "a", "eu/a"),
    ]
    for wanted in (
        EndpointFilter(status="unhealthy"),
        EndpointFilter(address="10.0.0.2"),
        EndpointFilter("10.0.0.2:80"),
    ):
        assert first_cells(list_endpoints(live, wanted)) == ["10.0.0.2:80"]
    for nothing in (EndpointFilter(port=1), EndpointFilter(cluster="b")):
        assert first_cells(list_endpoints(live, nothing)) == []


def test_secrets_tell_of_certificates_and_never_a_key(tmp_path: Any) -> None:
    files = write_certificates(tmp_path, "edge", dns=("a.test",))
    pem, key = files.certificate.read_text(), files.key.read_text()
    chain = {"certificate_chain": {"inline_string": pem}, "private_key": {"inline_string": key}}
    ticket = {"name": "tickets", "session_ticket_keys": {"keys": [{"inline_bytes": "c2VjcmV0IHRpY2tldA=="}]}}
    generic = {"name": "hmac", "generic_secret": {"secret": {"inline_string": "the hmac"}}}
    found = dump(secrets({"name": "edge", "tls_certificate": chain}, ticket, generic, warming=({"name": "default"},)))
    listing = list_secrets(found, datetime.now(UTC))
    assert [row.cells[:4] for row in listing.rows] == [
        ("edge", "Cert Chain", "ACTIVE", "true"),
        ("tickets", "", "ACTIVE", "false"),
        ("hmac", "", "ACTIVE", "false"),
        ("default", "", "WARMING", "false"),
    ]
    assert listing.rows[0].cells[5].endswith("Z")
    late = list_secrets(found, datetime(2100, 1, 1, tzinfo=UTC))
    assert late.rows[0].cells[3] == "false"
    shown = json.dumps(listing.messages)
    for secret in (key, key.splitlines()[1], "c2VjcmV0IHRpY2tldA==", "the hmac"):
        assert secret not in shown
    assert pem.splitlines()[1] in shown


def test_a_resource_that_envoy_refuses_says_so() -> None:
    refused = {"name": "odd", "error_state": {"failed_configuration": {"name": "odd"}, "details": "cannot\nbind"}}
    found = dump(section("Listeners", dynamic_listeners=[refused]))
    (_, line) = list_listeners(found, ListenerFilter()).table(found)
    assert line[-1] == "refused: cannot bind"


def difference(sent: dict[str, Any], held: dict[str, Any]) -> list[tuple[str, str, DifferenceKind]]:
    return [(each.type, d.name, d.kind) for each in compare(dump(sent), dump(held)) for d in each.differences]


def test_what_envoy_adds_is_no_difference() -> None:
    def group(*hosts: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"cluster_name": "a", "endpoints": [{"lb_endpoints": list(hosts), "locality": {}}], **more}

    one, two = ({"endpoint": {"address": socket(f"10.0.0.{n}:80")}} for n in (1, 2))
    live = {"health_status": "UNHEALTHY", "load_balancing_weight": 1}
    more = {"policy": {"overprovisioning_factor": 140}}
    assert difference(endpoints(group(one, two)), endpoints(group({**two, **live}, {**one, **live}, **more))) == []
    static = section("Clusters", static_clusters=[{"cluster": {"name": "xds"}}])
    assert difference(section("Clusters"), static) == []
    table = {"name": "80", "vhds": {}}
    hosts = [{"name": "80/a", "domains": ["a"]}, {"name": "80/b", "domains": ["b"]}]
    sent = dump(
        routes(table), section("VirtualHosts", dynamic_virtual_hosts=[{"virtual_host": each} for each in hosts])
    )
    (compared,) = compare(sent, dump(routes({**table, "virtual_hosts": hosts[::-1]})))
    assert compared.matches


def test_what_envoy_lacks_has_otherwise_or_has_left_is_a_difference() -> None:
    def told(status: str) -> dict[str, Any]:
        return endpoints(assignment("a", "10.0.0.1:80", health_status=status))

    assert difference(told("UNHEALTHY"), told("HEALTHY")) == [("EDS", "a", DifferenceKind.CHANGED)]
    assert difference(told("HEALTHY"), endpoints(assignment("a"))) == [("EDS", "a", DifferenceKind.CHANGED)]
    held = clusters({"name": "b", "type": "EDS"}, {"name": "c"})
    assert difference(clusters({"name": "a"}, {"name": "b"}), held) == [
        ("CDS", "a", DifferenceKind.MISSING),
        ("CDS", "b", DifferenceKind.CHANGED),
        ("CDS", "c", DifferenceKind.LEFT_OVER),
    ]
