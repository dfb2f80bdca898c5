"""Inbound listeners: which connections a workload takes on which port, and what they need to show."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import DownstreamTlsContext

from mesh_pilot.engine import Watch
from mesh_pilot.mesh.listeners.inbound import merged_inbound_ports
from mesh_pilot.model.events import Endpoints, Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service
from mesh_pilot.world import World
from tests.support.listeners import inspector_names, is_http, listeners, manager, resources, target, tcp
from tests.support.worlds import SOURCE, sidecar, update, world_of


def web(ports: str = "{number: 80, name: http, protocol: HTTP, targetPort: 8080}", name: str = "web") -> str:
    return f"""
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: {name}, namespace: shop}}
spec:
  hosts: [{name}.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{ports}]
  endpoints: [{{address: 10.1.1.1, labels: {{app: web}}}}, {{address: 10.1.1.2, labels: {{app: web}}}}]
"""


def peer(mode: str, ports: str = "") -> str:
    return f"""
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: web, namespace: shop}}
spec: {{selector: {{matchLabels: {{app: web}}}}, mtls: {{mode: {mode}}}{ports and ", portLevelMtls: " + ports}}}
"""


def workload(ip: str = "10.1.1.1", **metadata: Any) -> Proxy:
    return sidecar(ip, name="web", namespace="shop", labels={"app": "web"}, **metadata)


def virtual_inbound(world: World, proxy: Proxy | None = None) -> Any:
    return listeners(world, proxy or workload())["virtualInbound"]


def takes(listener: Any, port: int) -> list[str]:
    """The chains of a destination port (0: those for any other), each in a few words."""
    found = []
    for chain in listener.filter_chains:
        match = chain.filter_chain_match
        if match.destination_port.value != port:
            continue
        tls = "mtls" if chain.HasField("transport_socket") else match.transport_protocol
        kind = "http" if is_http(chain) else "bytes"
        found.append(" ".join((tls, kind, *match.application_protocols)))
    return found


PROTOCOLS = {
    "HTTP": {
        "STRICT": ["mtls http"],
        "PERMISSIVE": ["mtls http istio istio-http/1.0 istio-http/1.1 istio-h2", "raw_buffer http"],
        "DISABLE": ["raw_buffer http"],
    },
    "TCP": {
        "STRICT": ["mtls bytes"],
        "PERMISSIVE": [
            "mtls bytes istio istio-http/1.0 istio-http/1.1 istio-h2",
            "tls bytes",
            "raw_buffer bytes",
        ],
        "DISABLE": ["raw_buffer bytes"],
    },
    "": {
        "STRICT": ["mtls http istio-http/1.0 istio-http/1.1 istio-h2", "mtls bytes"],
        "PERMISSIVE": [
            "mtls http istio-http/1.0 istio-http/1.1 istio-h2",
            "raw_buffer http http/1.1 h2c",
            "mtls bytes istio",
            "raw_buffer bytes",
            "tls bytes",
        ],
        "DISABLE": ["raw_buffer http http/1.1 h2c", "raw_buffer bytes"],
    },
}


@pytest.mark.parametrize("mode", ["STRICT", "PERMISSIVE", "DISABLE"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_port_takes_connections_by_its_protocol_and_mtls_mode(protocol: str, mode: str) -> None:
    world = world_of(web(f"{{number: 8080, name: what, protocol: '{protocol}'}}") + peer(mode))
    assert takes(virtual_inbound(world), 8080) == PROTOCOLS[protocol][mode]


def test_ports_have_their_own_mtls_modes_declared_or_not() -> None:
    world = world_of(web() + peer("STRICT", "{8080: {mode: DISABLE}, 9999: {mode: PERMISSIVE}}"))
    listener = virtual_inbound(world)
    assert takes(listener, 8080) == ["raw_buffer http"]
    assert takes(listener, 9999) == PROTOCOLS[""]["PERMISSIVE"]
    assert takes(listener, 0) == PROTOCOLS[""]["STRICT"]


def test_inspectors_are_off_on_ports_that_do_not_need_them() -> None:
    world = world_of(web("{number: 9000, name: tcp, protocol: TCP}") + peer("DISABLE"))
    listener = virtual_inbound(world)
    assert inspector_names(listener) == ["original_dst", "http_inspector"]
    off = listener.listener_filters[1].filter_disabled.or_match.rules
    assert [r.destination_port_range.start for r in off] == [9000, 15006]


def test_mesh_mtls_asks_for_a_certificate_of_the_trust_domain_or_its_aliases() -> None:
    world = world_of(web(), mesh="{trustDomain: one.example, trustDomainAliases: [old.example]}")
    socket = virtual_inbound(world).filter_chains[1].transport_socket
    context = DownstreamTlsContext.FromString(socket.typed_config.value)
    assert context.require_client_certificate.value
    common = context.common_tls_context
    assert common.tls_certificate_sds_secret_configs[0].name == "default"
    validation = common.combined_validation_context
    assert validation.validation_context_sds_secret_config.name == "ROOTCA"
    matchers = validation.default_validation_context.match_typed_subject_alt_names
    assert [m.matcher.prefix for m in matchers] == ["spiffe://one.example/", "spiffe://old.example/"]


def test_certificate_files_of_the_node_take_the_place_of_the_mesh_identity() -> None:
    files = {"TLS_SERVER_CERT_CHAIN": "/c.pem", "TLS_SERVER_KEY": "/k.pem", "TLS_SERVER_ROOT_CERT": "/r.pem"}
    socket = virtual_inbound(world_of(web()), workload(**files)).filter_chains[1].transport_socket
    common = DownstreamTlsContext.FromString(socket.typed_config.value).common_tls_context
    assert common.tls_certificate_sds_secret_configs[0].name == "file-cert:/c.pem~/k.pem"
    assert common.combined_validation_context.validation_context_sds_secret_config.name == "file-root:/r.pem"


def test_http_of_a_port_has_its_route_inline_and_no_time_limit() -> None:
    chain = next(c for c in virtual_inbound(world_of(web())).filter_chains if c.name == "0.0.0.0_8080")
    routes = manager(chain).route_config
    assert routes.name == "inbound|8080||"
    assert routes.virtual_hosts[0].name == "inbound|http|80"
    route = routes.virtual_hosts[0].routes[0]
    assert route.route.cluster == "inbound|8080||" and route.decorator.operation == "web.example:80/*"
    assert route.route.HasField("timeout") and route.route.timeout.seconds == 0


def test_the_meshs_pattern_names_the_statistics_of_tcp_ports_and_not_those_of_http_as_in_istio() -> None:
    ports = web("{number: 80, name: http, protocol: HTTP, targetPort: 8080}, {number: 90, name: tcp, protocol: TCP}")
    world = world_of(ports, mesh="inboundClusterStatName: in_%SERVICE_FQDN%")
    chains = {c.name: c for c in virtual_inbound(world).filter_chains}
    assert manager(chains["0.0.0.0_8080"]).stat_prefix == "inbound_0.0.0.0_8080"
    assert tcp(chains["0.0.0.0_90"]).stat_prefix == "in_web.example"


def test_connections_to_the_listeners_own_port_end_in_a_black_hole() -> None:
    first = virtual_inbound(world_of(mesh="proxyInboundListenPort: 15106")).filter_chains[0]
    assert first.filter_chain_match.destination_port.value == 15106
    assert tcp(first).cluster == "BlackHoleCluster"


def test_passthrough_is_one_for_both_address_families() -> None:
    world = world_of()
    listener = virtual_inbound(world, sidecar("10.1.1.1", namespace="shop", INSTANCE_IPS="10.1.1.1,2001:db8::1"))
    found = {tcp(c).cluster for c in listener.filter_chains if not is_http(c)}
    assert found == {"BlackHoleCluster", "InboundPassthroughCluster"}
    six = virtual_inbound(world, sidecar("2001:db8::1", namespace="shop"))
    assert six.address.socket_address.address == "::"


def test_a_service_of_another_namespace_does_not_claim_a_port() -> None:
    world = world_of(web().replace("namespace: shop", "namespace: elsewhere"))
    assert takes(virtual_inbound(world), 8080) == []
    # A node that does not say its namespace takes part in what is at its address.
    assert takes(virtual_inbound(world, workload(NAMESPACE=None)), 8080) != []


def test_a_node_without_labels_has_those_of_its_endpoint() -> None:
    world = world_of(web() + peer("STRICT"))
    assert takes(virtual_inbound(world, sidecar("10.1.1.1", namespace="shop")), 8080) == ["mtls http"]


def test_of_two_services_on_one_port_the_first_counts_and_the_conflict_is_told() -> None:
    world = world_of(
        web("{number: 80, name: http, protocol: HTTP, targetPort: 8080}", "a")
        + web("{number: 81, name: tcp, protocol: TCP, targetPort: 8080}", "b")
    )
    assert takes(virtual_inbound(world), 8080)[0].startswith("mtls http")
    conflicts = merged_inbound_ports(world.view, target(world, workload()).workload).conflicts
    assert [(c.listener, c.kept, c.dropped) for c in conflicts] == [("0.0.0.0_8080", "a.example", "b.example")]


# -- without interception


def test_without_interception_each_port_has_a_listener_at_the_workloads_address() -> None:
    found = listeners(world_of(web()), workload(INTERCEPTION_MODE="NONE"))
    inbound = found["0.0.0.0_8080"]
    # The application listens on the loopback address, so the wildcard address would be taken.
    assert inbound.address.socket_address.address == "10.1.1.1"
    assert takes(inbound, 8080) == PROTOCOLS["HTTP"]["PERMISSIVE"]
    assert inspector_names(inbound) == ["tls_inspector"]
    assert "virtualInbound" not in found


def test_an_endpoint_with_several_addresses_has_a_listener_at_those_of_its_workload() -> None:
    world = world_of()
    found = Service("web.service.consul", "default", (Port(80, "http", Protocol.HTTP),), declared_by_users=False)
    endpoint = Endpoint("10.1.1.1", 8080, "http", additional_addresses=("2001:db8::1", "2001:db8::2"))
    world.apply([Upsert(SOURCE, found), Upsert(SOURCE, Endpoints(found.key, (endpoint,)))])

    def addresses(*own: str, **metadata: str) -> list[str]:
        proxy = sidecar(own[0], INSTANCE_IPS=",".join(own), INTERCEPTION_MODE="NONE", **metadata)
        inbound = next(x for name, x in listeners(world, proxy).items() if name.endswith("_8080"))
        further = [each.address for each in inbound.additional_addresses]
        return [each.socket_address.address for each in (inbound.address, *further)]

    assert addresses("10.1.1.1", "2001:db8::1") == ["10.1.1.1", "2001:db8::1"]
    assert addresses("2001:db8::1") == ["2001:db8::1"]
    assert addresses("10.1.1.1") == ["10.1.1.1"]


def test_a_workload_on_the_loopback_address_is_reached_directly() -> None:
    text = web().replace("10.1.1.1", "127.0.0.1")
    assert "0.0.0.0_8080" not in listeners(world_of(text), workload("127.0.0.1", INTERCEPTION_MODE="NONE"))


# -- Sidecar ingress listeners

INGRESS = """
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress:
  - {port: {number: 9080, name: http, protocol: HTTP}, defaultEndpoint: "127.0.0.1:8080"}
  - port: {number: 9000, name: tcp, protocol: TCP}
    defaultEndpoint: "127.0.0.1:9001"
    bind: 10.1.1.7
    captureMode: NONE
"""


def test_ingress_listeners_take_the_place_of_the_services_ports() -> None:
    found = listeners(world_of(web() + INGRESS), workload())
    captured = found["virtualInbound"]
    assert takes(captured, 8080) == [] and takes(captured, 9080) == PROTOCOLS["HTTP"]["PERMISSIVE"]
    names = {c.name for c in captured.filter_chains if c.filter_chain_match.destination_port.value == 9080}
    assert names == {"10.1.1.1_9080"}
    own = found["10.1.1.7_9000"]
    assert own.address.socket_address.address == "10.1.1.7"
    assert tcp(own.filter_chains[0]).cluster == "inbound|9000||"


def test_spans_of_a_sidecar_of_the_root_namespace_name_the_namespace_of_the_proxy() -> None:
    root = INGRESS.replace("namespace: shop", "namespace: istio-system")
    root = root.replace("  workloadSelector: {labels: {app: web}}\n", "")
    captured = virtual_inbound(world_of(web() + root))
    chain = next(c for c in captured.filter_chains if c.filter_chain_match.destination_port.value == 9080)
    (route,) = manager(chain).route_config.virtual_hosts[0].routes
    assert route.decorator.operation == "web.shop:9080/*"


def test_an_ingress_listener_ends_tls_of_its_own_where_the_mesh_has_none() -> None:
    tls = INGRESS.replace(
        '9080, name: http, protocol: HTTP}, defaultEndpoint: "127.0.0.1:8080"',
        '9080, name: https, protocol: HTTPS}, defaultEndpoint: "127.0.0.1:8080", '
        "tls: {mode: SIMPLE, serverCertificate: /c.pem, privateKey: /k.pem}",
    )
    (own,) = (
        c for c in virtual_inbound(world_of(web() + tls + peer("DISABLE"))).filter_chains if c.name == "10.1.1.1_9080"
    )
    context = DownstreamTlsContext.FromString(own.transport_socket.typed_config.value)
    assert context.common_tls_context.tls_certificate_sds_secret_configs[0].name == "file-cert:/c.pem~/k.pem"
    assert is_http(own) and not context.require_client_certificate.value


# -- what a change costs


def test_replicas_of_a_workload_share_their_listener() -> None:
    world = world_of(web() + peer("STRICT"))
    watch = Watch(world.memo, lambda: None)
    one = resources(world, workload("10.1.1.1"), watch)
    two = resources(world, sidecar("10.1.1.2", namespace="shop", labels={"app": "web", "pod": "web-2"}), watch)
    assert one["virtualInbound"] is two["virtualInbound"]
    assert world.memo.statistics().calls["virtual_inbound"] == 1


def test_another_endpoint_of_the_service_does_not_touch_a_workloads_listener() -> None:
    world = world_of(web())
    watch = Watch(world.memo, lambda: None)
    resources(world, workload(), watch)
    before = world.memo.statistics().calls
    update(world, web().replace("10.1.1.2", "10.1.1.3"))
    resources(world, workload(), watch)
    after = world.memo.statistics().calls
    for function in ("workload_instances", "inbound_listeners", "virtual_inbound"):
        assert after[function] == before[function]


def test_a_workload_that_captures_nothing_may_have_its_ports_balanced_evenly_too() -> None:
    metadata = {"INTERCEPTION_MODE": "NONE", "INBOUND_LISTENER_EXACT_BALANCE": "true"}
    found = listeners(world_of(web()), workload(**metadata))["0.0.0.0_8080"]
    assert found.connection_balance_config.HasField("exact_balance")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (15001, "the sidecar itself listens there"),
        (15006, "the sidecar itself listens there"),
        (80, "an outbound listener has the same address"),
    ],
)
def test_an_ingress_listener_at_the_address_of_another_listener_is_a_conflict(number: int, reason: str) -> None:
    ingress = f"""
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: own, namespace: shop}}
spec:
  ingress:
  - {{port: {{number: {number}, name: a, protocol: HTTP}}, bind: 0.0.0.0, captureMode: NONE}}
  - {{port: {{number: 9090, name: b, protocol: HTTP}}, bind: 0.0.0.0, captureMode: NONE}}
"""
    world = world_of(web() + ingress)
    names = listeners(world, workload())
    assert f"0.0.0.0_{number}_bound" not in names and "0.0.0.0_9090_bound" in names
    (conflict,) = merged_inbound_ports(world.view, target(world, workload()).workload).conflicts
    assert (conflict.listener, conflict.dropped) == (f"0.0.0.0_{number}", "own.shop") and reason in conflict.reason


@pytest.mark.parametrize(
    ("rule", "mesh", "upgraded"),
    [
        ("", "", set()),
        ("{connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}", "", {8080, 8181}),
        ("{connectionPool: {http: {h2UpgradePolicy: DO_NOT_UPGRADE}}}", "", set()),
        ("{portLevelSettings: [{port: {number: 81}, connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}]}", "", {8181}),
        ("", "h2UpgradePolicy: UPGRADE", {8080, 8181}),
    ],
)
def test_websockets_over_http2_are_for_ports_that_clients_upgrade(rule: str, mesh: str, upgraded: set[int]) -> None:
    ports = "{number: 80, name: http, protocol: HTTP, targetPort: 8080}"
    ports += ", {number: 81, name: other, protocol: HTTP, targetPort: 8181}"
    ports += ", {number: 82, name: grpc, protocol: GRPC, targetPort: 8282}"
    text = web(ports)
    if rule:
        text += "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\n"
        text += f"metadata: {{name: web, namespace: other}}\nspec: {{host: web.example, trafficPolicy: {rule}}}\n"
    chains = virtual_inbound(world_of(text, mesh=mesh)).filter_chains
    found = {
        chain.filter_chain_match.destination_port.value
        for chain in chains
        if is_http(chain) and manager(chain).http2_protocol_options.allow_connect
    }
    assert found == upgraded
