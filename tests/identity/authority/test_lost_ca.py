"""A CA that is suddenly gone: no root is made in its place while the state knows that there was one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from mesh_pilot.app.control_plane import control_plane
from mesh_pilot.app.known_ca import FILE
from mesh_pilot.app.settings import StartError
from mesh_pilot.cli.identity.ca import command
from mesh_pilot.identity.authority.authority import fingerprint
from mesh_pilot.identity.authority.material import IDENTITIES, ROOTS
from mesh_pilot.safety.state.settings import StateSettings
from tests.support.planes import running_plane, settings

pytestmark = pytest.mark.plane


async def root_of(folder: Path, state: Path) -> str:
    """The root of a control plane that starts, in PEM."""
    async with running_plane(ca_dir=folder, state=StateSettings(folder=state)) as plane:
        assert plane.state.callers.authority is not None
        return fingerprint(plane.state.callers.authority.material.root)


@pytest.mark.parametrize("left", ["no folder", "an empty folder", "all but the CA"])
async def test_a_lost_ca_is_refused_until_it_is_back_or_somebody_wants_another(tmp_path: Path, left: str) -> None:
    folder, state, away = tmp_path / "ca", tmp_path / "state", tmp_path / "away"
    root = await root_of(folder, state)
    assert (state / FILE).read_bytes() == (folder / ROOTS).read_bytes()
    folder.rename(away)
    if left != "no folder":
        folder.mkdir(mode=0o700)
    if left == "all but the CA":
        (folder / IDENTITIES).write_text("{}")
    with pytest.raises(StartError, match="mesh-pilot ca init") as refused:
        async with control_plane(settings(ca_dir=folder, state=StateSettings(folder=state))):
            pass
    assert str(folder) in str(refused.value)
    assert root[:16] in str(refused.value)
    assert not (folder / ROOTS).exists()

    shutil.rmtree(folder, ignore_errors=True)
    away.rename(folder)
    assert await root_of(folder, state) == root
    shutil.rmtree(folder)
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(command, ["init", "--ca-dir", str(folder)]))
    assert done.exit_code == 0
    other = await root_of(folder, state)
    assert other != root
    assert await root_of(folder, state) == other


async def test_the_first_start_makes_a_root_and_so_does_one_without_state(tmp_path: Path) -> None:
    async with running_plane(ca_dir=tmp_path / "one"):
        pass
    shutil.rmtree(tmp_path / "one")
    async with running_plane(ca_dir=tmp_path / "one"):
        assert (tmp_path / "one" / ROOTS).exists()
