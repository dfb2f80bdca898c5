"""``mesh-pilot demo`` for real: what it shows, how it ends, and that nothing of it is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.binaries import require_binary
from tests.support.command import COMMAND, mesh_pilot
from tools.record_demo import TO, shown

pytestmark = pytest.mark.envoy


@contextmanager
def running_demo(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """A demo that keeps its temporary files in a folder, and the lines that it writes."""
    process = subprocess.Popen(
        [*COMMAND, "demo", *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        try:
            yield process, iter(process.stdout)
        finally:
            process.kill()


def _masked(line: str) -> str:
    return re.sub(r"[\d.]+", "N", line.strip())


@pytest.mark.smoke
def test_the_whole_story_is_told(envoy_binary: Path, tmp_path: Path) -> None:
    done = mesh_pilot("demo", env={"TMPDIR": str(tmp_path)})
    assert (done.code, done.err) == (0, "")
    for fact in (
        r"ok sidecar: accepted \(ACK\) \d+ ms after the save",
        r"ok gateway: accepted \(ACK\) \d+ ms after the save",
        r"ok refused: traffic.yaml:\d+: VirtualService/shop/reviews: spec.http\[0\].route\[0\].weight: expected",
        r"ok traffic continues with the last good version: \d+ requests since, none failed",
        r"ok sidecar: ejected \d+.\d s after the kill",
        r"\d+ requests through Envoy, 0 failed",
        r"\d+ pushes, \d+ accepted by Envoy, 0 refused",
        r"now it ends, and its web page with it; mesh-pilot demo --keep leaves it running",
    ):
        assert re.search(fact, done.out), fact
    assert len(re.findall(r"answered by +via sidecar +via gateway +share", done.out)) == 4
    assert "\x1b" not in done.out
    told = {_masked(line) for line in done.out.splitlines()}
    recorded = [line for line in shown(TO.read_text(encoding="utf-8")) if re.match(r"\d\. |   ok (?!refused)", line)]
    assert len(recorded) > 10
    assert [line for line in recorded if _masked(line) not in told] == [], "python -m tools.record_demo"
    assert list(tmp_path.iterdir()) == []


def test_the_same_story_is_told_with_services_from_consul(envoy_binary: Path, tmp_path: Path) -> None:
    consul = require_binary("consul")
    done = mesh_pilot("demo", "--consul", env={"TMPDIR": str(tmp_path), "CONSUL": str(consul)})
    assert (done.code, done.err) == (0, "")
    assert "with host reviews.service.consul" in done.out
    assert re.search(r"\d+ requests through Envoy, 0 failed", done.out)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_kept_it_can_be_played_with_until_a_signal_ends_it_all(
    envoy_binary: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with running_demo(tmp_path, "--keep") as (process, lines):
        doors: list[tuple[str, str]] = []
        pages = ""
        for line in lines:
            if found := re.search(r"curl -H 'Host: (\S+)' (\S+)", line):
                doors.append((found[1], found[2]))
            if found := re.search(r"open (http\S+)", line):
                pages = found[1]
                break
        for host, url in doors:
            assert httpx.get(url, headers={"host": host}, trust_env=False, timeout=60).text in ("v1", "v2-a")
        assert "shop-1.shop" in httpx.get(f"{pages}api/v1/proxies", trust_env=False, timeout=60).text
        process.send_signal(number)
        assert process.wait(60) == 0
    assert len(doors) == 2
    for _, url in doors:
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, trust_env=False, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_stopped_half_way_it_leaves_nothing(envoy_binary: Path, tmp_path: Path) -> None:
    with running_demo(tmp_path) as (process, lines):
        next(line for line in lines if "gateway" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert list(tmp_path.iterdir()) == []


def test_without_an_envoy_it_says_in_one_line_how_to_get_one(tmp_path: Path) -> None:
    done = mesh_pilot("demo", env={"ENVOY": str(tmp_path / "envoy")})
    assert (done.code, done.out) == (1, "")
    assert done.err == f"mesh-pilot: ENVOY={tmp_path}/envoy does not exist\n"
