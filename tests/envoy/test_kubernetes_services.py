"""What proxies are sent for services of a Kubernetes."""

from __future__ import annotations

from typing import Any

from mesh_pilot.model.events import Endpoints, Synced, Upsert
from mesh_pilot.model.service import Endpoint, Port, Protocol, Service, ServiceKey
from mesh_pilot.world import World
from tests.support.golden import Dump, proxy_of
from tests.support.kube_objects import add_kubernetes
from tests.support.worlds import world_of

AT = "creationTimestamp: 2024-03-01T00:00:00Z"
NODES = "\n".join(
    f"""---
apiVersion: v1
kind: Node
metadata: {{name: {name}, labels: {{topology.kubernetes.io/region: {region}, topology.kubernetes.io/zone: {zone}}}}}"""
    for name, region, zone in (("n1", "eu", "eu-1"), ("n2", "eu", "eu-1"), ("n3", "us", "us-1"))
)


def pods(*numbers: int, app: str = "web", ready: bool = True) -> str:
    return "".join(
        f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {app}-{n}, namespace: shop, labels: {{app: {app}}}}}
spec: {{nodeName: n{n}, serviceAccountName: {app}}}
status: {{podIP: 10.1.0.{n}, conditions: [{{type: Ready, status: "{ready}"}}]}}
"""
        for n in numbers
    )


def service(name: str = "web", spec: str = "", ports: str = "{name: http, port: 80}", **metadata: str) -> str:
    extra = "".join(f", {key}: {value}" for key, value in metadata.items())
    return f"""---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop, {AT}{extra}}}
spec: {{clusterIP: 10.96.0.1, selector: {{app: {name}}}, {spec} ports: [{ports}]}}
"""


def endpoint_slice(*endpoints: tuple[int, bool], of: str = "web", port: str = "{name: http, port: 8080}") -> str:
    shown = ", ".join(
        f"{{addresses: [10.1.0.{n}], conditions: {{ready: {str(ready).lower()}}},"
        f" targetRef: {{kind: Pod, name: {of}-{n}}}}}"
        for n, ready in endpoints
    )
    return f"""---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {of}-a, namespace: shop, labels: {{kubernetes.io/service-name: {of}}}}}
addressType: IPv4
ports: [{port}]
endpoints: [{shown}]
"""


def cluster(*parts: str, config: str = "") -> World:
    world = world_of(config)
    add_kubernetes(world, "\n".join((NODES, *parts)))
    return world


def sent(world: World, ip: str = "10.1.9.9", locality: str = "eu/eu-1", **metadata: str) -> dict[str, dict[str, Any]]:
    dump = Dump(
        world,
        proxy_of({"name": "p", "ip": ip, "namespace": "shop", "locality": locality, "metadata": metadata}),
    )
    found = dump.run()
    assert not dump.failures, dump.failures
    return found


def assigned(found: dict[str, dict[str, Any]], name: str = "outbound|80||web.shop.svc.cluster.local") -> Any:
    """Addresses with their health, by priority."""
    levels: dict[int, list[str]] = {}
    for group in found["endpoints"][name].get("endpoints", ()):
        for each in group["lb_endpoints"]:
            address = each["endpoint"]["address"]["socket_address"]["address"]
            health = each.get("health_status", "")
            levels.setdefault(group.get("priority", 0), []).append(f"{address} {health}".strip())
    return {level: sorted(addresses) for level, addresses in sorted(levels.items())}


ALL = ((1, True), (2, True), (3, True))


def test_a_client_prefers_what_the_traffic_distribution_says_without_detecting_outliers() -> None:
    for spec, expected in (
        ("", {0: ["10.1.0.1", "10.1.0.2", "10.1.0.3"]}),
        ("trafficDistribution: PreferSameZone,", {0: ["10.1.0.1", "10.1.0.2"], 1: ["10.1.0.3"]}),
        ("trafficDistribution: PreferSameNode,", {0: ["10.1.0.1"], 1: ["10.1.0.2"], 2: ["10.1.0.3"]}),
    ):
        found = sent(cluster(service(spec=spec), pods(1, 2, 3), endpoint_slice(*ALL)), NODE_NAME="n1")
        assert assigned(found) == expected
        balancing = found["clusters"]["outbound|80||web.shop.svc.cluster.local"].get("common_lb_config", {})
        assert ("locality_weighted_lb_config" in balancing) is bool(spec)


def test_a_rules_own_setting_wins_over_traffic_distribution() -> None:
    rule = """
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web, trafficPolicy: {loadBalancer: {localityLbSetting: {enabled: false}}}}
"""
    world = cluster(service(spec="trafficDistribution: PreferClose,"), pods(1, 2, 3), endpoint_slice(*ALL), config=rule)
    assert assigned(sent(world)) == {0: ["10.1.0.1", "10.1.0.2", "10.1.0.3"]}


def test_who_prefers_near_endpoints_is_told_of_unready_ones_too() -> None:
    unready = endpoint_slice((1, False), (2, True))
    found = sent(cluster(service(spec="trafficDistribution: PreferClose,"), pods(1, 2), unready))
    assert assigned(found) == {0: ["10.1.0.1 UNHEALTHY", "10.1.0.2"]}
    assert assigned(sent(cluster(service(), pods(1, 2), unready))) == {0: ["10.1.0.2"]}


def test_internal_traffic_of_a_node_stays_there() -> None:
    world = cluster(service(spec="internalTrafficPolicy: Local,"), pods(1, 2, 3), endpoint_slice(*ALL))
    assert assigned(sent(world, NODE_NAME="n2")) == {0: ["10.1.0.2"]}
    assert assigned(sent(world, ip="10.1.0.3")) == {0: ["10.1.0.3"]}, "its node is that of its pod"
    assert assigned(sent(world, NODE_NAME="n9")) == {}


def test_a_pod_that_is_not_ready_has_its_inbound_ports_and_locality() -> None:
    target = "{name: http, port: 80, targetPort: web}"
    parts = (service(ports=target), pods(1, 2, ready=False), endpoint_slice((1, False), (2, True)))
    world = cluster(*parts)
    found = sent(world, ip="10.1.0.1", locality="")
    assert "inbound|8080||" in found["clusters"]
    assert assigned(found) == {0: ["10.1.0.2"]}


def test_service_accounts_of_annotations_are_accepted_in_the_meshs_trust_domain() -> None:
    annotations = "{alpha.istio.io/kubernetes-serviceaccounts: elsewhere}"
    world = cluster(service(annotations=annotations), pods(1), endpoint_slice((1, True)))
    text = str(sent(world)["clusters"]["outbound|80||web.shop.svc.cluster.local"])
    assert "spiffe://cluster.local/ns/shop/sa/elsewhere" in text
    assert "spiffe://cluster.local/ns/shop/sa/web" in text


WORKLOAD = """
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm-1, namespace: shop}
spec: {address: 192.0.2.1, labels: {app: web}, serviceAccount: vm, ports: {web: 9090}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm-2, namespace: shop}
spec: {address: 192.0.2.2, labels: {app: other}, ports: {web: 9090}}
"""


def test_a_service_selects_workload_entries_beside_its_pods() -> None:
    for target, port in (("web", 9090), ("8081", 8081), ("admin", None)):
        ports = f"{{name: http, port: 80, targetPort: {target}}}"
        world = cluster(service(ports=ports), pods(1), endpoint_slice((1, True)), config=WORKLOAD)
        found = sent(world)
        assert assigned(found)[0] == ["10.1.0.1", *(["192.0.2.1"] if port else [])]
        assert (f"'port_value': {port}" in str(found["endpoints"])) is bool(port)
        vm = sent(world, ip="192.0.2.1")
        assert (f"inbound|{port}||" in vm["clusters"]) is bool(port)


def test_private_endpoints_are_for_clients_of_their_cluster() -> None:
    world = world_of("")
    key = ServiceKey("web.shop.svc.cluster.local", "shop")
    for number, private in ((1, True), (2, False)):
        cluster_id, source = f"c{number}", f"kubernetes/c{number}"
        found = Endpoint(f"10.1.0.{number}", 8080, "http", cluster_id=cluster_id, is_private=private)
        port = Port(80, "http", Protocol.HTTP)
        service = Service(*key, (port,), ("10.96.0.1",), declared_by_users=False, cluster_id=cluster_id)
        world.apply([Upsert(source, service), Upsert(source, Endpoints(key, (found,))), Synced(source)])
    assert assigned(sent(world, CLUSTER_ID="c1")) == {0: ["10.1.0.1", "10.1.0.2"]}
    assert assigned(sent(world, CLUSTER_ID="c2")) == {0: ["10.1.0.2"]}
