"""What proxyless gRPC gets by name: listeners, route tables, clusters and endpoints in gRPC's own words."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3 import route_components_pb2 as rc
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.http.fault.v3.fault_pb2 import HTTPFault
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.load_balancing_policies.wrr_locality.v3.wrr_locality_pb2 import WrrLocality
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import DownstreamTlsContext, UpstreamTlsContext
from google.protobuf import json_format

from mesh_pilot.envoy.catalog.catalog import WorldCatalog, WorldResources
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET
from mesh_pilot.world import World
from tests.support.routing import config, service, virtual_service
from tests.support.worlds import sidecar, update, world_of

WEB = "web.shop.svc.cluster.local"
CLUSTER_NAME = f"outbound|9000||{WEB}"
GRPC = "9000 grpc GRPC"


def opened(world: World, namespace: str = "shop", **node: Any) -> WorldResources:
    """All that a proxyless workload may be sent."""
    return WorldCatalog(world).open(sidecar(namespace=namespace, GENERATOR="grpc", **node))


def body(resources: WorldResources, type_url: str, name: str) -> bytes | None:
    held = resources.set(type_url)
    assert held is not None
    found = held.get(name)
    assert found is None or found.name == name
    return found.body if found else None


def listener(world: World, name: str, **node: Any) -> Listener | None:
    found = body(opened(world, **node), LISTENER, name)
    return None if found is None else Listener.FromString(found)


def table_of(world: World, name: str, **node: Any) -> str:
    """The route table that the listener of a name leads to; empty without such a listener."""
    found = listener(world, name, **node)
    if found is None:
        return ""
    manager = hcm_pb2.HttpConnectionManager()
    assert found.name == name and found.api_listener.api_listener.Unpack(manager)
    return str(manager.rds.route_config_name)


def routes(world: World, name: str = CLUSTER_NAME) -> list[rc.Route]:
    """The routes of the web service."""
    found = body(opened(world), ROUTE, name)
    assert found is not None
    hosts = {h.name: h for h in RouteConfiguration.FromString(found).virtual_hosts}
    return list(hosts[f"{WEB}:9000"].routes)


def ruled(rule: str) -> World:
    return world_of(service("web", ports=GRPC) + virtual_service("web", f"{{hosts: [web], http: [{rule}]}}"))


def cluster(world: World, name: str = CLUSTER_NAME) -> Cluster:
    found = body(opened(world), CLUSTER, name)
    assert found is not None
    return Cluster.FromString(found)


def with_policy(policy: str) -> World:
    return world_of(service("web", ports=GRPC) + destination_rule(policy))


def destination_rule(policy: str) -> str:
    return config("DestinationRule", "web", f"{{host: web, trafficPolicy: {policy}}}")


def test_clusters_name_the_server_of_load_reports_where_the_client_asks_for_it() -> None:
    world = world_of(service("web", ports=GRPC))
    for name in (CLUSTER_NAME, f"outbound|9000|nowhere|{WEB}", "outbound|9000||absent.shop.svc.cluster.local"):
        asked, silent = (body(opened(world, **node), CLUSTER, name) for node in ({"LOAD_REPORTS": "true"}, {}))
        assert asked is not None
        assert silent is not None
        assert Cluster.FromString(asked).lrs_server.HasField("self")
        assert not Cluster.FromString(silent).HasField("lrs_server")


TO = f"route: [{{destination: {{host: {WEB}}}}}]"


# -- listeners of clients


@pytest.mark.parametrize("name", ["web:9000", "web.shop:9000", "web.shop.svc:9000", f"{WEB}:9000", "web", WEB])
def test_a_channel_may_use_any_form_of_a_host_that_its_namespace_knows(name: str) -> None:
    assert table_of(world_of(service("web", ports=GRPC)), name) == CLUSTER_NAME


@pytest.mark.parametrize("name", ["web.shop:9000", "web.shop.svc:9000", f"{WEB}:9000"])
def test_from_another_namespace_short_forms_have_the_namespace(name: str) -> None:
    world = world_of(service("web", ports=GRPC))
    assert table_of(world, name, namespace="depot") == CLUSTER_NAME
    assert table_of(world, "web:9000", namespace="depot") == ""


@pytest.mark.parametrize("name", ["web:9001", "api:9000", "web.sho:9000", ":9000", "", "web:", "web:x", "*:9000"])
def test_there_is_no_listener_for_what_is_no_service(name: str) -> None:
    assert listener(world_of(service("web", ports=GRPC)), name) is None


def test_without_a_port_the_service_has_just_one() -> None:
    assert listener(world_of(service("web", ports="9000 grpc GRPC, 9001 more GRPC")), "web") is None


def test_a_sidecar_and_export_to_narrow_what_a_channel_may_reach() -> None:
    narrow = config("Sidecar", "default", "{egress: [{hosts: ['./api.shop.svc.cluster.local']}]}")
    world = world_of(service("web", ports=GRPC) + service("api", ports=GRPC) + narrow)
    assert listener(world, "web:9000") is None
    assert listener(world, "api:9000") is not None
    hidden = service("web", ports=GRPC).replace("{hosts:", "{exportTo: ['.'], hosts:")
    assert listener(world_of(hidden), "web.shop:9000", namespace="depot") is None


def test_a_channels_listener_has_only_filters_that_every_grpc_knows() -> None:
    found = listener(world_of(service("web", ports=GRPC, addresses="10.9.9.9")), "web:9000")
    assert found is not None
    assert found.address.socket_address.address == "10.9.9.9"
    manager = hcm_pb2.HttpConnectionManager.FromString(found.api_listener.api_listener.value)
    assert [f.name for f in manager.http_filters] == ["envoy.filters.http.fault", "envoy.filters.http.router"]
    assert manager.rds.config_source.HasField("ads")


# -- listeners of servers

INBOUND = "xds.istio.io/grpc/lds/inbound/"


def peer_authentication(spec: str, name: str = "default") -> str:
    return config("PeerAuthentication", name, spec).replace("networking.istio.io", "security.istio.io")


def is_mutual(found: Listener | None) -> bool:
    assert found is not None
    (chain,) = found.filter_chains
    if not chain.HasField("transport_socket"):
        return False
    context = DownstreamTlsContext.FromString(chain.transport_socket.typed_config.value)
    return bool(context.require_client_certificate.value)


@pytest.mark.parametrize(
    ("address", "host"), [("10.1.1.1:9000", "10.1.1.1"), ("[::]:9000", "::"), ("0.0.0.0:1", "0.0.0.0")]
)
def test_a_server_gets_the_listener_of_its_address_whether_or_not_a_service_knows_it(address: str, host: str) -> None:
    found = listener(world_of(), INBOUND + address)
    assert found is not None and not found.HasField("api_listener")
    assert found.address.socket_address.address == host
    assert found.address.socket_address.port_value == int(address.rpartition(":")[2])
    manager = hcm_pb2.HttpConnectionManager.FromString(found.filter_chains[0].filters[0].typed_config.value)
    assert [f.name for f in manager.http_filters] == ["envoy.filters.http.router"]
    (route,) = manager.route_config.virtual_hosts[0].routes
    assert route.HasField("non_forwarding_action")


@pytest.mark.parametrize("address", ["", "9000", "host:9000", "10.1.1.1", "10.1.1.1:0"])
def test_what_is_no_address_has_no_listener(address: str) -> None:
    assert listener(world_of(), INBOUND + address) is None


def test_a_server_speaks_mutual_tls_where_its_port_is_strict() -> None:
    name = f"{INBOUND}10.1.1.1:9000"
    assert not is_mutual(listener(world_of(), name))
    strict = world_of(peer_authentication("{mtls: {mode: STRICT}}"))
    assert is_mutual(listener(strict, name))
    assert not is_mutual(listener(strict, name, namespace="depot"))
    by_port = peer_authentication(
        "{selector: {matchLabels: {app: web}}, mtls: {mode: STRICT}, portLevelMtls: {9000: {mode: DISABLE}}}"
    )
    world = world_of(by_port)
    assert not is_mutual(listener(world, name, labels={"app": "web"}))
    assert is_mutual(listener(world, f"{INBOUND}10.1.1.1:9001", labels={"app": "web"}))
    assert not is_mutual(listener(world, f"{INBOUND}10.1.1.1:9001", labels={"app": "api"}))


def test_a_permissive_server_speaks_mutual_tls_where_its_label_says_that_it_has_it() -> None:
    name, has_tls = f"{INBOUND}10.1.1.1:9000", {"security.istio.io/tlsMode": "istio"}
    assert is_mutual(listener(world_of(), name, labels=has_tls))
    assert not is_mutual(listener(world_of(peer_authentication("{mtls: {mode: DISABLE}}")), name, labels=has_tls))


# -- routes


def test_a_table_has_the_services_of_its_port_and_nothing_for_hosts_unknown() -> None:
    world = world_of(service("web", ports=GRPC) + service("api", ports=GRPC) + service("other"))
    found = RouteConfiguration.FromString(body(opened(world), ROUTE, CLUSTER_NAME) or b"")
    assert sorted(h.name for h in found.virtual_hosts) == ["api.shop.svc.cluster.local:9000", f"{WEB}:9000"]


@pytest.mark.parametrize(
    "name", ["9000", f"outbound|9001||{WEB}", f"outbound|9000|v1|{WEB}", "outbound|9000||x", "inbound|9000||", ""]
)
def test_there_is_no_table_for_what_is_no_service(name: str) -> None:
    assert body(opened(world_of(service("web", ports=GRPC))), ROUTE, name) is None


@pytest.mark.parametrize("protocol", ["TCP", "TLS", "''", "HTTP", "Mongo"])
def test_a_channel_gets_a_route_whatever_the_port_is_declared_as(protocol: str) -> None:
    (route,) = routes(world_of(service("web", ports=f"9000 main {protocol}")))
    assert route.route.cluster == CLUSTER_NAME


def test_time_limits_are_where_grpc_reads_them() -> None:
    (route,) = routes(ruled(f"{{timeout: 2s, {TO}}}"))
    assert json_format.MessageToDict(route.route.max_stream_duration) == {"maxStreamDuration": "2s"}


def test_faults_stay_and_filters_that_grpc_lacks_go() -> None:
    fault = "fault: {abort: {grpcStatus: ABORTED, percentage: {value: 5}}}"
    cors = "corsPolicy: {allowOrigins: [{exact: 'http://a'}]}"
    (route,) = routes(ruled(f"{{{fault}, {cors}, {TO}}}"))
    assert set(route.typed_per_filter_config) == {"envoy.filters.http.fault"}
    assert HTTPFault.FromString(route.typed_per_filter_config["envoy.filters.http.fault"].value).abort.grpc_status == 10


@pytest.mark.parametrize(
    ("retry_on", "expected"),
    [
        ("", {"connect-failure", "refused-stream", "unavailable", "cancelled", "retriable-status-codes"}),
        ("cancelled,internal", {"cancelled", "internal"}),
        ("5xx", {"5xx", "unavailable"}),
        ("gateway-error,unavailable", {"gateway-error", "unavailable"}),
        ("503", {"retriable-status-codes", "unavailable"}),
        ("404", {"retriable-status-codes"}),
    ],
)
def test_conditions_of_proxies_become_grpcs_where_they_mean_the_same(retry_on: str, expected: set[str]) -> None:
    (route,) = routes(ruled(f"{{retries: {{attempts: 2, retryOn: '{retry_on}'}}, {TO}}}"))
    assert set(route.route.retry_policy.retry_on.split(",")) == expected


def test_no_retries_stay_none() -> None:
    (route,) = routes(ruled(f"{{retries: {{attempts: 0}}, {TO}}}"))
    assert not route.route.HasField("retry_policy")


def matchers(route: rc.Route) -> list[str]:
    shown = []
    for header in route.match.headers:
        value = "present" if header.HasField("present_match") else str(header.string_match.exact)
        shown.append(f"{'not ' if header.invert_match else ''}{header.name} {value}")
    return shown


def test_a_header_that_must_not_have_a_value_may_be_missing() -> None:
    """In gRPC a matcher of a value never passes a call without the header: so there is a second route for these."""
    first, second, rest = routes(ruled(f"{{match: [{{withoutHeaders: {{x: {{exact: a}}}}}}], {TO}}}, {{{TO}}}"))
    assert [matchers(first), matchers(second), matchers(rest)] == [["not x present"], ["not x a"], []]
    assert first.route == second.route


def test_a_method_is_decided_here_for_grpc_has_but_one_and_none_yet_when_it_looks() -> None:
    (route,) = routes(ruled(f"{{match: [{{method: {{exact: GET}}}}], {TO}}}, {{name: b, {TO}}}"))
    assert route.name == "b"
    for post in ("{exact: POST}", "{prefix: P}", "{regex: 'GET|POST'}"):
        first, _ = routes(ruled(f"{{name: a, match: [{{method: {post}}}], {TO}}}, {{name: b, {TO}}}"))
        assert first.name == "a" and matchers(first) == []


def test_a_channel_stands_for_the_source_address_in_hashes() -> None:
    (route,) = routes(with_policy("{loadBalancer: {consistentHash: {useSourceIp: true}}}"))
    (hashed,) = route.route.hash_policy
    assert hashed.filter_state.key == "io.grpc.channel_id"


# -- clusters and endpoints


def test_a_cluster_has_only_what_grpc_understands() -> None:
    found = cluster(
        with_policy(
            "{connectionPool: {tcp: {maxConnections: 5}}, outlierDetection: {}, loadBalancer: {simple: RANDOM}}"
        )
    )
    assert found == Cluster(
        name=CLUSTER_NAME,
        type=Cluster.EDS,
        eds_cluster_config={"eds_config": {"ads": {}}, "service_name": CLUSTER_NAME},
    )


@pytest.mark.parametrize("simple", ["LEAST_REQUEST", "LEAST_CONN"])
def test_the_endpoint_with_fewer_calls_is_chosen_by_libraries_that_can_and_others_take_turns(simple: str) -> None:
    (policy,) = cluster(with_policy(f"{{loadBalancer: {{simple: {simple}}}}}")).load_balancing_policy.policies
    around = WrrLocality.FromString(policy.typed_extension_config.typed_config.value)
    names = [each.typed_extension_config.name for each in around.endpoint_picking_policy.policies]
    assert names == [f"envoy.load_balancing_policies.{name}" for name in ("least_request", "round_robin")]


@pytest.mark.parametrize(
    ("hashing", "size"),
    [
        ("{httpHeaderName: x}", 0),
        ("{httpHeaderName: x, minimumRingSize: 50}", 50),
        ("{httpHeaderName: x, ringHash: {minimumRingSize: 70}}", 70),
        ("{httpHeaderName: x, maglev: {tableSize: 101}}", 0),
    ],
)
def test_consistent_hashing_is_by_ring(hashing: str, size: int) -> None:
    found = cluster(with_policy(f"{{loadBalancer: {{consistentHash: {hashing}}}}}"))
    assert found.lb_policy == Cluster.RING_HASH
    assert found.ring_hash_lb_config.minimum_ring_size.value == size


@pytest.mark.parametrize(
    ("tls", "own", "names"),
    [
        ("{mode: ISTIO_MUTUAL}", True, ["spiffe://cluster.local/ns/shop/sa/web"]),
        ("{mode: ISTIO_MUTUAL, subjectAltNames: [a]}", True, ["a"]),
        ("{mode: MUTUAL, clientCertificate: /c, privateKey: /k, subjectAltNames: [b]}", True, ["b"]),
        ("{mode: SIMPLE}", False, ["spiffe://cluster.local/ns/shop/sa/web"]),
    ],
)
def test_tls_is_by_the_certificate_provider_of_the_bootstrap(tls: str, own: bool, names: list[str]) -> None:
    text = service("web", ports=GRPC).replace("{address: 127.0.0.1}", "{address: 127.0.0.1, serviceAccount: web}")
    found = cluster(world_of(text + destination_rule(f"{{tls: {tls}}}")))
    common = UpstreamTlsContext.FromString(found.transport_socket.typed_config.value).common_tls_context
    assert common.HasField("tls_certificate_certificate_provider_instance") == own
    combined = common.combined_validation_context
    assert combined.validation_context_certificate_provider_instance.instance_name == "default"
    assert [m.exact for m in combined.default_validation_context.match_subject_alt_names] == names


def test_without_a_rule_that_says_so_there_is_no_tls() -> None:
    for policy in ("{outlierDetection: {}}", "{tls: {mode: DISABLE}}"):
        assert not cluster(with_policy(policy)).HasField("transport_socket")


@pytest.mark.parametrize("name", ["outbound|9000||nobody", f"outbound|9001||{WEB}", f"outbound|9000|v9|{WEB}"])
def test_what_a_route_may_name_and_nobody_serves_is_there_without_endpoints(name: str) -> None:
    resources = opened(world_of(service("web", ports=GRPC)))
    found = Cluster.FromString(body(resources, CLUSTER, name) or b"")
    assert found.name == name and found.type == Cluster.EDS
    assert ClusterLoadAssignment.FromString(body(resources, ENDPOINT, name) or b"") == ClusterLoadAssignment(
        cluster_name=name
    )


@pytest.mark.parametrize("name", ["", "x", "BlackHoleCluster", "inbound|9000||", f"outbound_.9000_._.{WEB}"])
def test_names_of_other_kinds_are_nothing_here(name: str) -> None:
    resources = opened(world_of(service("web", ports=GRPC)))
    assert body(resources, CLUSTER, name) is None and body(resources, ENDPOINT, name) is None


def test_a_name_is_resolved_by_grpc_and_several_cannot_be() -> None:
    by_name = service("web", ports=GRPC).replace("STATIC", "DNS")
    found = cluster(world_of(by_name.replace("127.0.0.1", "web.example.com")))
    assert found.type == Cluster.LOGICAL_DNS
    (where,) = found.load_assignment.endpoints[0].lb_endpoints
    assert where.endpoint.address.socket_address.address == "web.example.com"
    assert where.endpoint.address.socket_address.port_value == 9000
    several = by_name.replace("{address: 127.0.0.1}", "{address: a.example.com}, {address: b.example.com}")
    assert cluster(world_of(several)).type == Cluster.EDS


def test_endpoints_of_other_networks_are_themselves_for_grpc_cannot_pass_a_gateway() -> None:
    networks = "networks: {east: {gateways: [{address: 10.9.9.9, port: 15443}]}}"
    there = "{address: 10.1.1.2, network: east}, {address: 10.1.1.3, network: east, locality: a/b}"
    text = service("web", ports=GRPC).replace("{address: 127.0.0.1}", there)
    found = body(opened(world_of(text, networks=networks), NETWORK="west"), ENDPOINT, CLUSTER_NAME)
    localities = ClusterLoadAssignment.FromString(found or b"").endpoints
    held = [e.endpoint.address.socket_address.address for locality in localities for e in locality.lb_endpoints]
    assert held == ["10.1.1.2", "10.1.1.3"]


# -- as a whole


def test_a_wildcard_gets_nothing_for_there_is_no_all() -> None:
    resources = opened(world_of(service("web", ports=GRPC)))
    assert body(resources, LISTENER, "web:9000") and body(resources, CLUSTER, CLUSTER_NAME)
    for type_url in (LISTENER, CLUSTER, ROUTE, ENDPOINT):
        held = resources.set(type_url)
        assert held is not None and not held.snapshot().entries
    assert resources.set(SECRET) is None and resources.set(EXTENSION) is None


def test_what_is_asked_for_comes_goes_and_is_left_alone_by_changes_elsewhere() -> None:
    world = world_of(service("api", ports=GRPC))
    resources = opened(world)
    names = {LISTENER: frozenset({"web:9000"}), ROUTE: frozenset({CLUSTER_NAME})}
    sets = {type_url: held for type_url in names if (held := resources.set(type_url))}
    for type_url, wanted in names.items():
        assert not sets[type_url].select(wanted).entries
    update(world, service("web", ports=GRPC))
    found = {type_url: sets[type_url].select(wanted) for type_url, wanted in names.items()}
    assert {type_url: snapshot.names for type_url, snapshot in found.items()} == names
    update(world, service("third", ports=GRPC))
    assert sets[LISTENER].select(names[LISTENER]) is found[LISTENER]
