"""What every config store does: each check gets its own empty place by another name of its object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from mesh_pilot.model.config import ConfigKey
from mesh_pilot.sources.config_store.base import ConfigConflict, ConfigStore
from mesh_pilot.sources.config_store.documents import without_server_fields
from tests.support.config_stores import route


async def what_is_written_is_read_with_its_version(store: ConfigStore, key: ConfigKey) -> None:
    assert await store.read(key) is None
    written = await store.write(key, route(name=key.name), None)
    found = await store.read(key)
    assert found is not None and found.document is not None
    assert (found.version, found.location) == (written.version, written.location)
    assert found.document["spec"] == route()["spec"]

    again = await store.write(key, route("9s", name=key.name), found)
    assert again.version != found.version
    now = await store.read(key)
    assert now is not None and now.document is not None
    assert (now.version, now.document["spec"]["http"][0]["timeout"]) == (again.version, "9s")

    await store.delete(key, now)
    assert await store.read(key) is None


async def a_writer_with_an_old_version_changes_nothing(store: ConfigStore, key: ConfigKey) -> None:
    old = await store.write(key, route("1s", name=key.name), None)
    new = await store.write(key, route("2s", name=key.name), old)
    with pytest.raises(ConfigConflict):
        await store.write(key, route("3s", name=key.name), old)
    with pytest.raises(ConfigConflict):
        await store.write(key, route("3s", name=key.name), None)
    with pytest.raises(ConfigConflict):
        await store.delete(key, old)
    found = await store.read(key)
    assert found is not None and found.version == new.version

    await store.delete(key, new)
    with pytest.raises(ConfigConflict):
        await store.delete(key, new)
    with pytest.raises(ConfigConflict):
        await store.write(key, route("3s", name=key.name), new)
    assert await store.read(key) is None


async def a_dry_run_finds_conflicts_and_writes_nothing(store: ConfigStore, key: ConfigKey) -> None:
    await store.write(key, route(name=key.name), None, dry_run=True)
    assert await store.read(key) is None
    there = await store.write(key, route("1s", name=key.name), None)
    await store.write(key, route("2s", name=key.name), there, dry_run=True)
    await store.delete(key, there, dry_run=True)
    now = await store.read(key)
    assert now is not None and now.version == there.version
    later = await store.write(key, route("2s", name=key.name), there)
    for attempt in (
        lambda: store.write(key, route("3s", name=key.name), None, dry_run=True),
        lambda: store.write(key, route("3s", name=key.name), there, dry_run=True),
        lambda: store.delete(key, there, dry_run=True),
    ):
        with pytest.raises(ConfigConflict):
            await attempt()
    now = await store.read(key)
    assert now is not None and now.version == later.version


async def an_object_comes_back_as_it_was_sent(store: ConfigStore, key: ConfigKey) -> None:
    sent = route(
        name=key.name, labels={"team": "web"}, annotations={"note": 'a "quoted" text: yes, 012, ~\nover lines'}
    )
    written = await store.write(key, sent, None)
    found = await store.read(key)
    assert found is not None and found.document is not None
    shown = without_server_fields(found.document)
    shown["metadata"].pop("creationTimestamp", None)
    assert shown == sent
    assert written.document is not None


Check = Callable[[ConfigStore, ConfigKey], Awaitable[None]]

CHECKS: Sequence[Check] = (
    what_is_written_is_read_with_its_version,
    a_writer_with_an_old_version_changes_nothing,
    a_dry_run_finds_conflicts_and_writes_nothing,
    an_object_comes_back_as_it_was_sent,
)


def key_for(check: Check) -> ConfigKey:
    return ConfigKey("VirtualService", "shop", check.__name__.replace("_", "-"))
