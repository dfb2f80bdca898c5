"""Attacks by requests of xDS beside a good client: pushes go on, memory comes back, the log is short."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.attack import GoodClient, Report, good_client, under_attack
from support.pilot import Pilot, entries, running, until

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("request_attacks.py")
SECONDS = 8
SOME = 150
"""Derived values by which a plane with 50 services may differ from before: those of the last edits."""


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    with running(tmp_path / "config", services=50) as found:
        yield found


@pytest.fixture
def client(pilot: Pilot) -> Iterator[GoodClient]:
    with good_client(pilot) as found:
        yield found


def statistics(pilot: Pilot) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{pilot.web_port}/debug/statistics", timeout=60) as response:
        found: dict[str, Any] = json.load(response)
    return found


def memo(pilot: Pilot) -> tuple[int, int]:
    """Cells and derived values."""
    held = statistics(pilot)["memo"]
    return held["cells"], held["derived"]


def metrics(pilot: Pilot) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{pilot.monitoring_port}/metrics", timeout=60) as response:
        text: str = response.read().decode()
    return text


A_CROWD = 500_000
"""Bytes of log that hundreds of clients write that come and go: two lines each."""


def attacked(pilot: Pilot, client: GoodClient, attack: str, *, log_bytes: int = 100_000) -> Report:
    """The report of an attack, after which no more is held than before."""
    client.push()
    cells, derived = memo(pilot)
    report = under_attack(pilot, client, [SCRIPT, str(pilot.grpc_port), str(SECONDS), attack])

    def is_back() -> bool:
        now = memo(pilot)
        return now[0] <= cells + SOME and now[1] <= derived + SOME

    until(is_back, 60, "derived values are back at what they were")
    report.assert_held(log_bytes=log_bytes)
    return report


def reasons(report: Report) -> str:
    return "\n".join(report.attacker["told"])


@pytest.mark.parametrize("attack", ["cluster_names", "endpoint_names", "port_names", "route_names", "secret_names"])
def test_names_of_nothing(pilot: Pilot, client: GoodClient, attack: str) -> None:
    report = attacked(pilot, client, attack)
    if report.attacker["told"]:  # unless the machine was too busy to get so far
        assert "more than the limit of 50,000 (--max-names)" in reasons(report)
        assert 'mesh_pilot_xds_bound_exceeded{bound="max_names"} 1' in metrics(pilot)


@pytest.mark.parametrize(
    ("attack", "flag"),
    [("many_values", "--max-n"), ("few_values", "--max-node-values"), ("fat_nodes", "the limit of 16777216 bytes")],
)
def test_a_node_that_is_too_large(pilot: Pilot, client: GoodClient, attack: str, flag: str) -> None:
    assert flag in reasons(attacked(pilot, client, attack))


def test_many_namespaces(pilot: Pilot, client: GoodClient) -> None:
    report = attacked(pilot, client, "namespaces", log_bytes=A_CROWD)
    if report.attacker["sent"] > 1900:  # unless the machine was too busy to get so far
        assert "--max-scopes-per-peer" in reasons(report)


def test_wrong_nonces(pilot: Pilot, client: GoodClient) -> None:
    attacked(pilot, client, "wrong_nonces")
    assert "mesh_pilot_xds_delayed_requests 0.0" not in metrics(pilot)


def test_who_refuses_for_ever_does_not_fill_the_log(pilot: Pilot, client: GoodClient) -> None:
    report = attacked(pilot, client, "nack_for_ever")
    assert report.log_bytes < 60_000
    assert pilot.log().count("NACK: what the proxy had before stays in force") == 20
    assert "mesh_pilot_xds_suppressed_log_lines 0.0" not in metrics(pilot)


def test_who_never_acks(pilot: Pilot, client: GoodClient) -> None:
    attacked(pilot, client, "never_ack", log_bytes=A_CROWD)


def test_clients_and_services_that_come_and_go_leave_no_memory_behind(pilot: Pilot, client: GoodClient) -> None:
    client.push()
    base, before = pilot.resident_kb(), memo(pilot)
    extra = pilot.folder / "extra.yaml"
    for round_ in range(3):
        text = entries(80, 2000).replace("name: s", f"name: r{round_}x").replace("[s", f"[r{round_}x")
        extra.with_name(".extra").write_text(text)
        extra.with_name(".extra").rename(extra)
        subprocess.run([sys.executable, SCRIPT, str(pilot.grpc_port), str(SECONDS), "come_and_go"], check=True)
        extra.unlink()
    until(lambda: memo(pilot) <= (before[0] + SOME, before[1] + SOME), 60, "derived values are back")
    until(lambda: pilot.resident_kb() < 2 * base, 60, "memory is back under twice its base")
