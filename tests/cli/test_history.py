"""``mesh-pilot history`` on a plane with a real Envoy, through a refusal and a restart."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from mesh_pilot.app.control_plane import ControlPlane, control_plane
from mesh_pilot.cli.change.history import command
from mesh_pilot.model.events import EventSender, Item, Replace, Upsert
from mesh_pilot.safety.state.settings import StateSettings
from tests.state.test_history import begin, entry, running
from tests.support.command import Done, mesh_pilot
from tests.support.envoy import eventually, real_envoy
from tests.support.manifests import routes, service
from tests.support.planes import settings
from tests.support.quarantined import MemorySource, unchecked
from tests.support.shop import CLIENT

HOST = "reviews.test"
PROXY = f"{CLIENT.name}.{CLIENT.namespace}"


class KeptSource(MemorySource):
    """A source whose picture is kept, and that continues from what it is given."""

    place = "memory"

    def __init__(self, *items: Item) -> None:
        super().__init__()
        self._first = items
        self._items = {("config", *item.key): item for item in items}  # type: ignore[union-attr]  # configs only

    async def run(self, events: EventSender, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await events.send(Replace(self.name, (), self._first))
        await super().run(events, task_status=task_status)


def routed(timeout: str) -> list[Item]:
    rule = f"- {{timeout: {timeout}, route: [{{destination: {{host: {HOST}}}}}]}}"
    return [*unchecked(routes(HOST, rule))]


@asynccontextmanager
async def plane_of(source: KeptSource, folder: Path) -> AsyncIterator[ControlPlane]:
    given = settings(
        debounce_after=0.02, shutdown_seconds=0.5, quarantine=None, state=StateSettings(folder=folder), guard=None
    )
    async with control_plane(given, more_sources=[source]) as plane:
        with trio.fail_after(60):
            await plane.wait_ready()
        yield plane


@pytest.mark.parametrize("arguments", [["list"], ["show", "2"], ["diff", "1", "2"]])
def test_a_pager_that_waits_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """While it prints, the file may be written, and the log next to it cut."""
    monkeypatch.setattr("mesh_pilot.cli.lib.logs.configure", lambda *_: None)
    cut: list[tuple[int, int, int]] = []
    with running(tmp_path) as run:
        begin(run)
        for edit in range(2):
            run.say(Upsert("files", entry(1, edit)))
        run.write()

        def echo(*_: object, **__: object) -> None:
            run.say(Upsert("files", entry(1, 2 + len(cut))))
            run.write()
            with closing(sqlite3.connect(tmp_path / "state.db")) as other:
                cut.append(other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())

        monkeypatch.setattr("click.echo", echo)
        command.main([*arguments, "--state-dir", str(tmp_path)], standalone_mode=False)
    assert {*cut} == {(0, 0, 0)}


class Asked:
    """The command on a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def run(self, *arguments: str) -> Done:
        full = ("history", *arguments, "--state-dir", str(self._folder))
        return await trio.to_thread.run_sync(partial(mesh_pilot, *full))

    async def json(self, *arguments: str) -> Any:
        done = await self.run(*arguments, "-o", "json")
        assert not done.err, done
        return json.loads(done.out)

    async def settled(self, number: int, *, nacks: int = 0) -> dict[str, Any]:
        """A revision once all that there is to know of it is written."""
        found: dict[str, Any] = {}

        async def is_there() -> bool:
            nonlocal found
            done = await self.run("show", str(number), "-o", "json")
            found = json.loads(done.out) if not done.code else {}
            return bool(found) and found["settled"] and found["proxies"] == 1 and found["nacks"] >= nacks

        await eventually(is_there, what=f"revision {number}: {found}")
        return found


@pytest.mark.slow
async def test_history_through_a_refusal_and_a_restart(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> None:
    folder = tmp_path / "state"
    (port,) = free_ports(1)
    history = Asked(folder)
    base = [*unchecked(service(HOST, port, {"address": "127.0.0.1", "ports": {"main": 9}}))]
    source = KeptSource(*base, *routed("1s"))
    async with plane_of(source, folder) as plane, real_envoy(plane.addresses.grpc, tmp_path, CLIENT) as envoy:
        await envoy.wait_live()
        status = plane.state.xds.status

        def is_at_rest() -> bool:
            (connection,) = status.connections()
            return connection.position.revision is None

        await eventually(is_at_rest)
        first = status.revisions.latest
        source.put(routed("2s"))
        good = await history.settled(first + 1)
        assert good["bytes"] > 0
        assert good["ackedSeconds"] is not None
        assert [change["object"] for change in good["changes"]] == [f"VirtualService/shop/{routed('1s')[0].key.name}"]
        source.put(routed("9000000h"))
        bad = await history.settled(first + 2, nacks=1)
        (refused,) = bad["refused"]
        assert (refused["proxy"], refused["type"]) == (PROXY, "RDS")
        assert "timeout" in refused["reason"].lower() or "duration" in refused["reason"].lower()
        assert [each["revision"] for each in await history.json("list", "--proxy", PROXY)] == [first + 2]

        async def is_refusing() -> bool:
            done = await history.run("proxy", "web", "-o", "json")
            found = json.loads(done.out) if not done.code else []  # it may not be written yet
            return [(each["revision"], each["refusing"], each["connected"]) for each in found] == [
                (first + 1, True, True)
            ]

        await eventually(is_refusing)
    async with plane_of(KeptSource(*base, *routed("3s")), folder) as plane:
        await eventually(lambda: plane.state.reducer.intake.stale() == {})
    listed = await history.json()
    assert listed[1]["causes"] == ["restored from the state of the last run"]
    assert [each["revision"] for each in listed] == list(range(first + 4, first - 1, -1))[: len(listed)]
    objects = (await history.run("diff", str(first), str(first + 1))).out
    assert "-    timeout: 1s\n+    timeout: 2s" in objects
    sent = await history.run("diff", str(first), str(first + 4), "--proxy", PROXY)
    assert sent.code == 1, sent
    changed = [line for line in sent.out.splitlines() if line[:1] in "+-"]
    assert changed[:2] == [f"--- RDS {port} (revision {first})", f"+++ RDS {port} (revision {first + 4})"]
    assert {line.partition(":")[2].strip(' ",') for line in changed[2:] if line[0] == "-"} == {"1s"}
    assert {line.partition(":")[2].strip(' ",') for line in changed[2:] if line[0] == "+"} == {"3s"}
    same = await history.run("diff", str(first + 2), str(first + 3), "--proxy", PROXY)
    assert (same.code, same.err) == (0, "")
    missing = await history.run("show", "999")
    assert (missing.code, missing.out) == (1, "")
    assert "revision 999 is not kept; kept are" in missing.err


@pytest.mark.parametrize(
    ("words", "env", "asks"),
    [
        ((), {}, "the folder"),
        ((), {"MESH_PILOT_PILOT": "127.0.0.1:1"}, "127.0.0.1:1"),
        (("--pilot", "127.0.0.1:2"), {"MESH_PILOT_PILOT": "127.0.0.1:1", "MESH_PILOT_STATE_DIR": "."}, "127.0.0.1:2"),
        (("--state-dir", "nowhere"), {"MESH_PILOT_PILOT": "127.0.0.1:1"}, "the folder"),
        ((), {"MESH_PILOT_CONTEXT": "nobody"}, "no context"),
    ],
)
def test_what_is_named_says_whether_the_folder_or_a_control_plane_is_read(
    words: tuple[str, ...], env: dict[str, str], asks: str, tmp_path: Path
) -> None:
    own = {"MESH_PILOT_CONTEXTS": str(tmp_path / "none"), "XDG_STATE_HOME": str(tmp_path), "MESH_PILOT_STATE_DIR": ""}
    if "MESH_PILOT_PILOT" not in env and "MESH_PILOT_CONTEXT" not in env:
        own["MESH_PILOT_STATE_DIR"] = str(tmp_path)
    done = mesh_pilot("history", *words, env={**own, **env})
    assert done.code == 1
    assert ("there is no state" if asks == "the folder" else asks) in done.err


def test_a_control_plane_and_a_folder_exclude_each_other_and_proxies_need_the_folder() -> None:
    both = mesh_pilot("history", "list", "--pilot", "127.0.0.1:1", "--state-dir", "x")
    assert (both.code, "exclude --state-dir" in both.err) == (2, True)
    proxy = mesh_pilot("history", "diff", "1", "2", "--proxy", "web-1.shop", "--pilot", "127.0.0.1:1")
    assert (proxy.code, "--proxy needs the state folder" in proxy.err) == (2, True)
