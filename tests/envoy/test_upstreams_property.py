"""Clusters and endpoints after any sequence of changes are those that a fresh process makes of the final world."""

from __future__ import annotations

from collections.abc import Mapping

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.engine import Watch
from mesh_pilot.envoy.clusters.inbound import inbound_clusters
from mesh_pilot.envoy.endpoints.assignments import assignment
from mesh_pilot.istio.reading.mesh import decode_mesh, decode_networks
from mesh_pilot.mesh.proxy.keys import proxy_facts, proxy_keys
from mesh_pilot.model.config import Origin
from mesh_pilot.model.events import Delete, Item, MeshConfigValue, MeshNetworksValue, Synced, Upsert, item_key
from mesh_pilot.world import World
from tests.support.plans import outbound_clusters
from tests.support.sample import examples
from tests.support.worlds import SOURCE, configs, sidecar

HOST = "a.shop.svc.cluster.local"

ENTRIES = [
    f"""
hosts: [{HOST}]
location: {location}
resolution: {resolution}
ports: [{{number: 80, name: http, protocol: HTTP}}, {{number: 90, name: grpc, protocol: GRPC}}]
{body}
"""
    for location, resolution, body in (
        (
            "MESH_INTERNAL",
            "STATIC",
            "endpoints: [{address: 10.1.0.1, serviceAccount: a, locality: eu/1, labels: {v: a}}]",
        ),
        ("MESH_INTERNAL", "STATIC", "endpoints: [{address: 10.2.0.1, serviceAccount: b, locality: us/1, network: b}]"),
        ("MESH_INTERNAL", "STATIC", "workloadSelector: {labels: {app: a}}"),
        ("MESH_EXTERNAL", "DNS", "endpoints: [{address: x.example.com, locality: eu}, {address: y.example.com}]"),
        ("MESH_INTERNAL", "NONE", 'exportTo: ["."]'),
    )
]
WORKLOADS = [
    "{address: 10.1.0.1, labels: {app: a, v: a}, serviceAccount: w, locality: eu/1}",
    "{address: 10.2.0.9, labels: {app: a, v: b}, weight: 4, network: b}",
]
RULES = [
    "{host: HOST, trafficPolicy: {outlierDetection: {}, loadBalancer: {localityLbSetting: {failoverPriority: [v]}}}}",
    "{host: HOST, subsets: [{name: a, labels: {v: a}, trafficPolicy: {tls: {mode: DISABLE}}}, {name: b}]}",
    "{host: HOST, exportTo: ['.'], trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}}",
    "{host: HOST, workloadSelector: {matchLabels: {v: a}}, trafficPolicy: {tls: {mode: SIMPLE}}}",
    "{host: '*.cluster.local', trafficPolicy: {portLevelSettings: [{port: {number: 80}, outlierDetection: {}}]}}",
    "{host: HOST, trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}, outlierDetection: {}}}",
]
PEERS = [
    "{mtls: {mode: DISABLE}}",
    "{mtls: {mode: STRICT}, selector: {matchLabels: {v: a}}}",
    "{selector: {matchLabels: {v: a}}, mtls: {mode: DISABLE}}",
]
SIDECARS = [
    '{egress: [{hosts: ["./*"]}]}',
    '{egress: [{hosts: ["shop/*"]}], ingress: [{port: {number: 80, name: h, protocol: HTTP}}]}',
]
MESHES = [
    "enableAutoMtls: false",
    "localityLbSetting: {failover: [{from: eu, to: us}]}",
    "{connectTimeout: 3s, trustDomainAliases: [old], defaultDestinationRuleExportTo: ['.']}",
    "localityLbSetting: {failoverPriority: [v]}",
]
NETWORKS = [
    "networks: {b: {gateways: [{address: 198.51.100.1, port: 15443}]}}",
    "networks: {b: {gateways: [{address: 198.51.100.2, port: 15443}], endpoints: [{fromCidr: 10.2.0.0/16}]}}",
]
OBJECTS: Mapping[str, tuple[str, list[str]]] = {
    "ServiceEntry shop a": ("networking.istio.io/v1", ENTRIES),
    "ServiceEntry other a": ("networking.istio.io/v1", ENTRIES),
    "WorkloadEntry shop one": ("networking.istio.io/v1", WORKLOADS),
    "WorkloadEntry shop two": ("networking.istio.io/v1", WORKLOADS),
    "DestinationRule shop old": ("networking.istio.io/v1", RULES),
    "DestinationRule shop young": ("networking.istio.io/v1", RULES),
    "DestinationRule client own": ("networking.istio.io/v1", RULES),
    "DestinationRule istio-system all": ("networking.istio.io/v1", RULES),
    "PeerAuthentication shop a": ("security.istio.io/v1", PEERS),
    "PeerAuthentication istio-system default": ("security.istio.io/v1", PEERS),
    "Sidecar client default": ("networking.istio.io/v1", SIDECARS),
    "mesh": ("", MESHES),
    "networks": ("", NETWORKS),
}
PROXIES = (
    sidecar("10.1.0.1", name="a", namespace="shop", labels={"v": "a"}),
    sidecar("10.9.0.1", name="b", namespace="client", labels={"v": "b"}, locality="us/1", NETWORK="a"),
    sidecar("10.9.0.2", name="gw", namespace="istio-system", node_type="router", locality="eu/1", NETWORK="b"),
)

changes = st.lists(
    st.sampled_from(list(OBJECTS)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from([*OBJECTS[name][1], None]))
    ),
    min_size=1,
    max_size=12,
)


def item(name: str, text: str) -> Item:
    origin = Origin(SOURCE)
    if name == "mesh":
        return MeshConfigValue(decode_mesh(_yaml(text), origin=origin))
    if name == "networks":
        return MeshNetworksValue(decode_networks(_yaml(text), origin=origin))
    kind, namespace, own = name.split()
    spec = "\n".join(f"  {line}" for line in text.replace("HOST", HOST).strip().splitlines())
    head = f"apiVersion: {OBJECTS[name][0]}\nkind: {kind}\nmetadata: {{name: {own}, namespace: {namespace}}}\nspec:\n"
    (config,) = configs(head + spec)
    return config


def everything(world: World, watch: Watch) -> dict[tuple[str, str], tuple[str, bytes]]:
    """All that the proxies are sent of clusters and endpoints."""
    found: dict[tuple[str, str], tuple[str, bytes]] = {}
    for proxy in PROXIES:
        target = watch.get(proxy_keys.query(proxy_facts(proxy)))
        plan = dict(watch.get(outbound_clusters.query(target.scope, target.locality)))
        if proxy.type == "sidecar":
            plan |= watch.get(inbound_clusters.query(target.workload))
        for name, call in plan.items():
            for resource in (
                watch.get(call),
                watch.get(assignment.query(target.scope, target.locality, name)),
            ):
                if resource is not None:
                    found[(proxy.name, resource.type_url + name)] = (resource.version, resource.body)
    return found


@settings(max_examples=examples(120), deadline=None)
@given(changes=changes)
def test_incremental_equals_from_scratch(changes: list[tuple[str, str | None]]) -> None:
    world = World()
    world.apply([Synced(SOURCE)])
    watch = Watch(world.memo, lambda: None)
    held: dict[str, Item] = {}
    for name, text in changes:
        if text is not None:
            held[name] = item(name, text)
            world.apply([Upsert(SOURCE, held[name])])
        elif name in held:
            world.apply([Delete(SOURCE, item_key(held.pop(name)))])
        everything(world, watch)
    fresh = World()
    fresh.apply([*(Upsert(SOURCE, i) for i in reversed(held.values())), Synced(SOURCE)])
    assert everything(world, watch) == everything(fresh, Watch(fresh.memo, lambda: None))


def _yaml(text: str) -> object:
    return yaml.safe_load(text)
