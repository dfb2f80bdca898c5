"""The lock in a real Consul: with ACLs, against late writes, and when somebody else lays hands on it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from mesh_pilot.consul.election.lock import ConsulElectionSettings, ConsulLock
from mesh_pilot.consul.source import Agent, ConsulError
from mesh_pilot.replicas.election.base import Holding, Leader, LockError, LockLost, Replica, Term, TermEnded
from mesh_pilot.replicas.election.elections import LockElection
from tests.support.consul import Consul, cable, closed_consul, token_for
from tests.support.envoy import eventually
from tests.support.planes import running_plane

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("each_consul")]

RULES = 'key_prefix "mesh-pilot/" { policy = "write" } session_prefix "" { policy = "write" }'
"""As docs/replicas.md has them."""
KEY = "mesh-pilot/leader"
TTL = 3.0

Ports = Callable[[int], list[int]]


@attrs.define
class Stage:
    consul: Consul
    agent: Agent

    def lock(self, name: str, **more: Any) -> ConsulLock:
        return ConsulLock(attrs.evolve(self.agent, **more), "", KEY, TTL, Replica(name, "host", "10.0.0.1:15012", "1"))

    async def acquired(self, lock: ConsulLock) -> Holding:
        """Once it is acquired, whatever delays it."""
        found: list[Holding] = []

        async def is_acquired() -> bool:
            answer = await lock.acquire()
            found.extend([answer] if isinstance(answer, Holding) else [])
            return bool(found)

        await eventually(is_acquired, what="the lock")
        return found[0]

    async def entry(self, key: str = KEY) -> dict[str, Any]:
        (found,) = (await self.consul.ask("GET", f"/v1/kv/{key}")).json()
        return dict(found)

    async def keys(self, prefix: str) -> list[str]:
        reply = await self.consul.client.get(f"/v1/kv/{prefix}", params={"keys": ""})
        return list(reply.json()) if reply.status_code == 200 else []


@asynccontextmanager
async def stage(folder: Path, ports: list[int]) -> AsyncIterator[Stage]:
    """A Consul that lets nobody do anything without a token, and one that may do what the documentation says."""
    async with closed_consul(folder, ports, session_ttl_min="1s") as consul:
        secret = await token_for(consul, "leader", RULES)
        yield Stage(consul, Agent(consul.address, token=secret))


async def test_one_of_two_has_it_the_other_learns_whom_and_is_woken_when_it_is_free(
    tmp_path: Path, free_ports: Ports
) -> None:
    async with stage(tmp_path, free_ports(4)) as play:
        one, other = play.lock("one"), play.lock("other")
        holding = await one.acquire()
        assert isinstance(holding, Holding)
        found = await other.acquire()
        assert isinstance(found, Leader)
        assert (found.id, found.term, found.host, found.address) == ("one", holding.term, "host", "10.0.0.1:15012")
        assert found.since is not None
        await one.renew(holding)
        await one.confirm(holding)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(other.wait_free)
                await one.release(holding)
        then = await other.acquire()
        assert isinstance(then, Holding), "a release has no lock delay"
        assert then.term > holding.term
        await other.release(then)
        assert (await play.consul.ask("GET", "/v1/session/list")).json() == [], "nothing is left behind"


async def test_a_write_of_an_old_term_is_refused_by_consul_however_late_it_comes(
    tmp_path: Path, free_ports: Ports
) -> None:
    async with stage(tmp_path, free_ports(4)) as play:
        one, other = play.lock("one"), play.lock("other")
        holding = await play.acquired(one)
        term = Term(holding.term, lambda: "", one, holding)  # one that notices nothing, as a stopped process
        await term.fenced_write("mesh-pilot/x", b"first")
        assert await play.keys("mesh-pilot/x") == ["mesh-pilot/x"]
        await term.fenced_write("mesh-pilot/x", None)
        assert await play.keys("mesh-pilot/x") == []
        await play.consul.ask("PUT", f"/v1/session/destroy/{holding.session}")

        async def is_refused() -> None:
            with pytest.raises(TermEnded, match="held no more"):
                await term.fenced_write("mesh-pilot/x", b"late")
            with pytest.raises(TermEnded):
                await term.confirm()

        await is_refused()  # nobody leads
        await other.release(await play.acquired(other))
        await is_refused()
        again = await play.acquired(one)  # the same replica, in another term
        assert again.term > holding.term
        await is_refused()
        assert await play.keys("mesh-pilot/x") == []


async def test_a_session_that_somebody_destroys_delays_the_lock_and_is_noticed_at_once(
    tmp_path: Path, free_ports: Ports
) -> None:
    async with stage(tmp_path, free_ports(4)) as play:
        one, other = play.lock("one"), play.lock("other")
        holding = await play.acquired(one)
        noticed: list[str] = []

        async def notice() -> None:
            noticed.append(await one.wait_lost(holding))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(notice)
                await play.consul.ask("PUT", f"/v1/session/destroy/{holding.session}")
                assert await other.acquire() is None, "the lock delay"
        assert noticed == ["the lock was released"]
        with pytest.raises(LockLost, match="invalidated"):
            await one.renew(holding)
        await play.acquired(other)


async def test_a_deleted_entry_and_one_that_is_rubbish_are_taken_as_they_are(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as play:
        one, other = play.lock("one"), play.lock("other")
        await play.consul.put(KEY, "rubbish")
        holding = await play.acquired(one)
        await play.consul.put(KEY, "[1")
        found = await other.acquire()
        assert isinstance(found, Leader)
        assert found.id == f"session {holding.session}"
        await play.consul.delete(KEY)
        with trio.fail_after(30):
            assert await one.wait_lost(holding) == "the entry of the lock was deleted"
        with pytest.raises(LockLost, match="deleted"):
            await one.confirm(holding)
        then = await play.acquired(other)
        assert then.term > holding.term, "numbers grow although the entry began again"


async def test_what_consul_refuses_is_one_line_with_the_reason(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as play:
        nobody = play.lock("nobody", token="00000000-0000-0000-0000-00000000bad0")
        with pytest.raises(LockError, match=r"Consul refuses /v1/kv/mesh-pilot/leader: .*ACL"):
            await nobody.acquire()
        long = ConsulLock(play.agent, "", KEY, 0.5, Replica("long"))
        with pytest.raises(LockError, match="Invalid Session TTL"):
            await long.acquire()
        holding = await play.acquired(one := play.lock("one"))
        with pytest.raises(LockError, match=r"Permission denied|403"):
            await one.fenced_write(holding, "elsewhere/x", b"not allowed")
        await play.consul.kill()
        with pytest.raises(LockError, match=r"127\.0\.0\.1"):
            await one.renew(holding)
        with pytest.raises(ConsulError, match="cannot read the token file"):
            ConsulElectionSettings(agent=Agent(token_file=tmp_path / "none")).election(Replica("x"))


async def test_replicas_are_listed_while_they_are_there(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as play, trio.open_nursery() as nursery:
        elections = {name: LockElection(play.lock(name), Replica(name)) for name in ("one", "two", "three")}
        for election in elections.values():
            nursery.start_soon(election.run)

        def listed(*names: str) -> Callable[[], bool]:
            left = [e for name, e in elections.items() if name in names]
            return lambda: all({r.id for r in e.statistics().replicas} == set(names) for e in left)

        await eventually(listed("one", "two", "three"), what="all are listed")
        assert elections["one"].statistics().replicas[0].address == "10.0.0.1:15012"
        elections["two"].resign()
        await eventually(listed("one", "three"), what="who leaves is listed no more")
        await play.consul.delete("mesh-pilot/replicas/one")
        await eventually(listed("three"), what="it is gone")
        await eventually(listed("one", "three"), what="a deleted entry is put there again")
        await play.consul.put("mesh-pilot/replicas/someone", "rubbish")
        await play.consul.ask("PUT", f"/v1/session/destroy/{(await play.entry('mesh-pilot/replicas/one'))['Session']}")
        await eventually(
            listed("one", "three"), what="so it is with its session; what no session holds is not a replica"
        )
        nursery.cancel_scope.cancel()


@pytest.mark.smoke
async def test_planes_show_who_leads_and_hand_over_when_one_is_shut_down(tmp_path: Path, free_ports: Ports) -> None:
    async with stage(tmp_path, free_ports(4)) as play, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        setup = ConsulElectionSettings(agent=play.agent, ttl_seconds=TTL)

        async def page(plane: Any) -> dict[str, Any]:
            return dict((await client.get(f"http://{plane.addresses.http}/debug/leaderz")).json())

        async with running_plane(tmp_path, election=setup) as heir:
            async with running_plane(tmp_path, election=setup) as other:

                async def both_know() -> bool:
                    pages = [await page(plane) for plane in (heir, other)]
                    return all(p["leader"] and len(p["replicas"]) == 2 for p in pages)

                await eventually(both_know, what="both know the leader and each other")
                pages = {plane: await page(plane) for plane in (heir, other)}
                assert [p["leads"] for p in pages.values()].count(True) == 1
                assert len({p["leader"]["id"] for p in pages.values()}) == 1
                for plane, shown in pages.items():
                    metrics = (await client.get(f"http://{plane.addresses.http}/metrics")).text
                    assert f"mesh_pilot_leader {float(shown['leads'])}" in metrics
                    assert "mesh_pilot_leader_changes_total 1.0" in metrics
                assert json.loads((await client.get(f"http://{heir.addresses.http}/debug/statistics")).text)["election"]

            async def leads_alone() -> bool:
                shown = await page(heir)
                return shown["leads"] and len(shown["replicas"]) == 1

            await eventually(leads_alone, what="the other one has let go")
        assert await play.keys("mesh-pilot/replicas/") == []


async def test_a_plane_without_its_consul_says_so_and_that_nobody_leads(tmp_path: Path, free_ports: Ports) -> None:
    async with (
        stage(tmp_path, free_ports(4)) as play,
        cable(play.consul.port) as line,
        httpx.AsyncClient(trust_env=False, timeout=30) as client,
    ):
        setup = ConsulElectionSettings(agent=attrs.evolve(play.agent, address=line.address), ttl_seconds=TTL)
        async with running_plane(tmp_path, election=setup) as plane:
            election = plane.state.election
            await eventually(lambda: election.statistics().leads, what="it leads")
            line.cut()
            await eventually(lambda: not election.statistics().leads, what="it leads no more")
            shown = (await client.get(f"http://{plane.addresses.http}/debug/leaderz")).json()
            assert line.address in shown["trouble"]
            assert not shown["leads"] and shown["leader"] is None
            assert (await client.get(f"http://{plane.addresses.http}/ready")).status_code == 200
            line.fix()
            await eventually(lambda: election.statistics().leads, what="it leads again")
