"""What docs/istio-differences.md says of single resources, row by row, as a proxy is sent it."""

from __future__ import annotations

from typing import Any

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from google.protobuf.json_format import MessageToDict

from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from tests.support.listeners import manager, tcp
from tests.support.worlds import sidecar, world_of

WEB = "web.shop.svc.cluster.local"
CLIENT = sidecar("10.1.7.7", namespace="shop", labels={"app": "client"})
EDGE = sidecar("10.1.9.9", name="edge", namespace="edge", labels={"istio": "edge"}, node_type="router")
FILES = "serverCertificate: /c.pem, privateKey: /k.pem"

MESSAGES: dict[str, Any] = {
    CLUSTER: Cluster,
    ENDPOINT: ClusterLoadAssignment,
    LISTENER: Listener,
    ROUTE: RouteConfiguration,
}


def config(kind: str, name: str, spec: str, *, namespace: str = "shop", day: int = 1) -> str:
    group = "security" if kind in ("AuthorizationPolicy", "PeerAuthentication") else "networking"
    return f"""
---
apiVersion: {group}.istio.io/v1
kind: {kind}
metadata: {{name: {name}, namespace: {namespace}, creationTimestamp: "2024-01-{day:02}T00:00:00Z"}}
spec: {spec}
"""


def service(
    name: str = "web",
    *,
    ports: str = "{number: 80, name: http, protocol: HTTP}",
    endpoints: str = "{address: 10.1.1.1, serviceAccount: web}",
    resolution: str = "STATIC",
    more: str = "",
    namespace: str = "shop",
) -> str:
    spec = f"""{{hosts: [{name}.{namespace}.svc.cluster.local], location: MESH_INTERNAL, resolution: {resolution},
  ports: [{ports}], {f"endpoints: [{endpoints}], " if endpoints else ""}{more}}}"""
    return config("ServiceEntry", name, spec, namespace=namespace)


def gateway(name: str, *servers: str, day: int = 1) -> str:
    spec = f"{{selector: {{istio: edge}}, servers: [{', '.join(servers)}]}}"
    return config("Gateway", name, spec, namespace="edge", day=day)


class Sent:
    """What a proxy is sent, decoded."""

    def __init__(self, text: str, proxy: Proxy = CLIENT, mesh: str = "", networks: str = "") -> None:
        self._resources = WorldCatalog(world_of(text, mesh=mesh, networks=networks)).open(proxy)

    def names(self, type_url: str) -> set[str]:
        held = self._resources.set(type_url)
        assert held is not None
        return set(held.snapshot().entries)

    def get(self, type_url: str, name: str) -> Any:
        held = self._resources.set(type_url)
        found = held.get(name) if held is not None else None
        assert found is not None, f"no {name}; there are {self.names(type_url)}"
        return MESSAGES[type_url].FromString(found.body)

    def routes(self, table: str, host: str) -> list[Any]:
        hosts = {h.name: h for h in self.get(ROUTE, table).virtual_hosts}
        return list(hosts[host].routes)


# -- traffic policies


def test_a_ports_own_use_source_ip_hashes_connections() -> None:
    more = "portLevelSettings: [{port: {number: 9000}, loadBalancer: {consistentHash: {useSourceIp: true}}}]"
    text = service(ports="{number: 9000, name: tcp, protocol: TCP}", more="addresses: [10.9.0.1]")
    sent = Sent(text + config("DestinationRule", "web", f"{{host: web, trafficPolicy: {{{more}}}}}"))
    (chain,) = sent.get(LISTENER, "10.9.0.1_9000").filter_chains
    assert tcp(chain).hash_policy[0].HasField("source_ip")


def test_a_route_hashes_only_where_its_destinations_own_policy_does() -> None:
    rule = """{host: web, trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: c, ttl: 60s}}}},
  subsets: [{name: any, trafficPolicy: {loadBalancer: {simple: RANDOM}}}, {name: same}]}"""
    hosts = f"{{hosts: [{WEB}], http: [{{route: [{{destination: {{host: {WEB}, subset: SUBSET}}}}]}}]}}"
    text = service() + config("DestinationRule", "web", rule)
    for subset, hashed in (("any", 0), ("same", 1)):
        sent = Sent(text + config("VirtualService", "web", hosts.replace("SUBSET", subset)))
        assert len(sent.routes("80", f"{WEB}:80")[0].route.hash_policy) == hashed


def test_insecure_skip_verify_accepts_any_certificate_and_says_so() -> None:
    rule = "{host: web, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}"
    found = Sent(service() + config("DestinationRule", "web", rule)).get(CLUSTER, f"outbound|80||{WEB}")
    context = MessageToDict(found.transport_socket.typed_config)["commonTlsContext"]
    assert context["validationContext"]["trustChainVerification"] == "ACCEPT_UNTRUSTED"


def test_a_subset_of_a_dns_service_without_endpoints_has_an_empty_cluster() -> None:
    text = service(resolution="DNS", endpoints="{address: a.example.com, labels: {v: one}}")
    text += config("DestinationRule", "web", "{host: web, subsets: [{name: two, labels: {v: two}}]}")
    found = Sent(text).get(CLUSTER, f"outbound|80|two|{WEB}")
    assert not found.load_assignment.endpoints


def test_a_proxy_without_a_locality_prefers_no_endpoint() -> None:
    text = service(endpoints="{address: 10.1.1.1, locality: eu/1}, {address: 10.1.1.2}")
    text += config("DestinationRule", "web", "{host: web, trafficPolicy: {outlierDetection: {}}}")
    found = Sent(text).get(ENDPOINT, f"outbound|80||{WEB}")
    assert [group.priority for group in found.endpoints] == [0, 0]


def test_load_balancing_by_passthrough_is_round_by_default_on_a_router() -> None:
    rule = "{host: web, trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}}"
    found = Sent(service() + config("DestinationRule", "web", rule), EDGE).get(CLUSTER, f"outbound|80||{WEB}")
    assert (found.type, found.lb_policy) == (Cluster.EDS, Cluster.LEAST_REQUEST)


def test_a_router_uses_mesh_mtls_to_endpoints_of_a_service_that_is_not_resolved() -> None:
    text = service(resolution="NONE", endpoints="")
    found = Sent(text, EDGE).get(CLUSTER, f"outbound|80||{WEB}")
    assert [m.name for m in found.transport_socket_matches] == ["tlsMode-istio", "tlsMode-disabled"]


# -- Sidecars and VirtualServices


def test_tls_of_a_sidecars_ingress_is_carried_out_without_a_switch() -> None:
    ingress = f"""{{workloadSelector: {{labels: {{app: web}}}}, ingress: [{{
  port: {{number: 9443, name: https, protocol: HTTPS}}, defaultEndpoint: "127.0.0.1:8080",
  tls: {{mode: SIMPLE, {FILES}}}}}]}}"""
    off = config("PeerAuthentication", "web", "{mtls: {mode: DISABLE}}")
    proxy = sidecar("10.1.1.1", namespace="shop", labels={"app": "web"})
    found = Sent(service() + config("Sidecar", "web", ingress) + off, proxy).get(LISTENER, "virtualInbound")
    own = [c for c in found.filter_chains if c.filter_chain_match.destination_port.value == 9443]
    assert [c.transport_socket.name for c in own] == ["envoy.transport_sockets.tls"]


def test_a_virtual_services_destination_comes_into_scope_with_the_port_it_names() -> None:
    other = service("other", namespace="far", ports="{number: 80, name: http}, {number: 81, name: more}")
    rule = f"""{{hosts: [{WEB}], http: [{{route: [{{destination:
  {{host: other.far.svc.cluster.local, port: {{number: 81}}}}}}]}}]}}"""
    narrow = config("Sidecar", "default", "{egress: [{hosts: ['./*']}]}")
    found = Sent(service() + other + config("VirtualService", "web", rule) + narrow).names(CLUSTER)
    assert {name for name in found if "far" in name} == {"outbound|81||other.far.svc.cluster.local"}


def test_the_port_that_a_route_names_comes_into_scope_by_a_listener_of_another_port() -> None:
    other = service("other", namespace="far", ports="{number: 81, name: more, protocol: HTTP}")
    rule = f"{{hosts: [{WEB}], http: [{{route: [{{destination: {{host: other.far.svc.cluster.local}}}}]}}]}}"
    narrow = "{egress: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['./*']}]}"
    text = service() + other + config("VirtualService", "web", rule) + config("Sidecar", "default", narrow)
    assert "outbound|81||other.far.svc.cluster.local" in Sent(text).names(CLUSTER)


def test_what_a_match_asks_of_the_client_counts_on_gateways_too() -> None:
    server = gateway("gw", "{port: {number: 9000, name: tcp, protocol: TCP}, hosts: ['*']}")
    rules = """{hosts: ['*'], gateways: [edge/gw], tcp: [
  {match: [{gateways: [edge/gw], sourceLabels: {istio: other}}], route: [{destination: {host: other}}]},
  {route: [{destination: {host: web.shop.svc.cluster.local}}]}]}"""
    tcp_port = "{number: 9000, name: tcp, protocol: TCP}"
    text = service(ports=tcp_port) + service("other", ports=tcp_port) + server + config("VirtualService", "vs", rules)
    (chain,) = Sent(text, EDGE).get(LISTENER, "0.0.0.0_9000").filter_chains
    assert tcp(chain).cluster == f"outbound|9000||{WEB}"


def test_what_an_http_match_that_names_a_gateway_asks_of_the_client_counts_there() -> None:
    server = gateway("gw", "{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}")
    asked = "{gateways: [edge/gw], sourceNamespace: other, uri: {prefix: /}}"
    to_web = f"route: [{{destination: {{host: {WEB}}}}}]"
    rules = f"""{{hosts: [x.example.com], gateways: [edge/gw], http: [
  {{name: theirs, match: [{asked}], {to_web}}}, {{name: all, {to_web}}}]}}"""
    sent = Sent(service() + server + config("VirtualService", "vs", rules), EDGE)
    assert [r.name for r in sent.routes("http.80", "x.example.com:80")] == ["all"]


# -- gateways and listeners


def test_servers_on_one_tls_port_have_their_hosts_compared_without_the_namespace() -> None:
    port = "port: {{number: 443, name: {}, protocol: HTTPS}}, tls: {{mode: SIMPLE, " + FILES + "}}"
    one = gateway("one", f"{{{port.format('a')}, hosts: [a/x.example.com]}}", day=1)
    other = gateway("two", f"{{{port.format('b')}, hosts: [b/x.example.com, b/y.example.com]}}", day=2)
    found = Sent(one + other, EDGE).get(LISTENER, "0.0.0.0_443")
    assert [list(c.filter_chain_match.server_names) for c in found.filter_chains] == [["x.example.com"]]


AUTO = "{{port: {{number: 15443, name: {}, protocol: TLS}}, tls: {{mode: AUTO_PASSTHROUGH}}, hosts: [{}]}}"


def test_filters_of_auto_passthrough_chains_are_there_once_and_none_is_for_mongo() -> None:
    mongo = service("web", ports="{number: 27017, name: mongo, protocol: MONGO}")
    deny = "{selector: {matchLabels: {istio: edge}}, action: DENY, rules: [{from: [{source: {ipBlocks: [10.0.0.1]}}]}]}"
    text = mongo + gateway("one", AUTO.format("a", "'*.local'")) + gateway("two", AUTO.format("b", "'*.shop'"), day=2)
    text += config("AuthorizationPolicy", "deny", deny, namespace="edge")
    chains = Sent(text, EDGE).get(LISTENER, "0.0.0.0_15443").filter_chains
    assert [[f.name.rpartition(".")[2] for f in c.filters] for c in chains] == [["rbac", "tcp_proxy"]]


def test_an_address_range_of_a_service_is_no_domain_and_is_masked_in_listeners() -> None:
    range_ = service(
        ports="{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP}",
        more="addresses: [10.9.0.5/16]",
    )
    sent = Sent(range_)
    (host,) = [h for h in sent.get(ROUTE, "80").virtual_hosts if h.name == f"{WEB}:80"]
    assert not [d for d in host.domains if d.startswith("10.9")]
    ranges = [r for c in sent.get(LISTENER, "0.0.0.0_9000").filter_chains for r in c.filter_chain_match.prefix_ranges]
    assert [(r.address_prefix, r.prefix_len.value) for r in ranges] == [("10.9.0.0", 16)]


def test_letters_of_regular_expressions_in_a_principal_stand_for_themselves() -> None:
    rules = "{rules: [{from: [{source: {principals: ['*/sa/a.b+c']}}]}]}"
    proxy = sidecar("10.1.1.1", namespace="shop", labels={"app": "web"})
    sent = Sent(service() + config("AuthorizationPolicy", "web", rules), proxy)
    found = str(sent.get(LISTENER, "virtualInbound").SerializeToString())
    assert r"/sa/a\\.b\\+c" in found


def test_a_server_with_https_redirect_that_is_https_itself_takes_what_comes() -> None:
    server = f"""{{port: {{number: 443, name: https, protocol: HTTPS}}, hosts: [x.example.com],
  tls: {{httpsRedirect: true, mode: SIMPLE, {FILES}}}}}"""
    vs = f"{{hosts: [x.example.com], gateways: [edge/gw], http: [{{route: [{{destination: {{host: {WEB}}}}}]}}]}}"
    text = service() + gateway("gw", server) + config("VirtualService", "vs", vs)
    (host,) = Sent(text, EDGE).get(ROUTE, "https.443.https.gw.edge").virtual_hosts
    assert host.require_tls == 0


def test_what_a_proxyless_server_gets_has_its_routes_inline() -> None:
    proxy = sidecar("10.1.1.1", namespace="shop", labels={"app": "web"}, GENERATOR="grpc")
    name = "xds.istio.io/grpc/lds/inbound/10.1.1.1:80"
    found = Sent(service(), proxy).get(LISTENER, name)
    assert manager(found.filter_chains[0]).route_config.virtual_hosts
