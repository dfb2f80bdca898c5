"""Other clusters: their sources come, change and go as kubeconfigs do, and none costs the others anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from mesh_pilot.base.backoff import Backoff
from mesh_pilot.kubernetes.apiserver import Access, KubernetesError
from mesh_pilot.kubernetes.source.kubeconfigs import Kubeconfig, KubeconfigFolder, Kubeconfigs, KubeconfigSecrets, Put
from mesh_pilot.kubernetes.source.remote_clusters import RemoteClusters, SyncStatus, choose
from mesh_pilot.model.events import Event, EventSender, Replace, SourceAdded, SourceRemoved, Synced
from mesh_pilot.model.service import Port, Protocol, Service
from mesh_pilot.world import World
from tests.support.cluster_doubles import ClusterDouble
from tests.support.sample import examples


def kubeconfig(server: str, **user: Any) -> bytes:
    document = {
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main"}}],
        "clusters": [{"name": "main", "cluster": {"server": server}}],
        "users": [{"name": "main", "user": {"token": "secret", **user}}],
    }
    return yaml.safe_dump(document).encode()


def of_secret(cluster_id: str, text: bytes, origin: str = "Secret istio-system/remote") -> Kubeconfig:
    return Kubeconfig(cluster_id, origin, text)


def server_of(config: Kubeconfig) -> str:
    return str(yaml.safe_load(config.text)["clusters"][0]["cluster"]["server"])


class Feed:
    """Kubeconfigs that a test gives."""

    trouble = ""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Kubeconfigs](100)

    async def run(self, put: Put) -> None:
        async for configs in self._receive:
            await put(configs)

    async def give(self, *configs: Kubeconfig) -> None:
        found: dict[str, list[Kubeconfig]] = {}
        for config in configs:
            found.setdefault(config.origin, []).append(config)
        await self._send.send(found)
        await trio.testing.wait_all_tasks_blocked()


class ClusterSource:
    """A cluster with one service. It answers once a test says so."""

    def __init__(self, access: Access, cluster_id: str) -> None:
        self.name = f"kubernetes/{cluster_id}"
        self.place = access.server
        self.access = access
        self.answers = trio.Event()
        self.running = 0
        if access.server.endswith("up"):
            self.answers.set()

    def statistics(self) -> Any:
        return None

    async def run(self, events: EventSender, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        self.running += 1
        try:
            task_status.started()
            await self.answers.wait()
            host = self.access.server.rpartition("/")[2]
            service = Service(host, "shop", (Port(80, "http", Protocol.HTTP),))
            await events.send(Replace(self.name, (), (service,)))
            await events.send(Synced(self.name))
            await trio.sleep_forever()
        finally:
            self.running -= 1


class Bench:
    """Clusters, their sources as they were made, and a World that takes their events."""

    def __init__(self, clusters: RemoteClusters, feed: Feed, made: list[ClusterSource]) -> None:
        self.clusters, self.feed, self.made = clusters, feed, made
        self.world = World()
        self.events: list[Event] = []

    async def send(self, event: Event) -> None:
        self.events.append(event)
        self.world.apply([event])

    def hosts(self) -> list[str]:
        return sorted(key.host for key, service in self.world.services.items() if service is not None)

    def states(self) -> dict[str, SyncStatus]:
        return {each.id: each.status for each in self.clusters.statistics().clusters}

    @property
    def synced(self) -> bool:
        return Synced("clusters") in self.events


@asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    feed, made = Feed(), list[ClusterSource]()

    def make(access: Access, cluster_id: str) -> Any:
        made.append(ClusterSource(access, cluster_id))
        return made[-1]

    found = Bench(RemoteClusters(feed, make, own_id="own", **options), feed, made)
    found.world.expect("kubernetes/own")
    found.world.expect("clusters")
    found.world.expect("registrations")
    async with trio.open_nursery() as nursery:
        await nursery.start(found.clusters.run, found)
        yield found
        nursery.cancel_scope.cancel()
    assert not any(source.running for source in made)


async def test_clusters_come_and_go_with_their_kubeconfigs(autojump_clock: MockClock) -> None:
    async with bench() as at:
        east, west = of_secret("east", kubeconfig("http://east.up")), of_secret("west", kubeconfig("http://west.up"))
        await at.feed.give(west)
        assert at.synced
        await at.feed.give(west, east)
        assert at.hosts() == ["east.up", "west.up"]
        # In order of their ids behind the own one, whenever they came; the same on every replica.
        assert at.world.sources()[1:4] == ("clusters", "kubernetes/east", "kubernetes/west")
        await at.feed.give(east)
        assert at.hosts() == ["east.up"]
        assert "kubernetes/west" not in at.world.sources()
        assert [source.running for source in at.made] == [0, 1]
        assert [each.source.name for each in at.clusters.supervisors] == ["kubernetes/east"]


async def test_another_kubeconfig_of_a_cluster_takes_over_once_it_is_read(autojump_clock: MockClock) -> None:
    async with bench() as at:
        await at.feed.give(of_secret("west", kubeconfig("http://old.up")))
        await at.feed.give(of_secret("west", kubeconfig("http://new.down")))
        assert [source.running for source in at.made] == [0, 1]
        assert at.hosts() == ["old.up"]
        at.made[1].answers.set()
        await trio.testing.wait_all_tasks_blocked()
        assert at.hosts() == ["new.down"]
        assert not any(isinstance(event, SourceRemoved) for event in at.events)
        await at.feed.give(of_secret("west", kubeconfig("http://new.down")))
        assert len(at.made) == 2


async def test_a_kubeconfig_that_cannot_be_used_changes_nothing(autojump_clock: MockClock) -> None:
    async with bench() as at:
        await at.feed.give(of_secret("west", kubeconfig("http://west.up")), of_secret("east", b"no: kubeconfig"))
        assert at.hosts() == ["west.up"]
        assert at.states() == {"east": SyncStatus.CLOSED, "west": SyncStatus.SYNCED}
        assert at.synced
        await at.feed.give(of_secret("west", b"]["), of_secret("east", kubeconfig("http://east.up")))
        assert at.hosts() == ["east.up", "west.up"]
        east, west = at.clusters.statistics().clusters
        assert not east.trouble
        assert "not YAML" in west.trouble


async def test_a_cluster_that_is_away_at_the_start_is_waited_for_no_longer_than_a_time(
    autojump_clock: MockClock,
) -> None:
    async with bench(sync_seconds=30) as at:
        await at.feed.give(of_secret("east", kubeconfig("http://e.up")), of_secret("west", kubeconfig("http://w.down")))
        assert not at.synced
        assert at.clusters.statistics().waiting_for == "clusters west"
        await trio.sleep(31)
        assert at.synced
        assert at.states() == {"east": SyncStatus.SYNCED, "west": SyncStatus.TIMEOUT}
        assert at.clusters.statistics().timeouts == {"west": 1}
        at.made[1].answers.set()
        await trio.testing.wait_all_tasks_blocked()
        assert at.states()["west"] is SyncStatus.SYNCED
        assert at.hosts() == ["e.up", "w.down"]


@pytest.mark.parametrize("then", ["http://west.up", None])
async def test_a_cluster_is_not_waited_for_by_a_kubeconfig_that_is_used_no_more(
    autojump_clock: MockClock, then: str | None
) -> None:
    async with bench(sync_seconds=0) as at:
        await at.feed.give(of_secret("west", kubeconfig("http://west.down")))
        await trio.sleep(3600)
        assert not at.synced
        await at.feed.give(*([of_secret("west", kubeconfig(then))] if then else []))
        assert at.synced


async def test_kubeconfigs_that_cannot_be_read_are_waited_for_no_longer_either(autojump_clock: MockClock) -> None:
    async with bench(sync_seconds=30) as at:
        await trio.sleep(29)
        assert not at.synced
        await trio.sleep(2)
        assert at.synced


async def test_a_restart_of_the_source_keeps_the_clusters(autojump_clock: MockClock) -> None:
    async with bench() as at:
        await at.feed.give(of_secret("west", kubeconfig("http://west.up")))
    async with trio.open_nursery() as nursery:
        await nursery.start(at.clusters.run, at)
        await trio.testing.wait_all_tasks_blocked()
        assert at.made[0].running == 1
        assert at.hosts() == ["west.up"]
        nursery.cancel_scope.cancel()


async def test_the_last_picture_of_a_cluster_is_in_force_until_it_answers(autojump_clock: MockClock) -> None:
    class Writer:
        def __init__(self) -> None:
            self.removed_names: list[str] = []
            self.replaced_places: list[str] = []

        async def added(self, source: Any) -> Any:
            return SimpleNamespace(items=(Service("kept", "shop"),), confirmed_at=datetime(2026, 1, 1, tzinfo=UTC))

        async def replaced(self, source: Any) -> None:
            self.replaced_places.append(source.place)

        async def removed(self, name: str) -> None:
            self.removed_names.append(name)

    async with bench() as at:
        at.clusters.state_writer = writer = Writer()
        await at.feed.give(of_secret("west", kubeconfig("http://west.down")))
        assert at.synced
        (added,) = (event for event in at.events if isinstance(event, SourceAdded))
        assert [getattr(item, "host", "") for item in added.picture] == ["kept"]
        await at.feed.give(of_secret("west", kubeconfig("http://moved.down")))
        assert writer.replaced_places == ["http://moved.down"]
        await at.feed.give()
        assert writer.removed_names == ["kubernetes/west"]


SETS = st.dictionaries(
    st.sampled_from(["Secret a/a", "Secret b/b"]),
    st.dictionaries(st.sampled_from(["east", "west", "own"]), st.sampled_from(["one.up", "two.up", "bad"]), max_size=3),
    max_size=2,
)


@settings(max_examples=examples(20))
@given(st.lists(SETS, min_size=1, max_size=6))
def test_any_sequence_of_kubeconfigs_ends_in_the_clusters_of_the_last(sets: list[dict[str, dict[str, str]]]) -> None:
    def configs(found: dict[str, dict[str, str]]) -> list[Kubeconfig]:
        return [
            of_secret(id, b"][" if server == "bad" else kubeconfig(f"http://{server}"), origin)
            for origin, of in found.items()
            for id, server in of.items()
        ]

    async def run() -> None:
        async with bench() as at:
            servers: dict[str, str] = {}
            for found in sets:
                await at.feed.give(*configs(found))
                used = {each.id: each for each in at.clusters.statistics().clusters}
                servers = {id: servers.get(id, "") for id in used}
                for id, status in used.items():  # the last good one of the kubeconfig in use
                    text = found[status.origin][id]
                    servers[id] = text if text != "bad" else servers[id]
                assert {*used} == {id for of in found.values() for id in of} - {"own"}
                assert at.hosts() == sorted({server for server in servers.values() if server})
                assert sum(source.running for source in at.made) == sum(map(bool, servers.values()))

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_one_kubeconfig_of_a_cluster_is_used_the_others_are_named() -> None:
    a, b = of_secret("west", b"1", "Secret a/a"), of_secret("west", b"2", "Secret b/b")
    own = of_secret("own", b"3", "Secret b/b")
    configs = {"Secret b/b": [b, own], "Secret a/a": [a]}
    wanted, unused = choose(configs, {}, "own")
    assert wanted == {"west": a}
    assert set(unused) == {("west", "Secret b/b"), ("own", "Secret b/b")}
    wanted, unused = choose(configs, {"west": "Secret b/b"}, "own")
    assert wanted == {"west": b}
    assert set(unused) == {("west", "Secret a/a"), ("own", "Secret b/b")}
    assert choose({"Secret a/a": [a]}, {"west": "Secret b/b"}, "own") == ({"west": a}, {})


@pytest.mark.parametrize(
    ("user", "field"),
    [
        ({"exec": {"command": "aws"}}, "exec"),
        ({"tokenFile": "/etc/shadow"}, "tokenFile"),
        ({"client-key": "/etc/key"}, "clientKey"),
        ({"client-certificate": "/etc/certificate"}, "clientCertificate"),
        ({"auth-provider": {"name": "gcp"}}, "gcp"),
    ],
)
def test_a_kubeconfig_of_a_secret_reads_no_files_and_runs_no_programs(user: dict[str, Any], field: str) -> None:
    config = of_secret("west", kubeconfig("http://west", **user))
    with pytest.raises(KubernetesError, match=f"^Secret istio-system/remote.*{field}"):
        config.access()


@pytest.mark.parametrize(
    "text",
    ["users: [{user: {token: hush}", "users:\n- token: hush: hush", 'token: "hush\\q"', "token: *hush", "a: \0hush"],
)
def test_what_is_said_of_a_garbled_kubeconfig_has_nothing_of_its_text(text: str) -> None:
    with pytest.raises(KubernetesError, match="remote is not YAML") as raised:
        of_secret("west", text.encode()).access()
    assert "hush" not in str(raised.value)


async def test_secrets_that_may_not_be_read_are_not_waited_for() -> None:
    async with trio.open_nursery() as nursery:
        own = ClusterDouble("own", nursery)
        await own.start()
        own.api.forbid("secrets")
        found = list[Kubeconfigs]()
        told = trio.Event()

        async def put(configs: Kubeconfigs) -> None:
            found.append(configs)
            told.set()

        feed = KubeconfigSecrets(own.access, "istio-system", backoff=partial(Backoff, 0.01, 0.02))
        with trio.fail_after(20):
            nursery.start_soon(feed.run, put)
            await told.wait()
            assert found == [{}]
            told = trio.Event()
            own.secret(ClusterDouble("west", nursery, port=1))
            own.api.allow("secrets")
            await told.wait()
        assert [name for configs in found[-1].values() for name in configs] == [
            Kubeconfig("west", "Secret istio-system/remote", ClusterDouble("west", nursery, port=1).kubeconfig())
        ]
        nursery.cancel_scope.cancel()


async def test_a_folder_has_a_cluster_for_each_file(tmp_path: Path) -> None:
    (tmp_path / "west.yaml").write_bytes(kubeconfig("http://west"))
    (tmp_path / "east").write_bytes(kubeconfig("http://east"))
    (tmp_path / "no id!").write_bytes(kubeconfig("http://no"))
    (tmp_path / "..data").mkdir()
    found: list[dict[str, str]] = []
    changed = trio.Event()

    async def put(configs: Kubeconfigs) -> None:
        nonlocal changed
        found.append({each.cluster_id: server_of(each) for of in configs.values() for each in of})
        changed.set()
        changed = trio.Event()

    async def until(expected: dict[str, str]) -> None:
        while not found or found[-1] != expected:
            await changed.wait()

    async with trio.open_nursery() as nursery:
        with trio.fail_after(20):
            nursery.start_soon(KubeconfigFolder(tmp_path).run, put)
            await until({"west": "http://west", "east": "http://east"})
            (tmp_path / "west.yaml").write_bytes(b"")  # it is being written
            (tmp_path / "north.conf").write_bytes(kubeconfig("http://north"))
            await until({"west": "http://west", "east": "http://east", "north": "http://north"})
            (tmp_path / "east").unlink()
            (tmp_path / "west.yaml").write_bytes(kubeconfig("http://west2"))
            await until({"west": "http://west2", "north": "http://north"})
        nursery.cancel_scope.cancel()
