"""The source of modules: fetches those that objects ask for, and keeps them on disk.

A module is fetched when an object first asks for it. After that a pinned one, or one with the policy ``IfNotPresent``,
is never asked for again; with ``Always`` it is when the object changes, every 20 minutes, and after a restart. A file
is looked at every few seconds. While that fails, the last good module is kept.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import attrs
import structlog
import trio

from mesh_pilot.istio.meaning.wasm import KINDS, is_pulled_always, module_ref, wasm_of
from mesh_pilot.model.config import Config, ConfigKey
from mesh_pilot.model.events import (
    Delete,
    EventSender,
    ExtensionInForce,
    Item,
    Replace,
    Synced,
    Upsert,
    WasmModule,
    item_key,
)
from mesh_pilot.model.modules import FILE, ModuleRef
from mesh_pilot.net.fetching import Fetcher, FetchError, shown_url
from mesh_pilot.net.fetching.refreshing import (
    FIRST_ROUND_SECONDS,
    Refresh,
    RefreshStatistics,
    Rounds,
    refresh_statistics,
)
from mesh_pilot.net.fetching.turns import Turns
from mesh_pilot.sources.wasm.content import FetchedModule
from mesh_pilot.sources.wasm.fetch import FETCH_SECONDS, fetch_module
from mesh_pilot.sources.wasm.settings import DEFAULT_WASM, WasmSettings
from mesh_pilot.sources.wasm.store import ModuleStore

REFRESH_SECONDS = 1200.0
"""The age at which a module with the policy ``Always`` is asked for again."""
FILE_SECONDS = 5.0
"""The time between two looks at a file."""
AT_ONCE, EACH = 8, 2
"""Modules that are fetched at the same time, each in memory during the fetch: in all, and of one namespace."""

_ASKING = tuple((kind,) for kind in KINDS)

Fetch = Callable[[ModuleRef, bytes | None, str], Awaitable[FetchedModule]]
"""Fetches a module, with a Docker configuration for its registry, and the mark of the one that is there."""

log = structlog.get_logger(scope="sources")


@attrs.frozen
class Asked:
    """The module that an object asks for."""

    ref: ModuleRef
    always: bool
    spec: bytes = attrs.field(repr=False)
    """The encoded WasmConfig."""


def asked_by(configs: Iterable[Config]) -> dict[ConfigKey, Asked]:
    """The modules that WasmPlugins and TrafficExtensions ask for; those with scripts ask for none."""
    asked = ((config.key, _asked_by(config)) for config in configs)
    return {key: each for key, each in asked if each is not None}


@lru_cache(maxsize=4096)
def _asked_by(config: Config) -> Asked | None:
    # Each fetch that fails asks about all objects, of which few have changed.
    wasm = wasm_of(config.spec)
    if wasm is None:
        return None
    ref = module_ref(wasm, config.namespace)
    return Asked(ref, is_pulled_always(wasm, ref), bytes(wasm))


class ModuleDemand(Protocol):
    """The modules that are needed. Whoever changes them calls `ModuleSource.wake`."""

    def asked(self) -> Mapping[ConfigKey, Asked]:
        """The module of each object."""

    def also_needed(self) -> Iterable[tuple[ConfigKey, Asked]]:
        """The modules of old versions of objects, which some proxies still have."""

    def docker_config(self, ref: ModuleRef) -> bytes | None:
        """The Docker configuration of its pull secret; None: it needs none. Raises FetchError if there is none."""

    def is_complete(self) -> bool:
        """True once all that may need a module is known."""


@attrs.define(eq=False)
class _ModuleRefresh(Refresh):
    """A module that is needed. State: what is known of it, and how the last try went."""

    module: WasmModule
    mark: str = ""
    always: bool = False
    specs: frozenset[bytes] = frozenset()
    """The specs that ask for it."""

    @property
    def is_in_force(self) -> bool:
        return self.module.is_there


class ModuleSource:
    """Implements ``sources.base.contract.Source``, ``Placed`` and ``Seeded``.

    State: a refresh for each module that is asked for, what each object had when its module was last there, and what
    an earlier run knew.
    """

    name = "wasm"
    place = "the modules of extensions"

    def __init__(
        self,
        demand: ModuleDemand,
        folder: Path,
        settings: WasmSettings = DEFAULT_WASM,
        *,
        fetch: Fetch | None = None,
    ) -> None:
        """``folder``: where modules are kept; it is made when the first is fetched."""
        self._demand = demand
        self._settings = settings
        self._store = ModuleStore(folder, settings.cache_bytes)
        self._fetch = fetch or self._fetch_from_afar
        self._refreshes: dict[ModuleRef, _ModuleRefresh] = {}
        self._in_force: dict[ConfigKey, ExtensionInForce] = {}
        self._seeded: dict[ModuleRef, WasmModule] = {}
        self._wake = trio.Event()
        self._synced = False
        self._fetched = 0
        self._failed = 0
        self._rounds = Rounds(self._tried, Turns(AT_ONCE, EACH))
        self._keeping = trio.Lock()
        self._fetchers: dict[bool, Fetcher] = {}
        self._is_open = False
        self._cached = (0, 0)

    def __repr__(self) -> str:
        return f"<ModuleSource of {len(self._refreshes)} modules {'synced' if self._synced else 'not synced'}>"

    def seed(self, items: Sequence[Item]) -> None:
        """The modules of an earlier run: each is in force until it is fetched again, or no longer needed."""
        self._seeded = {item.ref: item for item in items if isinstance(item, WasmModule) and item.is_there}
        self._in_force = {item.key: item for item in items if isinstance(item, ExtensionInForce)}

    def wake(self) -> None:
        """The demand may have changed."""
        self._wake.set()

    def revised(self, changed: Iterable[tuple[str, ...]]) -> None:
        """A revision of the World, and what changed in it."""
        if not self._synced or any(key[0] == "rollout" or key[1:2] in _ASKING for key in changed):
            self.wake()

    def _tried(self) -> None:
        if not self._synced and all(each.tried for each in self._refreshes.values()):
            self.wake()

    def statistics(self) -> RefreshStatistics:
        found = refresh_statistics(self._refreshes.values(), "modules", synced=self._synced)
        return attrs.evolve(found, fetched=self._fetched, failed=self._failed)

    @property
    def cached(self) -> tuple[int, int]:
        """The number of modules on disk, and their bytes."""
        return self._cached

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send modules until cancelled; what is known is kept for the next run."""
        self._synced = False
        is_seeded = bool(self._seeded)
        known = await self._known()
        self._refreshes.clear()
        self._rounds.begin()
        await events.send(Replace(self.name, (), (*known.values(), *self._in_force.values())))
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._wake = trio.Event()
                is_all_known = self._demand.is_complete()
                asked = self._demand.asked()
                await self._follow(asked, known, events, nursery)
                await self._settle(asked, events, is_all_known=is_all_known)
                if is_all_known:
                    for unneeded in known.values():
                        await events.send(Delete(self.name, item_key(unneeded)))
                    known.clear()
                    self._seeded.clear()
                # A seeded picture is full without what other sources have not told yet: new modules need not wait.
                is_due = not self._synced and (is_all_known or is_seeded)
                if is_due and self._rounds.is_first_over(self._refreshes.values()):
                    if not is_seeded:
                        await self._give_up_waiting(events)
                    self._synced = True
                    await events.send(Synced(self.name))
                await self._rounds.wait(self._wake, synced=self._synced)

    async def _give_up_waiting(self, events: EventSender) -> None:
        """At the end of a first round: failStrategy decides for modules that have not come."""
        for refresh in [each for each in self._refreshes.values() if not each.tried and not each.is_in_force]:
            trouble = f"{refresh.of} has not come within {FIRST_ROUND_SECONDS:g} s of the start"
            log.warning("Wasm module is late; failStrategy decides until it comes", module=refresh.of)
            await self._tell(refresh, attrs.evolve(refresh.module, trouble=trouble), events)

    async def _known(self) -> dict[ModuleRef, WasmModule]:
        """The modules of an earlier run, or of this one before it stopped, that are there still."""
        found = self._seeded | {ref: refresh.module for ref, refresh in self._refreshes.items()}
        found = {ref: module for ref, module in found.items() if module.is_there}
        items = [*found.values(), *(each.module for each in self._in_force.values())]
        there = await trio.to_thread.run_sync(self._whole, {(item.path, item.sha256) for item in items})
        self._in_force = {
            key: each for key, each in self._in_force.items() if (each.module.path, each.module.sha256) in there
        }
        return {ref: module for ref, module in found.items() if (module.path, module.sha256) in there}

    def _whole(self, files: set[tuple[str, str]]) -> set[tuple[str, str]]:
        self._cached = self._store.size()
        return {(path, checksum) for path, checksum in files if self._store.has(path, checksum)}

    async def _follow(
        self,
        asked: Mapping[ConfigKey, Asked],
        known: dict[ModuleRef, WasmModule],
        events: EventSender,
        nursery: trio.Nursery,
    ) -> None:
        """Begin to fetch what is newly asked for, and forget what no object asks for."""
        wanted: dict[ModuleRef, list[Asked]] = {}
        owners: dict[ModuleRef, set[str]] = {}
        for key, each in (*asked.items(), *self._demand.also_needed()):
            wanted.setdefault(each.ref, []).append(each)
            owners.setdefault(each.ref, set()).add(key.namespace)
        for gone in [ref for ref in self._refreshes if ref not in wanted]:
            refresh = self._refreshes.pop(gone)
            refresh.scope.cancel()
            await events.send(Delete(self.name, item_key(refresh.module)))
        for ref, all_asking in wanted.items():
            always = any(each.always for each in all_asking)
            specs = frozenset(each.spec for each in all_asking if each.always)
            refresh_of = self._refreshes.get(ref)
            if refresh_of is not None:
                refresh_of.owners = frozenset(owners[ref])
            # A module that is there is fetched again only where an object asks for it (pull policy Always), or if it is
            # a file: an image that a tag names must not change under a fleet on its own.
            if refresh_of is None:
                module = known.pop(ref, None) or WasmModule(ref)
                refresh = _ModuleRefresh(
                    shown_url(ref.url), module, always=always, specs=specs, owners=frozenset(owners[ref])
                )
                self._refreshes[ref] = refresh
                if module.is_there and not always and not ref.url.startswith(FILE):
                    refresh.tried = True
                    continue
                nursery.start_soon(self._refresh, refresh, events)
            elif always and specs != refresh_of.specs:
                refresh_of.always, refresh_of.specs = always, specs
                refresh_of.scope.cancel()
                refresh_of.scope = trio.CancelScope()
                nursery.start_soon(self._refresh, refresh_of, events)
            else:
                refresh_of.always, refresh_of.specs = always, specs

    async def _settle(
        self, asked: Mapping[ConfigKey, Asked], events: EventSender, *, is_all_known: bool = True
    ) -> None:
        """Note for each object whose module is there what is in force now."""
        for key, each in asked.items():
            refresh = self._refreshes.get(each.ref)
            if refresh is None or not refresh.module.is_there:
                continue
            in_force = ExtensionInForce(key, each.spec, attrs.evolve(refresh.module, trouble=""))
            if self._in_force.get(key) != in_force:
                self._in_force[key] = in_force
                await events.send(Upsert(self.name, in_force))
        for gone in [key for key in self._in_force if is_all_known and key not in asked]:
            await events.send(Delete(self.name, item_key(self._in_force.pop(gone))))

    async def _refresh(self, refresh: _ModuleRefresh, events: EventSender) -> None:
        ref = refresh.module.ref

        async def take(module: WasmModule) -> float:
            self._fetched += 1
            await self._tell(refresh, module, events)
            if ref.url.startswith(FILE):
                return FILE_SECONDS
            return REFRESH_SECONDS if refresh.always else math.inf

        async def failed(reason: str, is_new: bool) -> None:
            self._failed += 1
            await self._tell(refresh, attrs.evolve(refresh.module, trouble=reason), events)
            if not is_new:
                return
            stays = "the last good one is kept" if refresh.is_in_force else "failStrategy decides"
            if not refresh.is_in_force and self._is_older_in_force(ref):
                stays = "the object stays as it was before"
            log.warning("Wasm module cannot be fetched", module=refresh.of, reason=reason, meanwhile=stays)

        await self._rounds.run(
            refresh,
            lambda: self._fetched_module(refresh),
            take,
            failed,
            lambda: log.info("Wasm module fetched after failures", module=refresh.of),
        )

    def _is_older_in_force(self, ref: ModuleRef) -> bool:
        """True if an object that asks for a module has an earlier one in force."""
        if not self._in_force:
            return False
        return any(each.ref == ref and key in self._in_force for key, each in self._demand.asked().items())

    async def _fetched_module(self, refresh: _ModuleRefresh) -> WasmModule:
        """The module as it is now, kept on disk. Raises FetchError."""
        ref = refresh.module.ref
        mark = refresh.mark if refresh.is_in_force else ""
        fetched: FetchedModule | None = None
        with trio.move_on_after(FETCH_SECONDS):
            fetched = await self._fetch(ref, self._demand.docker_config(ref), mark)
        if fetched is None:
            raise FetchError(f"{refresh.of} did not arrive within {FETCH_SECONDS:g} s")
        body = fetched.body
        if body is None:
            return attrs.evolve(refresh.module, trouble="")
        size = len(body)
        try:
            async with self._keeping:  # one at a time: each looks at the room that is left
                path, checksum = await trio.to_thread.run_sync(self._keep, body, self._used())
        finally:
            body.clear()
        refresh.mark = fetched.mark
        if checksum != refresh.module.sha256:
            log.info("Wasm module fetched", module=refresh.of, sha256=checksum, bytes=size)
        return WasmModule(ref, path, checksum)

    def _keep(self, body: bytearray, used: frozenset[str]) -> tuple[str, str]:
        if not self._is_open:
            try:
                self._store.open()
            except OSError as error:
                raise FetchError(f"{self._store.folder} cannot be made: {error.strerror or error}") from error
            self._is_open = True
        kept = self._store.put(body, used)
        self._cached = self._store.size()
        return kept

    def _used(self) -> frozenset[str]:
        """The checksums of the modules in force."""
        modules = [*(r.module for r in self._refreshes.values()), *(each.module for each in self._in_force.values())]
        return frozenset(module.sha256 for module in (*modules, *self._seeded.values()))

    async def _tell(self, refresh: _ModuleRefresh, module: WasmModule, events: EventSender) -> None:
        """Put what is known of a module in force."""
        before, refresh.module = refresh.module, module
        if module != before:
            await events.send(Upsert(self.name, module))
            if module.is_there:
                await self._settle(self._demand.asked(), events, is_all_known=False)

    async def _fetch_from_afar(self, ref: ModuleRef, docker_config: bytes | None, mark: str) -> FetchedModule:
        return await fetch_module(ref, self._settings, self._fetcher, docker_config, mark)

    def _fetcher(self, is_insecure: bool) -> Fetcher:
        if is_insecure not in self._fetchers:
            self._fetchers[is_insecure] = Fetcher(verify=not is_insecure)
        return self._fetchers[is_insecure]
