"""What tests of several rooms share. ``support/`` has the larger helpers: import them as ``tests.support.envoy``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from mesh_pilot.model.log_levels import SWITCH
from tests.support.apiserver import ApiServer
from tests.support.binaries import require_binary
from tests.support.ports import free_ports

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


@pytest.fixture(name="free_ports")
def _free_ports() -> Callable[[int], list[int]]:
    """``free_ports(n)``: that many ports for servers."""
    return free_ports


@pytest.fixture(scope="session")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server of Kubernetes, the same for all tests of the process; each has a namespace of its own in it.

    Tests that stop it, or change what is not in a namespace, start one of their own. Skips where there is none.
    """
    server = ApiServer(tmp_path_factory.mktemp("apiserver"))
    try:
        server.start()
        yield server
    finally:
        server.kill(etcd=True)


@pytest.fixture
def envoy_binary() -> Path:
    """The real Envoy; skips the test where there is none (in CI, where ``CI`` is set, that is a failure)."""
    return require_binary("envoy")
