"""Crashes at any moment, and sources that come back in any order with anything: what is in force is always the last
picture that a source stood by, and in the end what the sources say."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mesh_pilot.model.events import Delete, Event, Item, KeySet, Replace, Synced, Upsert, item_key
from mesh_pilot.safety.state.recorder import Recorder
from mesh_pilot.safety.state.settings import HistoryBounds, StateSettings
from mesh_pilot.safety.state.store import Store
from mesh_pilot.world import World
from mesh_pilot.world.intake import Intake
from mesh_pilot.world.reducer import Published
from tests.state.fakes import FakeSource
from tests.support.sample import examples

SOURCES = ("a", "b")
PLACES = {name: f"place of {name}" for name in SOURCES}

names = st.sampled_from(SOURCES)
urls = st.sampled_from(["1", "2", "3", "4"])
texts = st.sampled_from(["x", "y", "z"])
pictures = st.dictionaries(urls, texts, max_size=4)


def item(source: str, url: str, text: str) -> Item:
    return KeySet("", f"{source}/{url}", text)


class Crashes(RuleBasedStateMachine):
    """A control plane without tasks: what the reducer and the recorder do, in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp())
        self.runs = 0
        self.truth: dict[str, dict[str, str]] = {name: {} for name in SOURCES}
        """What the sources have, whether they are reached or not."""
        self.written: dict[str, dict[str, str]] = {}
        """By source, the last picture that it stood by when it was written."""
        self.begin(self.scratch / "0")

    def begin(self, folder: Path) -> None:
        """Another run, on a folder."""
        self.folder = folder
        self.store = Store(StateSettings(folder=folder, history=HistoryBounds(revisions=0)), PLACES)
        self.world = World()
        for name in SOURCES:
            self.world.expect(name)
        self.intake = Intake(self.world)
        self.sources = {name: FakeSource(name) for name in SOURCES}
        reducer: Any = SimpleNamespace(intake=self.intake)
        restored = self.store.pictures()
        self.recorder = Recorder(self.store, self.world, reducer, [*self.sources.values()])
        for picture in restored:
            self.world.apply(self.intake.restored(picture.source, picture.items, picture.confirmed_at))
        self.expected = {name: self.written.get(name, {}) for name in SOURCES}
        """What is in force, by source."""

    def say(self, *events: Event) -> None:
        admitted = self.intake.admit(events, 0.0)
        revision = self.world.apply(admitted.events)
        self.recorder.published(Published(revision, 0.0, 0.0, admitted.changes))

    @initialize(name=names, has=pictures)
    def begins(self, name: str, has: dict[str, str]) -> None:
        self.truth[name] = has
        self.answers(name)
        self.is_written()

    @rule(name=names, url=urls, text=texts)
    def changes(self, name: str, url: str, text: str) -> None:
        """An object is new or edited, whether or not anybody is there to see it."""
        self.truth[name][url] = text
        if self.sources[name].synced:
            self.say(Upsert(name, item(name, url, text)))
            self.expected[name] = dict(self.truth[name])

    @rule(name=names, url=urls)
    def goes(self, name: str, url: str) -> None:
        self.truth[name].pop(url, None)
        if self.sources[name].synced:
            self.say(Delete(name, item_key(item(name, url, ""))))
            self.expected[name] = dict(self.truth[name])

    @rule(name=names, text=texts)
    @precondition(lambda self: not all(source.synced for source in self.sources.values()))
    def answers_in_part(self, name: str, text: str) -> None:
        """A first picture begins to come, and then does not."""
        if not self.sources[name].synced:
            self.say(Upsert(name, item(name, "part", text)))
            if name not in self.intake.stale():
                self.expected[name] = {**self.expected[name], "part": text}

    @rule(name=names)
    def answers(self, name: str) -> None:
        """A source gives its first full picture, or again, as after an error."""
        picture = tuple(item(name, url, text) for url, text in self.truth[name].items())
        self.say(Replace(name, (), picture), Synced(name))
        self.sources[name].synced = True
        self.expected[name] = dict(self.truth[name])

    @rule()
    def is_written(self) -> None:
        """The recorder gets to it."""
        self.store.write(self.recorder._batch())
        self.recorder._changed = {}
        for name in self.store.current:
            self.written[name] = dict(self.expected[name])

    @rule()
    def crashes(self) -> None:
        """The process is killed: what is left are its files."""
        self.runs += 1
        after = self.scratch / str(self.runs)
        after.mkdir(mode=0o700)
        for name in ("state.db", "state.db-wal"):
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, after / name)
        self.store.close()
        self.begin(after)

    @rule(name=names, url=urls, text=texts, then=st.booleans())
    def changes_last(self, name: str, url: str, text: str, then: bool) -> None:
        """A change that is written, and the crash."""
        self.changes(name, url, text)
        if then:
            self.goes(name, url)
        self.is_written()
        self.crashes()

    @rule()
    def file_is_lost(self) -> None:
        """It is damaged so badly that it has to make way, while the process runs."""
        database = self.store._database
        if database is not None:
            database.set_aside("a test")
            self.store._check()
            self.written = {}

    @invariant()
    def what_is_in_force_is_what_each_source_said_last(self) -> None:
        for name in SOURCES:
            expected = {item(name, url, text) for url, text in self.expected[name].items()}
            assert {*self.world.items_of(name).values()} == expected

    def teardown(self) -> None:
        for name in SOURCES:
            self.answers(name)
        scratch = World()
        for name in SOURCES:
            scratch.apply([Upsert(name, item(name, url, text)) for url, text in self.truth[name].items()])
        for name in SOURCES:
            assert self.world.items_of(name) == scratch.items_of(name)
        self.store.close()
        shutil.rmtree(self.scratch)


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=examples(30), stateful_step_count=25, deadline=None)
