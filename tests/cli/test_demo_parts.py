"""The demo's parts by themselves: its copy of the sample, its backends, its traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import yaml

from mesh_pilot.cli.demo.stage import copy_sample
from mesh_pilot.cli.demo.traffic import Backend, Door, Tally, keep_asking, run_backend
from tests.support.envoy import eventually


def test_the_copy_is_the_sample_on_other_ports(tmp_path: Path) -> None:
    sample = copy_sample(tmp_path / "mesh")
    assert set(sample.ports) == {9000, 9080, 9101, 9102, 9103}
    assert len(set(sample.ports.values())) == 5
    services = yaml.safe_load((sample.config / "services.yaml").read_text())
    assert services["spec"]["ports"][0]["number"] == sample.ports[9080]
    assert [e["ports"]["http"] for e in services["spec"]["endpoints"]] == [sample.ports[p] for p in (9101, 9102, 9103)]
    assert sample.mesh.exists()


def test_an_edit_replaces_what_is_there_and_refuses_what_is_not(tmp_path: Path) -> None:
    sample = copy_sample(tmp_path / "mesh")
    sample.edit(sample.traffic, ("weight: 90", "weight: 50"), ("weight: 10", "weight: 50"))
    assert sample.traffic.read_text().count("weight: 50") == 2
    assert [path.name for path in sample.config.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(ValueError, match="has no 'weight: 90'"):
        sample.edit(sample.traffic, ("weight: 90", "weight: 50"))


async def test_traffic_counts_who_answered_and_what_failed() -> None:
    tally = Tally()
    async with trio.open_nursery() as nursery:
        backend: Backend = await nursery.start(run_backend, "v1", 0)
        nursery.start_soon(keep_asking, Door("front", f"127.0.0.1:{backend.port}", "reviews.test"), tally)
        await eventually(lambda: tally.fewest >= 5)
        assert tally.answers["front"].keys() == {"v1"}
        assert tally.failures == []
        assert tally.share("v1") == 100
        backend.stop()
        await eventually(lambda: len(tally.failures) > 0)
        assert tally.failures[0].startswith("front: ")
        tally.restart()
        assert tally.share("v1") == 0
        nursery.cancel_scope.cancel()
