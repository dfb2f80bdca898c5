"""A folder as a store: names, other people's files, crashes, disks that are full or read-only."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.istio.reading.yaml import Document
from mesh_pilot.model.config import ConfigKey, Origin
from mesh_pilot.sources.config_store import folder as folder_module
from mesh_pilot.sources.config_store.base import ConfigConflict, ConfigRefusal, ConfigStoreError
from mesh_pilot.sources.config_store.documents import as_json, as_yaml, objects_in
from mesh_pilot.sources.config_store.folder import LOCK, ConfigFolder
from mesh_pilot.sources.files.roots import ConfigRoot
from tests.support.config_stores import KEY, route
from tests.support.sample import examples

OWN = Path("shop/VirtualService.reviews.yaml")
RULE = (
    "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: shop}\nspec: {host: r}\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "config"
    found.mkdir()
    return found


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder but the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK
    }


def nothing_in(folder: Path) -> bool:
    return not [*folder.iterdir()]


def read_by_the_source(folder: Path) -> list[str]:
    return sorted(str(Path(unit).relative_to(folder)) for unit in ConfigRoot(str(folder), "files").list(set()).units)


async def test_each_object_has_a_file_of_its_own_which_the_source_reads(folder: Path) -> None:
    store = ConfigFolder(folder)
    await store.write(KEY, route(), None)
    mesh_wide = ConfigKey("GatewayClass", "", "istio")
    document = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "istio"}}
    there = await store.write(mesh_wide, document, None)
    assert read_by_the_source(folder) == ["GatewayClass.istio.yaml", str(OWN)]
    assert yaml.safe_load((folder / OWN).read_text()) == route()

    found = await store.read(KEY)
    assert found is not None
    await store.delete(KEY, found)
    await store.delete(mesh_wide, there)
    assert content(folder) == {}
    assert not (folder / "shop").exists(), "an empty folder goes with its last object"


async def test_a_file_of_somebody_else_with_this_object_alone_is_changed_in_place(folder: Path) -> None:
    theirs = folder / "team" / "reviews.yaml"
    theirs.parent.mkdir()
    theirs.write_text("# ours\n" + yaml.safe_dump(route("1s")))
    theirs.chmod(0o640)
    store = ConfigFolder(folder)
    found = await store.read(KEY, str(theirs))
    assert found is not None and found.location == str(theirs)
    await store.write(KEY, route("2s"), found)
    assert read_by_the_source(folder) == ["team/reviews.yaml"]
    assert yaml.safe_load(theirs.read_text()) == route("2s")
    assert theirs.stat().st_mode & 0o777 == 0o640

    as_json = theirs.rename(theirs.with_suffix(".json"))
    found = await store.read(KEY, str(as_json))
    assert found is not None
    await store.write(KEY, route("3s"), found)
    assert as_json.read_text().startswith("{")


async def test_an_object_that_shares_its_file_is_refused_with_the_line_and_what_to_do(folder: Path) -> None:
    shared = folder / "all.yaml"
    shared.write_text(f"{RULE}---\n{yaml.safe_dump(route())}")
    before = content(folder)
    with pytest.raises(
        ConfigRefusal, match=r"all\.yaml:6, in a file with 1 other object: .*move it to a separate file"
    ):
        await ConfigFolder(folder).read(KEY, str(shared))
    with pytest.raises(ConfigRefusal):
        await ConfigFolder(folder).write(KEY, route(), None, at=str(shared))
    assert content(folder) == before


async def test_what_the_source_said_of_a_file_that_is_gone_or_has_another_object_now_does_not_count(
    folder: Path,
) -> None:
    (folder / "moved.yaml").write_text(RULE)
    store = ConfigFolder(folder)
    assert await store.read(KEY, str(folder / "gone.yaml")) is None
    assert await store.read(KEY, str(folder / "moved.yaml")) is None
    await store.write(KEY, route(), None, at=str(folder / "moved.yaml"))
    assert read_by_the_source(folder) == ["moved.yaml", str(OWN)]


async def test_a_broken_file_of_somebody_else_is_theirs_to_mend_and_our_own_can_be_replaced(folder: Path) -> None:
    theirs = folder / "reviews.yaml"
    theirs.write_text("kind: [")
    store = ConfigFolder(folder)
    with pytest.raises(ConfigRefusal, match=r"reviews\.yaml:2: .*fix the file"):
        await store.read(KEY, str(theirs))

    (folder / OWN).parent.mkdir()
    (folder / OWN).write_text("kind: [")
    found = await store.read(KEY)
    assert found is not None and found.document is None
    await store.write(KEY, route(), found)
    (folder / OWN).write_text(RULE)
    with pytest.raises(ConfigRefusal, match="holds DestinationRule/shop/r, not VirtualService/shop/reviews: rename it"):
        await store.read(KEY)


async def test_nothing_outside_of_the_folder_is_read_or_written(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "reviews.yaml").write_text(yaml.safe_dump(route()))
    store = ConfigFolder(folder)
    with pytest.raises(ConfigRefusal, match="outside of"):
        await store.read(KEY, str(outside / "reviews.yaml"))
    (folder / "shop").symlink_to(outside)
    with pytest.raises(ConfigRefusal, match="a symbolic link that leads out"):
        await store.write(KEY, route(), None)
    (folder / "shop").unlink()
    (folder / "shop").mkdir()
    (folder / OWN).symlink_to(outside / "reviews.yaml")
    with pytest.raises(ConfigRefusal, match="not a plain file"):
        await store.write(KEY, route(), None)
    assert sorted(content(outside)) == ["reviews.yaml"]


HOSTILE = st.one_of(
    st.sampled_from(("..", ".", "", "../x", "a/../../x", "/etc/passwd", ".hidden", "#x", "a\0b", "x" * 300, "..\\x")),
    st.text(max_size=20),
)


@settings(max_examples=examples(60))
@given(namespace=HOSTILE, name=HOSTILE)
def test_no_name_leads_out_of_the_folder(namespace: str, name: str) -> None:
    store = ConfigFolder(Path("/srv/config"))
    try:
        path = store._own_path(ConfigKey("VirtualService", namespace, name))
    except ConfigRefusal:
        return
    parts = path.relative_to("/srv/config").parts
    assert len(parts) == 1 + bool(namespace)
    assert not {"..", "."} & set(parts)
    assert os.path.normpath(path) == str(path)
    assert len(parts[-1].encode("utf-8", "surrogatepass")) <= 255


async def test_a_name_that_no_file_can_have_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigRefusal, match="too long for the name of a file"):
        await ConfigFolder(folder).write(ConfigKey("VirtualService", "shop", "x" * 253), route(), None)


class CrashError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["fsync", "link", "replace"])
async def test_a_crash_leaves_the_old_object_whole_and_nothing_that_a_source_reads(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ConfigFolder(folder)
    before = None if step == "link" else await store.write(KEY, route("1s"), None)
    was = content(folder)

    def crash(*_: object) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(*((Path, "replace", crash) if step == "replace" else (os, step, crash)))
        with pytest.raises(CrashError):
            await trio.to_thread.run_sync(store._write, KEY, route("2s"), before, "", False)
    left = content(folder)
    assert {name: data for name, data in left.items() if not Path(name).name.startswith(".")} == was
    assert len(left) == len(was) + 1, "the half-written file is there, hidden"
    assert read_by_the_source(folder) == ([] if step == "link" else [str(OWN)])

    await store.write(KEY, route("3s"), before)
    assert sorted(content(folder)) == [str(OWN)], "the next write has removed it"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
async def test_a_disk_that_takes_nothing_is_one_line_and_changes_nothing(
    folder: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ConfigFolder(folder)
    before = await store.write(KEY, route("1s"), None)
    was = content(folder)

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigStoreError) as caught:
        await store.write(KEY, route("2s"), before)
    assert str(caught.value) == f"{folder / OWN} cannot be written: {os.strerror(code)}; nothing has changed"
    assert content(folder) == was


async def test_a_folder_that_may_not_be_written_says_so_also_to_a_dry_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    store = ConfigFolder(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(ConfigStoreError, match="Read-only file system; nothing has changed"):
            await trio.to_thread.run_sync(store._write, KEY, route(), None, "", False)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigStoreError, match="no permission, or it is mounted read-only"):
        await store.write(KEY, route(), None, dry_run=True)
    assert nothing_in(folder)


async def test_a_dry_run_leaves_not_even_a_lock(folder: Path) -> None:
    await ConfigFolder(folder).write(KEY, route(), None, dry_run=True)
    assert nothing_in(folder)


async def test_an_edit_by_hand_is_a_conflict_and_stays(folder: Path) -> None:
    store = ConfigFolder(folder)
    before = await store.write(KEY, route("1s"), None)
    (folder / OWN).write_text(yaml.safe_dump(route("5s")))
    with pytest.raises(ConfigConflict, match=r"has changed since it was read, in .*VirtualService\.reviews\.yaml"):
        await store.write(KEY, route("2s"), before)
    assert yaml.safe_load((folder / OWN).read_text()) == route("5s")


async def test_a_lock_that_another_process_keeps_is_waited_for_and_then_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "LOCK_SECONDS", 0.0)
    store = ConfigFolder(folder)
    with store._locked(False), pytest.raises(ConfigStoreError, match="is locked by another process"):
        await store.write(KEY, route(), None)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=12))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(40))
@given(VALUES)
def test_text_that_is_stored_reads_as_what_was_sent(value: Any) -> None:
    sent = route(annotations={"x": "y"})
    sent["spec"]["value"] = value
    for written in (as_yaml(sent), as_json(sent)):
        (found,) = objects_in(written, Origin("test"))
        assert isinstance(found, Document), (written, found)
        assert found.data == sent
