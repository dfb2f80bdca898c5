"""What tests of several rooms share. ``support/`` has the larger helpers: import them as ``tests.support.envoy``."""

from __future__ import annotations

import gc
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from mesh_pilot.model.log_levels import SWITCH
from tests.support.apiserver import ApiServer
from tests.support.binaries import require_binary
from tests.support.marks import Guard
from tests.support.ports import free_ports
from tests.support.sample import ALL_EXAMPLES, SEED, examples, of_the_day

os.environ["MESH_PILOT_NO_STATE"] = "1"
"""Commands that tests run keep nothing, unless a test gives them its own folder."""

settings.register_profile(
    "tests", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

NEWEST_CONSUL = "newest-consul"

GUARD = Guard()


def pytest_configure() -> None:
    # A shell ignores SIGINT in what it runs in the background, and so would every command that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    GUARD.install()


def pytest_report_header() -> str:
    return f"samples of the day: TEST_SAMPLE={SEED}" + (", all examples of properties" if ALL_EXAMPLES else "")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the marks that follow from other marks, and from the API server, which only the slow tests have.

    A test that drives another program, or a whole control plane over sockets by the real clock, has a second try: the
    machine may be too busy for both. The run reports it as RERUN; whoever sees the same test there twice has found a
    bug, of the test or of ours.

    Of a sweep, so many rows a day are tried by default: the others are ``slow``, or, where every row drives an Envoy or
    another program, those of the day are ``smoke``.

    A slow test that names no timeout has ten minutes: the machine may be slow, too.

    A smoke test with each Consul is one with the first: the newest is built while these run.
    """
    sweeps = defaultdict(list)
    for item in items:
        if "apiserver" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
        if any(item.get_closest_marker(mark) for mark in ("envoy", "process", "plane")):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if NEWEST_CONSUL in item.name:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "smoke"]
        if item.get_closest_marker("hypothesis"):
            # A property that runs into a limit of real time fails as flaky, which hides the reason.
            item.add_marker(pytest.mark.timeout(0), append=False)
        if item.get_closest_marker("sweep") and not item.get_closest_marker("slow"):
            sweeps[item.nodeid.partition("[")[0]].append(item)
    for name, rows in sweeps.items():
        (count,) = rows[0].get_closest_marker("sweep").args  # type: ignore[union-attr]
        today = {row.nodeid for row in of_the_day(rows, count, name)}
        for row in rows:
            drives_a_program = any(row.get_closest_marker(mark) for mark in ("envoy", "process"))
            if drives_a_program and row.nodeid in today:
                row.add_marker(pytest.mark.smoke)
            elif not drives_a_program and row.nodeid not in today:
                row.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    # Modules and tests stay: a collection that a test asks for need not look at them each time.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    GUARD.begin(mark.name for mark in item.iter_markers())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    if missing := GUARD.end():
        pytest.fail(f"this test starts more than its marks say: add pytest.mark.{missing} (see tests/README.md)")


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
    """A real API server of Kubernetes, the same for all tests of the process; each has its own namespace in it.

    Tests that stop it, or change what is not in a namespace, start one of their own. Skips where there is none.
    """
    server = ApiServer(tmp_path_factory.mktemp("apiserver"))
    try:
        server.start()
        yield server
    finally:
        server.kill(etcd=True)


@pytest.fixture
def newest_consul(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Consul of the test is the newest one; skips the test where there is none (fails in CI)."""
    monkeypatch.setenv("CONSUL", str(require_binary("consul-new", "CONSUL_NEW", built="consul-new/consul")))


@pytest.fixture(params=["consul-1.8", NEWEST_CONSUL])
def each_consul(request: pytest.FixtureRequest) -> None:
    """The test runs with the Consul of the other tests, and with the newest one."""
    if request.param == NEWEST_CONSUL:
        request.getfixturevalue("newest_consul")


@pytest.fixture
def envoy_binary() -> Path:
    """The real Envoy; skips the test where there is none (in CI, where ``CI`` is set, that is a failure)."""
    return require_binary("envoy")
