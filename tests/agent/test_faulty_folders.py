"""Folders of an agent that are lost, full, read-only or somebody else's, under a real Envoy: it comes back."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.support.binaries import require_binary
from tests.support.disks import fill, is_root, mounted, read_only
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane
from tests.support.proxy_process import ProxyProcess, proxy_process

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.envoy, pytest.mark.timeout(180), is_root]

NOBODY = 65534


@contextmanager
def removed(folder: Path) -> Iterator[None]:
    for each in folder.iterdir():  # the folder itself is where something is mounted
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    yield


@contextmanager
def gone(folder: Path) -> Iterator[None]:
    shutil.rmtree(folder)
    yield


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


async def comes_back(proxy: ProxyProcess) -> None:
    """Envoy dies, and within 30 s another one has all that a control plane says."""
    (before,) = proxy.envoy_pids()
    os.kill(before, signal.SIGKILL)
    began = trio.current_time()
    await eventually(lambda: proxy.envoy_pids() not in ([], [before]), what="another Envoy")
    await proxy.wait_ready()
    assert any("reviews.test" in name for name in await proxy.clusters())
    assert trio.current_time() - began < 30


@pytest.mark.parametrize("which", ["run", "state"])
@pytest.mark.parametrize("fault", [removed, gone, read_only, full, of_another])
async def test_envoy_comes_back_during_a_fault_of_a_folder_and_after(
    tmp_path: Path, free_ports: Callable[[int], list[int]], which: str, fault: Callable[[Path], object]
) -> None:
    require_binary("envoy")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "reviews.yaml").write_text(SERVICE)
    (tmp_path / "proxy").mkdir()
    folder = tmp_path / "proxy" / which
    with mounted(folder, "size=4m") if fault is not gone else no_mount():
        async with (
            running_plane(tmp_path / "config") as plane,
            proxy_process(
                tmp_path / "proxy",
                free_ports(4),
                "--name=web-1",
                "--ip=127.0.0.1",
                f"--pilot={plane.addresses.grpc}",
                "--plaintext",
            ) as proxy,
        ):
            await proxy.wait_ready()

            async def kept() -> bool:
                return (await proxy.state())["relay"]["kept"] > 0

            await eventually(kept, what="what Envoy accepted is on disk")
            with fault(folder):  # type: ignore[attr-defined]
                await comes_back(proxy)
                await comes_back(proxy)
            await comes_back(proxy)
            if fault in (removed, gone) and which == "run":
                await eventually(lambda: stat.S_ISSOCK((folder / "xds.sock").stat().st_mode), what="the socket")
            assert await proxy.end(signal.SIGTERM) == 0
    assert "Traceback" not in proxy.log.read_text()


@contextmanager
def no_mount() -> Iterator[None]:
    yield
