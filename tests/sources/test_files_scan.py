"""Looking at folders again and again finds what a first look would find."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.model.events import Item
from mesh_pilot.sources.files.content import FileContent, FileLocation, FileReading, Gone, IgnoredObject, Unreadable
from mesh_pilot.sources.files.index import FileIndex
from mesh_pilot.sources.files.roots import ConfigRoot, FileParts
from mesh_pilot.sources.files.scan import Scan, scan
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
