"""Looking at folders again and again finds what a first look would find; so does looking at touched files alone."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.model.events import Item
from mesh_pilot.sources.files import inotify
from mesh_pilot.sources.files.content import FileContent, FileLocation, FileReading, Gone, IgnoredObject, Unreadable
from mesh_pilot.sources.files.index import FileIndex
from mesh_pilot.sources.files.roots import ConfigRoot, FileParts, FileRoot
from mesh_pilot.sources.files.scan import Scan, scan, scan_touched
from mesh_pilot.sources.files.writers import Writers
from tests.sources.files_feed import bad_text, text
from tests.support.sample import examples

_FILES = st.sampled_from(["a.yaml", "b.yml", "sub/a.yaml", "sub/deep/c.yaml", ".hidden.yaml", "notes.txt"])
_DOCUMENTS = st.lists(
    st.one_of(
        st.builds(text, st.sampled_from("xyz"), st.integers(1, 3)),
        st.builds(bad_text, st.sampled_from("xyz")),
        st.just("broken: [\n"),
        st.just("apiVersion: v1\nkind: Service\nmetadata: {name: other}\n"),
    ),
    max_size=3,
).map("---\n".join)
_EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _FILES, _DOCUMENTS),
        st.tuples(st.just("rename"), _FILES, _FILES),
        st.tuples(st.just("delete"), _FILES, st.just("")),
        st.tuples(st.just("prune"), st.sampled_from(["sub", "sub/deep"]), st.just("")),
        st.tuples(st.just("link"), _FILES, _FILES),
        st.tuples(st.just("look"), st.just(""), st.just("")),
    ),
    max_size=12,
)


class Looker:
    """Looks at a folder as the source does, without waiting for anything."""

    def __init__(self, folder: Path) -> None:
        self.root = ConfigRoot(str(folder), "files")
        self.index = FileIndex("files")
        self.index.state.announce()
        self._last = Scan()

    def look(self) -> None:
        found = scan([self.root], self._last, self._last.seen)
        self._last = found
        self.index.update({location: self._reading(location, what) for location, what in found.changed.items()})

    def _reading(self, location: FileLocation, what: FileParts | Unreadable | Gone) -> FileReading:
        if isinstance(what, Mapping):
            entries = self.root.parse(location.path, what)
            return FileContent(tuple(entry for entry in entries if not isinstance(entry, IgnoredObject)))
        return what


def edit(folder: Path, what: str, name: str, how: str) -> None:
    path = folder / name
    match what:
        case "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_text(how)
        case "rename" if path.is_file():
            (folder / how).parent.mkdir(parents=True, exist_ok=True)
            path.rename(folder / how)
        case "delete":
            path.unlink(missing_ok=True)
        case "prune":
            shutil.rmtree(path, ignore_errors=True)
        case "link" if not path.exists() and not path.is_symlink():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(folder / how)


def items(index: FileIndex) -> dict[str, Item]:
    return {str(item.key): item for item in index.items()}  # type: ignore[union-attr]


@settings(max_examples=examples(60), deadline=None)
@given(_EDITS, st.dictionaries(_FILES, st.builds(text, st.sampled_from("xyz"), st.integers(1, 3)), max_size=4))
def test_any_edits_that_end_well_end_as_a_first_look_does(
    edits: list[tuple[str, str, str]], final: dict[str, str]
) -> None:
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        looker = Looker(folder)
        for what, name, how in edits:
            if what == "look":
                looker.look()
                fresh = Looker(folder)
                fresh.look()
                assert items(looker.index).keys() >= items(fresh.index).keys()
            else:
                edit(folder, what, name, how)
        looker.look()
        for path in folder.iterdir():
            edit(folder, "prune" if path.is_dir() and not path.is_symlink() else "delete", path.name, "")
        for name, content in final.items():
            edit(folder, "write", name, content)
        looker.look()
        fresh = Looker(folder)
        fresh.look()
        assert items(looker.index) == items(fresh.index)
        assert sorted(map(str, looker.index.rejections())) == sorted(map(str, fresh.index.rejections()))


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is of Linux")
@settings(max_examples=examples(60), deadline=None)
@given(_EDITS)
def test_a_scan_of_touched_files_finds_what_a_complete_one_finds(edits: list[tuple[str, str, str]]) -> None:
    async def play(folder: Path) -> None:
        roots = [ConfigRoot(str(folder), "files")]
        with inotify.Inotify() as watches:
            folders = inotify.Folders(watches, lambda path: True, lambda path: True, Writers(30))
            last = Scan()
            for what, name, how in [*edits, ("look", "", "")]:
                if what != "look":
                    edit(folder, what, name, how)
                    continue
                folders.catch_up()
                touched = folders.take_touched()
                complete = scan(roots, last, last.seen)
                found = None if touched is None else scan_touched(roots, last, touched, ())
                if found is not None:
                    assert (found.seen, found.changed) == (complete.seen, complete.changed)
                    assert (found.folders, found.plain) == (complete.folders, complete.plain)
                last = complete
                folders.watch(last.folders)
                folders.take_touched()

    with TemporaryDirectory() as temporary:
        trio.run(play, Path(temporary))


def test_events_of_a_folder_that_was_moved_away_tell_nothing_about_the_one_in_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "config"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text(text("x", 1))
    roots = [ConfigRoot(str(folder), "files")]
    before = scan(roots, Scan(), ())
    (tmp_path / "above").rename(tmp_path / "away")
    assert scan_touched(roots, before, [str(folder / "a.yaml")], ()) is None
    folder.mkdir(parents=True)
    assert scan_touched(roots, before, [str(folder / "a.yaml")], ()) is None


def test_a_file_of_two_names_or_in_the_folders_of_two_roots_takes_a_complete_scan(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text("x", 1))
    root = ConfigRoot(str(tmp_path), "files")
    before = scan([root], Scan(), ())
    assert scan_touched([root], before, [str(tmp_path / "a.yaml")], ()) is not None
    (tmp_path / "b.yaml").hardlink_to(tmp_path / "a.yaml")
    assert scan_touched([root], before, [str(tmp_path / "a.yaml")], ()) is None
    lone = FileRoot(str(tmp_path / "c.yaml"), "files", lambda text, origin: None, ("mesh",))  # type: ignore[arg-type,return-value]
    (tmp_path / "c.yaml").write_text("")
    assert scan([root, lone], Scan(), ()).plain == {}
