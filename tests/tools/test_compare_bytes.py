"""``tools.compare_bytes`` finds what two revisions send differently, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from mesh_pilot.model.resource import CLUSTER
from tools.compare_bytes.__main__ import explained, first_difference

ROOT = Path(__file__).parents[2]
SMALL = ("--scenario", "vs-fault", "--scenario", "grpc-proxyless", "--scenario", "gw-tls-termination", "--meshes", "2")


def compare(old: Path, new: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.compare_bytes", "--old", str(old), "--new", str(new), *SMALL]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.process
@pytest.mark.slow
def test_a_revision_sends_the_same_bytes_as_itself() -> None:
    done = compare(ROOT, ROOT)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "no differences"), done.stdout + done.stderr
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) ([A-Z]\w+)", done.stdout)}
    assert {"Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration", "VirtualHost", "Secret"} <= set(
        counts
    )
    assert counts["Cluster"] > 50


@pytest.mark.process
@pytest.mark.slow
def test_one_changed_constant_is_found_and_shown(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    changed = 0
    for path in (tmp_path / "src" / "mesh_pilot").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if '"PassthroughCluster"' in text:
            path.write_text(text.replace('"PassthroughCluster"', '"PassThroughCluster"'), encoding="utf-8")
            changed += 1
    assert changed
    done = compare(ROOT, tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PassthroughCluster\n    Cluster is sent by the old revision only" in done.stdout
    assert re.search(r'VirtualHost \S+\.cluster: "PassthroughCluster" -> "PassThroughCluster"', done.stdout)


def test_a_difference_is_a_path_and_two_values() -> None:
    old = {"a": [{"b": 1, "c": 2}, {"b": 3}], "d": {"e": "x"}}
    assert first_difference(old, old) == ""
    assert first_difference(old, {**old, "d": {"e": "y"}}) == 'd.e: "x" -> "y"'
    assert first_difference(old, {**old, "d": {}}) == 'd.e: "x" -> (absent)'
    assert first_difference(old, {**old, "a": [old["a"][0], {"b": 4}]}) == "a[1].b: 3 -> 4"
    assert first_difference(old, {**old, "a": []}) == 'a: [{"b": 1, "c": 2}, {"b": 3}] -> []'


def test_the_same_content_in_another_order_of_fields_is_a_difference() -> None:
    name, alt_name = (Cluster(**{field: "x"}).SerializeToString() for field in ("name", "alt_stat_name"))
    assert explained(CLUSTER, name + alt_name, alt_name + name).startswith(
        "the same content in another encoding, from byte 0"
    )
