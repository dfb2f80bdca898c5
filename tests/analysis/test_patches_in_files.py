"""Patches of EnvoyFilters that fail or match nothing at the gateways and workloads that files show."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_pilot.explain.analysis import imagined
from mesh_pilot.explain.analysis.imagined import patch_problems_in_files
from tests.support.dangling_patches import DANGLING
from tests.support.patching import LUA, SHOP, envoy_filter, in_filter, in_http_filter, patch
from tests.support.worlds import world_of

SCRIPT = {"name": "lua", "typed_config": {"@type": LUA}}


def said(*patches: dict[str, Any], **spec: Any) -> list[tuple[str, str]]:
    world = world_of(SHOP + envoy_filter(*patches, namespace="istio-system", **spec))
    return [(problem.path, problem.reason) for _, problem in patch_problems_in_files(world)]


@pytest.mark.parametrize("what", DANGLING)
def test_a_patch_that_names_what_nothing_serves_is_told(what: str) -> None:
    good = patch("HTTP_FILTER", "INSERT_FIRST", SCRIPT, context="GATEWAY")
    assert {path for path, _ in said(good, *DANGLING[what])} & {"spec.configPatches[1]", "spec.configPatches[2]"}


def test_a_patch_that_matches_nothing_is_told_once() -> None:
    missing = patch("HTTP_FILTER", "MERGE", SCRIPT, listener=in_http_filter("none"))
    ((path, reason),) = said(missing)
    assert path == "spec.configPatches[0]"
    assert reason.startswith("it matches nothing here")


@pytest.mark.parametrize(
    "one",
    [
        patch("LISTENER", "MERGE", {"per_connection_buffer_limit_bytes": 1}, listener={"name": "virtualInbound"}),
        patch("LISTENER", "MERGE", {"per_connection_buffer_limit_bytes": 1}, listener={"name": "10.9.1.1_9000"}),
        patch("CLUSTER", "MERGE", {"connect_timeout": "2s"}, cluster={"name": "inbound|8080||"}),
        patch("VIRTUAL_HOST", "MERGE", {"require_tls": "ALL"}, routeConfiguration={"name": "http.8081"}),
        patch("LISTENER", "MERGE", {"transparent": True}, context="GATEWAY", listener={"portNumber": 8081}),
        patch("VIRTUAL_HOST", "MERGE", {"require_tls": "ALL"}, context="SIDECAR_OUTBOUND"),
        patch(
            "NETWORK_FILTER", "INSERT_FIRST", {"name": "n"}, listener=in_filter("none"), proxy={"proxyVersion": "^1"}
        ),
    ],
)
def test_a_patch_that_matches_some_proxy_or_is_for_a_version_is_not_told(one: dict[str, Any]) -> None:
    assert not [reason for _, reason in said(one) if reason.startswith("it matches nothing")]


def test_nothing_is_said_to_match_nothing_where_not_all_workloads_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = patch("HTTP_FILTER", "MERGE", SCRIPT, listener=in_http_filter("none"))
    failing = patch("CLUSTER", "MERGE", {"name": "x"}, cluster={"name": "PassthroughCluster"})
    assert [path for path, _ in said(missing, failing)] == ["spec.configPatches[1]", "spec.configPatches[0]"]
    monkeypatch.setattr(imagined, "MOST", 1)  # the workload is tried with and without interception
    assert [path for path, _ in said(missing, failing)] == ["spec.configPatches[1]"]


def test_files_without_gateways_and_workloads_say_nothing() -> None:
    world = world_of(envoy_filter(patch("CLUSTER", "REMOVE", cluster={"name": "none"})))
    assert list(patch_problems_in_files(world)) == []
