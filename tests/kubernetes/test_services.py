"""The services that Kubernetes objects form: following their changes ends where reading them again does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.istio.kubernetes.cluster_sets import (
    ClusterSetMode,
    ServiceExportObject,
    ServiceImportObject,
    read_import,
)
from mesh_pilot.istio.kubernetes.objects import (
    EndpointsObject,
    KubernetesObject,
    NamespaceObject,
    NodeObject,
    Object,
    PodObject,
    ServiceObject,
    object_name,
    read_object,
)
from mesh_pilot.istio.kubernetes.services import KubernetesServices
from mesh_pilot.istio.reading.decode import Metadata
from mesh_pilot.model.events import Endpoints, Item, item_key
from mesh_pilot.model.service import Endpoint, Health, Locality, Protocol, Resolution, Service, TrafficDistribution
from mesh_pilot.sources.mcp.galley import object_of
from tests.support.sample import examples

READY, UNREADY = {"ready": True}, {"ready": False}
SERVING, GOING = (
    {"ready": False, "serving": True, "terminating": True},
    {"ready": False, "serving": False, "terminating": True},
)


def kubernetes_object(name: str, *, namespace: str = "shop", **parts: Any) -> Object:
    metadata = {key: parts.pop(key) for key in ("labels", "annotations") if key in parts}
    return {"metadata": {"name": name, **({"namespace": namespace} if namespace else {}), **metadata}, **parts}


def service_object(spec: Mapping[str, Any], **parts: Any) -> Object:
    return kubernetes_object("web", spec={"clusterIP": "10.96.0.1", **spec}, **parts)


def service(spec: Mapping[str, Any], **parts: Any) -> Service:
    read = read_object("Service", service_object(spec, **parts), "mesh.test")
    assert isinstance(read, ServiceObject)
    return read.service


def slice_object(name: str, of: str, endpoints: Iterable[tuple[str, str, Mapping[str, bool]]]) -> Object:
    """``endpoints``: address, pod, conditions."""
    return kubernetes_object(
        name,
        labels={"kubernetes.io/service-name": of},
        ports=[{"name": "http", "port": 8080}],
        endpoints=[
            {
                "addresses": [ip],
                "conditions": conditions,
                **({"targetRef": {"kind": "Pod", "name": pod}} if pod else {}),
            }
            for ip, pod, conditions in endpoints
        ],
    )


def pod_object(name: str, ip: str = "", *, node: str = "", ready: bool = True, **labels: str) -> Object:
    status = {"podIP": ip, "conditions": [{"type": "Ready", "status": str(ready)}]}
    return kubernetes_object(name, labels=labels, spec={"nodeName": node, "serviceAccountName": "sa"}, status=status)


def node_object(name: str, region: str) -> Object:
    return kubernetes_object(name, namespace="", labels={"topology.kubernetes.io/region": region})


def put(services: KubernetesServices, kind: str, found: Object) -> list[str]:
    read = read_object(kind, found, "mesh.test")
    assert read is not None
    return list(services.put(object_name(found), read))


def endpoints_of(services: KubernetesServices, name: str = "shop/web") -> tuple[Endpoint, ...]:
    _, endpoints = services.items(name)
    assert isinstance(endpoints, Endpoints)
    return endpoints.endpoints


@pytest.mark.parametrize(
    ("port", "protocol"),
    [
        ({"name": "http", "port": 80}, Protocol.HTTP),
        ({"name": "http2-api", "port": 80}, Protocol.HTTP2),
        ({"name": "grpc-web", "port": 80}, Protocol.GRPC_WEB),
        ({"name": "grpc-web-ui", "port": 80}, Protocol.GRPC_WEB),
        ({"name": "web", "port": 80}, Protocol.AUTO),
        ({"port": 3306}, Protocol.TCP),
        ({"name": "http-dns", "port": 53, "protocol": "UDP"}, Protocol.UDP),
        ({"name": "tcp-x", "port": 80, "appProtocol": "kubernetes.io/h2c"}, Protocol.HTTP2),
        ({"name": "tcp-x", "port": 80, "appProtocol": "kubernetes.io/wss"}, Protocol.HTTPS),
        ({"name": "tcp-x", "port": 80, "appProtocol": "https"}, Protocol.HTTPS),
        ({"name": "tcp-x", "port": 80, "appProtocol": "http-of-ours"}, Protocol.HTTP),
        ({"name": "http", "port": 3306, "appProtocol": "of-ours"}, Protocol.TCP),
    ],
)
def test_a_port_speaks_what_its_app_protocol_or_its_name_says(port: Mapping[str, Any], protocol: Protocol) -> None:
    (read,) = service({"ports": [port]}).ports
    assert read.protocol is protocol


def test_a_service_has_the_host_that_kubernetes_gives_it() -> None:
    read = service(
        {"clusterIPs": ["10.0.0.1", "fd00::1"], "ports": [{"name": "http", "port": 80, "targetPort": "web"}]},
        annotations={
            "networking.istio.io/exportTo": "., other",
            "alpha.istio.io/canonical-serviceaccounts": "spiffe://other.test/ns/a/sa/b",
            "alpha.istio.io/kubernetes-serviceaccounts": "one, two",
        },
        labels={"app": "web"},
    )
    assert (read.host, read.namespace) == ("web.shop.svc.mesh.test", "shop")
    assert (read.addresses, read.export_to) == (("10.0.0.1", "fd00::1"), {"shop", "other"})
    assert read.labels == {"app": "web"}
    assert read.subject_alt_names == ("spiffe://other.test/ns/a/sa/b", "ns/shop/sa/one", "ns/shop/sa/two")
    assert (read.ports[0].target_port, read.ports[0].target_name) == (0, "web")


def test_addresses_for_clients_elsewhere_are_those_of_load_balancers_and_of_nodes_that_are_gateways() -> None:
    ingress = [{"ip": "192.0.2.1"}, {"hostname": "lb.test"}]
    balanced = service(
        {"type": "LoadBalancer", "externalIPs": ["192.0.2.9"]}, status={"loadBalancer": {"ingress": ingress}}
    )
    assert balanced.external_addresses == ("192.0.2.1", "lb.test", "192.0.2.9")
    ports = {"ports": [{"name": "tls", "port": 15443, "nodePort": 31443}]}
    assert service({"type": "NodePort", **ports}).external_ports == (), "no gateway"
    services = KubernetesServices()
    selector = {"traffic.istio.io/nodeSelector": '{"topology.kubernetes.io/region": "eu"}'}
    put(services, "Service", service_object({"type": "NodePort", **ports}, annotations=selector))
    for name, region in (("n1", "eu"), ("n2", "us")):
        status = {"addresses": [{"type": "ExternalIP", "address": f"198.51.100.{name[1]}"}]}
        assert put(services, "Node", {**node_object(name, region), "status": status}) == ["shop/web"]
    found, _ = services.items("shop/web")
    assert isinstance(found, Service)
    assert (found.external_addresses, found.external_ports) == (("198.51.100.1",), ((15443, 31443),))


def test_a_headless_service_passes_through_and_an_external_name_is_resolved() -> None:
    headless = service({"clusterIP": "None"})
    assert (headless.addresses, headless.resolution, headless.headless) == ((), Resolution.PASSTHROUGH, True)
    services = KubernetesServices()
    port = {"name": "tcp", "port": 5, "targetPort": 6}
    put(services, "Service", service_object({"type": "ExternalName", "externalName": "db.test", "ports": [port]}))
    external, _ = services.items("shop/web")
    assert isinstance(external, Service)
    assert (external.resolution, external.external) == (Resolution.DNS, True)
    assert [(e.address, e.port) for e in endpoints_of(services)] == [("db.test", 5)]


def test_a_galleys_objects_are_read_as_those_of_an_api_server() -> None:
    metadata = Metadata("web", "shop", labels={"app": "web"})
    spec = core.ServiceSpec(
        cluster_ip="10.0.0.1",
        ports=[core.ServicePort("http", "TCP", 80, core.IntOrString(1, 0, "web"), app_protocol="grpc")],
    )
    read = read_object(*object_of(spec, metadata), "mesh.test")
    assert isinstance(read, ServiceObject)
    assert (read.service.addresses, read.service.ports[0].protocol) == (("10.0.0.1",), Protocol.GRPC)
    assert read.service.ports[0].target_name == "web"
    reference = core.ObjectReference(kind="Pod", namespace="shop", name="a")
    subset = core.EndpointSubset(
        addresses=[core.EndpointAddress(ip="10.1.0.1", target_ref=reference)],
        not_ready_addresses=[core.EndpointAddress(ip="10.1.0.2")],
        ports=[core.EndpointPort(name="http", port=8080)],
    )
    endpoints = read_object(*object_of(core.Endpoints(subsets=[subset]), metadata), "mesh.test")
    assert isinstance(endpoints, EndpointsObject)
    (group,) = endpoints.groups
    assert [(a.ip, a.pod, a.health) for a in group.addresses] == [
        ("10.1.0.1", "shop/a", Health.HEALTHY),
        ("10.1.0.2", "", Health.UNHEALTHY),
    ]
    pod = core.Pod(spec=core.PodSpec("sa", "n1"), status=core.PodStatus("10.1.0.1"))
    read_pod = read_object(*object_of(pod, metadata), "mesh.test")
    assert isinstance(read_pod, PodObject)
    assert (read_pod.account, read_pod.node, read_pod.addresses) == ("ns/shop/sa/sa", "n1", ("10.1.0.1",))


def test_a_service_that_has_a_synthetic_service_entry_is_left_out() -> None:
    services = KubernetesServices()
    put(services, "Service", service_object({}))
    assert list(services.apply_synthetic(["shop/web"], [])) == ["shop/web"]
    assert services.items("shop/web") == ()
    assert list(services.apply_synthetic(["shop/web"], [])) == []
    assert list(services.apply_synthetic([], ["shop/web"])) == ["shop/web"]
    assert len(services.items("shop/web")) == 2


def web(spec: Mapping[str, Any] = {}, **parts: Any) -> KubernetesServices:
    services = KubernetesServices(system_namespace="istio-system", needs_pods=True)
    put(services, "Service", service_object({"ports": [{"name": "http", "port": 80}], **spec}, **parts))
    return services


def test_a_pod_may_say_its_own_locality_and_a_status_that_changes_nothing_affects_no_service() -> None:
    services = web()
    put(services, "EndpointSlice", slice_object("web-a", "web", [("10.1.0.1", "a", READY)]))
    labels = {"istio-locality": "eu.eu-1.rack-7"}
    assert put(services, "Pod", pod_object("a", "10.1.0.1", **labels)) == ["shop/web"]
    assert endpoints_of(services)[0].locality == Locality("eu", "eu-1", "rack-7")
    assert put(services, "Pod", pod_object("a", "10.1.0.1", **labels)) == []
    assert put(services, "Pod", pod_object("a", "10.1.0.1", ready=False, **labels)) == [], "the slice says so, too"


def test_clients_are_told_of_ready_addresses_and_proxies_of_their_own() -> None:
    addresses = [("10.1.0.1", "", READY), ("10.1.0.2", "", UNREADY), ("10.1.0.3", "", SERVING), ("10.1.0.4", "", GOING)]
    found = slice_object("web-a", "web", addresses)
    states = {
        (): ["HEALTHY", "UNLISTED", "UNLISTED", "UNLISTED"],
        ("labels", "istio.io/persistent-session", "cookie"): ["HEALTHY", "UNLISTED", "DRAINING", "UNLISTED"],
        ("annotations", "networking.istio.io/traffic-distribution", "PreferClose"): [
            "HEALTHY",
            "UNHEALTHY",
            "UNLISTED",
            "UNLISTED",
        ],
    }
    for part, expected in states.items():
        services = web(**({part[0]: {part[1]: part[2]}} if part else {}))
        put(services, "EndpointSlice", found)
        assert [e.health.value for e in endpoints_of(services)] == expected


@pytest.mark.parametrize(
    ("spec", "own", "of_namespace", "expected"),
    [
        ({}, "", "", TrafficDistribution.ANY),
        ({"trafficDistribution": "PreferClose"}, "", "", TrafficDistribution.SAME_ZONE),
        ({"trafficDistribution": "PreferSameZone"}, "", "", TrafficDistribution.SAME_ZONE),
        ({"trafficDistribution": "PreferSameNode"}, "PreferClose", "", TrafficDistribution.SAME_NODE),
        ({}, "preferclose", "PreferSameNode", TrafficDistribution.SAME_ZONE),
        ({}, "any", "PreferSameNode", TrafficDistribution.ANY),
        ({}, "", "PreferSameNode", TrafficDistribution.SAME_NODE),
    ],
)
def test_traffic_distribution_is_the_services_own_or_its_namespaces(
    spec: Mapping[str, Any], own: str, of_namespace: str, expected: TrafficDistribution
) -> None:
    name = "networking.istio.io/traffic-distribution"
    services = web(spec, annotations={name: own} if own else {})
    put(services, "EndpointSlice", slice_object("web-a", "web", [("10.1.0.1", "", UNREADY)]))
    services.items("shop/web")
    put(services, "Namespace", kubernetes_object("shop", namespace="", annotations={name: of_namespace}))
    found, _ = services.items("shop/web")
    assert isinstance(found, Service)
    assert found.traffic_distribution is expected
    is_any = expected is TrafficDistribution.ANY
    assert endpoints_of(services)[0].health is (Health.UNLISTED if is_any else Health.UNHEALTHY)


def test_a_pods_network_is_its_own_or_that_of_the_system_namespace() -> None:
    services = web()
    put(services, "EndpointSlice", slice_object("web-a", "web", [("10.1.0.1", "a", READY), ("10.1.0.2", "b", READY)]))
    put(services, "Pod", pod_object("a", **{"topology.istio.io/network": "own"}))
    put(services, "Pod", pod_object("b"))
    system = kubernetes_object("istio-system", namespace="", labels={"topology.istio.io/network": "all"})
    assert put(services, "Namespace", system) == ["shop/web"]
    assert [e.network for e in endpoints_of(services)] == ["own", "all"]


def test_an_address_that_is_in_two_slices_counts_once_and_as_ready_if_one_says_so() -> None:
    services = web()
    put(services, "EndpointSlice", slice_object("web-a", "web", [("10.1.0.1", "", UNREADY)]))
    put(services, "EndpointSlice", slice_object("web-b", "web", [("10.1.0.1", "", READY), ("10.1.0.2", "", READY)]))
    assert [(e.address, e.health) for e in endpoints_of(services)] == [
        ("10.1.0.1", Health.HEALTHY),
        ("10.1.0.2", Health.HEALTHY),
    ]


def test_a_pod_of_a_service_of_both_ip_versions_is_one_endpoint_with_both_addresses() -> None:
    pod = {**pod_object("web-1", "10.1.0.1")}
    pod["status"] = {**pod["status"], "podIPs": [{"ip": "10.1.0.1"}, {"ip": "2001:db8::1"}]}
    slices = [
        slice_object("web-4", "web", [("10.1.0.1", "web-1", READY), ("10.1.0.9", "", READY)]),
        slice_object("web-6", "web", [("2001:db8::1", "web-1", READY), ("2001:db8::9", "", READY)]),
    ]

    def addresses(*vips: str) -> list[tuple[str, ...]]:
        spec = {"clusterIPs": list(vips), "ports": [{"name": "http", "port": 80}]}
        services = web(spec)
        put(services, "Pod", pod)
        for each in slices:
            put(services, "EndpointSlice", each)
        return sorted(e.addresses for e in endpoints_of(services))

    assert addresses("10.96.0.1", "2001:db8:1::1") == [("10.1.0.1", "2001:db8::1"), ("10.1.0.9",), ("2001:db8::9",)]
    assert addresses("10.96.0.1") == [("10.1.0.1",), ("10.1.0.9",), ("2001:db8::1",), ("2001:db8::9",)]


def test_an_address_that_names_no_pod_is_of_the_pod_that_serves_there_in_its_namespace() -> None:
    services = web()
    put(services, "EndpointSlice", slice_object("web-a", "web", [("10.1.0.1", "", READY)]))
    elsewhere = pod_object("a", "10.1.0.1", app="other")
    put(services, "Pod", {**elsewhere, "metadata": {**elsewhere["metadata"], "namespace": "other"}})
    assert endpoints_of(services)[0].labels == {}
    assert put(services, "Pod", pod_object("a", "10.1.0.1", app="web")) == ["shop/web"]
    assert endpoints_of(services)[0].labels == {"app": "web"}
    assert put(services, "Pod", pod_object("a", "10.1.0.1", ready=False, app="web")) == ["shop/web"]
    assert endpoints_of(services)[0].labels == {}


def test_a_workload_is_called_by_what_owns_its_pods() -> None:
    def workload(labels: Mapping[str, str], **owner: Any) -> str:
        found = pod_object("web-5c-xyz")
        metadata = {**found["metadata"], "labels": labels, "ownerReferences": [{"controller": True, **owner}]}
        read = read_object("Pod", {**found, "metadata": metadata}, "")
        assert isinstance(read, PodObject)
        return read.workload

    assert workload({"pod-template-hash": "5c"}, kind="ReplicaSet", name="web-5c") == "web"
    assert workload({}, kind="StatefulSet", name="web") == "web"
    assert workload({}, kind="Job", name="report-28412345") == "report"
    assert workload({}, kind="Job", name="once") == "once"


def test_slices_of_other_clusters_services_and_of_none_are_no_endpoints() -> None:
    of_import = kubernetes_object(
        "web-a", labels={"kubernetes.io/service-name": "web", "multicluster.kubernetes.io/service-name": "web"}
    )
    assert read_object("EndpointSlice", of_import, "") is None
    assert read_object("EndpointSlice", kubernetes_object("web-a"), "") is None


def imported(name: str = "web", *ips: str, **root: Any) -> ServiceImportObject:
    read = read_import(kubernetes_object(name, **root), "c1")
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("mode", "exported", "own_private", "set_private"),
    [
        (ClusterSetMode.OFF, True, False, None),
        (ClusterSetMode.EXPORTS, False, True, None),
        (ClusterSetMode.EXPORTS, True, False, None),
        (ClusterSetMode.HOSTS, False, True, True),
        (ClusterSetMode.HOSTS, True, False, False),
        (ClusterSetMode.STRICT, True, True, False),
    ],
)
def test_exported_endpoints_are_for_other_clusters_and_imported_services_have_a_host_of_the_set(
    mode: ClusterSetMode, exported: bool, own_private: bool, set_private: bool | None
) -> None:
    services = KubernetesServices(cluster_id="c1", cluster_set=mode)
    put(services, "Service", service_object({"ports": [{"name": "http", "port": 80}]}))
    put(services, "EndpointSlice", slice_object("web-a", "web", [("10.1.0.1", "", READY)]))
    services.put("shop/web", imported(spec={"ips": ["10.97.0.1"], "type": "ClusterSetIP"}))
    if exported:
        assert services.put("shop/web", ServiceExportObject()) == ("shop/web",)
    found = {type(item).__name__ + item_key(item)[1]: item for item in services.items("shop/web")}
    own = found["Endpointsweb.shop.svc.mesh.test"]
    assert isinstance(own, Endpoints)
    assert [e.is_private for e in own.endpoints] == [own_private]
    if set_private is None:
        assert len(found) == 2
        return
    of_set, endpoints = (found[f"{kind}web.shop.svc.clusterset.local"] for kind in ("Service", "Endpoints"))
    assert isinstance(of_set, Service) and isinstance(endpoints, Endpoints)
    assert (of_set.addresses, [p.number for p in of_set.ports], of_set.cluster_id) == (("10.97.0.1",), [80], "")
    assert [e.is_private for e in endpoints.endpoints] == [set_private]
    services.remove(ServiceImportObject, "shop/web")
    assert ("service", of_set.host, "shop") not in map(item_key, services.items("shop/web"))


def test_a_service_that_only_other_clusters_have_is_imported_with_the_ports_of_its_import() -> None:
    services = KubernetesServices(cluster_id="c1", cluster_set=ClusterSetMode.HOSTS)
    ports = [{"name": "http", "port": 80}]
    for root in ({"spec": {"ips": ["10.97.0.1"], "ports": ports}}, {"ips": ["10.97.0.1"], "ports": ports}):
        services.put("shop/web", imported(**root))
        (found,) = services.items("shop/web")
        assert isinstance(found, Service)
        assert (found.host, found.cluster_id) == ("web.shop.svc.clusterset.local", "c1")
        assert [(p.number, p.protocol) for p in found.ports] == [(80, Protocol.HTTP)]
    assert read_import(kubernetes_object("web", spec={"type": "Headless"}), "c1") is None


NAMES = st.sampled_from(["a", "b"])
CONDITIONS = st.sampled_from([READY, UNREADY, SERVING])
OBJECTS = st.one_of(
    st.builds(
        lambda name, distribution, kind: (
            "Service",
            kubernetes_object(
                name,
                spec={"clusterIP": kind, "ports": [{"name": "http", "port": 80}], "trafficDistribution": distribution},
            ),
        ),
        NAMES,
        st.sampled_from(["", "PreferClose"]),
        st.sampled_from(["10.96.0.1", "None"]),
    ),
    st.builds(
        lambda name, of, endpoints: ("EndpointSlice", slice_object(name, of, endpoints)),
        st.sampled_from(["s1", "s2"]),
        NAMES,
        st.lists(st.tuples(st.sampled_from(["10.1.0.1", "10.1.0.2"]), st.sampled_from(["", "p1", "p2"]), CONDITIONS)),
    ),
    st.builds(
        lambda name, ip, node, ready, app: ("Pod", pod_object(name, ip, node=node, ready=ready, app=app)),
        st.sampled_from(["p1", "p2"]),
        st.sampled_from(["", "10.1.0.1", "10.1.0.2"]),
        st.sampled_from(["n1", "n2"]),
        st.booleans(),
        NAMES,
    ),
    st.builds(
        lambda name, region: ("Node", node_object(name, region)), st.sampled_from(["n1", "n2"]), st.sampled_from("xyz")
    ),
    st.builds(
        lambda name, network, value: (
            "Namespace",
            kubernetes_object(
                name,
                namespace="",
                labels={"topology.istio.io/network": network},
                annotations={"networking.istio.io/traffic-distribution": value},
            ),
        ),
        st.sampled_from(["shop", "istio-system"]),
        st.sampled_from(["", "net"]),
        st.sampled_from(["", "PreferSameNode"]),
    ),
)
TYPES: Mapping[str, type[KubernetesObject]] = {
    "Service": ServiceObject,
    "EndpointSlice": EndpointsObject,
    "Pod": PodObject,
    "Node": NodeObject,
    "Namespace": NamespaceObject,
}


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(OBJECTS, st.booleans(), st.booleans()), max_size=30), st.randoms(use_true_random=False))
def test_whatever_changes_in_whatever_order_the_items_are_those_of_the_last_state(
    steps: list[tuple[tuple[str, Object], bool, bool]], random: Any
) -> None:
    """``looks``: what a step affects is looked at after it, or later, together with what the next ones affect."""
    services = KubernetesServices(system_namespace="istio-system", needs_pods=True)
    items, stale = dict[str, tuple[Item, ...]](), set[str]()
    state: dict[tuple[str, str], Object] = {}
    for (kind, found), there, looks in steps:
        name = object_name(found)
        if there:
            state[kind, name] = found
            stale |= set(put(services, kind, found))
        elif (kind, name) in state:
            del state[kind, name]
            stale |= set(services.remove(TYPES[kind], name))
        if there:
            assert put(services, kind, found) == [], "the same again affects nothing"
        if looks:
            items |= {name: services.items(name) for name in stale}
            stale.clear()
    items |= {name: services.items(name) for name in stale}
    fresh = KubernetesServices(system_namespace="istio-system", needs_pods=True)
    others = list(state.items())
    random.shuffle(others)
    for (kind, _), found in others:
        put(fresh, kind, found)
    there_now = {name: fresh.items(name) for name in fresh.names()}
    assert {name: found for name, found in items.items() if found} == there_now
    for index in ("_sets_with_pod", "_sets_with_address", "_sets_of", "_pods_at", "_pods_on"):
        followed, anew = ({k: sorted(v) for k, v in getattr(s, index).items()} for s in (services, fresh))
        assert followed == anew, f"nothing is left behind in {index}"
    assert services._gateways == fresh._gateways


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Pod", {"status": {"podIP": ["10.0.0.1"]}}),
        ("Pod", {"status": {"podIPs": [{"ip": 10}]}}),
        ("Node", {"metadata": {"name": "a", "labels": {"topology.kubernetes.io/region": True}}}),
    ],
)
def test_what_has_to_be_a_text_and_is_none_is_refused(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="is not a string"):
        read_object(kind, {"metadata": {"name": "a", "namespace": "b"}, **fields}, "cluster.local")
