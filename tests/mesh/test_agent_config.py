"""The settings of agents (PCDS): which of the mesh's settings wins, and what agents are not told."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from mesh_pilot.api.istio.mesh.v1alpha1 import ProxyConfig
from mesh_pilot.envoy.catalog.catalog import WorldCatalog
from mesh_pilot.mesh.proxy.agent_config import agent_config
from mesh_pilot.mesh.proxy.keys import proxy_facts, proxy_keys
from mesh_pilot.model.resource import NAME_TABLE, PROXY_CONFIG
from mesh_pilot.world import World
from tests.support.worlds import sidecar, world_of


def settings(*documents: str, mesh_config: str = "", **metadata: Any) -> ProxyConfig:
    world = world_of("\n---\n".join(documents), mesh=mesh_config)
    return effective(world, **metadata)


def effective(world: World, **metadata: Any) -> ProxyConfig:
    agent = sidecar(namespace="shop", labels={"app": "web"}, **{"AGENT": "1.0", **metadata})
    keys = proxy_keys(world.view, proxy_facts(agent))
    assert keys.agent is not None
    return agent_config(world.view, keys.agent)


def proxy_config(name: str, namespace: str, concurrency: int, *, labels: str = "", variables: str = "{}") -> str:
    selector = f"selector: {{matchLabels: {labels}}}, " if labels else ""
    return f"""
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{{selector}concurrency: {concurrency}, environmentVariables: {variables}}}
"""


MESH = "defaultConfig: {concurrency: 7, proxyMetadata: {FROM: mesh, MESH: 'yes'}}"
ROOT = proxy_config("all", "istio-system", 3, variables="{FROM: root, ROOT: 'yes'}")
NAMESPACE = proxy_config("shop", "shop", 4, variables="{FROM: namespace}")
WORKLOAD = proxy_config("web", "shop", 6, labels="{app: web}", variables="{FROM: object}")
ANNOTATED = {"ANNOTATIONS": {"proxy.istio.io/config": "concurrency: 5\nproxyMetadata: {FROM: annotation, A: b}"}}


@pytest.mark.parametrize(
    ("documents", "metadata", "concurrency", "source"),
    [
        ([], {}, 7, "mesh"),
        ([ROOT], {}, 3, "root"),
        ([ROOT, NAMESPACE], {}, 4, "namespace"),
        ([ROOT, NAMESPACE], ANNOTATED, 5, "annotation"),
        ([ROOT, NAMESPACE, WORKLOAD], ANNOTATED, 6, "object"),
    ],
)
def test_the_object_of_the_workload_wins_over_the_annotation_and_that_over_wider_objects_and_the_mesh(
    documents: list[str], metadata: dict[str, Any], concurrency: int, source: str
) -> None:
    found = settings(*documents, mesh_config=MESH, **metadata)
    assert found.concurrency == concurrency
    assert found.proxy_metadata["FROM"] == source and found.proxy_metadata["MESH"] == "yes"
    assert ("ROOT" in found.proxy_metadata) == (ROOT in documents)


def test_objects_of_other_namespaces_and_workloads_do_not_count() -> None:
    others = proxy_config("other", "bank", 9), proxy_config("db", "shop", 9, labels="{app: db}")
    of_root = proxy_config("root-web", "istio-system", 9, labels="{app: web}")
    assert settings(*others, of_root).concurrency is None


def test_an_annotation_that_cannot_be_read_is_ignored() -> None:
    for text in ("concurrency: [", "- a", "concurrency: lots", "nobody: knows"):
        assert settings(NAMESPACE, ANNOTATIONS={"proxy.istio.io/config": text}).concurrency == 4


def test_istios_defaults_are_not_sent() -> None:
    assert bytes(settings()) == b""
    own = settings(mesh_config="defaultConfig: {drainDuration: 7s, statusPort: 15020}")
    assert (own.drain_duration is not None, own.status_port) == (True, 0)


GROUP = """
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: shop}
spec: {template: {}, probe: {periodSeconds: 3, httpGet: {port: 8080, path: /ready}}}
"""
ENTRY = """
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web-1, namespace: shop, annotations: {istio.io/autoRegistrationGroup: web}}
spec: {address: 10.0.0.1}
"""


@pytest.mark.parametrize("metadata", [{"AUTO_REGISTER_GROUP": "web"}, {"WORKLOAD_ENTRY": "web-1"}])
def test_the_probe_is_that_of_the_workload_group(metadata: dict[str, str]) -> None:
    probe = settings(GROUP, ENTRY, **metadata).readiness_probe
    assert probe is not None and probe.period_seconds == 3
    assert probe.http_get is not None and probe.http_get.path == "/ready"
    assert settings(GROUP, ENTRY).readiness_probe is None


def test_an_agent_shares_its_name_table_with_the_proxies_of_its_scope_and_makes_no_other() -> None:
    world = world_of(NAMESPACE)
    catalog = WorldCatalog(world)
    proxy = sidecar(namespace="shop", labels={"app": "web"})
    agent = sidecar(namespace="shop", labels={"app": "web"}, AGENT="1.0")
    assert catalog.scope_of(proxy) == catalog.scope_of(agent)
    mine, its = (proxy_keys(world.view, proxy_facts(each)) for each in (proxy, agent))
    assert attrs.evolve(its, agent=None) == mine
    first, second = catalog.open(proxy), catalog.open(agent)
    tables = [each.set(NAME_TABLE) for each in (first, second)]
    assert tables[0] is not None and tables[1] is not None
    assert tables[0].snapshot() is tables[1].snapshot()
    assert second.set(PROXY_CONFIG) is not None
    for each in (first, second):
        each.close()


def zone_aware(namespace: str, enabled: str = "true") -> str:
    return f"""
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: zones, namespace: {namespace}}}
spec:
  host: a.test
  subsets:
  - name: v1
    trafficPolicy:
      portLevelSettings: [{{port: {{number: 80}}, loadBalancer: {{zoneAwareLbSetting: {{enabled: {enabled}}}}}}}]
"""


@pytest.mark.parametrize(
    ("document", "mesh_config", "expected"),
    [
        ("", "", None),
        ("", "zoneAwareLbSetting: {minClusterSize: 2}", "true"),
        ("", "zoneAwareLbSetting: {enabled: false}", None),
        (zone_aware("shop"), "", "true"),
        (zone_aware("istio-system"), "", "true"),
        (zone_aware("shop", "false"), "", None),
        (zone_aware("other"), "", None),
        (zone_aware("shop"), "defaultConfig: {proxyMetadata: {ISTIO_META_ENABLE_SELF_DISCOVERY: 'false'}}", "false"),
    ],
)
def test_proxies_have_a_local_cluster_where_zone_aware_load_balancing_is_asked_for(
    document: str, mesh_config: str, expected: str | None
) -> None:
    found = settings(document, mesh_config=mesh_config)
    assert found.proxy_metadata.get("ISTIO_META_ENABLE_SELF_DISCOVERY") == expected
