"""The examples and the figures of docs/rate-limits.md."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from mesh_pilot.envoy.clusters.health_checks import HEALTHY_THRESHOLD, UNHEALTHY_THRESHOLD
from mesh_pilot.envoy.filters.local_rate_limit import DEFAULT_INTERVAL as RATE_INTERVAL
from mesh_pilot.istio.kinds import KINDS, Api
from mesh_pilot.istio.rules.health_check import DEFAULT_INTERVAL, DEFAULT_TIMEOUT
from mesh_pilot.istio.rules.local_rate_limit import SHORTEST_INTERVAL
from tests.support.worlds import configs

PAGE = (Path(__file__).parents[2] / "docs" / "rate-limits.md").read_text(encoding="utf-8")


def test_the_examples_are_good_and_there_is_one_of_each_kind_of_our_own() -> None:
    blocks = re.findall(r"(?:^ {4}.*\n)+", PAGE, re.MULTILINE)
    assert [configs(block)[0].key.kind for block in blocks] == [k.name for k in KINDS.values() if k.api is Api.OWN]


def test_the_defaults_are_as_described() -> None:
    def text(time: timedelta) -> str:
        return (
            f"{time.total_seconds():g}s" if time >= timedelta(seconds=1) else f"{time // timedelta(milliseconds=1)}ms"
        )

    assert f"(default {text(RATE_INTERVAL)}, at least {text(SHORTEST_INTERVAL)})" in PAGE
    assert f"`interval` {text(DEFAULT_INTERVAL)}, `timeout` {text(DEFAULT_TIMEOUT)}" in PAGE
    assert f"`unhealthyThreshold` {UNHEALTHY_THRESHOLD}, `healthyThreshold` {HEALTHY_THRESHOLD}" in PAGE
