"""Each store by the conformance checks, and any interleaving of two writers: no update is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.consul.source import Agent, ConsulSettings
from mesh_pilot.consul.stores.config import ConsulConfigKeys
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.kubernetes.apiserver import load_access
from mesh_pilot.kubernetes.stores.config import KubernetesObjects
from mesh_pilot.sources.config_store.base import ConfigConflict, ConfigStore, Stored
from tests.config_store.conformance import CHECKS, Check, key_for
from tests.support.apiserver import ApiServer
from tests.support.config_stores import KEY, PREFIX, a_store, route
from tests.support.consul import real_consul
from tests.support.sample import examples
from tools.gen_crds import definitions

STORES = ("folder", "consul", "kubernetes")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", STORES)
async def test_a_store_keeps_its_promises(kind: str, check: Check, tmp_path: Path) -> None:
    async with a_store(kind, tmp_path) as store:
        await check(store, key_for(check))


@pytest.mark.smoke
@pytest.mark.process
async def test_a_real_consul_keeps_them(tmp_path: Path, free_ports: Any) -> None:
    async with real_consul(tmp_path, free_ports(4)) as consul:
        store = ConsulConfigKeys(ConsulSettings(agent=Agent(consul.address), config_prefix=PREFIX))
        for check in CHECKS:
            await check(store, key_for(check))


@pytest.mark.slow
@pytest.mark.process
async def test_a_real_api_server_keeps_them(apiserver: ApiServer) -> None:
    await apiserver.install(definitions([KINDS["VirtualService"]]))
    async with apiserver.namespace("shop"):
        store = KubernetesObjects(load_access(apiserver.kubeconfig()), "kubernetes-config")
        for check in CHECKS:
            await check(store, key_for(check))


class Writer:
    """Adds its own word to an object again and again: reads, then writes what it read with the word."""

    def __init__(self, store: ConfigStore, name: str) -> None:
        self.store = store
        self.name = name
        self.read: Stored | None = None
        self.written: list[str] = []

    async def look(self) -> None:
        self.read = await self.store.read(KEY)

    async def write(self) -> None:
        words = _words(self.read)
        word = f"{self.name}{len(self.written)}"
        try:
            await self.store.write(KEY, route(annotations={"words": " ".join([*words, word])}), self.read)
        except ConfigConflict:
            return
        self.written.append(word)


def _words(stored: Stored | None) -> list[str]:
    if stored is None or stored.document is None:
        return []
    words: str = stored.document["metadata"].get("annotations", {}).get("words", "")
    return words.split()


@pytest.mark.parametrize("kind", STORES)
@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(("look", "write"))), max_size=12))
def test_no_interleaving_of_two_writers_loses_an_update(kind: str, steps: list[tuple[str, str]]) -> None:
    async def story() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with a_store(kind, Path(folder)) as store:
                writers = {name: Writer(store, name) for name in "ab"}
                for name, step in steps:
                    await (writers[name].look() if step == "look" else writers[name].write())
                found = _words(await store.read(KEY))
                assert sorted(found) == sorted(word for writer in writers.values() for word in writer.written)

    trio.run(story)


@pytest.mark.parametrize("kind", STORES)
async def test_of_writers_at_once_each_that_is_told_so_has_written(kind: str, tmp_path: Path) -> None:
    async with a_store(kind, tmp_path) as store:
        writers = [Writer(store, name) for name in "abcdefgh"]

        async def work(writer: Writer) -> None:
            while not writer.written:
                await writer.look()
                await writer.write()

        async with trio.open_nursery() as nursery:
            for writer in writers:
                nursery.start_soon(work, writer)
        assert sorted(_words(await store.read(KEY))) == [f"{name}0" for name in "abcdefgh"]
