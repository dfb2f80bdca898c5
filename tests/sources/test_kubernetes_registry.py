"""The services of a Kubernetes, from its API server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mesh_pilot.api.istio.mesh.v1alpha1 import LabelSelector, MeshConfig
from mesh_pilot.kubernetes.source.registry import (
    ENDPOINT_SLICES,
    ENDPOINTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
)
from mesh_pilot.model.events import Delete, Endpoints, Event, Upsert
from mesh_pilot.model.service import Health, Locality
from tests.sources.conformance import Feed, Follower, RereadingSourceConformance, running
from tests.sources.registry_feed import RegistryFeed, endpoint, endpoint_slice, node, pod, service

Ports = Callable[[int], list[int]]


@pytest.fixture
async def kube(nursery, free_ports: Ports) -> RegistryFeed:  # type: ignore[no-untyped-def]
    feed = RegistryFeed(nursery, free_ports(1)[0])
    await feed.restore()
    return feed


class TestKubernetesRegistry(RereadingSourceConformance):
    @pytest.fixture
    def feed(self, kube: RegistryFeed) -> Feed:
        return kube


def endpoints_in(follower: Follower, name: str) -> dict[str, Health]:
    found = follower.picture.items.get(("endpoints", f"{name}.default.svc.cluster.local", "default"))
    return {e.address: e.health for e in found.endpoints} if isinstance(found, Endpoints) else {}


def fill(kube: RegistryFeed) -> None:
    """A service with two pods on a node."""
    kube.api.put(NODES, node("n1", region="eu", zone="eu-1"))
    kube.api.put(SERVICES, service("web"))
    for number in (1, 2):
        kube.api.put(PODS, pod(f"web-{number}", f"10.1.0.{number}", labels={"app": "web"}, node="n1"))
    kube.api.put(ENDPOINT_SLICES, endpoint_slice("web-a", "web", [endpoint(f"10.1.0.{n}", f"web-{n}") for n in (1, 2)]))


async def test_a_flap_of_a_pod_is_one_event_and_heartbeats_are_none(kube: RegistryFeed) -> None:
    fill(kube)
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        (found,) = [i for i in follower.picture.items.values() if isinstance(i, Endpoints)]
        assert [(e.address, e.port, e.service_account, e.locality, e.cluster_id) for e in found.endpoints] == [
            ("10.1.0.1", 8080, "ns/default/sa/web", Locality("eu", "eu-1"), "Kubernetes"),
            ("10.1.0.2", 8080, "ns/default/sa/web", Locality("eu", "eu-1"), "Kubernetes"),
        ]
        follower.take_events()
        kube.api.put(NODES, {**node("n1", region="eu", zone="eu-1"), "status": {"conditions": [{"type": "Ready"}]}})
        kube.api.put(PODS, pod("web-2", "10.1.0.2", labels={"app": "web"}, node="n1", ready=False))
        kube.api.put(NAMESPACES, {"metadata": {"name": "default", "labels": {"owner": "us"}}})
        kube.api.put(SERVICES, {**service("web"), "status": {"conditions": []}})
        slice_ = endpoint_slice("web-a", "web", [endpoint("10.1.0.1", "web-1"), endpoint("10.1.0.2", "web-2")])
        slice_["metadata"]["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": "now"}
        kube.api.put(ENDPOINT_SLICES, slice_)
        slice_ = endpoint_slice(
            "web-a", "web", [endpoint("10.1.0.1", "web-1"), endpoint("10.1.0.2", "web-2", ready=False)]
        )
        kube.api.put(ENDPOINT_SLICES, slice_)
        await follower.until(lambda _: endpoints_in(follower, "web").get("10.1.0.2") is Health.UNLISTED)
        events = follower.take_events()
        assert [type(event) for event in events] == [Upsert]
        assert cause_of(events[0]) == f"resourceVersion {kube.api.revision}"


def cause_of(event: Event) -> str:
    assert isinstance(event, (Upsert, Delete))
    return event.cause


async def test_an_address_of_a_pod_waits_for_the_pod(kube: RegistryFeed) -> None:
    kube.api.put(SERVICES, service("web"))
    slice_ = endpoint_slice("web-a", "web", [endpoint("10.1.0.1", "web-1"), endpoint("192.0.2.1")])
    kube.api.put(ENDPOINT_SLICES, slice_)
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        assert list(endpoints_in(follower, "web")) == ["192.0.2.1"], "its identity is not known yet"
        assert kube.source.statistics().pending_pods == 1
        kube.api.put(PODS, pod("web-1", "10.1.0.1"))
        await follower.until(lambda _: len(endpoints_in(follower, "web")) == 2)
        assert kube.source.statistics().pending_pods == 0


async def test_pods_that_are_done_are_not_read(kube: RegistryFeed) -> None:
    done = pod("job-1", "10.1.0.9")
    done["status"]["phase"] = "Succeeded"
    kube.api.put(PODS, done)
    kube.api.put(PODS, pod("web-1", "10.1.0.1"))
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        assert kube.source.statistics().objects == {"Pod": 1}


async def test_a_list_that_is_read_again_tells_only_what_has_changed(kube: RegistryFeed) -> None:
    fill(kube)
    kube.api.put(SERVICES, service("old"))
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        follower.take_events()
        await kube.break_off()
        kube.api.remove(SERVICES, "old")
        kube.api.put(PODS, pod("web-1", "10.1.0.1", labels={"app": "other"}, node="n1"))
        kube.api.compact()
        await kube.restore()
        await follower.until(lambda picture: kube.key("old") not in picture.items)
        events = follower.take_events()
        await follower.until(
            lambda picture: any(e.labels.get("app") == "other" for e in labelled(picture.items.values()))
        )
        events += follower.take_events()
        assert sorted(type(event).__name__ for event in events) == ["Delete", "Delete", "Upsert"]


async def test_a_service_that_is_deleted_was_meant_to_go_with_its_endpoints(kube: RegistryFeed) -> None:
    """One that a list lacks, or pods that go, may be a loss."""
    fill(kube)
    kube.api.put(SERVICES, service("old"))
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        follower.take_events()
        kube.api.remove(SERVICES, "web")
        await follower.until(lambda picture: kube.key("web") not in picture.items)
        await kube.break_off()
        kube.api.remove(SERVICES, "old")
        kube.api.put(SERVICES, service("new"))
        kube.api.compact()
        await kube.restore()
        await follower.until(lambda picture: kube.key("old") not in picture.items)
        found = {
            (e.key[0], e.key[1].partition(".")[0]): e.is_explicit
            for e in follower.take_events()
            if isinstance(e, Delete)
        }
    kinds = ("service", "endpoints")
    assert found == {(kind, "web"): True for kind in kinds} | {(kind, "old"): False for kind in kinds}


def labelled(items):  # type: ignore[no-untyped-def]
    return [e for item in items if isinstance(item, Endpoints) for e in item.endpoints]


async def test_a_server_without_slices_is_asked_for_endpoints(nursery, free_ports: Ports) -> None:  # type: ignore[no-untyped-def]
    kube = RegistryFeed(nursery, free_ports(1)[0], (SERVICES, ENDPOINTS, PODS, NODES, NAMESPACES))
    await kube.restore()
    kube.api.put(SERVICES, service("web"))
    kube.api.put(PODS, pod("web-1", "10.1.0.1"))
    target = {"kind": "Pod", "name": "web-1", "namespace": "default"}
    subset = {"addresses": [{"ip": "10.1.0.1", "targetRef": target}], "ports": [{"name": "http", "port": 8080}]}
    kube.api.put(ENDPOINTS, {"metadata": {"name": "web", "namespace": "default"}, "subsets": [subset]})
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        assert endpoints_in(follower, "web") == {"10.1.0.1": Health.HEALTHY}


async def test_a_bad_slice_leaves_its_last_good_state_in_force(kube: RegistryFeed) -> None:
    fill(kube)
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        kube.api.put(ENDPOINT_SLICES, endpoint_slice("web-a", "web", [endpoint("nowhere")]))
        await follower.until(lambda picture: bool(picture.rejected))
        (rejected,) = follower.picture.rejected.values()
        assert rejected.origin.location.endswith("/apis/discovery.k8s.io/v1/endpointslices default/web-a")
        assert [str(problem.path) for problem in rejected.problems] == ["endpoints[0].addresses[0]"]
        assert list(endpoints_in(follower, "web")) == ["10.1.0.1", "10.1.0.2"]
        kube.api.put(ENDPOINT_SLICES, endpoint_slice("web-a", "web", []))
        await follower.until(lambda picture: not picture.rejected and not endpoints_in(follower, "web"))


async def test_only_services_of_namespaces_that_discovery_selectors_choose_count(kube: RegistryFeed) -> None:
    fill(kube)
    kube.api.put(NAMESPACES, {"metadata": {"name": "default", "labels": {"team": "web"}}})
    selectors = [LabelSelector(match_labels={"team": "web"})]
    kube.source.mesh_changed(MeshConfig(discovery_selectors=selectors))
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        assert endpoints_in(follower, "web")
        kube.api.put(NAMESPACES, {"metadata": {"name": "default", "labels": {"team": "other"}}})
        await follower.until(lambda picture: not picture.items)
        kube.source.mesh_changed(MeshConfig())
        await follower.until(lambda picture: len(endpoints_in(follower, "web")) == 2)
