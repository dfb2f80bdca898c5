"""Attacks by requests of xDS next to a good client: pushes go on, memory comes back, the log is short."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.attack import SLACK, Report, Victim
from tests.support.pilot import Pilot, entries, until

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).with_name("request_attacks.py")
SECONDS = 5
UNTIL_REFUSED = 50
"""Seconds for attacks that end as soon as they are refused."""
SOME = 150
"""Derived values by which a plane with 50 services may differ from before: those of the last edits."""


def statistics(pilot: Pilot) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{pilot.web_port}/debug/statistics", timeout=60) as response:
        found: dict[str, Any] = json.load(response)
    return found


def memo(pilot: Pilot) -> tuple[int, int]:
    """Cells and derived values."""
    held = statistics(pilot)["memo"]
    return held["cells"], held["derived"]


def metric(pilot: Pilot, name: str) -> float:
    """What ``/metrics`` has of a name with labels; 0 where it has nothing."""
    with urllib.request.urlopen(f"http://127.0.0.1:{pilot.monitoring_port}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)


@pytest.fixture(scope="module")
def before(here: Victim) -> tuple[int, int]:
    """Cells and derived values of a plane that was not attacked yet."""
    return memo(here.pilot)


@pytest.fixture(autouse=True)
def _measured_first(before: tuple[int, int]) -> None:
    """Before any attack."""


def attacked(here: Victim, attack: str, seconds: int = SECONDS, *, slack: float = SLACK) -> Report:
    report = here.under_attack([SCRIPT, str(here.pilot.grpc_port), str(seconds), attack])
    report.assert_held(slack=slack)
    return report


def assert_nothing_is_left(here: Victim, before: tuple[int, int]) -> None:
    """Neither derived values nor memory."""

    def is_back() -> bool:
        cells, derived = memo(here.pilot)
        return cells <= before[0] + SOME and derived <= before[1] + SOME

    until(is_back, 60, "derived values are back at what they were")
    here.assert_memory_is_back()


def reasons(report: Report) -> str:
    return "\n".join(report.attacker["told"])


@pytest.mark.parametrize("attack", ["cluster_names", "endpoint_names", "port_names", "route_names", "secret_names"])
def test_names_of_nothing(here: Victim, attack: str) -> None:
    exceeded = 'mesh_pilot_xds_bound_exceeded{bound="max_names"}'
    before = metric(here.pilot, exceeded)
    assert "more than the limit of 50,000 (--max-names)" in reasons(attacked(here, attack, UNTIL_REFUSED))
    assert metric(here.pilot, exceeded) == before + 1


@pytest.mark.parametrize(
    ("attack", "flag"),
    [("many_values", "--max-n"), ("few_values", "--max-node-values"), ("fat_nodes", "the limit of 16777216 bytes")],
)
def test_a_node_that_is_too_large(here: Victim, attack: str, flag: str) -> None:
    assert flag in reasons(attacked(here, attack, UNTIL_REFUSED))


def test_many_namespaces(here: Victim) -> None:
    """The 500 that one peer may claim are served: each edit of all services is made and sent for every one of them."""
    report = attacked(here, "namespaces", UNTIL_REFUSED, slack=3 * SLACK)
    assert "--max-scopes-per-peer" in reasons(report)


def test_wrong_nonces(here: Victim) -> None:
    before = metric(here.pilot, "mesh_pilot_xds_delayed_requests")
    attacked(here, "wrong_nonces")
    assert metric(here.pilot, "mesh_pilot_xds_delayed_requests") > before


def test_who_refuses_for_ever_does_not_fill_the_log(here: Victim) -> None:
    before = metric(here.pilot, "mesh_pilot_xds_suppressed_log_lines")
    report = attacked(here, "nack_for_ever")
    assert len(report.log) < 60_000
    assert report.log.count("NACK: what the proxy had before is kept") == 20
    assert metric(here.pilot, "mesh_pilot_xds_suppressed_log_lines") > before


def test_who_never_acks(here: Victim) -> None:
    attacked(here, "never_ack")


def test_nothing_is_left_of_all_that(here: Victim, before: tuple[int, int]) -> None:
    assert_nothing_is_left(here, before)


def test_clients_and_services_that_come_and_go_leave_nothing_behind(here: Victim, before: tuple[int, int]) -> None:
    extra = here.pilot.folder / "extra.yaml"
    for round_ in range(3):
        text = entries(80, 2000).replace("name: s", f"name: r{round_}x").replace("[s", f"[r{round_}x")
        extra.with_name(".extra").write_text(text)
        extra.with_name(".extra").rename(extra)
        subprocess.run([sys.executable, SCRIPT, str(here.pilot.grpc_port), str(SECONDS), "come_and_go"], check=True)
        extra.unlink()
    assert_nothing_is_left(here, before)
