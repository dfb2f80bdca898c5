"""Every attack on HTTP/2 beside a good client: pushes go on, memory comes back, the log is short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.attack import GoodClient, Report, good_client, under_attack
from support.pilot import Pilot, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("transport_attacks.py")
SECONDS = 5


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    with running(tmp_path / "config", services=50) as found:
        yield found


@pytest.fixture
def client(pilot: Pilot) -> Iterator[GoodClient]:
    with good_client(pilot) as found:
        yield found


def attacked(pilot: Pilot, client: GoodClient, attack: str) -> Report:
    return under_attack(pilot, client, [SCRIPT, str(pilot.grpc_port), str(SECONDS), attack])


@pytest.mark.parametrize(
    "attack", ["idle_tcp", "idle_http2", "slowloris", "garbage", "zero_window", "deaf", "half_messages"]
)
def test_a_crowd_that_says_little(pilot: Pilot, client: GoodClient, attack: str) -> None:
    attacked(pilot, client, attack).assert_held()
