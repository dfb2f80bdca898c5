"""Flags on connections: what they limit, and what they must not limit without being asked to."""

from __future__ import annotations

import resource

import pytest
import trio

from mesh_pilot.cli.discovery.connection_flags import ConnectionFlags
from mesh_pilot.cli.lib.process import open_more_files
from mesh_pilot.net.rpc import SERVER_LIMITS, connection_shares
from mesh_pilot.net.rpc.admission import Admission


@pytest.mark.parametrize(
    ("requests", "connections", "streams"),
    [(25.0, 500.0, 1000.0), (500.0, 500.0, 1000.0), (800.0, 800.0, 1000.0), (5000.0, 5000.0, 5000.0), (0.0, 0.0, 0.0)],
)
def test_the_port_admits_as_many_as_xds_does(requests: float, connections: float, streams: float) -> None:
    limits = ConnectionFlags().limits(requests)
    assert (limits.connection_rate, limits.stream_rate) == (connections, streams)


def test_the_defaults_are_those_of_servers() -> None:
    limits = ConnectionFlags().limits(500.0)
    assert limits.max_connections == SERVER_LIMITS.max_connections
    assert limits.max_connection_age_seconds == SERVER_LIMITS.max_connection_age_seconds


async def test_any_number_is_admitted_at_a_rate_of_zero(autojump_clock: object) -> None:
    admission = Admission(ConnectionFlags().limits(0.0))
    began = trio.current_time()
    for _ in range(5000):
        await admission.connection()
        await admission.stream(trio.Lock())
    assert trio.current_time() == began


@pytest.mark.parametrize(("given", "most"), [(0, 500), (100, 100), (10_000, 500)])
def test_connections_stay_below_the_open_files_whatever_is_given(given: int, most: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (800, before[1]))
    try:
        limits = ConnectionFlags(max_connections=given).limits(500.0)
        assert connection_shares(limits).limit == most
        open_more_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
