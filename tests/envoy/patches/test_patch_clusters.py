"""Patches to clusters, and configs of extensions."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.extensions.transport_sockets.tls.v3.tls_pb2 import UpstreamTlsContext

from mesh_pilot.model.resource import CLUSTER, EXTENSION
from tests.support.patching import EDGE, LUA, Shop, envoy_filter, patch

API_80, API_9000 = "outbound|80||api.shop.svc.cluster.local", "outbound|9000||api.shop.svc.cluster.local"
EDGE_80 = "outbound|80||edge.istio-system.svc.cluster.local"
OUTBOUND = [API_80, API_9000, EDGE_80, "BlackHoleCluster", "PassthroughCluster"]
INBOUND = ["inbound|8080||", "inbound|9000||", "InboundPassthroughCluster"]
BUFFER = {"per_connection_buffer_limit_bytes": 4096}
LIMITER = {"name": "limiter", "type": "STATIC", "connect_timeout": "1s"}
TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"

SUBSETS = """---
apiVersion: networking.istio.io/v1beta1
kind: DestinationRule
metadata: {name: api, namespace: shop, creationTimestamp: "2024-03-02T00:00:00Z"}
spec: {host: api, subsets: [{name: v1, labels: {version: v1}}]}
"""
MESH_TLS = """---
apiVersion: security.istio.io/v1beta1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system, creationTimestamp: "2024-03-02T00:00:00Z"}
spec: {mtls: {mode: STRICT}}
"""


def buffered(*texts: str, **match: Any) -> list[str]:
    """The clusters that a patch is merged into."""
    shop = Shop(*texts, envoy_filter(patch("CLUSTER", "MERGE", BUFFER, **match)))
    clusters = (shop.cluster(name) for name in shop.names(CLUSTER))
    return [cluster.name for cluster in clusters if cluster.per_connection_buffer_limit_bytes.value == 4096]


@pytest.mark.parametrize(
    ("context", "found"),
    [("ANY", OUTBOUND + INBOUND), ("SIDECAR_OUTBOUND", OUTBOUND), ("SIDECAR_INBOUND", INBOUND), ("GATEWAY", [])],
)
def test_a_context_picks_the_clusters(context: str, found: list[str]) -> None:
    assert buffered(context=context) == found


@pytest.mark.parametrize(
    ("match", "found"),
    [
        ({"name": "PassthroughCluster"}, ["PassthroughCluster"]),
        ({"portNumber": 9000}, [API_9000, "outbound|9000|v1|api.shop.svc.cluster.local", "inbound|9000||"]),
        ({"service": "edge.istio-system.svc.cluster.local"}, [EDGE_80]),
        (
            {"service": "api.shop.svc.cluster.local"},
            [API_80, API_9000, "outbound|80|v1|api.shop.svc.cluster.local",
             "outbound|9000|v1|api.shop.svc.cluster.local", "inbound|8080||", "inbound|9000||"],
        ),
        ({"subset": "v1", "portNumber": 80}, ["outbound|80|v1|api.shop.svc.cluster.local"]),
        ({"service": "api"}, []),
        ({"name": API_80, "portNumber": 9000}, [API_80]),
    ],
)  # fmt: skip
def test_a_cluster_is_matched_by_its_name_or_what_is_in_it(match: dict[str, Any], found: list[str]) -> None:
    assert sorted(buffered(SUBSETS, cluster=match)) == sorted(found)


def test_clusters_can_be_removed_and_added() -> None:
    shop = Shop(
        envoy_filter(
            patch("CLUSTER", "REMOVE", cluster={"portNumber": 9000}),
            patch("CLUSTER", "ADD", LIMITER, context="SIDECAR_INBOUND"),
        )
    )
    assert API_9000 not in shop.names(CLUSTER)
    assert "inbound|9000||" not in shop.names(CLUSTER)
    assert shop.cluster("limiter").connect_timeout.seconds == 1


def test_where_order_is_of_no_account_to_insert_is_to_add() -> None:
    shop = Shop(envoy_filter(patch("CLUSTER", "INSERT_FIRST", LIMITER)))
    assert shop.names(CLUSTER).count("limiter") == 1
    assert shop.problems == ()


def test_what_is_added_is_not_touched_by_other_patches() -> None:
    shop = Shop(envoy_filter(patch("CLUSTER", "ADD", LIMITER), patch("CLUSTER", "MERGE", BUFFER)))
    assert not shop.cluster("limiter").HasField("per_connection_buffer_limit_bytes")


def test_a_cluster_that_is_there_can_not_be_added() -> None:
    shop = Shop(envoy_filter(patch("CLUSTER", "ADD", {**LIMITER, "name": API_80})))
    assert shop.cluster(API_80).type != 0
    assert shop.problem_texts() == [
        f"cluster {API_80}: there is a cluster of this name already: ADD can't put another next to it"
    ]


def test_a_cluster_that_is_removed_can_be_put_back_in_another_shape() -> None:
    shop = Shop(
        envoy_filter(
            patch("CLUSTER", "REMOVE", cluster={"name": API_80}), patch("CLUSTER", "ADD", {**LIMITER, "name": API_80})
        )
    )
    assert shop.cluster(API_80).connect_timeout.seconds == 1
    assert shop.problems == ()


def socket(name: str = "envoy.transport_sockets.tls", sni: str = "x") -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": TLS, "sni": sni}}


def test_a_transport_socket_is_merged_into_the_one_of_its_name_among_those_chosen_by_endpoint() -> None:
    change = patch("CLUSTER", "MERGE", {"transport_socket": socket(), **BUFFER}, cluster={"name": API_80})
    cluster = Shop(MESH_TLS, envoy_filter(change)).cluster(API_80)
    chosen = cluster.transport_socket_matches[0].transport_socket
    tls = UpstreamTlsContext.FromString(chosen.typed_config.value)
    assert tls.sni == "x"
    assert tls.common_tls_context.tls_certificate_sds_secret_configs
    assert not cluster.HasField("transport_socket")
    assert cluster.per_connection_buffer_limit_bytes.value == 4096


def test_a_transport_socket_that_none_of_those_is_called_is_reported() -> None:
    change = patch("CLUSTER", "MERGE", {"transport_socket": socket("own"), **BUFFER}, cluster={"name": API_80})
    shop = Shop(MESH_TLS, envoy_filter(change))
    assert "by endpoint; none is own" in shop.problem_texts()[0]
    assert not shop.cluster(API_80).HasField("per_connection_buffer_limit_bytes")


def test_a_cluster_without_a_transport_socket_gets_one() -> None:
    change = patch("CLUSTER", "MERGE", {"transport_socket": socket("own")}, cluster={"name": "PassthroughCluster"})
    assert Shop(envoy_filter(change)).cluster("PassthroughCluster").transport_socket.name == "own"


def test_a_cluster_can_not_be_renamed() -> None:
    shop = Shop(envoy_filter(patch("CLUSTER", "MERGE", {"name": "x"}, cluster={"name": API_80})))
    assert API_80 in shop.names(CLUSTER)
    assert "can't be renamed to x" in shop.problem_texts()[0]


def test_the_clusters_of_a_router_are_its_own_context() -> None:
    change = envoy_filter(patch("CLUSTER", "MERGE", BUFFER, context="GATEWAY"), namespace="istio-system")
    assert Shop(change, proxy=EDGE).cluster(API_80).per_connection_buffer_limit_bytes.value == 4096


@pytest.mark.parametrize("context", ["ANY", "SIDECAR_INBOUND", "GATEWAY"])
def test_a_config_of_an_extension_is_there_for_whoever_asks_for_its_name(context: str) -> None:
    value = {"name": "lua", "typed_config": {"@type": LUA, "inline_code": "x"}}
    shop = Shop(envoy_filter(patch("EXTENSION_CONFIG", "ADD", value, context=context)))
    extension = shop.resource(EXTENSION, "lua")
    assert extension is not None
    assert TypedExtensionConfig.FromString(extension.body).typed_config.type_url == LUA
    assert shop.names(EXTENSION) == ["lua"]


def test_of_two_configs_of_one_name_the_first_stays() -> None:
    value = {"name": "lua", "typed_config": {"@type": LUA, "inline_code": "x"}}
    shop = Shop(envoy_filter(*(patch("EXTENSION_CONFIG", "ADD", value) for _ in range(2))))
    assert [p.patch for p in shop.problems] == [1]
