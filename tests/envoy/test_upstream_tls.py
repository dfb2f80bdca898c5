"""TLS towards upstreams: mesh mTLS on its own, and what rules ask for."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.extensions.transport_sockets.proxy_protocol.v3.upstream_proxy_protocol_pb2 import (
    ProxyProtocolUpstreamTransport,
)
from envoy.extensions.transport_sockets.tls.v3.common_pb2 import (
    CertificateValidationContext,
    SubjectAltNameMatcher,
    TlsParameters,
)
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import UpstreamTlsContext

from mesh_pilot.envoy.tls.common import san_matchers
from mesh_pilot.envoy.tls.secrets import withheld, workload_secret
from tests.support.upstreams import http_options, outbound, target, tls
from tests.support.worlds import sidecar, world_of

HOST = "store.shop.svc.cluster.local"
IDENTITY = "spiffe://cluster.local/ns/shop/sa/store"

ENTRY = f"""
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: store, namespace: shop}}
spec:
  hosts: [{HOST}]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP}}, {{number: 90, name: grpc, protocol: GRPC}}]
  endpoints: [{{address: 10.2.1.1, serviceAccount: store}}]
---
"""
EXTERNAL = ENTRY.replace("MESH_INTERNAL", "MESH_EXTERNAL")


def cluster(text: str = ENTRY, setting: str = "", port: int = 80, mesh: str = "", **proxy: Any) -> Cluster:
    rule = f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: rule, namespace: shop}}
spec: {{host: {HOST}, trafficPolicy: {{{setting}}}}}
"""
    world = world_of(text + rule if setting else text, mesh=mesh)
    return outbound(world, sidecar(**proxy))[f"outbound|{port}||{HOST}"]


def peer_authentication(mode: str, namespace: str) -> str:
    return f"""
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {{name: default, namespace: {namespace}}}
spec: {{mtls: {{mode: {mode}}}}}
---
"""


def names(context: UpstreamTlsContext) -> set[str]:
    """The subject alternative names that are accepted."""
    validation = context.common_tls_context.combined_validation_context.default_validation_context
    return {m.matcher.exact for m in validation.match_typed_subject_alt_names}


def secrets(context: UpstreamTlsContext) -> tuple[list[str], str]:
    """(own certificates, roots) by the names of their secrets."""
    common = context.common_tls_context
    own = [s.name for s in common.tls_certificate_sds_secret_configs]
    return own, common.combined_validation_context.validation_context_sds_secret_config.name


def test_mesh_mtls_is_used_towards_endpoints_that_have_it() -> None:
    found = cluster()
    with_tls, without = found.transport_socket_matches
    assert with_tls.match.fields["tlsMode"].string_value == "istio"
    assert not without.match.fields
    assert without.transport_socket.name == "envoy.transport_sockets.raw_buffer"
    context = tls(found)
    assert context.sni == f"outbound_.80_._.{HOST}"
    assert list(context.common_tls_context.alpn_protocols) == ["istio"]
    assert names(context) == {IDENTITY}
    assert secrets(context) == (["default"], "ROOTCA")
    parameters = context.common_tls_context.tls_params
    versions = (parameters.tls_minimum_protocol_version, parameters.tls_maximum_protocol_version)
    assert versions == (TlsParameters.TLSv1_2, TlsParameters.TLSv1_3)


def test_http2_is_offered_where_it_is_spoken() -> None:
    assert list(tls(cluster(port=90)).common_tls_context.alpn_protocols) == ["istio", "h2"]


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        (EXTERNAL, ""),
        (ENTRY, "enableAutoMtls: false"),
        (ENTRY + peer_authentication("DISABLE", "shop"), ""),
        (ENTRY + peer_authentication("DISABLE", "istio-system"), ""),
    ],
)
def test_mesh_mtls_is_not_used_where_it_cannot_be_expected(text: str, mesh: str) -> None:
    found = cluster(text, mesh=mesh)
    assert not found.transport_socket_matches
    assert not found.HasField("transport_socket")


def test_without_load_balancing_every_endpoint_must_have_mtls() -> None:
    through = "loadBalancer: {simple: PASSTHROUGH}"
    found = cluster(setting=through)
    assert found.type == Cluster.ORIGINAL_DST
    assert tls(found).sni
    mixed = ENTRY.replace("serviceAccount: store}", "serviceAccount: store}, {address: 10.2.1.2}")
    assert not cluster(mixed, through).HasField("transport_socket")
    none = ENTRY.replace("STATIC", "NONE").replace("endpoints: [{address: 10.2.1.1, serviceAccount: store}]", "")
    assert not cluster(none).HasField("transport_socket")


def test_identities_are_of_endpoints_and_declared_also_under_aliases() -> None:
    declared = ENTRY.replace("resolution:", 'subjectAltNames: ["spiffe://cluster.local/ns/x/sa/y", a.b]\n  resolution:')
    assert names(tls(cluster(declared, mesh="trustDomainAliases: [old.td]"))) == {
        IDENTITY,
        "spiffe://old.td/ns/shop/sa/store",
        "spiffe://cluster.local/ns/x/sa/y",
        "spiffe://old.td/ns/x/sa/y",
        "a.b",
    }


def test_istio_mutual_is_for_every_endpoint_with_its_own_names_if_given() -> None:
    found = cluster(setting="tls: {mode: ISTIO_MUTUAL}")
    assert not found.transport_socket_matches
    assert (tls(found).sni, names(tls(found))) == (f"outbound_.80_._.{HOST}", {IDENTITY})
    context = tls(cluster(setting='tls: {mode: ISTIO_MUTUAL, sni: s.example.com, subjectAltNames: ["spiffe://o/p"]}'))
    assert (context.sni, names(context)) == ("s.example.com", {"spiffe://o/p"})


def test_disable_is_plaintext() -> None:
    found = cluster(setting="tls: {mode: DISABLE}")
    assert not found.transport_socket_matches
    assert not found.HasField("transport_socket")


def test_simple_tls_verifies_by_the_roots_it_names() -> None:
    context = tls(
        cluster(EXTERNAL, "tls: {mode: SIMPLE, caCertificates: /ca.pem, sni: s.example.com, caCrl: /crl.pem}", 90)
    )
    assert context.sni == "s.example.com"
    assert secrets(context) == ([], "file-root:/ca.pem")
    assert names(context) == {IDENTITY}, "a ServiceEntry's own identities, where the rule names none"
    assert list(context.common_tls_context.alpn_protocols) == ["h2"]
    validation = context.common_tls_context.combined_validation_context.default_validation_context
    assert validation.crl.filename == "/crl.pem"


def test_simple_tls_without_roots_verifies_by_those_of_the_system() -> None:
    for mode in ("SIMPLE", "MUTUAL, clientCertificate: /me.pem, privateKey: /me.key"):
        assert secrets(tls(cluster(EXTERNAL, f"tls: {{mode: {mode}}}")))[1] == "file-root:system"
    node = {"TLS_CLIENT_CERT_CHAIN": "/n.pem", "TLS_CLIENT_KEY": "/n.key"}
    for mode in ("MUTUAL", "ISTIO_MUTUAL"):
        files = "clientCertificate: /me.pem, privateKey: /me.key" if mode == "MUTUAL" else ""
        found = tls(cluster(setting=f"tls: {{mode: {mode}, {files}}}", **node))
        assert secrets(found) == (["file-cert:/n.pem~/n.key"], "file-root:system")


def test_istios_agent_serves_the_roots_of_its_system() -> None:
    for metadata, by_agent in (({"PILOT_SAN": "istiod"}, True), ({"AGENT_SECRETS": "true"}, False), ({}, False)):
        context = tls(cluster(EXTERNAL, "tls: {mode: SIMPLE}", **metadata))
        source = context.common_tls_context.combined_validation_context.validation_context_sds_secret_config.sds_config
        assert source.HasField("api_config_source") is by_agent, metadata
        assert source.initial_fetch_timeout.seconds == 3, "one cluster's roots do not delay the start of the proxy"


def test_the_system_of_a_node_says_where_its_roots_are() -> None:
    world = world_of(EXTERNAL)
    for metadata, path in (
        ({}, "/etc/ssl/certs/ca-certificates.crt"),
        ({"SYSTEM_ROOTS": "/etc/ssl/ca-bundle.pem"}, "/etc/ssl/ca-bundle.pem"),
    ):
        workload = target(world, sidecar(**metadata)).workload
        secret = workload_secret(world.view, workload, "file-root:system")
        assert secret is not None
        assert Secret.FromString(secret.body).validation_context.trusted_ca.filename == path
        assert withheld(world.view, workload, "file-root:system") == ""
    without = target(world, sidecar(SYSTEM_ROOTS="")).workload
    assert workload_secret(world.view, without, "file-root:system") is None
    assert withheld(world.view, without, "file-root:system").startswith("the proxy's machine has no CA certificates")


BARE = EXTERNAL.replace(", serviceAccount: store", "").replace("protocol: GRPC", "protocol: TCP")
NAMED = BARE.replace("resolution:", "subjectAltNames: [a.test]\n  resolution:")


@pytest.mark.parametrize(
    ("text", "port", "setting", "sni", "by_request", "expected"),
    [
        (BARE, 80, "", HOST, (True, True), set()),
        (BARE, 80, "sni: s.test", "s.test", (False, False), {"s.test"}),
        (BARE, 80, "subjectAltNames: [n.test]", "", (True, False), {"n.test"}),
        (BARE, 80, "insecureSkipVerify: true", HOST, (True, False), None),
        (BARE, 90, "", HOST, (True, True), {HOST}),
        (BARE, 90, "sni: s.test", "s.test", (False, False), {"s.test"}),
        (BARE, 90, "subjectAltNames: [n.test]", HOST, (True, False), {"n.test"}),
        (NAMED, 80, "", "", (True, True), {"a.test"}),
        (NAMED, 90, "", HOST, (True, True), {"a.test"}),
        (BARE.replace(HOST, "'*.wild.test'").replace("STATIC", "NONE").replace("endpoints: [{address: 10.2.1.1}]", ""),
         90, "", "", (True, True), {"suffix .wild.test"}),
        (BARE, 90, "sni: '*'", "*", (False, False), {"any .+"}),
    ],
)  # fmt: skip
def test_a_server_proves_the_name_that_it_is_asked_for(
    text: str, port: int, setting: str, sni: str, by_request: tuple[bool, bool], expected: set[str] | None
) -> None:
    host = "*.wild.test" if "wild" in text else HOST
    rule = f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: rule, namespace: shop}}
spec: {{host: "{host}", trafficPolicy: {{tls: {{mode: SIMPLE, {setting}}}}}}}
"""
    for kind in ("sidecar", "router"):
        found = outbound(world_of(text + rule), sidecar(node_type=kind))[f"outbound|{port}||{host}"]
        context = tls(found)
        options = http_options(found).upstream_http_protocol_options
        assert (context.sni, (options.auto_sni, options.auto_san_validation)) == (sni, by_request)
        common = context.common_tls_context
        assert common.HasField("validation_context") is (expected is None)
        if expected is not None:
            by_name = common.combined_validation_context.default_validation_context.match_typed_subject_alt_names
            dns = [m.matcher for m in by_name if m.san_type == SubjectAltNameMatcher.DNS]
            said = {m.exact or (m.suffix and f"suffix {m.suffix}") or f"any {m.safe_regex.regex}" for m in dns}
            assert said == expected
            assert context.auto_sni_san_validation is (expected == set()), "where there is no request to go by"


def test_verification_can_be_skipped() -> None:
    context = tls(cluster(EXTERNAL, "tls: {mode: SIMPLE, insecureSkipVerify: true}"))
    trust = context.common_tls_context.validation_context.trust_chain_verification
    assert trust == CertificateValidationContext.ACCEPT_UNTRUSTED


def test_mutual_tls_has_a_certificate_from_files_or_a_credential() -> None:
    files = "clientCertificate: /me.pem, privateKey: /me.key, caCertificates: /ca.pem"
    context = tls(cluster(EXTERNAL, f"tls: {{mode: MUTUAL, {files}}}"))
    assert secrets(context) == (["file-cert:/me.pem~/me.key"], "file-root:/ca.pem")
    for kind in ("sidecar", "router"):
        context = tls(cluster(EXTERNAL, "tls: {mode: MUTUAL, credentialName: partner}", node_type=kind))
        assert secrets(context) == (["kubernetes://partner"], "kubernetes://partner-cacert")


def test_files_of_the_node_take_the_place_of_the_mesh_identity() -> None:
    node = {"TLS_CLIENT_CERT_CHAIN": "/n.pem", "TLS_CLIENT_KEY": "/n.key", "TLS_CLIENT_ROOT_CERT": "/n.ca"}
    found = cluster(**node)
    assert not found.transport_socket_matches
    assert secrets(tls(found)) == (["file-cert:/n.pem~/n.key"], "file-root:/n.ca")
    assert tls(found).sni == f"outbound_.80_._.{HOST}"
    mutual = "tls: {mode: MUTUAL, clientCertificate: /me.pem, privateKey: /me.key, caCertificates: /ca.pem}"
    assert secrets(tls(cluster(setting=mutual, **node))) == (["file-cert:/n.pem~/n.key"], "file-root:/n.ca")
    own = secrets(tls(cluster(EXTERNAL, mutual, **node)))
    assert own == (["file-cert:/me.pem~/me.key"], "file-root:/ca.pem"), "a server outside has other roots"


def test_versions_and_ciphers_of_the_mesh_are_for_tls_to_others() -> None:
    mesh = "tlsDefaults: {minProtocolVersion: TLSV1_3, ecdhCurves: [P-256], cipherSuites: [AES128-SHA]}"
    parameters = tls(cluster(EXTERNAL, "tls: {mode: SIMPLE}", mesh=mesh)).common_tls_context.tls_params
    assert parameters.tls_minimum_protocol_version == TlsParameters.TLSv1_3
    assert (list(parameters.ecdh_curves), list(parameters.cipher_suites)) == (["P-256"], ["AES128-SHA"])
    parameters = tls(cluster(mesh=mesh)).common_tls_context.tls_params
    assert parameters.tls_minimum_protocol_version == TlsParameters.TLSv1_2


def test_a_proxy_header_goes_before_whatever_else_is_sent() -> None:
    for setting, inner in (
        ("proxyProtocol: {version: V2}", "envoy.transport_sockets.tls"),
        ("proxyProtocol: {version: V2}, tls: {mode: DISABLE}", "envoy.transport_sockets.raw_buffer"),
    ):
        found = cluster(setting=setting)
        sockets = [m.transport_socket for m in found.transport_socket_matches] or [found.transport_socket]
        wrapped = ProxyProtocolUpstreamTransport()
        assert all(s.name == "envoy.transport_sockets.upstream_proxy_protocol" for s in sockets)
        assert sockets[0].typed_config.Unpack(wrapped)
        assert (wrapped.config.version, wrapped.transport_socket.name) == (1, inner)


def test_names_are_matched_as_what_they_can_be() -> None:
    kinds = {m.matcher.exact: set() for m in san_matchers(["spiffe://a/b", "a@b", "1.2.3.4", "a.b"])}
    for matcher in san_matchers(["spiffe://a/b", "a@b", "1.2.3.4", "a.b"]):
        kinds[matcher.matcher.exact].add(matcher.SanType.Name(matcher.san_type))
    assert kinds == {
        "spiffe://a/b": {"URI"},
        "a@b": {"EMAIL"},
        "1.2.3.4": {"IP_ADDRESS", "DNS"},
        "a.b": {"DNS", "URI"},
    }


def test_a_backend_tls_policy_verifies_its_hostname_by_the_roots_of_the_system() -> None:
    policy = """
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: store, namespace: shop}
spec:
  targetRefs: [{group: networking.istio.io, kind: ServiceEntry, name: store}]
  validation: {wellKnownCACertificates: System, hostname: tls.example.com}
---
"""
    for text in (EXTERNAL, BARE):
        found = outbound(world_of(policy + text), sidecar(node_type="router"))[f"outbound|80||{HOST}"]
        assert tls(found).sni == "tls.example.com"
        assert names(tls(found)) == {"tls.example.com"}, "whatever the service accounts of its endpoints"
        assert secrets(tls(found))[1] == "file-root:system"


@pytest.mark.parametrize("year", [2020, 2030])
def test_a_backend_tls_policy_fills_what_a_destination_rule_leaves(year: int) -> None:
    policy = """
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: store, namespace: shop, creationTimestamp: "2025-01-01T00:00:00Z"}
spec:
  targetRefs: [{group: networking.istio.io, kind: ServiceEntry, name: store}]
  validation: {wellKnownCACertificates: System, hostname: tls.example.com}
---
"""
    rule = f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: rule, namespace: shop, creationTimestamp: "{year}-01-01T00:00:00Z"}}
spec: {{host: {HOST}, trafficPolicy: {{SETTING}}}}
"""
    for setting, timeout, server in (
        ("connectionPool: {tcp: {connectTimeout: 3s}}", 3, "tls.example.com"),
        ("connectionPool: {tcp: {connectTimeout: 3s}}, tls: {mode: SIMPLE, sni: own.test}", 3, "own.test"),
        ("portLevelSettings: [{port: {number: 80}, connectionPool: {tcp: {connectTimeout: 3s}}}]", 3, ""),
        ("portLevelSettings: [{port: {number: 81}, tls: {mode: DISABLE}}]", 10, "tls.example.com"),
    ):
        world = world_of(policy + EXTERNAL + rule.replace("SETTING", setting))
        found = outbound(world, sidecar())[f"outbound|80||{HOST}"]
        assert found.connect_timeout.seconds == timeout
        assert (tls(found).sni if found.HasField("transport_socket") else "") == server
