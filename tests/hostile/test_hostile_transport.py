"""Every attack on HTTP/2 next to a good client: pushes go on, memory comes back, the log is short."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.attack import SLACK, Report, Victim

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).with_name("transport_attacks.py")
SECONDS = 3


def attacked(here: Victim, attack: str, *code: str) -> Report:
    return here.under_attack([SCRIPT, str(here.pilot.grpc_port), str(SECONDS), attack, *code])


@pytest.mark.parametrize(
    "attack",
    ["idle_tcp", "idle_http2", "slowloris", "garbage", "zero_window", "deaf", "half_messages"],
)
def test_a_crowd_that_says_little(here: Victim, attack: str) -> None:
    attacked(here, attack).assert_held()


def test_a_crowd_within_its_budgets(here: Victim) -> None:
    """Each of 200 connections may make so much work that all of them together fill the plane: pushes get slower."""
    attacked(here, "patient_tiny_windows").assert_held(slack=3 * SLACK)


@pytest.mark.parametrize(
    "attack",
    [
        "ping_flood",
        "settings_flood",
        "window_flips",
        "tiny_windows",
        "empty_data",
        "window_update_flood",
        "priority_flood",
        "rapid_reset",
        "many_streams",
        "many_streams_over_ten",
        "refused_streams",
        "unary_flood",
        "dust",
    ],
)
def test_a_flood_is_answered_with_enhance_your_calm(here: Victim, attack: str) -> None:
    report = attacked(here, attack, "11")
    report.assert_held()
    assert report.attacker["goaway 11"] >= 1
    assert report.log.count("a connection was cut off") <= 8


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        ("continuation", 1),
        ("large_continuation", 6),
        ("header_bomb", 11),
        ("many_headers", 11),
        ("large_settings", 6),
        ("unknown_flood", 6),
    ],
)
def test_frames_that_are_too_large_or_too_many_end_the_connection(here: Victim, attack: str, code: int) -> None:
    """With FRAME_SIZE_ERROR (6), ENHANCE_YOUR_CALM (11), or h2's own PROTOCOL_ERROR (1)."""
    report = attacked(here, attack, str(code))
    report.assert_held()
    assert report.attacker[f"goaway {code}"] >= 1


def test_a_flood_over_a_hundred_connections(here: Victim) -> None:
    # Each of them has its burst of frames (see net/rpc/budget.py) before it is cut off: a second or two for all.
    attacked(here, "flood_by_many").assert_held(slack=3 * SLACK)


def test_memory_is_back_after_all_that(here: Victim) -> None:
    here.assert_memory_is_back()
