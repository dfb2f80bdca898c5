"""Merging: what a partial message does to one that is there."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.route.v3.route_components_pb2 import Route
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from envoy.extensions.filters.network.tcp_proxy.v3.tcp_proxy_pb2 import TcpProxy
from google.protobuf import json_format
from google.protobuf.message import Message

from mesh_pilot.envoy.core.protobuf import any_of
from mesh_pilot.envoy.envoy_filter.merge import merge, merge_any
from mesh_pilot.envoy.envoy_filter.patch import PatchError


def merged(kind: type[Message], before: dict[str, Any], patch: dict[str, Any], **how: bool) -> dict[str, Any]:
    message = json_format.ParseDict(before, kind())
    merge(message, json_format.ParseDict(patch, kind()), **how)
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        pytest.param({"name": "a"}, {"alt_stat_name": "b"}, {"name": "a", "alt_stat_name": "b"}, id="a new field"),
        pytest.param({"alt_stat_name": "a"}, {"alt_stat_name": "b"}, {"alt_stat_name": "b"}, id="a field that is set"),
        pytest.param(
            {"connect_timeout": "10.5s"}, {"connect_timeout": "2s"}, {"connect_timeout": "2s"}, id="a duration"
        ),
        pytest.param(
            {"connect_timeout": "10s"}, {"connect_timeout": "0s"}, {"connect_timeout": "0s"}, id="an explicit zero"
        ),
        pytest.param(
            {"common_lb_config": {"healthy_panic_threshold": {"value": 5}}},
            {"common_lb_config": {"ignore_new_hosts_until_first_hc": True}},
            {"common_lb_config": {"healthy_panic_threshold": {"value": 5}, "ignore_new_hosts_until_first_hc": True}},
            id="inside a message",
        ),
        pytest.param(
            {"outlier_detection": {"consecutive_5xx": 5, "enforcing_success_rate": 7}},
            {"outlier_detection": {"enforcing_success_rate": 0}},
            {"outlier_detection": {"consecutive_5xx": 5, "enforcing_success_rate": 0}},
            id="a wrapped zero",
        ),
        pytest.param({}, {"upstream_connection_options": {}}, {"upstream_connection_options": {}}, id="being there"),
        pytest.param(
            {"filters": [{"name": "a"}]}, {"filters": [{"name": "b"}]}, {"filters": [{"name": "a"}, {"name": "b"}]},
            id="a list grows",
        ),
        pytest.param(
            {"metadata": {"filter_metadata": {"a": {"x": 1.0}, "b": {"x": 1.0}}}},
            {"metadata": {"filter_metadata": {"a": {"y": 2.0}}}},
            {"metadata": {"filter_metadata": {"a": {"y": 2.0}, "b": {"x": 1.0}}}},
            id="entries of a map are replaced",
        ),
        pytest.param({"type": "STATIC"}, {"cluster_type": {"name": "a"}}, {"cluster_type": {"name": "a"}}, id="one of"),
    ],
)  # fmt: skip
def test_a_merge_overrides_what_it_says_and_leaves_the_rest(
    before: dict[str, Any], patch: dict[str, Any], after: dict[str, Any]
) -> None:
    assert merged(Cluster, before, patch) == after


def test_lists_can_be_replaced_at_every_depth_and_those_not_named_stay() -> None:
    before = {
        "response_headers_to_remove": ["a"],
        "request_headers_to_remove": ["a"],
        "route": {"cluster": "c", "hash_policy": [{"header": {"header_name": "a"}}]},
    }
    patch = {"response_headers_to_remove": ["b"], "route": {"hash_policy": [{"header": {"header_name": "b"}}]}}
    assert merged(Route, before, patch, replace_lists=True) == {
        "response_headers_to_remove": ["b"],
        "request_headers_to_remove": ["a"],
        "route": {"cluster": "c", "hash_policy": [{"header": {"header_name": "b"}}]},
    }


def test_a_route_that_gets_another_action_loses_the_one_it_had() -> None:
    assert merged(Route, {"route": {"cluster": "c"}}, {"redirect": {"host_redirect": "a"}}) == {
        "redirect": {"host_redirect": "a"}
    }


def test_an_any_is_merged_inside_another_of_its_type() -> None:
    target = any_of(TcpProxy(stat_prefix="a", cluster="c"))
    found = merge_any(target, any_of(TcpProxy(cluster="d")))
    assert TcpProxy.FromString(found.value) == TcpProxy(stat_prefix="a", cluster="d")


def test_an_any_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(PatchError, match=r"router\.v3\.Router can't be merged into .*TcpProxy"):
        merge_any(any_of(TcpProxy()), any_of(Router()))


def test_what_is_merged_is_never_shared_with_the_patch() -> None:
    patch = Cluster(filters=[{"name": "a"}])  # type: ignore[list-item]
    message = Cluster()
    merge(message, patch)
    message.filters[0].name = "changed"
    assert patch.filters[0].name == "a"
