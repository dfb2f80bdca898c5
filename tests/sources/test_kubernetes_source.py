"""Istio's objects from an API server of Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import yaml

from mesh_pilot.kubernetes.apiserver import Access, Pem
from mesh_pilot.kubernetes.source import KubernetesSource
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import Item, Replace, Synced, Upsert
from mesh_pilot.world.service_entries import HEALTH_ANNOTATION, is_healthy
from tests.sources.conformance import Feed, RereadingSourceConformance, running
from tests.sources.kube_feed import RESOURCES, ROUTES, TOKEN, KubeFeed
from tests.support.envoy import eventually
from tests.support.planes import running_plane

Ports = Callable[[int], list[int]]


@pytest.fixture
async def kube(nursery, free_ports: Ports) -> KubeFeed:  # type: ignore[no-untyped-def]
    return await KubeFeed.open(nursery, free_ports(1)[0])


class TestKubernetes(RereadingSourceConformance):
    @pytest.fixture
    def feed(self, kube: KubeFeed) -> Feed:
        return kube


async def test_a_version_that_the_server_has_forgotten_has_everything_listed_again_and_only_changes_told(
    kube: KubeFeed,
) -> None:
    for name in ("one", "two", "three"):
        await kube.put(name, 1)
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        follower.take_events()
        listed = lists(kube)
        one = kube.api.find(ROUTES, "one")
        assert one is not None
        kube.api.gone_watches()
        kube.api.put(ROUTES, {**one, "status": {"observed": True}})
        kube.api.remove(ROUTES, "two")
        await follower.until(lambda picture: kube.key("two") not in picture.items)
        assert len(follower.take_events()) == 1, "one has another version, but says the same"
        assert lists(kube) == listed + 1
        await kube.put("four", 1)
        await follower.until(lambda picture: kube.key("four") in picture.items)


async def test_events_have_the_resource_version_of_the_object(kube: KubeFeed) -> None:
    async with running(kube.source, room=100) as follower:
        await follower.until_synced()
        follower.take_events()
        await kube.put("one", 1)
        await follower.until(lambda picture: kube.key("one") in picture.items)
        (event,) = follower.take_events()
        found = kube.api.find(ROUTES, "one")
        assert found is not None
        version = found["metadata"]["resourceVersion"]
        assert isinstance(event, Upsert)
        assert event.cause == f"resourceVersion {version}"


async def test_a_watch_goes_on_where_it_was_without_a_new_list(kube: KubeFeed) -> None:
    await kube.put("one", 1)
    async with running(kube.source) as follower:
        await follower.until_synced()
        listed = lists(kube)
        await kube.break_off()
        await kube.put("one", 2)
        await kube.restore()
        await follower.until(lambda picture: kube.version(picture.items[kube.key("one")]) == 2)
        assert lists(kube) == listed


def lists(kube: KubeFeed) -> int:
    """How often VirtualServices were listed."""
    return sum("/virtualservices?" in line and "sendInitialEvents" in line for line in kube.api.requests)


async def test_the_health_of_a_workload_is_of_its_status(kube: KubeFeed) -> None:
    metadata = {"name": "vm-1", "namespace": "default", "annotations": {HEALTH_ANNOTATION: "true"}}
    key = ("config", "WorkloadEntry", "default", "vm-1")
    async with running(kube.source) as follower:
        for status in ("False", "True"):
            conditions = {"conditions": [{"type": "Healthy", "status": status, "message": "", "lastProbeTime": None}]}
            kube.api.put(
                RESOURCES["WorkloadEntry"], {"metadata": dict(metadata), "spec": ADDRESS, "status": conditions}
            )
            await follower.until(lambda picture: key in picture.items and is_served(picture.items[key]) == status)  # noqa: B023
        odd = {"conditions": "none", "more": 7}
        kube.api.put(RESOURCES["WorkloadEntry"], {"metadata": dict(metadata), "spec": ADDRESS, "status": odd})
        await follower.until(lambda picture: is_served(picture.items[key]) == "False")


ADDRESS = {"address": "10.0.0.1"}


def is_served(item: Item) -> str:
    assert isinstance(item, Config)
    return str(is_healthy(item))


async def test_objects_that_are_none_cost_no_more_than_themselves(kube: KubeFeed) -> None:
    await kube.put("one", 1)
    async with running(kube.source) as follower:
        await follower.until_synced()
        for number, (metadata, spec) in enumerate(
            [({"labels": 7}, {}), ({"annotations": ["a"]}, None), ({"creationTimestamp": {}}, {}), ({}, ["x"]), ({}, 7)]
        ):
            kube.api.put(
                ROUTES, {"metadata": {"name": f"odd-{number}", "namespace": "default", **metadata}, "spec": spec}
            )
        await follower.until(lambda picture: len(picture.rejected) == 5)
        await kube.put("one", 2)
        await follower.until(lambda picture: kube.version(picture.items[kube.key("one")]) == 2)


async def test_kinds_that_the_server_does_not_know_do_not_hold_up_the_start(kube: KubeFeed) -> None:
    old = [attrs.evolve(r, versions=r.versions[:2]) for r in RESOURCES.values() if r.group == ROUTES.group]
    kube.api.resources = old
    await kube.put("one", 1)
    async with running(kube.source) as follower:
        await follower.until_synced()
        assert list(follower.picture.items) == [kube.key("one")]
    assert any(line.startswith("GET /apis/networking.istio.io/v1beta1/virtualservices?") for line in kube.api.requests)


async def test_who_is_not_let_in_is_told_why(kube: KubeFeed) -> None:
    source = KubernetesSource(Access(server=f"http://127.0.0.1:{kube.port}", token=Pem(text=b"wrong")))
    async with running(source):
        await eventually(lambda: "401 Unauthorized" in source.statistics().waiting_for, what="it says why")


async def test_the_first_picture_is_told_before_what_changes_meanwhile(kube: KubeFeed) -> None:
    await kube.put("one", 1)
    async with running(kube.source, room=0) as follower:
        await follower.until_synced()
        await kube.put("one", 2)
        await follower.until(lambda picture: kube.version(picture.items[kube.key("one")]) == 2)
        assert [type(event) for event in follower.events] == [Replace, Synced, Upsert]


@pytest.mark.plane
async def test_a_control_plane_reads_it_as_config_source(kube: KubeFeed, tmp_path: Path) -> None:
    await kube.put("one", 1)
    file = tmp_path / "kubeconfig"
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{kube.port}"}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
    }
    file.write_text(yaml.safe_dump(config))
    mesh = tmp_path / "mesh.yaml"
    mesh.write_text(f"configSources: [{{address: 'k8s://{file}'}}]\n")
    async with running_plane(mesh_config=mesh) as plane:
        assert plane.state.world.config.peek(ConfigKey("VirtualService", "default", "one")) is not None
        await kube.put("two", 1)
        key = ConfigKey("VirtualService", "default", "two")
        await eventually(lambda: plane.state.world.config.peek(key) is not None, what="it follows")
