"""The Lease, at an API server in the test's hand: conflicts, errors, slow answers, and clocks that differ."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mesh_pilot.kubernetes.apiserver import Access, KubernetesError
from mesh_pilot.kubernetes.election.lease import KubernetesElectionSettings, KubernetesLease
from mesh_pilot.kubernetes.election.lease_record import read_lease
from mesh_pilot.replicas.election.base import Holding, Leader, LockError, LockLost, Replica, Term
from mesh_pilot.replicas.election.elections import LockElection
from tests.support.api_double import LEASES, TOKEN, ApiDouble, serving
from tests.support.api_objects import Request
from tests.support.envoy import eventually
from tests.support.sample import examples

TTL = 15.0


PLACE, KEY = (LEASES.group, LEASES.plural), ("istio-system", "leader")


@attrs.define(eq=False)
class LeaseServer:
    """The Lease of an API server."""

    double: ApiDouble = attrs.field(factory=lambda: ApiDouble([LEASES], token=TOKEN))

    @property
    def lease(self) -> dict[str, Any] | None:
        return self.double.find(LEASES, *reversed(KEY))

    @lease.setter
    def lease(self, lease: dict[str, Any] | None) -> None:
        """Also one that no server would have."""
        self.double.objects[PLACE] = {} if lease is None else {KEY: lease}

    def edit(self, **spec: object) -> None:
        """Somebody else's change."""
        assert self.lease is not None
        self.double.put(LEASES, {**self.lease, "spec": {**self.lease["spec"], **spec}})


@attrs.define(eq=False)
class Stage:
    """State: a server, and replicas each with its own clock, that the test moves."""

    server: LeaseServer
    access: Access
    now: float = 0.0

    def lease(
        self, name: str, *, offset: float = 0.0, ttl: float = TTL, clock: Callable[[], float] | None = None
    ) -> KubernetesLease:
        own = clock or (lambda: self.now + offset)
        return KubernetesLease(self.access, "istio-system", "leader", ttl, Replica(name), own)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    server = LeaseServer()
    async with serving(server.double) as access:
        yield Stage(server, access)


async def test_it_is_written_as_client_go_writes_it() -> None:
    async with stage() as play:
        one = play.lease("one")
        assert await one.acquire() == Holding(1)
        lease = play.server.lease
        assert lease is not None
        assert (lease["apiVersion"], lease["kind"]) == ("coordination.k8s.io/v1", "Lease")
        assert lease["metadata"]["name"] == "leader"
        spec = lease["spec"]
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("one", 15, 0)
        assert spec["acquireTime"] == spec["renewTime"]
        assert len(spec["renewTime"]) == len("2026-11-23T15:00:00.000000Z")
        await one.renew(Holding(1))
        assert play.server.lease is not None
        renewed = play.server.lease["spec"]
        assert renewed["renewTime"] > spec["renewTime"]
        assert {**renewed, "renewTime": ""} == {**spec, "renewTime": ""}


async def test_another_takes_it_once_it_has_not_changed_for_its_duration_by_that_ones_own_clock() -> None:
    async with stage() as play:
        one, other = play.lease("one"), play.lease("other", offset=-3e6)
        assert await one.acquire() == Holding(1)
        play.now = 100.0
        found = await other.acquire()
        assert isinstance(found, Leader), "however old it is, it was just seen"
        assert (found.id, found.term) == ("one", 1)
        assert found.since is not None
        play.now = 110.0
        await one.renew(Holding(1))
        play.now = 116.0
        assert isinstance(await other.acquire(), Leader), "it has changed"
        play.now = 130.9
        assert isinstance(await other.acquire(), Leader)
        play.now = 131.0
        assert await other.acquire() == Holding(2)
        with pytest.raises(LockLost, match="other has the Lease"):
            await one.renew(Holding(1))
        await one.release(Holding(1))
        assert play.server.lease is not None
        assert play.server.lease["spec"]["holderIdentity"] == "other", "a late release releases nothing"


async def test_a_release_lets_another_have_it_at_once() -> None:
    async with stage() as play:
        one, other = play.lease("one"), play.lease("other")
        await one.acquire()
        assert isinstance(await other.acquire(), Leader)
        await one.release(Holding(1))
        assert await other.acquire() == Holding(2)
        with pytest.raises(LockLost):
            await one.renew(Holding(1))


async def test_of_replicas_that_begin_at_once_one_has_it() -> None:
    async with stage() as play:
        found: list[Any] = []

        async def begin(lease: KubernetesLease) -> None:
            found.append(await lease.acquire())

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(begin, play.lease(f"r{number}"))
        assert [isinstance(each, Holding) for each in found].count(True) == 1


async def test_whoever_edits_it_does_not_end_a_term_unless_the_holder_is_another() -> None:
    async with stage() as play:
        one = play.lease("one")
        await one.acquire()
        play.server.edit(note="hello")
        await one.renew(Holding(1))
        assert play.server.lease is not None
        assert play.server.lease["spec"]["note"] == "hello", "and the edit stays"
        play.server.edit(holderIdentity="boss")
        with pytest.raises(LockLost, match="boss"):
            await one.renew(Holding(1))
        play.server.lease = None
        with pytest.raises(LockLost, match="deleted"):
            await one.confirm(Holding(1))


async def test_numbers_of_terms_that_are_used_up_by_an_edit_begin_with_1_again() -> None:
    async with stage() as play:
        one = play.lease("one")
        await one.acquire()
        play.server.edit(holderIdentity="", leaseTransitions=2**31 - 1)
        assert await one.acquire() == Holding(1)
        await one.renew(Holding(1))


async def test_a_write_whose_answer_is_lost_does_no_harm() -> None:
    async with stage() as play:
        one = play.lease("one")
        play.server.double.lose("POST")
        with pytest.raises(LockError, match=r"127\.0\.0\.1"):
            await one.acquire()
        assert await one.acquire() == Holding(2), "it holds it without knowing, and takes it again"
        play.server.double.lose("PUT")
        with pytest.raises(LockError):
            await one.renew(Holding(2))
        await one.renew(Holding(2))


async def test_what_the_server_says_is_one_line(autojump_clock: trio.testing.MockClock) -> None:
    async with stage() as play:
        one = play.lease("one")
        play.server.double.fail("GET", 503)
        with pytest.raises(LockError, match=r"GET .*/leases/leader is refused: 503 not now"):
            await one.acquire()
        play.server.double.fail("GET", 403)
        with pytest.raises(LockError, match="403 not now"):
            await one.acquire()
        holding = await one.acquire()
        assert holding == Holding(1)
        play.server.lease = {"metadata": {}, "spec": 7}
        with pytest.raises(LockError, match="not a Lease"):
            await one.acquire()
        for odd in ({}, {"spec": None}, {"spec": {"leaseTransitions": 1e400}}, {"spec": {"leaseTransitions": "x"}}):
            play.server.lease = {"metadata": {"resourceVersion": "9"}, **odd}
            with suppress(LockError):
                await one.acquire()
        with pytest.raises(LockError, match="fences no writes"):
            await Term(1, lambda: "", one, Holding(1)).fenced_write("key", b"value")


async def test_a_server_that_says_nothing_is_waited_for_a_fifth_of_the_ttl(
    autojump_clock: trio.testing.MockClock,
) -> None:
    double = ApiDouble([LEASES])
    double.silent = True
    async with serving(double) as access:
        lease = KubernetesLease(access, "a", "b", TTL, Replica("x"), trio.current_time)
        began = trio.current_time()
        with pytest.raises(LockError, match="no answer within 3 s"):
            await lease.acquire()
        assert trio.current_time() - began == TTL / 5


@given(
    skews=st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    speeds=st.lists(st.floats(0.95, 1.05), min_size=3, max_size=3),
    faults=st.lists(st.sampled_from(["", "", "lost", "503", "conflict", "gap"]), max_size=40),
)
@settings(max_examples=examples(20), deadline=None)
def test_leaders_are_never_two_with_faults_and_skew(skews: list[float], speeds: list[float], faults: list[str]) -> None:
    """Three elections on one Lease, in-process without sockets, on a clock that jumps."""
    acts: list[tuple[int, str]] = []
    acting: set[str] = set()

    async def main() -> None:
        server = LeaseServer()
        left = list(faults)

        class Direct(KubernetesLease):
            async def _ask(self, method: str, path: str, body: Any = None) -> Any:
                fault = left.pop() if left else ""
                await trio.sleep(4.0 if fault == "gap" else 0.05)
                if fault == "503":
                    raise LockError("503")
                if fault == "conflict" and server.lease:
                    server.edit()
                headers = {"authorization": f"Bearer {TOKEN}"}
                answer = await server.double.answer(Request(method, path, headers, json.dumps(body).encode()))
                await trio.sleep(4.0 if fault == "gap" else 0.05)
                if fault == "lost":
                    raise LockError("lost")
                assert isinstance(answer.body, bytes)
                return json.loads(answer.body) if answer.status in (200, 201) else None

        async def work(name: str, term: Term) -> None:
            assert not acting
            acting.add(name)
            try:
                for _ in range(100):
                    await trio.sleep(0.3)
                    term.check()
                    acts.append((term.number, name))
                elections[name].resign()
                await trio.sleep_forever()
            finally:
                acting.discard(name)

        elections: dict[str, LockElection] = {}
        with trio.move_on_after(400):
            async with trio.open_nursery() as nursery:
                for number, (skew, speed) in enumerate(zip(skews, speeds, strict=True)):
                    clock = _clock(skew, speed)
                    name = f"r{number}"
                    lease = Direct(Access(server="x"), "istio-system", "leader", TTL, Replica(name), clock)
                    elections[name] = LockElection(lease, Replica(name), clock=clock)
                    elections[name].while_leading("act", partial(work, name))
                    nursery.start_soon(elections[name].run)

    with capture_logs():
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    terms = [term for term, _ in acts]
    assert terms == sorted(terms)
    assert all(len({name for term, name in acts if term == each}) == 1 for each in set(terms))
    assert len({name for _, name in acts}) == 3, "each had its turn"


def _clock(skew: float, speed: float) -> Callable[[], float]:
    return lambda: skew + speed * trio.current_time()


async def test_elections_hand_the_lease_over(free_ports: Callable[[int], list[int]]) -> None:
    async with stage() as play, trio.open_nursery() as nursery:
        leases = [play.lease(name, ttl=1.0, clock=trio.current_time) for name in ("one", "two")]
        elections = [LockElection(lease, Replica(f"{lease._replica.id}")) for lease in leases]
        for election in elections:
            nursery.start_soon(election.run)
        await eventually(lambda: any(e.statistics().leads for e in elections), what="one leads")
        first = next(e for e in elections if e.statistics().leads)
        (second,) = (e for e in elections if e is not first)
        first.resign()
        await eventually(lambda: second.statistics().leads, what="the other leads")
        assert second.statistics().kind == "kubernetes"
        assert second.statistics().replicas == ()
        nursery.cancel_scope.cancel()
    assert play.server.lease is not None
    assert read_lease(play.server.lease).holder == "", "shut down, it lets go"


def test_a_kubeconfig_that_is_none_is_a_mistake_at_start(tmp_path: Path) -> None:
    with pytest.raises(KubernetesError, match="cannot read the kubeconfig"):
        KubernetesElectionSettings(kubeconfig=tmp_path / "none").election(Replica("x"))
