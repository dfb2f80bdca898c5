"""Mutual TLS with proxies of Consul's own mesh: who gets a leaf, what clusters and listeners ask for."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import DownstreamTlsContext, UpstreamTlsContext

from mesh_pilot.envoy.tls.secrets import withheld
from mesh_pilot.mesh.names.resources import CONNECT_CALLER_SECRET, CONNECT_ROOTS_SECRET, CONNECT_SERVICE_PREFIX
from mesh_pilot.model.connect import CONNECT_ROOTS, ConnectId, connect_caller, connect_leaf
from mesh_pilot.model.events import Endpoints, Grant, Secret, Upsert
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.service import CONNECT_TLS_MODE, MESH_TLS_MODE, Endpoint, Port, Protocol, Service
from mesh_pilot.world import World
from tests.envoy.test_credentials import given, router, workload
from tests.support.listeners import listeners
from tests.support.upstreams import outbound, target
from tests.support.worlds import SOURCE, sidecar, world_of

DOMAIN = "11111111-2222-3333-4444-555555555555.consul"
WEB = ConnectId(DOMAIN, "dc1", "web")
HOST = "web.service.consul"
KEY = b"the private key"


def world(text: str = "", *, leaf: bool = True, mode: str = MESH_TLS_MODE) -> World:
    """A service of both meshes, with an instance in each."""
    found = world_of(text, namespace="shop")
    service = Service(HOST, "shop", (Port(80, "http", Protocol.HTTP),), connect_id=str(WEB), declared_by_users=False)
    at = [
        Endpoint("10.1.1.1", 8080, "http", tls_mode=mode, namespace="shop"),
        Endpoint("10.1.1.2", 21000, "http", tls_mode=CONNECT_TLS_MODE, namespace="shop"),
    ]
    found.apply([Upsert(SOURCE, service), Upsert(SOURCE, Endpoints(service.key, tuple(at)))])
    found.apply([Upsert(SOURCE, Secret(CONNECT_ROOTS, ca_certificates=b"roots", is_guarded=True))])
    if leaf:
        grant = Grant("shop", "web")
        for name in (connect_leaf("web"), connect_caller("shop", "web")):
            found.apply([Upsert(SOURCE, Secret(name, "", b"chain", KEY, grants=(grant,), is_guarded=True))])
    return found


def has(found: World, proxy: Proxy, name: str) -> bool:
    secret = given(found, proxy, name)
    return secret is not None and secret.tls_certificate.private_key.inline_bytes == KEY


@pytest.mark.parametrize("name", [CONNECT_CALLER_SECRET, f"{CONNECT_SERVICE_PREFIX}web"])
def test_a_leaf_is_for_proxies_with_an_account_of_its_service_alone(name: str) -> None:
    found = world()
    assert has(found, workload(account="web"), name)
    assert has(found, router(account="web"), name)
    assert not has(found, workload(account="api"), name)
    assert not has(found, router("shop"), name)
    assert not has(found, router("istio-system"), name)
    assert not has(found, workload("bank", "web"), name)
    assert not has(found, router("shop", account="web", certified=False), name)


@pytest.mark.parametrize("name", ["consul-connect/web", "istio-system/consul-connect/web", "/consul-connect/web"])
def test_no_credential_name_leads_to_a_leaf(name: str) -> None:
    for proxy in (router("istio-system"), router("shop"), workload(account="web")):
        assert not has(world(), proxy, f"kubernetes://{name}")


def test_roots_are_for_every_proxy_with_an_identity() -> None:
    found = given(world(), workload(account="api"), CONNECT_ROOTS_SECRET)
    assert found is not None and found.validation_context.trusted_ca.inline_bytes == b"roots"


def context(cluster: Cluster, mode: str) -> UpstreamTlsContext:
    (match,) = [each for each in cluster.transport_socket_matches if each.name == f"tlsMode-{mode}"]
    assert match.match.fields["tlsMode"].string_value == mode
    return UpstreamTlsContext.FromString(match.transport_socket.typed_config.value)


OFF = """
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: DISABLE}}
"""


@pytest.mark.parametrize("text", ["", OFF], ids=["mutual TLS", "mutual TLS off in ours"])
def test_a_sidecar_of_consuls_mesh_is_called_by_its_name_and_its_roots(text: str) -> None:
    cluster = outbound(world(text), sidecar())[f"outbound|80||{HOST}"]
    tls = context(cluster, CONNECT_TLS_MODE)
    assert tls.sni == f"web.default.dc1.internal.{DOMAIN}"
    common = tls.common_tls_context
    assert [each.name for each in common.tls_certificate_sds_secret_configs] == [CONNECT_CALLER_SECRET]
    combined = common.combined_validation_context
    assert combined.validation_context_sds_secret_config.name == CONNECT_ROOTS_SECRET
    (san,) = combined.default_validation_context.match_typed_subject_alt_names
    assert san.matcher.exact == f"spiffe://{DOMAIN}/ns/default/dc/dc1/svc/web"
    assert cluster.transport_socket_matches[-1].name == "tlsMode-disabled"


def test_a_rule_of_mutual_tls_is_for_the_endpoints_of_this_mesh() -> None:
    rule = f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: web, namespace: shop}}
spec: {{host: {HOST}, trafficPolicy: {{tls: {{mode: ISTIO_MUTUAL}}}}}}
"""
    cluster = outbound(world(rule), sidecar(namespace="shop"))[f"outbound|80||{HOST}"]
    assert context(cluster, CONNECT_TLS_MODE).sni
    assert cluster.HasField("transport_socket")


def test_other_services_have_nothing_of_it() -> None:
    found = world_of()
    service = Service(HOST, "shop", (Port(80, "http", Protocol.HTTP),))
    found.apply([Upsert(SOURCE, service)])
    assert "consul-connect" not in str(outbound(found, sidecar())[f"outbound|80||{HOST}"])


def chains(found: World, **more: Any) -> list[Any]:
    listener = listeners(found, sidecar("10.1.1.1", namespace="shop", **more))["virtualInbound"]
    return [chain for chain in listener.filter_chains if chain.filter_chain_match.server_names]


def test_an_inbound_port_takes_callers_of_consuls_mesh_by_the_name_they_ask_for() -> None:
    (chain,) = chains(world())
    assert list(chain.filter_chain_match.server_names) == [f"*.internal.{DOMAIN}"]
    assert chain.filter_chain_match.destination_port.value == 8080
    tls = DownstreamTlsContext.FromString(chain.transport_socket.typed_config.value)
    assert tls.require_client_certificate.value
    common = tls.common_tls_context
    assert [each.name for each in common.tls_certificate_sds_secret_configs] == [f"{CONNECT_SERVICE_PREFIX}web"]
    combined = common.combined_validation_context
    assert combined.validation_context_sds_secret_config.name == CONNECT_ROOTS_SECRET
    (san,) = combined.default_validation_context.match_typed_subject_alt_names
    assert san.matcher.prefix == f"spiffe://{DOMAIN}/ns/default/dc/"


def test_it_takes_none_without_a_leaf_or_where_mutual_tls_is_off() -> None:
    assert chains(world(leaf=False)) == []
    assert chains(world(OFF)) == []


def test_a_sidecars_port_is_no_port_of_the_proxy_beside_it() -> None:
    listener = listeners(world(), sidecar("10.1.1.2", namespace="shop"))["virtualInbound"]
    assert all(chain.filter_chain_match.destination_port.value != 21000 for chain in listener.filter_chains)


def test_a_proxy_without_a_leaf_is_told_why() -> None:
    found = world(leaf=False)
    at = target(found, workload(account="api")).workload
    assert "has a leaf: give an instance tls_mode" in withheld(found.view, at, CONNECT_CALLER_SECRET)
    assert withheld(found.view, at, CONNECT_ROOTS_SECRET) == ""
