"""Listeners of routers: chains by server name, TLS that ends there, and bytes passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from envoy.config.listener.v3 import listener_pb2

from mesh_pilot.envoy.gateway.listeners import gateway_listeners
from mesh_pilot.model.resource import Resource
from mesh_pilot.world import World
from tests.support import envoy_check
from tests.support.routing import config, plain, router, service, target, virtual_service
from tests.support.worlds import world_of

WEB = "web.shop.svc.cluster.local"
FILES = "serverCertificate: /c.pem, privateKey: /k.pem"


def gateway(*servers: str) -> str:
    return config("Gateway", "gw", f"{{selector: {{istio: edge}}, servers: [{', '.join(servers)}]}}", namespace="edge")


def server(number: int, protocol: str, hosts: str = "'*'", tls: str = "", name: str = "") -> str:
    more = f", tls: {{{tls}}}" if tls else ""
    name = name or f"{protocol.lower()}-{number}"
    return f"{{port: {{number: {number}, name: {name}, protocol: {protocol}}}, hosts: [{hosts}]{more}}}"


def bound(name: str, hosts: str, rules: str, age: int = 0) -> str:
    return virtual_service(name, f"{{hosts: [{hosts}], gateways: [edge/gw], {rules}}}", age=age)


def resources(world: World) -> dict[str, Resource]:
    plan = gateway_listeners(world.view, target(world, router()).workload)
    made = {name: call.get(world.view) for name, call in plan.items()}
    return {name: resource for name, resource in made.items() if resource is not None}


def listeners(text: str, **given: str) -> dict[str, dict[str, Any]]:
    found = resources(world_of(text, **given))
    return {name: plain(listener_pb2.Listener.FromString(r.body)) for name, r in found.items()}


def chains(text: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = listeners(text)[name].get("filter_chains", [])
    return found


def tls(settings: str, mesh: str = "") -> dict[str, Any]:
    """The TLS context of an HTTPS server."""
    found = listeners(gateway(server(443, "HTTPS", "a.com", settings)), mesh=mesh)["0.0.0.0_443"]
    (chain,) = found["filter_chains"]
    context: dict[str, Any] = chain["transport_socket"]["typed_config"]
    return context


def secrets(context: dict[str, Any]) -> list[str]:
    return [s["name"] for s in context["common_tls_context"]["tls_certificate_sds_secret_configs"]]


def roots(context: dict[str, Any]) -> str:
    combined = context["common_tls_context"]["combined_validation_context"]
    return str(combined["validation_context_sds_secret_config"]["name"])


def test_the_name_of_an_https_server_is_the_prefix_of_its_statistics() -> None:
    def prefixes(text: str, listener: str) -> list[str]:
        return [c["filters"][-1]["typed_config"]["stat_prefix"] for c in chains(text, listener)]

    named = server(443, "HTTPS", "a.com", f"mode: SIMPLE, {FILES}", "a").replace("{port", "{name: shop, port", 1)
    other = server(443, "HTTPS", "b.com", f"mode: SIMPLE, {FILES}", "b")
    assert prefixes(gateway(named, other), "0.0.0.0_443") == ["shop", "outbound_0.0.0.0_443"]
    plain_one = server(80, "HTTP").replace("{port", "{name: shop, port", 1)
    assert prefixes(gateway(plain_one), "0.0.0.0_80") == ["outbound_0.0.0.0_80"]


def test_an_http_server_listens_with_the_routes_of_its_table() -> None:
    found = listeners(gateway(server(80, "HTTP")))["0.0.0.0_80"]
    assert found["address"]["socket_address"] == {"address": "0.0.0.0", "port_value": 80}
    assert found["traffic_direction"] == "OUTBOUND" and "listener_filters" not in found
    (chain,) = found["filter_chains"]
    assert "filter_chain_match" not in chain
    (manager,) = chain["filters"]
    assert manager["typed_config"]["rds"]["route_config_name"] == "http.80"
    assert manager["typed_config"]["use_remote_address"] is True


def test_https_servers_of_a_port_are_told_apart_by_server_name() -> None:
    simple = f"mode: SIMPLE, {FILES}"
    text = gateway(
        server(443, "HTTPS", "a.com, 'shop/*.b.com'", simple, "one"), server(443, "HTTPS", "'*'", simple, "two")
    )
    one, two = chains(text, "0.0.0.0_443")
    assert one["filter_chain_match"] == {"server_names": ["*.b.com", "a.com"]}
    assert "filter_chain_match" not in two
    assert one["filters"][0]["typed_config"]["rds"]["route_config_name"] == "https.443.one.gw.edge"
    (inspector,) = listeners(text)["0.0.0.0_443"]["listener_filters"]
    assert inspector["name"] == "envoy.filters.listener.tls_inspector"


def test_certificates_are_secrets_wherever_they_lie() -> None:
    assert secrets(tls(f"mode: SIMPLE, {FILES}")) == ["file-cert:/c.pem~/k.pem"]
    assert secrets(tls("mode: SIMPLE, credentialName: cred")) == ["kubernetes://cred"]
    assert secrets(tls("mode: ISTIO_MUTUAL")) == ["default"]
    several = "tlsCertificates: [{serverCertificate: /a, privateKey: /b}, {serverCertificate: /c, privateKey: /d}]"
    assert secrets(tls(f"mode: SIMPLE, {several}")) == ["file-cert:/a~/b", "file-cert:/c~/d"]
    assert secrets(tls("mode: SIMPLE, credentialNames: [a, b]")) == ["kubernetes://a", "kubernetes://b"]


@pytest.mark.parametrize(
    ("settings", "secret", "required"),
    [
        (f"mode: MUTUAL, {FILES}, caCertificates: /ca.pem", "file-root:/ca.pem", True),
        ("mode: MUTUAL, credentialName: cred", "kubernetes://cred-cacert", True),
        ("mode: MUTUAL, credentialName: cred, caCertCredentialName: ca", "kubernetes://ca-cacert", True),
        ("mode: OPTIONAL_MUTUAL, credentialName: cred", "kubernetes://cred-cacert", False),
        ("mode: ISTIO_MUTUAL", "ROOTCA", True),
        ("mode: ISTIO_MUTUAL, caCertCredentialName: ca, insecureSkipVerify: true", "ROOTCA", True),
    ],
)
def test_clients_show_certificates_where_the_mode_asks_for_them(settings: str, secret: str, required: bool) -> None:
    context = tls(settings)
    assert roots(context) == secret
    assert context["require_client_certificate"] is required


def test_simple_tls_asks_for_no_certificate() -> None:
    context = tls(f"mode: SIMPLE, {FILES}")
    assert context["require_client_certificate"] is False
    assert "combined_validation_context" not in context["common_tls_context"]
    assert context["common_tls_context"]["alpn_protocols"] == ["h2", "http/1.1"]


def test_client_certificates_may_have_to_be_of_certain_names_or_pinned() -> None:
    pin = "a" * 64
    context = tls(
        f"mode: MUTUAL, {FILES}, caCertificates: /ca, subjectAltNames: [a.example.com], "
        f"verifyCertificateHash: ['{pin}'], caCrl: /crl.pem"
    )["common_tls_context"]["combined_validation_context"]["default_validation_context"]
    assert {m["matcher"]["exact"] for m in context["match_typed_subject_alt_names"]} == {"a.example.com"}
    assert context["verify_certificate_hash"] == [pin]
    assert context["crl"] == {"filename": "/crl.pem"}


def test_versions_and_ciphers_are_the_servers_and_else_the_meshs() -> None:
    own = tls(
        f"mode: SIMPLE, {FILES}, minProtocolVersion: TLSV1_2, maxProtocolVersion: TLSV1_3, cipherSuites: [AES128-SHA]"
    )
    assert own["common_tls_context"]["tls_params"] == {
        "tls_minimum_protocol_version": "TLSv1_2",
        "tls_maximum_protocol_version": "TLSv1_3",
        "cipher_suites": ["AES128-SHA"],
    }
    mesh = "tlsDefaults: {minProtocolVersion: TLSV1_3, ecdhCurves: [P-256], cipherSuites: [AES256-SHA]}"
    assert tls(f"mode: SIMPLE, {FILES}", mesh)["common_tls_context"]["tls_params"] == {
        "tls_minimum_protocol_version": "TLSv1_3",
        "cipher_suites": ["AES256-SHA"],
        "ecdh_curves": ["P-256"],
    }
    assert "tls_params" not in tls("mode: ISTIO_MUTUAL", mesh)["common_tls_context"]


def test_a_tcp_server_goes_where_the_first_rule_for_it_says() -> None:
    rules = (
        "tcp: [{match: [{port: 1}], route: [{destination: {host: x.y}}]}, "
        "{match: [{port: 5432}], route: [{destination: {host: web}}]}]"
    )
    text = service("web", ports="80 tcp TCP") + gateway(server(5432, "TCP")) + bound("old", "'*'", rules)
    text += bound("young", "'*'", "tcp: [{route: [{destination: {host: late.com}}]}]", 1)
    (chain,) = chains(text, "0.0.0.0_5432")
    assert chain["filters"][0]["typed_config"]["cluster"] == f"outbound|80||{WEB}"


def test_a_tcp_server_with_nowhere_to_go_has_no_listener() -> None:
    assert listeners(gateway(server(5432, "TCP"), server(80, "HTTP"))).keys() == {"0.0.0.0_80"}


def test_rules_by_address_stand_before_the_one_for_the_rest() -> None:
    rules = (
        "tcp: [{match: [{sourceSubnet: 10.0.0.0/8}], route: [{destination: {host: a.com}}]}, "
        "{route: [{destination: {host: b.com}, weight: 1}, {destination: {host: c.com}, weight: 3}]}]"
    )
    inside, rest = chains(gateway(server(5432, "TCP")) + bound("vs", "'*'", rules), "0.0.0.0_5432")
    assert inside["filter_chain_match"]["source_prefix_ranges"] == [{"address_prefix": "10.0.0.0", "prefix_len": 8}]
    assert [c["weight"] for c in rest["filters"][0]["typed_config"]["weighted_clusters"]["clusters"]] == [1, 3]


def test_tls_may_end_at_a_server_that_passes_bytes_on() -> None:
    text = gateway(server(9443, "TLS", "a.com", f"mode: SIMPLE, {FILES}"))
    text += bound("vs", "a.com", "tcp: [{route: [{destination: {host: b.com}}]}]")
    (chain,) = chains(text, "0.0.0.0_9443")
    assert chain["filter_chain_match"] == {"server_names": ["a.com"]}
    assert chain["transport_socket"]["name"] == "envoy.transport_sockets.tls"
    assert chain["filters"][0]["typed_config"]["cluster"] == "outbound|9443||b.com"


def test_passed_through_connections_are_routed_by_server_name() -> None:
    rules = (
        "tls: [{match: [{sniHosts: [a.x.com], port: 443}], route: [{destination: {host: a.com}}]}, "
        "{match: [{sniHosts: ['*.x.com']}], route: [{destination: {host: b.com}}]}, "
        "{match: [{sniHosts: [c.x.com], gateways: [mesh]}], route: [{destination: {host: c.com}}]}]"
    )
    text = gateway(server(443, "TLS", "'*.x.com'", "mode: PASSTHROUGH")) + bound("vs", "'*.x.com'", rules)
    found = chains(text, "0.0.0.0_443")
    assert [c["filter_chain_match"]["server_names"] for c in found] == [["a.x.com"], ["*.x.com"]]
    assert [c["filters"][0]["typed_config"]["cluster"] for c in found] == ["outbound|443||a.com", "outbound|443||b.com"]
    assert not any("transport_socket" in c for c in found)


def test_a_server_name_that_two_claim_is_the_olders() -> None:
    def claim(host: str) -> str:
        return f"tls: [{{match: [{{sniHosts: [a.com]}}], route: [{{destination: {{host: {host}}}}}]}}]"

    text = gateway(server(443, "TLS", "a.com", "mode: PASSTHROUGH"))
    found = chains(
        text + bound("old", "a.com", claim("o.com")) + bound("new", "a.com", claim("n.com"), 1), "0.0.0.0_443"
    )
    assert [c["filters"][0]["typed_config"]["cluster"] for c in found] == ["outbound|443||o.com"]


def test_server_names_and_subnets_that_envoy_takes_for_the_same_are_claimed_once() -> None:
    def claim(match: str, host: str) -> str:
        return f"tls: [{{match: [{{{match}}}], route: [{{destination: {{host: {host}}}}}]}}]"

    text = gateway(server(443, "TLS", "'*.com'", "mode: PASSTHROUGH"))
    text += bound(
        "old", "A.com, a.com", claim("sniHosts: [A.com, a.com], destinationSubnets: [10.1.2.3/8, 10.0.0.0/8]", "o.com")
    )
    text += bound("new", "a.com", claim("sniHosts: [a.com], destinationSubnets: [10.9.9.9/8]", "n.com"), 1)
    (chain,) = chains(text, "0.0.0.0_443")
    assert chain["filter_chain_match"]["server_names"] == ["a.com"]
    assert chain["filter_chain_match"]["prefix_ranges"] == [{"address_prefix": "10.0.0.0", "prefix_len": 8}]
    assert chain["filters"][0]["typed_config"]["cluster"] == "outbound|443||o.com"


def test_ciphers_that_envoy_does_not_know_are_left_out() -> None:
    found = tls(f"mode: SIMPLE, {FILES}, cipherSuites: [ROT13, AES128-SHA, AES128-SHA]")
    assert found["common_tls_context"]["tls_params"] == {"cipher_suites": ["AES128-SHA"]}
    mesh = "tlsDefaults: {cipherSuites: ['!aNULL', AES256-SHA]}"
    found = tls(f"mode: SIMPLE, {FILES}, cipherSuites: [ROT13]", mesh)
    assert found["common_tls_context"]["tls_params"] == {"cipher_suites": ["AES256-SHA"]}


def test_mesh_connections_are_passed_on_to_the_cluster_that_they_name() -> None:
    text = service("web", ports="80 http HTTP, 81 udp UDP") + service("out.example.com")
    text += config(
        "ServiceEntry", "any", "{hosts: ['*.local'], location: MESH_INTERNAL, ports: [{number: 80, name: a}]}"
    )
    text += gateway(server(15443, "TLS", "'*.local'", "mode: AUTO_PASSTHROUGH"))
    text += config("DestinationRule", "web", "{host: web, subsets: [{name: v1}]}")
    found = chains(text, "0.0.0.0_15443")
    clusters = [c["filters"][0]["typed_config"]["cluster"] for c in found]
    assert clusters == [f"outbound_.80_._.{WEB}", f"outbound_.80_.v1_.{WEB}"]
    assert [c["filter_chain_match"]["server_names"] for c in found] == [[c] for c in clusters]
    assert "istio" in found[0]["filter_chain_match"]["application_protocols"]


@pytest.mark.envoy
def test_envoy_takes_every_kind_of_server(tmp_path: Path) -> None:
    mutual = (
        "mode: MUTUAL, credentialName: cred, caCertCredentialName: ca, subjectAltNames: [a.example.com, 'spiffe://a/b']"
    )
    text = service("web") + gateway(
        server(80, "HTTP"),
        server(443, "HTTPS", "a.com", f"mode: SIMPLE, {FILES}, minProtocolVersion: TLSV1_2"),
        server(443, "HTTPS", "b.com", mutual, "b"),
        server(443, "HTTPS", "c.com", "mode: OPTIONAL_MUTUAL, credentialNames: [a, b]", "c"),
        server(443, "HTTPS", "d.com", f"mode: MUTUAL, {FILES}, caCertificates: /ca, insecureSkipVerify: true", "d"),
        server(443, "HTTPS", "e.com", "mode: ISTIO_MUTUAL", "e"),
        server(443, "TLS", "'*.f.com'", "mode: PASSTHROUGH"),
        server(9443, "TLS", "g.com", f"mode: SIMPLE, {FILES}"),
        server(15443, "TLS", "'*.local'", "mode: AUTO_PASSTHROUGH"),
        server(27017, "MONGO"),
    )
    text += bound("f", "'*.f.com'", "tls: [{match: [{sniHosts: ['*.f.com']}], route: [{destination: {host: web}}]}]")
    text += bound("g", "g.com", "tcp: [{route: [{destination: {host: web}}]}]")
    text += bound("m", "'*'", "tcp: [{match: [{port: 27017}], route: [{destination: {host: web}}]}]")
    made = resources(world_of(text))
    assert list(made) == ["0.0.0.0_80", "0.0.0.0_443", "0.0.0.0_9443", "0.0.0.0_15443", "0.0.0.0_27017"]
    assert envoy_check.complaints(tmp_path, (r.body for r in made.values())) == ""
