"""A filled template is to the byte the message that Envoy's classes give."""

from __future__ import annotations

import operator

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.route.v3.route_components_pb2 import Route
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.envoy.clusters.template import (
    ClusterClient,
    ClusterTemplate,
    ClusterVars,
    build_cluster,
    cluster_template,
    placeholder_values,
)
from mesh_pilot.envoy.core.protobuf import encode
from mesh_pilot.envoy.core.templates import template
from mesh_pilot.envoy.routes.action import default_retries
from mesh_pilot.envoy.routes.build import default_route, service_routes
from mesh_pilot.envoy.tls.upstream import ProxyCertificateFiles
from mesh_pilot.mesh.clusters.upstreams import Discovery
from mesh_pilot.mesh.names.resources import outbound
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.service import Protocol
from mesh_pilot.world import World
from tests.support.routing import config
from tests.support.worlds import world_of

POLICIES = (
    "{tls: {mode: SIMPLE}}",
    "{tls: {mode: SIMPLE, insecureSkipVerify: true}}",
    "{tls: {mode: SIMPLE, sni: s.example.com, caCertificates: /ca.pem, caCrl: /crl.pem}}",
    "{tls: {mode: MUTUAL, credentialName: c, subjectAltNames: [a.example.com]}, proxyProtocol: {version: V2}}",
    "{tls: {mode: ISTIO_MUTUAL}, loadBalancer: {consistentHash: {useSourceIp: true}}}",
    "{tls: {mode: DISABLE}, outlierDetection: {consecutive5xxErrors: 3}}",
    "{proxyProtocol: {version: V1}, connectionPool: {http: {useClientProtocol: true}, tcp: {connectTimeout: 1s}}}",
    "{loadBalancer: {simple: ROUND_ROBIN, warmupDurationSecs: 9s}, connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}",
)
RULES = [ConfigKey("DestinationRule", "shop", f"r{number}") for number in range(len(POLICIES))]
MESHES = (
    "",
    "{outboundClusterStatName: '%SERVICE%', defaultConfig: {proxyHeaders: {preserveHttp1HeaderCase: true}}}",
    "{tlsDefaults: {cipherSuites: [AES128-SHA]}, h2UpgradePolicy: UPGRADE}",
    "{tcpKeepalive: {time: 7s}, localityLbSetting: {enabled: true}, defaultTrafficPolicy: {outlierDetection: {}}}",
)
WORLDS = [
    world_of(
        "".join(config("DestinationRule", key.name, f"{{host: '*.{key.name}', trafficPolicy: {policy}}}")
                for key, policy in zip(RULES, POLICIES, strict=True)),
        mesh=mesh,
    )
    for mesh in MESHES
]  # fmt: skip

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=300)
hosts = st.from_regex(r"[a-z]{1,20}(\.[a-z0-9-]{1,60}){0,4}", fullmatch=True)
identities = st.one_of(
    st.builds("spiffe://cluster.local/ns/{}/sa/{}".format, hosts, hosts), hosts, st.ip_addresses().map(str)
)
clients = st.builds(
    ClusterClient,
    sidecar=st.booleans(),
    files=st.none() | st.just(ProxyCertificateFiles("/chain.pem", "/key.pem", "/roots.pem")),
    settings=st.sampled_from(["", '{"connectionSettings": {"profile": "EDGE"}}']),
    certified=st.booleans(),
)
templates = st.builds(
    ClusterTemplate,
    client=clients,
    rule=st.lists(st.sampled_from(RULES), max_size=2, unique=True).map(tuple),
    port=st.integers(1, 65535),
    subset=st.sampled_from(["", "v1"]),
    protocol=st.sampled_from(list(Protocol)),
    discovery=st.sampled_from([Discovery.EDS, Discovery.ORIGINAL_DST, Discovery.DYNAMIC_DNS]),
    by_sni=st.booleans(),
    declares_identities=st.booleans(),
    mesh_mtls=st.booleans(),
)
cluster_vars = st.builds(
    ClusterVars,
    name=texts,
    stat_name=st.just("") | texts,
    sni=texts,
    host=st.builds(operator.add, st.sampled_from(["", "*."]), hosts),
    identities=st.lists(identities, max_size=4).map(tuple),
)


@given(st.sampled_from(WORLDS), templates, cluster_vars)
def test_a_cluster_filled_from_its_template_is_the_one_that_is_built_directly(
    world: World, common: ClusterTemplate, variables: ClusterVars
) -> None:
    made = cluster_template(world.view, common)
    filled = made.fill(placeholder_values(variables, made.names))
    assert filled == encode(build_cluster(world.view, common, variables))


@given(hosts, st.integers(1, 65535))
def test_a_route_filled_from_its_template_is_the_one_that_is_built_directly(host: str, port: int) -> None:
    view = WORLDS[0].view
    plain = default_route(outbound(host, port), f"{host}:{port}/*")
    retries = default_retries(view)
    assert retries is not None
    plain.route.retry_policy.CopyFrom(retries)
    (route,) = service_routes(view, host, port, ())
    assert route.data == encode(plain)
    assert route.matches_all


def test_a_placeholder_is_written_once_for_each_value() -> None:
    placeholders = {"name": b"\0name", "header": b"\0header"}
    made = template(encode(Route(name="\0name", request_headers_to_remove=["\0header"])), placeholders)
    for headers in ([], ["a"], ["a", "b" * 200]):
        contents = {"name": [b"x"], "header": [header.encode() for header in headers]}
        assert Route.FromString(made.fill(contents)) == Route(name="x", request_headers_to_remove=headers)
    assert made.fill({"name": [], "header": []}) == b""


def test_a_message_around_a_placeholder_stays_when_nothing_is_filled_in() -> None:
    message = Cluster(name="c")
    message.eds_cluster_config.service_name = "\0name"
    made = template(encode(message), {"name": b"\0name"})
    found = Cluster.FromString(made.fill({"name": []}))
    assert found.HasField("eds_cluster_config") and not found.eds_cluster_config.service_name


@pytest.mark.parametrize("text", ["about \0name", " \0name", "\0name.", "\x09seven..\0name", "\x08\x88\x88\0name"])
def test_a_placeholder_within_a_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="part of a field"):
        template(encode(Cluster(name=text)), {"name": b"\0name"})
