"""Modules of extensions: fetched when an object asks for them, kept while not available, also over restarts."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from mesh_pilot.app.sources import ExtensionModules
from mesh_pilot.mesh.policies.extensions import extension_of, extension_trouble, wasm_in_force
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.events import Delete, Event, Item, Secret, Synced, Upsert, WasmModule
from mesh_pilot.model.modules import ModuleRef
from mesh_pilot.net.fetching import FetchError
from mesh_pilot.net.fetching.refreshing import FIRST_ROUND_SECONDS
from mesh_pilot.sources.wasm.content import FetchedModule
from mesh_pilot.sources.wasm.fetch import FETCH_SECONDS
from mesh_pilot.sources.wasm.settings import WasmSettings
from mesh_pilot.sources.wasm.source import REFRESH_SECONDS, Asked, ModuleSource, asked_by
from mesh_pilot.sources.wasm.store import ModuleStore
from mesh_pilot.world import World
from tests.support.wasm_modules import marking
from tests.support.worlds import configs

ONE, TWO = marking("x-one", "1"), marking("x-two", "2")
URL = "https://modules.test/one.wasm"
KEY = ConfigKey("WasmPlugin", "shop", "mark")


def plugin(url: str = URL, more: str = "") -> str:
    return f"""
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: mark, namespace: shop}}
spec: {{url: "{url}", {more}}}
"""


@attrs.define
class Server:
    """Answers for modules as a test wants it."""

    answers: dict[str, bytes | str] = attrs.field(factory=lambda: {URL: ONE})
    """By URL; text: the reason why there is none. A URL that is not here is never answered."""
    asked: list[tuple[str, bytes | None]] = attrs.field(factory=list)

    async def fetch(self, ref: ModuleRef, docker_config: bytes | None, mark: str) -> FetchedModule:
        await trio.lowlevel.checkpoint()
        self.asked.append((ref.url, docker_config))
        answer = self.answers.get(ref.url)
        if isinstance(answer, bytes):
            return FetchedModule(None if mark == str(hash(answer)) else bytearray(answer), str(hash(answer)))
        if answer is None:
            await trio.sleep_forever()
        raise FetchError(str(answer))


@attrs.define
class Running:
    """A source at work on a World that takes in what it sends."""

    world: World
    source: ModuleSource
    sent: list[Item] = attrs.field(factory=list)

    async def apply(self, *texts: str, more: Sequence[Event] = ()) -> None:
        self.world.apply([*(Upsert("files", config) for text in texts for config in configs(text)), *more])
        self.source.wake()
        await self.settled()

    async def settled(self) -> None:
        """Wait for all that is under way, files that threads write included."""
        quiet = 0
        while quiet < 3:
            await trio.testing.wait_all_tasks_blocked()
            threads = trio.to_thread.current_default_thread_limiter().borrowed_tokens
            quiet = 0 if threads else quiet + 1
            await trio.to_thread.run_sync(time.sleep, 0.001)

    def runs(self) -> str:
        """The module that the plugin runs: its url and size; ``nothing`` without bytes, ``not yet`` if it waits."""
        found = wasm_in_force(self.world.view, KEY)
        if found is None:
            return "not yet"
        if not found.module.is_there:
            return "nothing"
        assert Path(found.module.path).read_bytes() in (ONE, TWO)
        return "one" if Path(found.module.path).read_bytes() == ONE else "two"


@asynccontextmanager
async def running(
    server: Server, folder: Path, *texts: str, seed: Sequence[Item] = (), settings: WasmSettings | None = None
) -> AsyncIterator[Running]:
    world = World()
    world.expect("files")
    source = ModuleSource(ExtensionModules(world), folder, settings or WasmSettings(), fetch=server.fetch)
    world.expect(source.name)
    found = Running(world, source)
    world.apply([Synced("files"), *(Upsert("files", config) for text in texts for config in configs(text))])
    source.seed(seed)
    send, receive = trio.open_memory_channel[Event](math.inf)

    async def take() -> None:
        async for event in receive:
            if isinstance(event, Upsert):
                found.sent.append(event.item)
            world.apply([event])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await nursery.start(source.run, send)
        await found.settled()
        yield found
        nursery.cancel_scope.cancel()


async def test_a_module_is_fetched_once_and_its_object_is_in_force_from_then(tmp_path: Path) -> None:
    server = Server()
    async with running(server, tmp_path, plugin()) as modules:
        assert modules.runs() == "one"
        assert modules.world.unsynced() == ()
        await modules.apply(plugin(more="pluginConfig: {a: 1}"))
        assert server.asked == [(URL, None)]
        assert modules.source.statistics().items == 1
        await modules.apply(more=[Delete("files", ("config", *KEY))])
        assert (modules.source.statistics().items, modules.world.items_of("wasm")) == (0, {})


async def test_until_another_module_is_there_the_object_is_as_it_was(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    server = Server()
    other = "https://modules.test/two.wasm"
    async with running(server, tmp_path, plugin(more="pluginName: a")) as modules:
        await modules.apply(plugin(other, "pluginName: b"))
        found = wasm_in_force(modules.world.view, KEY)
        assert (modules.runs(), found and found.wasm.plugin_name) == ("one", "a")
        server.answers[other] = "no such file"
        for seconds in (FETCH_SECONDS, 1):
            mock_clock.jump(seconds)
            await modules.settled()
        assert modules.runs() == "one"
        assert "no such file; the object as it was before is kept" in extension_trouble(modules.world.view, KEY)
        server.answers[other] = TWO
        mock_clock.jump(200)
        await modules.settled()
        found = wasm_in_force(modules.world.view, KEY)
        assert (modules.runs(), found and found.wasm.plugin_name) == ("two", "b")
        assert extension_trouble(modules.world.view, KEY) == ""


@pytest.mark.parametrize("strategy", ["FAIL_CLOSE", "FAIL_OPEN"])
async def test_a_module_that_never_comes_holds_nothing_up(
    tmp_path: Path, mock_clock: trio.testing.MockClock, strategy: str
) -> None:
    server = Server({})
    async with running(server, tmp_path, plugin(more=f"failStrategy: {strategy}")) as modules:
        mock_clock.jump(FIRST_ROUND_SECONDS / 2)
        await modules.settled()
        assert (modules.runs(), extension_of(modules.world.view, KEY)) == ("not yet", None)
        assert modules.world.unsynced() == ("wasm",)
        mock_clock.jump(FIRST_ROUND_SECONDS)
        await modules.settled()
        assert modules.runs() == "nothing"
        assert modules.world.unsynced() == ()
        assert "has not come within 10 s of the start" in extension_trouble(modules.world.view, KEY)
        mock_clock.jump(FETCH_SECONDS)
        await modules.settled()
        said = extension_trouble(modules.world.view, KEY)
        assert f"did not arrive within {FETCH_SECONDS:g} s" in said
        assert ("passes" if strategy == "FAIL_OPEN" else "denied") in said
        assert modules.source.statistics().rejected == 1


@pytest.mark.parametrize(
    ("url", "more", "again"),
    [
        (URL, "", False),
        (URL, "imagePullPolicy: IfNotPresent", False),
        (URL, "imagePullPolicy: Always", True),
        (URL, f"imagePullPolicy: Always, sha256: {'a' * 64}", False),
        ("oci://hub.test/one:latest", "", True),
        ("hub.test/one:v1", "", False),
        ("oci://hub.test/one:v1", "imagePullPolicy: Always", True),
        (f"oci://hub.test/one@sha256:{'0' * 64}", "imagePullPolicy: Always", False),
    ],
)
async def test_a_module_is_looked_for_again_as_its_policy_says(
    tmp_path: Path, mock_clock: trio.testing.MockClock, url: str, more: str, again: bool
) -> None:
    server = Server()
    key = url if "://" in url else f"oci://{url}"
    server.answers[key] = ONE
    async with running(server, tmp_path, plugin(url, more)) as modules:
        server.answers[key] = TWO
        mock_clock.jump(REFRESH_SECONDS * 1.5)
        await modules.settled()
        assert modules.runs() == ("two" if again else "one")
        server.answers[key] = ONE
        await modules.apply(plugin(url, f"{more}{', ' if more else ''}pluginName: changed"))
        assert modules.runs() == "one"
        server.answers[key] = "gone"
        mock_clock.jump(REFRESH_SECONDS * 1.5)
        await modules.settled()
        assert modules.runs() == "one"
        assert ("is kept" in extension_trouble(modules.world.view, KEY)) is again


async def test_modules_outlive_a_restart(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    server = Server()
    async with running(server, tmp_path, plugin()) as modules:
        kept = modules.sent
        found = next(item for item in kept if isinstance(item, WasmModule))
    server.answers[URL] = "away"
    async with running(server, tmp_path, plugin(), seed=kept) as modules:
        assert (modules.runs(), len(server.asked), modules.world.unsynced()) == ("one", 1, ())
    await trio.Path(found.path).write_bytes(TWO)  # another file than the one that was kept
    async with running(server, tmp_path, plugin(), seed=kept) as modules:
        assert (modules.runs(), len(server.asked)) == ("nothing", 2)


async def test_a_pull_secret_is_of_the_namespace_of_its_object(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    server = Server()
    async with running(server, tmp_path, plugin(more="imagePullSecret: other/hub")) as modules:
        assert "no Secret shop/hub" in extension_trouble(modules.world.view, KEY)
        secrets = [Upsert("files", Secret("hub", space, docker_config=space.encode())) for space in ("other", "shop")]
        await modules.apply(more=secrets)
        mock_clock.jump(100)
        await modules.settled()
        assert modules.runs() == "one"
        assert server.asked == [(URL, b"shop")]


def test_the_store_drops_what_was_used_longest_ago_and_nothing_in_use(tmp_path: Path) -> None:
    bodies = [marking("x-mark", str(number)) for number in range(3)]
    store = ModuleStore(tmp_path, sum(map(len, bodies[:2])))
    store.open()
    paths, sums = zip(*(store.put(body, ()) for body in bodies[:2]), strict=True)
    assert store.put(bodies[0], ()) == (paths[0], sums[0])  # used again
    path, _ = store.put(bodies[2], (sums[0],))
    assert sorted(tmp_path.iterdir()) == sorted([Path(paths[0]), Path(path)])
    assert Path(path).stat().st_mode & 0o777 == 0o600
    with pytest.raises(FetchError, match="wasm-cache-bytes"):
        store.put(bodies[1], {Path(paths[0]).stem, Path(path).stem})


async def test_modules_that_come_together_are_kept_within_the_limit(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    other = "https://modules.test/two.wasm"
    server = Server({URL: ONE, other: TWO})
    both = (plugin(), plugin(other).replace("name: mark", "name: other"))
    async with running(server, tmp_path, *both, settings=WasmSettings(cache_bytes=len(ONE) + 1)) as modules:
        assert modules.source.cached == (1, len(ONE))
        said = modules.source.statistics()
        assert (said.items, said.rejected) == (1, 1)
        assert "wasm-cache-bytes" in said.trouble


async def test_bytes_that_cannot_be_kept_are_freed(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    given: list[FetchedModule] = []

    class Keeping(Server):
        async def fetch(self, ref: ModuleRef, docker_config: bytes | None, mark: str) -> FetchedModule:
            given.append(await super().fetch(ref, docker_config, mark))
            return given[-1]

    async with running(Keeping(), tmp_path, plugin(), settings=WasmSettings(cache_bytes=1)) as modules:
        mock_clock.jump(100)
        await modules.settled()
    assert len(given) > 1
    assert not any(each.body for each in given)


async def test_a_fetch_that_fails_does_not_ask_about_all_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    urls = [f"https://modules.test/{number}.wasm" for number in range(60)]
    plugins = [plugin(url).replace("name: mark", f"name: m{number}") for number, url in enumerate(urls)]
    looks = Counter[str]()
    asked = ExtensionModules.asked

    def counted(self: ExtensionModules) -> Mapping[ConfigKey, Asked]:
        looks["all"] += 1
        return asked(self)

    monkeypatch.setattr(ExtensionModules, "asked", counted)
    async with running(Server(dict.fromkeys(urls, "no such file")), tmp_path, *plugins) as modules:
        assert modules.world.unsynced() == ()
        assert modules.source.statistics().failed == len(urls)
    assert looks["all"] < 10


def test_what_an_object_asks_for_is_computed_once() -> None:
    (config,) = configs(plugin())
    assert asked_by([config])[KEY] is asked_by([config])[KEY]
    (other,) = configs(plugin(more="pluginConfig: {a: 1}"))
    assert asked_by([other])[KEY] != asked_by([config])[KEY]
