"""A standard output that is full is one line and exit code 1, whatever the command prints, and however much."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest
import structlog
import trio

from mesh_pilot.cli import main
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

BROKEN = "---\n".join(
    f"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g{n}}}\nspec: {{servers: [{{}}]}}\n"
    for n in range(100)
)
"""Many objects with findings: more than the buffer of an output takes."""


def into_a_full_device(*words: str) -> tuple[object, str]:
    """The exit code and what is said on standard error. Closing the file fails unless the rest was led nowhere."""
    said = io.StringIO()
    with (
        Path("/dev/full").open("w", encoding="utf-8") as full,
        mock.patch.object(sys, "stdout", full),
        mock.patch.object(sys, "stderr", said),
        pytest.raises(SystemExit) as ended,
    ):
        main([*words])
    return ended.value.code, said.getvalue()


FULL = "mesh-pilot: cannot write to standard output: No space left on device\n"


def files(tmp_path: Path) -> Path:
    file = tmp_path / "broken.yaml"
    file.write_text(BROKEN)
    return file


@pytest.mark.parametrize("output", ["text", "json", "sarif", "junit"])
def test_an_analysis_of_files(tmp_path: Path, output: str) -> None:
    code, said = into_a_full_device("analyze", str(files(tmp_path)), "-o", output)
    assert (code, said) == (1, FULL)


@pytest.mark.parametrize(
    "words",
    [
        ("help",),
        ("version",),
        ("completion", "bash"),
        ("discovery", "--config-dir", ".", "--print-config"),
        ("iptables", "show"),
        ("get", "--help"),
        ("inject", "{file}"),
        ("pc", "all", "--file", "{dump}"),
    ],
    ids=" ".join,
)
def test_commands_that_ask_nobody(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "dump.json").write_text('{"configs": []}')
    values = {"file": files(tmp_path), "dump": tmp_path / "dump.json"}
    assert into_a_full_device(*(word.format(**values) for word in words)) == (1, FULL)


@pytest.fixture
async def socket(tmp_path: Path) -> AsyncIterator[Path]:
    config, state = tmp_path / "config", tmp_path / "state"
    config.mkdir()
    (config / "a.yaml").write_text(SERVICE)
    with structlog.testing.capture_logs():
        async with running_plane(config, state=StateSettings(folder=state)):
            await eventually((state / "admin.sock").exists)
            yield state / "admin.sock"


@pytest.mark.plane
async def test_commands_that_ask_a_plane(socket: Path) -> None:
    for line in (
        "get se -A",
        "get se/shop/reviews -o yaml",
        "get svc -A -o json",
        "describe svc reviews",
        "proxy-status",
        "analyze",
        "rollout status",
        "history list",
        "request GET /api/v1/status",
    ):
        words = [*line.split(), "--pilot", f"unix://{socket}"]
        code, said = await trio.to_thread.run_sync(into_a_full_device, *words)
        assert (code, said.splitlines()[-1:]) == (1, [FULL.strip()]), line
