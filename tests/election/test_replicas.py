"""Three replicas with a real Consul: the leader is killed, paused and resumed, cut off. Never two act."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from pathlib import Path

import attrs
import pytest
import trio

from tests.election.replica import KEY
from tests.support.consul import Cable, Consul, cable, real_consul
from tests.support.envoy import eventually

pytestmark = pytest.mark.process

NAMES = ("one", "two", "three")
TTL_SECONDS = 2.0
PAUSES = {"session_ttl_min": "1s"}

Ports = Callable[[int], list[int]]


@attrs.define
class ReplicaProcess:
    """A replica that a test mistreats."""

    name: str
    cable: Cable
    log: Path
    command: Sequence[str]
    process: subprocess.Popen[bytes] = attrs.field(init=False)

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output)

    def says(self, text: str) -> int:
        return self.log.read_text().count(text)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def end(self) -> None:
        self.process.kill()
        await trio.to_thread.run_sync(self.process.wait)


@attrs.define
class Stage:
    consul: Consul
    replicas: dict[str, ReplicaProcess]
    file: Path

    def acts(self) -> list[tuple[int, str, int]]:
        """All that leaders ever did: term, name, number in the term."""
        return acts_of(self.file.read_text()) if self.file.exists() else []

    async def next_leader(self, after: int) -> tuple[int, str]:
        """The first term above ``after``, once its leader has acted some ten times."""

        def acted() -> bool:
            return bool(acts := self.acts()) and acts[-1][0] > after and acts[-1][2] > 10

        await eventually(acted, what=f"a term after {after}")
        term, name, _ = self.acts()[-1]
        return term, name

    async def check(self) -> None:
        """Each term has one leader, terms never go back, and nothing of a term is missing or comes late."""
        entry = (await self.consul.ask("GET", f"/v1/kv/{KEY}", params={"raw": ""})).text
        for acts in (self.acts(), acts_of(entry)):
            terms = [(term, name) for (term, name), _ in groupby(acts, key=lambda act: act[:2])]
            assert terms == sorted(terms, key=lambda each: each[0]), terms
            assert len({term for term, _ in terms}) == len(terms), terms
            for _, group in groupby(acts, key=lambda act: act[0]):
                numbers = [number for _, _, number in group]
                assert numbers == list(range(len(numbers)))


def acts_of(text: str) -> list[tuple[int, str, int]]:
    lines = [line.split() for line in text.split("\n") if line]
    return [(int(term), name, int(number)) for term, name, number in (line for line in lines if len(line) == 3)]


@asynccontextmanager
async def stage(folder: Path, ports: list[int]) -> AsyncIterator[Stage]:
    async with real_consul(folder, ports, config=PAUSES) as consul, AsyncExitStack() as stack:
        found = Stage(consul, {}, folder / "acts")
        try:
            for name in NAMES:
                line = await stack.enter_async_context(cable(consul.port))
                arguments = [line.address, name, str(found.file), str(TTL_SECONDS)]
                command = [sys.executable, "-m", "tests.election.replica", *arguments]
                found.replicas[name] = ReplicaProcess(name, line, folder / f"{name}.log", command)
                found.replicas[name].start()
            yield found
        finally:
            with trio.CancelScope(shield=True):
                for replica in found.replicas.values():
                    await replica.end()


async def test_a_leader_that_is_killed_is_followed_by_another(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as play:
        term, name = await play.next_leader(0)
        await play.replicas[name].end()
        term, heir = await play.next_leader(term)
        assert heir != name
        play.replicas[name].start()
        play.replicas[heir].signal(signal.SIGKILL)
        await play.next_leader(term)
        await play.check()


@pytest.mark.slow
async def test_a_leader_that_is_paused_and_resumed_acts_no_more(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as play:
        term, name = await play.next_leader(0)
        play.replicas[name].signal(signal.SIGSTOP)
        term, heir = await play.next_leader(term)
        assert heir != name
        play.replicas[name].signal(signal.SIGCONT)
        await eventually(lambda: play.replicas[name].says("not leading any more") == 1, what="it noticed")
        await eventually(lambda: play.replicas[name].says("following") >= 1, what="it follows")
        play.replicas[heir].signal(signal.SIGSTOP)
        await play.next_leader(term)
        play.replicas[heir].signal(signal.SIGCONT)
        await eventually(lambda: play.replicas[heir].says("not leading any more") == 1, what="it noticed")
        await play.check()


@pytest.mark.slow
async def test_a_leader_that_is_cut_off_stops_before_another_begins(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as play:
        term, name = await play.next_leader(0)
        play.replicas[name].cable.cut()
        term, heir = await play.next_leader(term)
        assert heir != name
        assert play.replicas[name].says("not leading any more") == 1
        play.replicas[name].cable.fix()
        await eventually(lambda: play.replicas[name].says("following") >= 1, what="it follows")
        for each in play.replicas.values():
            each.cable.cut()
        await eventually(lambda: play.replicas[heir].says("not leading any more") == 1, what="nobody leads")
        for each in play.replicas.values():
            each.cable.fix()
        await play.next_leader(term)
        await play.check()


@pytest.mark.slow
async def test_any_misfortune_in_any_order(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as play:
        term, name = await play.next_leader(0)
        for number in range(6):
            replica = play.replicas[name]
            match number % 3:
                case 0:
                    replica.signal(signal.SIGSTOP)
                case 1:
                    await replica.end()
                case 2:
                    replica.cable.cut()
            term, heir = await play.next_leader(term)
            match number % 3:
                case 0:
                    replica.signal(signal.SIGCONT)
                case 1:
                    replica.start()
                case 2:
                    replica.cable.fix()
            name = heir
        await play.check()
