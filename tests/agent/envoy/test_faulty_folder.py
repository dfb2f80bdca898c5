"""A run folder that takes nothing any more: an Envoy that dies is restarted all the same."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mesh_pilot.agent.envoy.log import EnvoyLog
from tests.agent.envoy.conftest import Life, answering
from tests.support.disks import fill, is_root, mounted, read_only
from tests.support.envoy import eventually, http_client

pytestmark = [pytest.mark.process, pytest.mark.envoy]

NOBODY = 65534
SAID = "the run folder takes no files; those of envoy are in memory"


@contextmanager
def full(folder: Path) -> Iterator[None]:
    fill(folder / "ballast")
    yield
    (folder / "ballast").unlink()


@contextmanager
def of_another(folder: Path) -> Iterator[None]:
    os.chown(folder, NOBODY, NOBODY)
    yield
    os.chown(folder, os.geteuid(), os.getegid())


async def killed(one: Life, text: str = "hello") -> None:
    """Envoy dies, and another answers."""
    before = one.pid
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: one.pid not in (0, before), what="another")
    await one.ready()
    async with http_client() as client:
        assert (await client.get(f"http://127.0.0.1:{one.port}/")).text == text


@is_root
@pytest.mark.parametrize("fault", [read_only, full, of_another])
async def test_envoy_comes_back_while_the_run_folder_takes_nothing(
    fault: Callable[[Path], Any], life: Callable[..., Any], tmp_path: Path
) -> None:
    with mounted(tmp_path / "run", "size=1m"):
        async with life(parent_shutdown_seconds=1.0, drain_seconds=1.0) as one:
            await one.ready()
            with fault(one.folders.run), capture_logs() as logs:
                await killed(one)
                await killed(one)
                one.bootstrap.set(answering(one.port, one.admin, "second"))
                await eventually(lambda: one.runner.statistics().hot_restarts == 1, what="another bootstrap")
            assert len([entry for entry in logs if entry["event"] == SAID]) == 1
            await killed(one, "second")
            spare = next(Path(entry["files"]) for entry in logs if entry["event"] == SAID)
        assert not spare.exists()


async def test_a_run_folder_that_was_removed_is_made_again(life: Callable[..., Any]) -> None:
    async with life() as one:
        await one.ready()
        shutil.rmtree(one.folders.run)
        await killed(one)
        assert one.folders.run.stat().st_mode & 0o777 == 0o700
        assert "envoy-bootstrap.json" in [path.name for path in one.folders.run.iterdir()]


async def test_what_cannot_be_done_with_a_line_of_envoys_log_ends_neither_envoy_nor_the_agent(
    life: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with life() as one:
        await one.ready()
        first = one.pid
        with monkeypatch.context() as patched:
            patched.setattr(EnvoyLog, "feed", refuse)
            async with http_client() as client:
                await client.post(f"http://127.0.0.1:{one.admin}/logging?level=debug")
                for _ in range(20):
                    assert (await client.get(f"http://127.0.0.1:{one.port}/")).text == "hello"
        assert one.pid == first
        await killed(one)
