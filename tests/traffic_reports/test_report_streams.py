"""The server of reports: what streams leave in the table, and what of a bad one others notice."""

from __future__ import annotations

import attrs
import pytest
import trio
from grpclib.const import Status

from mesh_pilot.identity.trust.callers import AuthenticationError, AuthenticatorUnavailable
from mesh_pilot.model.bounds import Bounds
from mesh_pilot.model.proxy import Proxy
from mesh_pilot.model.traffic import REPORTS_PATH, Counter, RowKind
from mesh_pilot.traffic import server as server_module
from mesh_pilot.traffic.server import TrafficServer
from mesh_pilot.traffic.table import CallingWorkload, TrafficTable
from mesh_pilot.xds.ads.admission import Admit, Authenticate, RawStream
from tests.support.traffic_counts import row
from tests.traffic_reports.streams import LRS_PATH, agents, loads, node, streams

REVIEWS = "outbound|9080||reviews.test"
RATINGS = "outbound|9080||ratings.test"
PRINCIPAL = "spiffe://cluster.local/ns/shop/sa/web"
TEN = {"successful_requests": 8, "error_requests": 2, "issued_requests": 10}


def counted(table: TrafficTable) -> dict[str, dict[str, int]]:
    """All that a table has, by the names of rows and counters."""
    return {
        edge.name: {counter.name.lower(): count for counter, count in edge.counts.values.items()}
        for edge in table.edges()
    }


async def test_a_load_report_becomes_attempts_of_its_proxy(autojump_clock: trio.testing.MockClock) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table, seconds=5)) as opened:
        call = opened()
        await call.send(loads(node(app="web")))
        assert await call.interval() == 5
        await call.send(loads(node(), **{REVIEWS: TEN, RATINGS: {}}))
        (edge,) = table.edges()
        assert (edge.name, edge.proxy.name) == (REVIEWS, "web-1.shop")
        assert edge.proxy.workload == CallingWorkload("shop", "web", "", (("app", "web"),))
        assert edge.counts.values == {Counter.ATTEMPTS: 10, Counter.FAILED_ATTEMPTS: 2}
        assert edge.counts.requests is None


async def test_a_refused_connection_is_an_attempt_that_envoy_never_issued(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table)) as opened:
        call = opened()
        await call.send(loads(node()), loads(**{REVIEWS: {"error_requests": 9}}))
        assert counted(table) == {REVIEWS: {"attempts": 9, "failed_attempts": 9}}


async def test_issued_without_an_end_are_connections_of_tcp(autojump_clock: trio.testing.MockClock) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table)) as opened:
        call = opened()
        begun = {"issued_requests": 3}
        await call.send(
            loads(node()), loads(**{REVIEWS: begun, RATINGS: TEN}), loads(**{REVIEWS: begun, RATINGS: begun})
        )
        assert counted(table) == {REVIEWS: {"connections": 6}, RATINGS: {"attempts": 10, "failed_attempts": 2}}


async def test_in_flight_is_the_latest_figure(autojump_clock: trio.testing.MockClock) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table)) as opened:
        call = opened()
        await call.send(
            loads(node()),
            loads(**{REVIEWS: {**TEN, "requests_in_progress": 4}, "xds-grpc": {"requests_in_progress": 1}}),
        )
        assert counted(table)[REVIEWS]["in_flight"] == 4
        assert "xds-grpc" not in counted(table)
        await call.send(loads(**{REVIEWS: {}}))
        assert "in_flight" not in counted(table)[REVIEWS]
        await call.send(loads(**{REVIEWS: {**TEN, "requests_in_progress": 7}}))
        call.half_close()
        await call.wait_ended()
        assert counted(table)[REVIEWS] == {"attempts": 20, "failed_attempts": 4}


async def test_load_reports_that_come_beside_those_of_an_agent_are_not_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table)) as opened:
        agent, envoy = opened(REPORTS_PATH), opened()
        mine = row(REVIEWS, requests=8, errors=1, attempts=10, connections=2, in_flight=1)
        await agent.send(agents(of=node()))
        assert await agent.interval() == 10
        await envoy.send(loads(node()), loads(**{REVIEWS: TEN, RATINGS: {"issued_requests": 3}}))
        await agent.send(agents(mine, row("blocked", RowKind.LISTENER, no_route=3)))
        found = {"requests": 8, "errors": 1, "attempts": 10, "connections": 2, "in_flight": 1}
        assert counted(table) == {REVIEWS: found, "blocked": {"no_route": 3}}
        await envoy.send(loads(**{REVIEWS: TEN}))
        assert counted(table) == {REVIEWS: found, "blocked": {"no_route": 3}}
        assert all(edge.counts.has_requests for edge in table.edges())
        agent.half_close()
        await agent.wait_ended()
        assert all(edge.counts.has_requests for edge in table.edges())
        await envoy.send(loads(**{RATINGS: TEN}))
        assert counted(table)[RATINGS] == {"attempts": 10, "failed_attempts": 2}
        assert not any(edge.counts.has_requests for edge in table.edges()), "it has no agent any more"


async def test_an_agents_figure_holds_until_it_tells_another_or_is_gone(autojump_clock: trio.testing.MockClock) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table)) as opened:
        agent = opened(REPORTS_PATH)
        await agent.send(agents(row(REVIEWS, in_flight=5), of=node()))
        for _ in range(100):
            await trio.sleep(10)
            await agent.send(agents())
            table.forget()
        assert counted(table) == {REVIEWS: {"in_flight": 5}}
        agent.scope.cancel()
        await agent.wait_ended()
        assert counted(table) == {}


async def test_several_streams_of_a_node_are_added_up(autojump_clock: trio.testing.MockClock) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table)) as opened:
        for _ in range(3):
            await opened().send(loads(node()), loads(**{REVIEWS: TEN}))
        assert counted(table) == {REVIEWS: {"attempts": 30, "failed_attempts": 6}}


@pytest.mark.parametrize(
    "path, first, status, reason",
    [
        (LRS_PATH, b"", Status.INVALID_ARGUMENT, "must have a node"),
        (LRS_PATH, b"\x0a\xff", Status.INVALID_ARGUMENT, "is cut short"),
        (LRS_PATH, b"\x0a\x02\x0a\xff", Status.INVALID_ARGUMENT, "cannot be decoded"),
        (LRS_PATH, b"\x0a\x03\x0a\x01x", Status.INVALID_ARGUMENT, "malformed node id"),
        (LRS_PATH, bytes(2_000_000), Status.RESOURCE_EXHAUSTED, "--max-node-bytes"),
        (REPORTS_PATH, b"", Status.INVALID_ARGUMENT, "must have a node"),
        (REPORTS_PATH, b"\x0a\xff", Status.INVALID_ARGUMENT, "is cut short"),
        (REPORTS_PATH, bytes(2_000_000), Status.RESOURCE_EXHAUSTED, "--max-node-bytes"),
    ],
)  # fmt: skip
async def test_a_bad_first_message_is_refused_with_its_reason(
    autojump_clock: trio.testing.MockClock, path: str, first: bytes, status: Status, reason: str
) -> None:
    server = TrafficServer(TrafficTable())
    async with streams(server) as opened:
        call = opened(path)
        await call.send(first)
        error = await call.wait_ended()
        assert error is not None
        assert (error.status, reason in str(error.message)) == (status, True), error
    assert server.statistics().refused == {status.name: 1}


@pytest.mark.parametrize(
    "path, bad, reason",
    [
        (LRS_PATH, b"\x12\xff", "cannot be decoded"),
        (LRS_PATH, loads(**{"a" * 70_000: {}}), "a cluster of more than"),
        (LRS_PATH, b"\x12\x00" * 40_000 + b"\x12\xff", "is cut short"),
        (REPORTS_PATH, b"\x1a\x02\x12\xff", "is cut short"),
        (REPORTS_PATH, b"\x1a\x03\x12\x01\xff", "cannot be decoded"),
        (REPORTS_PATH, b"\x1a\x00" * 21_000, "more than 20,000 rows"),
        (REPORTS_PATH, agents(row("a" * 9_000, requests=1)), "a row of more than"),
        (REPORTS_PATH, bytes(5_000_000), "more than 4,194,304 bytes"),
    ],
)  # fmt: skip
async def test_a_bad_report_ends_its_own_stream(
    autojump_clock: trio.testing.MockClock, path: str, bad: bytes, reason: str
) -> None:
    table = TrafficTable()
    first = agents(of=node()) if path == REPORTS_PATH else loads(node())
    async with streams(TrafficServer(table)) as opened:
        good, hostile = opened(), opened(path)
        await good.send(loads(node("other-1")))
        await hostile.send(first)
        await hostile.send(bad)
        error = await hostile.wait_ended()
        assert error is not None
        assert error.status is Status.INVALID_ARGUMENT
        assert reason in str(error.message), error
        await good.send(loads(**{REVIEWS: TEN}))
        assert counted(table) == {REVIEWS: {"attempts": 10, "failed_attempts": 2}}


async def test_a_client_that_reports_too_fast_is_read_slower_and_loses_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    table = TrafficTable()
    server = TrafficServer(table)
    async with streams(server) as opened:
        call = opened()
        await call.send(loads(node()))
        began = trio.current_time()
        for _ in range(300):
            await call.send(loads(**{REVIEWS: TEN}))
        call.half_close()
        await call.wait_ended()
        assert trio.current_time() - began >= 19
        assert counted(table)[REVIEWS]["attempts"] == 3000
    assert server.statistics().delayed >= 190


async def test_a_node_has_so_many_streams(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_STREAMS_OF_NODE", 2)
    async with streams(TrafficServer(TrafficTable())) as opened:
        first, second, third = opened(), opened(), opened()
        for call in (first, second, third):
            await call.send(loads(node()))
        error = await third.wait_ended()
        assert error is not None
        assert error.status is Status.RESOURCE_EXHAUSTED
        first.half_close()
        await first.wait_ended()
        another = opened()
        await another.send(loads(node()))
        assert await another.interval() == 10


async def test_streams_are_bounded_and_the_silent_one_gives_way(autojump_clock: trio.testing.MockClock) -> None:
    async with streams(TrafficServer(TrafficTable(), bounds=Bounds(max_streams=2))) as opened:
        silent, first = opened(address="10.0.0.9:1"), opened(address="10.0.0.1:1")
        await first.send(loads(node()))
        second = opened(address="10.0.0.2:1")
        await second.send(loads(node("web-2")))
        assert await second.interval() == 10
        error = await silent.wait_ended()
        assert error is not None
        assert error.status is Status.RESOURCE_EXHAUSTED


async def test_a_drain_ends_every_stream_and_refuses_new_ones(autojump_clock: trio.testing.MockClock) -> None:
    server = TrafficServer(TrafficTable())
    async with streams(server) as opened:
        known, silent = opened(), opened()
        await known.send(loads(node()))
        server.drain()
        for call in (known, silent, opened()):
            error = await call.wait_ended()
            assert error is not None
            assert error.status is Status.UNAVAILABLE
    assert server.statistics().streams == 0


async def test_a_stream_that_breaks_leaves_a_gap(autojump_clock: trio.testing.MockClock) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table)) as opened:
        call = opened()
        await call.send(loads(node()))
        await trio.sleep(700)
        await call.send(loads(**{REVIEWS: TEN}))
        assert [edge.counts.is_complete for edge in table.edges()] == [True]
        call.scope.cancel()
        await call.wait_ended()
        assert [edge.counts.is_complete for edge in table.edges()] == [False]


@pytest.mark.parametrize("since_report", [2, 8])
async def test_a_stream_that_retires_ends_between_two_reports(
    autojump_clock: trio.testing.MockClock, since_report: int
) -> None:
    table = TrafficTable()
    server = TrafficServer(table)
    async with streams(server) as opened:
        call = opened()
        await call.send(loads(node()))
        await trio.sleep(700)
        await call.send(loads(**{REVIEWS: TEN}))
        await trio.sleep(since_report)
        call.retire()
        if since_report == 8:
            await trio.testing.wait_all_tasks_blocked()
            assert not call.ended.is_set()
            await call.send(loads(**{REVIEWS: TEN}))
        assert await call.wait_ended() is None
        assert [edge.counts.is_complete for edge in table.edges()] == [True]
    assert server.statistics().broken == 0


# -- who reports


def vouching(error: Exception | None = None) -> Authenticate:
    """An authenticator: of callers with a certificate it knows who they are; with an error it refuses them."""

    async def authenticate(call: RawStream) -> Admit:
        if isinstance(error, AuthenticatorUnavailable):
            raise error

        def admit(proxy: Proxy) -> Proxy:
            if error is not None:
                raise error
            return attrs.evolve(proxy, identity=PRINCIPAL if call.peer.spiffe_ids else "")

        return admit

    return authenticate


@pytest.mark.parametrize(
    "error, status",
    [
        (AuthenticationError("other", "this is somebody else"), Status.UNAUTHENTICATED),
        (AuthenticatorUnavailable("nobody can tell"), Status.UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("path", [LRS_PATH, REPORTS_PATH])
async def test_who_is_not_admitted_reports_nothing(
    autojump_clock: trio.testing.MockClock, path: str, error: Exception, status: Status
) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table, authenticate=vouching(error))) as opened:
        call = opened(path)
        await call.send(agents(row(REVIEWS, requests=1), of=node()) if path == REPORTS_PATH else loads(node()))
        refused = await call.wait_ended()
        assert refused is not None
        assert refused.status is status
    assert table.statistics().callers == 0


async def test_nobody_reports_in_the_name_of_a_proxy_with_an_identity(autojump_clock: trio.testing.MockClock) -> None:
    table = TrafficTable()
    async with streams(TrafficServer(table, authenticate=vouching())) as opened:
        proven, claimed = opened(spiffe_ids=(PRINCIPAL,)), opened()
        await proven.send(loads(node()), loads(**{REVIEWS: TEN}))
        (edge,) = table.edges()
        assert edge.proxy.workload.principal == PRINCIPAL
        await claimed.send(loads(node()))
        error = await claimed.wait_ended()
        assert error is not None
        assert error.status is Status.UNAUTHENTICATED
        assert [edge.proxy for edge in table.edges()] == [edge.proxy]
