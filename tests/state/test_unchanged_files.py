"""Files that are as they were before a restart: their objects are those of the state, and nothing is read twice."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.config import Config, Origin
from mesh_pilot.safety.state import codec
from mesh_pilot.safety.state.settings import StateSettings
from mesh_pilot.sources.base.published import ValidObject
from mesh_pilot.sources.files import objects
from mesh_pilot.sources.files.content import ParsedDocument
from mesh_pilot.sources.files.objects import read_objects, restored_parts
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane
from tests.support.sample import examples


def named(name: str) -> str:
    return SERVICE.replace("reviews", name)


class Reads:
    """The texts that were read as YAML, and how many objects were decoded of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        self.decoded = 0
        load_part, decode = objects.load_part, objects.decode_document

        def load(text: str, *args: object) -> object:
            self.texts.append(text)
            return load_part(text, *args)  # type: ignore[arg-type]

        def decoding(*args: object, **kwargs: object) -> Config:
            self.decoded += 1
            return decode(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(objects, "load_part", load)
        monkeypatch.setattr(objects, "decode_document", decoding)

    def taken(self) -> tuple[int, int]:
        """How many since the last time."""
        found = len(self.texts), self.decoded
        self.texts, self.decoded = [], 0
        return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = tmp_path / "config"
    config.mkdir()
    (config / "many.yaml").write_text("---\n".join(map(named, "abc")))
    (config / "one.yaml").write_text(named("d"))
    return tmp_path


@asynccontextmanager
async def plane(folder: Path) -> AsyncIterator[ControlPlane]:
    state = StateSettings(folder=folder / "state")
    async with running_plane(folder / "config", state=state, debounce_after=0.01) as running:
        await eventually(lambda: not running.state.reducer.intake.stale(), what="all is confirmed")
        yield running


def origins(plane: ControlPlane) -> dict[str, Origin]:
    return {item.name: item.origin for item in configs_of(plane).values()}


def ports(plane: ControlPlane) -> dict[str, list[int]]:
    return {config.name: [port.number for port in config.spec.ports] for config in configs_of(plane).values()}


def configs_of(plane: ControlPlane) -> dict[tuple[str, ...], Config]:
    items = plane.state.world.items_of("files")
    return {key: item for key, item in items.items() if isinstance(item, Config)}


@pytest.mark.plane
async def test_after_a_restart_unchanged_files_are_neither_read_as_yaml_nor_decoded(folder: Path, reads: Reads) -> None:
    async with plane(folder) as first:
        before = origins(first)
        assert reads.taken() == (4, 4)
    async with plane(folder) as second:
        assert reads.taken() == (0, 0)
        assert origins(second) == before
        assert set(before) == {"a", "b", "c", "d"}


@pytest.mark.plane
async def test_the_objects_of_unchanged_files_are_in_memory_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    decode = codec.decode

    def decoding(data: bytes) -> object:
        decoded.append(decode(data))
        return decoded[-1]

    monkeypatch.setattr(codec, "decode", decoding)
    async with plane(folder):
        assert not decoded
    async with plane(folder) as second:
        files = {id(item) for item in decoded}
        assert all(id(item) in files for item in configs_of(second).values())


@pytest.mark.plane
async def test_of_a_file_that_changed_only_what_differs_is_read(folder: Path, reads: Reads) -> None:
    async with plane(folder):
        reads.taken()
    changed = named("b").replace("9080", "9081")
    (folder / "config" / "many.yaml").write_text("---\n".join([named("a"), changed, named("c")]))
    async with plane(folder) as second:
        assert reads.taken() == (1, 1)
        assert ports(second) == {"a": [9080], "b": [9081], "c": [9080], "d": [9080]}


@pytest.mark.plane
async def test_what_another_version_read_is_read_again_and_then_known(
    folder: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane(folder):
        reads.taken()
    monkeypatch.setattr(objects, "_what_reads", lambda: b"another version")
    async with plane(folder) as second:
        assert reads.taken() == (4, 4)
        world = second.state.world
        assert world.memo is not None and not world.rejections()
    async with plane(folder):
        assert reads.taken() == (0, 0)


@pytest.mark.plane
async def test_files_that_are_newer_than_the_state_count(folder: Path, reads: Reads) -> None:
    """A crash leaves a state that knows nothing of the last changes."""
    async with plane(folder):
        pass
    shutil.copytree(folder / "state", folder / "older")
    (folder / "config" / "one.yaml").write_text(named("d").replace("9080", "9081"))
    async with plane(folder) as second:
        assert ports(second)["d"] == [9081]
    shutil.rmtree(folder / "state")
    shutil.move(folder / "older", folder / "state")
    reads.taken()
    async with plane(folder) as third:
        assert ports(third)["d"] == [9081]
        assert reads.taken() == (1, 1)


@pytest.mark.plane
async def test_of_a_garbled_picture_nothing_is_known(folder: Path, reads: Reads) -> None:
    async with plane(folder) as first:
        before = ports(first)
    with closing(sqlite3.connect(folder / "state" / "state.db")) as database:
        database.execute("UPDATE items SET value = replace(value, x'cd2378', x'cd2379')")  # 9080 becomes 9081
        assert database.total_changes
        database.commit()
    reads.taken()
    async with plane(folder) as second:
        assert reads.taken() == (4, 4)
        assert ports(second) == before


@pytest.mark.parametrize("file", ["istio/kinds.py", "api/__init__.py", "istio/reading/field_warnings.yaml"])
def test_a_changed_file_of_what_reads_is_another_version(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[Path], object] = Path.stat
    compute = objects._what_reads.__wrapped__

    def touched(path: Path, **more: bool) -> object:
        status = real(path, **more)
        if str(path).endswith(f"mesh_pilot/{file}"):
            return type("Status", (), {"st_size": status.st_size, "st_mtime_ns": status.st_mtime_ns + 1})  # type: ignore[attr-defined]
        return status

    before = compute()
    assert compute() == before
    monkeypatch.setattr(Path, "stat", touched)
    assert compute() != before


# -- what is known of an earlier run makes no difference

PARTS = [
    named("a"),
    named("b"),
    named("b").replace("9080", "9081"),
    named("a") + "# a comment\n",
    named("c").replace("9080", "many"),  # refused
    named("c").replace("resolution: STATIC", "resolution: STATIC\n  unknown: 1"),
    "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: a}\n",
    "kind: Secret\napiVersion: v1\nmetadata: {name: a, namespace: b}\nstringData: {key: x, cert: y}\n",
    "apiVersion: v1\nkind: List\nitems:\n- " + named("e").strip().replace("\n", "\n  ") + "\n",
    named("f") + "...\n" + named("g"),
    "# nothing\n",
    "}{ garbage\n",
    "",
]


def read(text: str, known: dict[bytes, tuple[ParsedDocument, ...]] | None = None) -> list[ParsedDocument]:
    return list(read_objects(text.encode(), Origin("files", "x.yaml"), "default", known))


def told(found: Sequence[ParsedDocument]) -> str:
    """All there is of them, with what equality leaves out."""
    items = (each.item for each in found if isinstance(each, ValidObject))
    digests = [item.origin.digest for item in items if isinstance(item, Config)]
    return repr((found, digests)).replace("mappingproxy({})", "{}")


@given(*[st.lists(st.sampled_from(PARTS), max_size=4)] * 2)
@settings(max_examples=examples(300))
def test_objects_are_the_same_with_and_without_an_earlier_run(before: list[str], after: list[str]) -> None:
    """The texts of files decide: what a state holds of any other texts changes nothing."""
    items = [each.item for each in read("---\n".join(before)) if isinstance(each, ValidObject)]
    known = restored_parts([codec.decode(codec.encode(item)) for item in items]).get("x.yaml", {})
    text = "---\n".join(after)
    assert told(read(text, known)) == told(read(text))
