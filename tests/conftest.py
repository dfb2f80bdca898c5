"""What tests of several rooms share. ``support/`` has the larger helpers: import them as ``tests.support.envoy``."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from mesh_pilot.model.log_levels import SWITCH
from tests.support.binaries import require_binary

os.environ["MESH_PILOT_NO_STATE"] = "1"
"""Commands that tests run keep nothing, unless a test gives them a folder of its own."""

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that drives another process, as its mark says, has a second try: the machine may be too busy for both.

    The run reports it as RERUN. Whoever sees the same test there twice has found a bug, of the test or of ours.
    """
    for item in items:
        if item.get_closest_marker("envoy") or item.get_closest_marker("process"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def _quiet_logs() -> Iterator[None]:
    """Whatever a test configures about logging ends with it."""
    started_with, levels = SWITCH.started_with, SWITCH.levels
    yield
    structlog.reset_defaults()
    SWITCH.begin(started_with)
    SWITCH.change(levels)


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """``free_ports(n)``: that many TCP ports that nothing listens on just now, all different.

    They are below those that the system gives to connections and to listeners on port 0, and picked at random: what
    else runs on the machine is unlikely to take them before the test does.
    """

    def find(count: int) -> list[int]:
        found: list[int] = []
        with ExitStack() as stack:
            while len(found) < count:
                sock = stack.enter_context(socket.socket())
                port = random.SystemRandom().randrange(10_000, 32_000)
                with suppress(OSError):
                    sock.bind(("", port))
                    found.append(port)
        return found

    return find


@pytest.fixture
def envoy_binary() -> Path:
    """The real Envoy; skips the test where there is none (in CI, where ``CI`` is set, that is a failure)."""
    return require_binary("envoy")
