"""Metrics of several workers are those of one control plane: nothing is counted twice, and no counter goes back."""

from __future__ import annotations

from typing import cast

from prometheus_client.core import Metric

from mesh_pilot.ops.metrics import Metrics
from mesh_pilot.ops.metrics.workers import WorkerMetrics, WorkerTotals
from mesh_pilot.ops.plane.state import PlaneState


def metric(name: str, value: float, kind: str = "unknown", **labels: str) -> Metric:
    found = Metric(name, name, kind)
    found.add_sample(name, labels, value)
    return found


def worker(pid: int, pushes: float, *, proxies: float = 0, failing: float = 0) -> WorkerMetrics:
    return WorkerMetrics(
        pid,
        [metric("pushes", pushes, type="cds"), metric("proxies", proxies, "gauge")],
        [metric("failing", failing, "gauge"), metric("errors", failing)],
        [metric("process_cpu_seconds_total", pushes / 10)],
    )


def values(totals: WorkerTotals, found: dict[int, WorkerMetrics], restarts: int = 0) -> dict[str, float]:
    merged = totals.merged(found, {2: restarts})
    return {s.name + "".join(f" {v}" for v in s.labels.values()): s.value for m in merged for s in m.samples}


def test_counters_and_gauges_are_added_up_and_findings_are_not() -> None:
    found = values(WorkerTotals(), {1: worker(10, 5, proxies=3, failing=2), 2: worker(20, 7, proxies=4, failing=2)})
    assert found["pushes cds"] == 12
    assert found["proxies"] == 7
    assert found["failing"] == 2
    assert (found["process_cpu_seconds_total 1"], found["process_cpu_seconds_total 2"]) == (0.5, 0.7)


def test_counters_go_on_when_a_worker_is_replaced_and_gauges_do_not_keep_it() -> None:
    totals = WorkerTotals()
    values(totals, {1: worker(10, 5), 2: worker(20, 7, proxies=4)})
    found = values(totals, {1: worker(10, 6), 2: worker(21, 1, proxies=1)}, restarts=1)
    assert found["pushes cds"] == 14
    assert found["proxies"] == 1
    assert found["mesh_pilot_worker_restarts 2"] == 1


def test_the_gauges_of_a_worker_that_has_ended_are_gone_at_once() -> None:
    totals = WorkerTotals()
    values(totals, {1: worker(10, 5, proxies=1), 2: worker(20, 7, proxies=4, failing=3)})
    for _ in range(2):
        found = values(totals, {1: worker(10, 5, proxies=5)}, restarts=1)
        assert (found["failing"], found["errors"]) == (0, 3)
        assert (found["pushes cds"], found["proxies"], found["mesh_pilot_worker_up 2"]) == (12, 5, 0)
    found = values(totals, {1: worker(10, 5, proxies=3), 2: worker(21, 2, proxies=2)}, restarts=1)
    assert (found["pushes cds"], found["proxies"]) == (14, 5)


def test_a_silent_worker_is_named_and_its_counters_stay() -> None:
    totals = WorkerTotals()
    values(totals, {1: worker(10, 5), 2: worker(20, 7)})
    found = values(totals, {1: worker(10, 6)})
    assert found["pushes cds"] == 13
    assert (found["mesh_pilot_worker_up 1"], found["mesh_pilot_worker_up 2"]) == (1, 0)


def test_a_worker_that_never_answered_is_named() -> None:
    assert values(WorkerTotals(), {1: worker(10, 6)})["mesh_pilot_worker_up 2"] == 0


def test_groups_that_cannot_be_collected_are_counted_for_each_scrape_and_each_worker() -> None:
    metrics = Metrics(cast(PlaneState, None))  # nearly all of them fail
    of_another = metrics.of_this_worker()

    def missing(found: dict[int, WorkerMetrics]) -> float:
        page = metrics.of_all(found, {2: 0}, WorkerTotals()).decode()
        return next(float(line.split()[1]) for line in page.splitlines() if line.startswith("mesh_pilot_missing_met"))

    alone = missing({})
    assert (alone > 0, missing({})) == (True, alone)
    assert alone < missing({2: of_another}) < 2 * alone
