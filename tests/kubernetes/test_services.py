"""The services that Kubernetes objects form: following their changes ends where reading them anew does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.api.k8s.io.api.core import v1 as core
from mesh_pilot.config.decode import Metadata
from mesh_pilot.kubernetes.objects import KubernetesObject, PodObject, ServiceObject, read_object
from mesh_pilot.kubernetes.services import KubernetesServices
from mesh_pilot.model.events import Endpoints, Item
from mesh_pilot.model.service import Locality, Protocol, Resolution, Service


def service(spec: core.ServiceSpec, **resource: object) -> Service:
    read = read_object(spec, Metadata("web", "shop", **resource), "mesh.test")  # type: ignore[arg-type]
    assert isinstance(read, ServiceObject)
    return read.service


@pytest.mark.parametrize(
    ("port", "protocol"),
    [
        (core.ServicePort(name="http", port=80), Protocol.HTTP),
        (core.ServicePort(name="http2-api", port=80), Protocol.HTTP2),
        (core.ServicePort(name="grpc-web", port=80), Protocol.GRPC_WEB),
        (core.ServicePort(name="grpc-web-ui", port=80), Protocol.GRPC_WEB),
        (core.ServicePort(name="web", port=80), Protocol.AUTO),
        (core.ServicePort(name="", port=3306), Protocol.TCP),
        (core.ServicePort(name="http-dns", port=53, protocol="UDP"), Protocol.UDP),
        (core.ServicePort(name="tcp-x", port=80, app_protocol="kubernetes.io/h2c"), Protocol.HTTP2),
        (core.ServicePort(name="tcp-x", port=80, app_protocol="https"), Protocol.HTTPS),
    ],
)
def test_a_port_speaks_what_its_app_protocol_or_its_name_says(port: core.ServicePort, protocol: Protocol) -> None:
    (read,) = service(core.ServiceSpec(ports=[port])).ports
    assert read.protocol is protocol


def test_a_service_has_the_host_that_kubernetes_gives_it() -> None:
    read = service(
        core.ServiceSpec(cluster_ip="10.0.0.1", cluster_ips=["10.0.0.1", "fd00::1"]),
        annotations={"networking.istio.io/exportTo": "., other"},
        labels={"app": "web"},
    )
    assert (read.host, read.namespace) == ("web.shop.svc.mesh.test", "shop")
    assert (read.addresses, read.export_to) == (("10.0.0.1", "fd00::1"), {"shop", "other"})
    assert read.labels == {"app": "web"}


def test_a_headless_service_passes_through_and_an_external_name_is_resolved() -> None:
    headless = service(core.ServiceSpec(cluster_ip="None"))
    assert (headless.addresses, headless.resolution) == ((), Resolution.PASSTHROUGH)
    services = KubernetesServices()
    spec = core.ServiceSpec(type="ExternalName", external_name="db.test", ports=[core.ServicePort(name="tcp", port=5)])
    assert list(services.apply({"shop/db": read_object(spec, Metadata("db", "shop"), "mesh.test")}, {})) == ["shop/db"]
    external, endpoints = services.items("shop/db")
    assert isinstance(external, Service) and isinstance(endpoints, Endpoints)
    assert (external.resolution, external.external) == (Resolution.DNS, True)
    assert [(e.address, e.port) for e in endpoints.endpoints] == [("db.test", 5)]


def test_a_service_that_has_a_synthetic_service_entry_is_left_out() -> None:
    services = KubernetesServices()
    value = read_object(core.ServiceSpec(cluster_ip="10.0.0.1"), Metadata("web", "shop"), "mesh.test")
    services.apply({"shop/web": value}, {})
    assert list(services.apply_synthetic(["shop/web"], [])) == ["shop/web"]
    assert services.items("shop/web") == ()
    assert list(services.apply_synthetic(["shop/web"], [])) == []
    assert list(services.apply_synthetic([], ["shop/web"])) == ["shop/web"]
    assert len(services.items("shop/web")) == 2


def test_a_pod_may_say_its_own_locality_and_a_status_that_changes_nothing_affects_no_service() -> None:
    services = KubernetesServices()
    spec = core.ServiceSpec(ports=[core.ServicePort(name="http", port=80)])
    services.apply({"shop/web": read_object(spec, Metadata("web", "shop"), "mesh.test")}, {})
    services.apply({"shop/web": read_object(body("10.0.0.1", "a"), Metadata("web", "shop"), "")}, {})
    pod = PodObject("web", {"istio-locality": "eu.eu-1.rack-7"})
    assert list(services.apply({"shop/a": pod}, {})) == ["shop/web"]
    _, endpoints = services.items("shop/web")
    assert isinstance(endpoints, Endpoints)
    assert endpoints.endpoints[0].locality == Locality("eu", "eu-1", "rack-7")
    assert list(services.apply({"shop/a": PodObject("web", {"istio-locality": "eu.eu-1.rack-7"})}, {})) == []


def body(ip: str, pod: str, *, ready: bool = True, node: str = "") -> core.Endpoints:
    reference = core.ObjectReference(kind="Pod", namespace="shop", name=pod)
    address = core.EndpointAddress(ip=ip, target_ref=reference, node_name=node)
    ports = [core.EndpointPort(name="http", port=8080)]
    subset = core.EndpointSubset(ports=ports, **{"addresses" if ready else "not_ready_addresses": [address]})
    return core.Endpoints(subsets=[subset])


NAMES = st.sampled_from(["shop/a", "shop/b"])
OBJECTS = st.one_of(
    st.tuples(
        st.just("services"),
        NAMES,
        st.builds(
            lambda unready: core.ServiceSpec(
                ports=[core.ServicePort(name="http", port=80)], publish_not_ready_addresses=unready
            ),
            st.booleans(),
        ),
    ),
    st.tuples(
        st.just("endpoints"),
        NAMES,
        st.builds(
            lambda pod, ready, node: body("10.0.0.1", pod, ready=ready, node=node),
            st.sampled_from("ab"),
            st.booleans(),
            st.sampled_from(["", "n1"]),
        ),
    ),
    st.tuples(
        st.just("pods"),
        NAMES,
        st.builds(lambda node: core.Pod(spec=core.PodSpec(node_name=node)), st.sampled_from(["n1", "n2"])),
    ),
    st.tuples(st.just("nodes"), st.sampled_from(["n1", "n2"]), st.just(core.NodeSpec())),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(OBJECTS, st.booleans(), st.sampled_from("xyz")), max_size=25))
def test_whatever_changes_in_whatever_order_the_items_are_those_of_the_last_state(
    steps: list[tuple[tuple[str, str, core.ServiceSpec | core.Endpoints | core.Pod | core.NodeSpec], bool, str]],
) -> None:
    services, items = KubernetesServices(), dict[str, tuple[Item, ...]]()
    state: dict[tuple[str, str], KubernetesObject] = {}
    for (collection, name, spec), there, label in steps:
        labels = {"topology.kubernetes.io/region": label}
        namespace, _, short = name.rpartition("/")
        value = read_object(spec, Metadata(short, namespace, labels=labels), "mesh.test")
        if there:
            state[collection, name] = value
            affected = services.apply({name: value}, {})
        elif (collection, name) in state:
            affected = services.apply({}, {name: state.pop((collection, name))})
        else:
            continue
        items |= {service: services.items(service) for service in affected}
    fresh = KubernetesServices()
    for (_, name), value in state.items():
        fresh.apply({name: value}, {})
    assert items == {service: fresh.items(service) for service in items}
    assert {name for collection, name in state if collection == "services"} <= items.keys()
    assert not (set(services._services_of_pod) - set(fresh._services_of_pod)), "nothing is left behind"
