"""A control plane that starts from its state folder with other settings than before, or with files that are wrong."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.app.settings import StartError
from mesh_pilot.consul.source import Agent, ConsulRegistry, ConsulSettings
from mesh_pilot.safety.state.database import Database
from mesh_pilot.safety.state.settings import StateSettings
from tests.state.test_consul_returns import SERVICES, TIMING, all_at, fill
from tests.state.test_consul_returns import served as served_by_consul
from tests.support.consul_stub import ConsulStub, consul_stub
from tests.support.envoy import eventually
from tests.support.manifests import service
from tests.support.planes import running_plane

pytestmark = pytest.mark.plane

BEFORE = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}\nrootNamespace: roots\n"
AFTER = "outboundTrafficPolicy: {mode: ALLOW_ANY}\nrootNamespace: others\n"
GARBAGE = "outboundTrafficPolicy: {mode: [\n"


@attrs.define
class Files:
    """A folder with a config folder, a mesh.yaml and a state."""

    folder: Path

    def __attrs_post_init__(self) -> None:
        self.config.mkdir()
        self.mesh.write_text(BEFORE)
        for number in range(3):
            self.write(number, 80)

    @property
    def config(self) -> Path:
        return self.folder / "config"

    @property
    def mesh(self) -> Path:
        return self.folder / "mesh.yaml"

    def write(self, number: int, port: int) -> None:
        (self.config / f"s{number}.yaml").write_text(service(f"s{number}.test", port))

    def plane(self, **more: Any) -> Any:
        state = StateSettings(folder=self.folder / "state")
        return running_plane(self.config, **{"mesh_config": self.mesh, "state": state, "debounce_after": 0.01, **more})


@pytest.fixture
async def files(tmp_path: Path) -> Files:
    """What a control plane has served, and kept."""
    files = Files(tmp_path)
    async with files.plane():
        pass
    return files


def ports(plane: ControlPlane) -> dict[str, int]:
    world = plane.state.world
    return {item.spec.hosts[0]: item.spec.ports[0].number for item in world.items_of("files").values()}


def root_namespace(plane: ControlPlane) -> str:
    return str(plane.state.world.mesh.peek(()).root_namespace)


def stale(plane: ControlPlane) -> set[str]:
    """The sources of the settings that are stale."""
    return set(plane.state.reducer.intake.stale()) & {"mesh", "files", "consul"}


async def test_a_mesh_config_that_was_edited_meanwhile_takes_effect(files: Files) -> None:
    files.mesh.write_text(AFTER)
    async with files.plane() as plane:
        await eventually(lambda: root_namespace(plane) == "others", what="the new one is in force")
        await eventually(lambda: not stale(plane), what="all have synced")


async def test_a_mesh_config_that_is_wrong_leaves_the_last_good_one_in_force(files: Files) -> None:
    files.mesh.write_text(GARBAGE)
    for _ in range(2):
        async with files.plane() as plane:
            await eventually(lambda plane=plane: "files" not in stale(plane), what="the other source is in")
            await eventually(lambda plane=plane: bool(plane.state.world.rejections()), what="it is refused")
            assert root_namespace(plane) == "roots"
            assert "mesh.yaml" in str(plane.state.world.rejections()[0].origin)
    async with files.plane() as plane:
        files.mesh.write_text(AFTER)
        await eventually(lambda: root_namespace(plane) == "others", what="the fixed one is in force")
        await eventually(lambda: not plane.state.world.rejections(), what="it is refused no more")
        await eventually(lambda: not stale(plane), what="all have synced")


async def test_a_mesh_config_that_is_gone_leaves_the_last_one_in_force(files: Files) -> None:
    files.mesh.unlink()
    for _ in range(2):
        async with files.plane() as plane:
            await eventually(lambda plane=plane: "files" not in stale(plane), what="the other source is in")
            assert root_namespace(plane) == "roots"
            assert "mesh" in stale(plane)
    async with files.plane() as plane:
        files.mesh.write_text(AFTER)
        await eventually(lambda: root_namespace(plane) == "others", what="the new one is in force")
        await eventually(lambda: not stale(plane), what="all have synced")


async def test_config_sources_are_those_of_the_last_mesh_config(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.mesh.write_text("configSources: [{address: 'xds://127.0.0.1:1'}]\n")
    async with files.plane(sync_timeout=0.1) as plane:
        await eventually(lambda: len(ports(plane)) == 3, what="files are in")
        names = {supervisor.source.name for supervisor in plane.state.supervisors}
        await eventually(lambda: "mesh" not in plane.state.unsynced(), what="the mesh config is in")
    files.mesh.unlink()
    async with files.plane(sync_timeout=0.1) as plane:
        assert {supervisor.source.name for supervisor in plane.state.supervisors} == names


async def test_config_sources_are_those_of_a_good_mesh_config_though_the_networks_are_wrong(tmp_path: Path) -> None:
    files = Files(tmp_path)
    networks = tmp_path / "networks.yaml"
    networks.write_text("networks: {}\n")
    async with files.plane(networks_config=networks) as plane:
        await eventually(lambda: "mesh" not in plane.state.unsynced(), what="the mesh config is in")
    networks.write_text("networks: [\n")
    files.mesh.write_text("configSources: [{address: 'xds://127.0.0.1:1'}]\n")
    async with files.plane(networks_config=networks, sync_timeout=0.1) as plane:
        assert "xds:127.0.0.1:1" in {supervisor.source.name for supervisor in plane.state.supervisors}


async def test_a_mesh_config_that_is_gone_is_found_on_a_disk_that_cannot_be_written(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = sqlite3.connect

    def connect(path: Path, **more: Any) -> sqlite3.Connection:
        if files.folder in Path(path).parents:
            error = sqlite3.OperationalError("attempt to write a readonly database")
            error.sqlite_errorcode = sqlite3.SQLITE_READONLY
            raise error
        return connected(path, **more)

    monkeypatch.setattr("sqlite3.connect", connect)
    files.mesh.unlink()
    async with files.plane(sync_timeout=0.1) as plane:
        assert root_namespace(plane) == "roots"


async def test_an_age_of_a_source_that_there_is_not_is_said(files: Files) -> None:
    state = StateSettings(folder=files.folder / "state", max_ages={"consol": 1.0, "files": 1e9})
    with capture_logs() as logs:
        async with files.plane(state=state):
            pass
    (line,) = [line for line in logs if "--state-max-age" in line["event"]]
    assert line["sources"] == ["consol"]


@pytest.mark.parametrize("fault", ["garbage", "gone", "folder gone"])
async def test_without_a_last_picture_they_are_mistakes(tmp_path: Path, fault: str) -> None:
    files = Files(tmp_path)
    if fault == "garbage":
        files.mesh.write_text(GARBAGE)
    elif fault == "gone":
        files.mesh.unlink()
    else:
        files.config.rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(StartError, match="config" if fault == "folder gone" else r"mesh\.yaml"):
            async with files.plane():
                pass
    Database(tmp_path / "state").close()  # nobody holds it


async def test_objects_that_were_edited_meanwhile_take_effect_and_what_is_deleted_goes(files: Files) -> None:
    files.write(0, 81)
    (files.config / "s1.yaml").unlink()
    async with files.plane() as plane:
        await eventually(lambda: ports(plane) == {"s0.test": 81, "s2.test": 80}, what="it is as the files say")
        await eventually(lambda: not stale(plane), what="all have synced")


async def test_another_domain_is_that_of_everything(files: Files) -> None:
    async with files.plane(domain="mesh.example") as plane:
        assert plane.state.world.domain == "mesh.example"
        assert len(ports(plane)) == 3


async def test_another_folder_is_another_picture(files: Files) -> None:
    other = files.folder / "other"
    other.mkdir()
    (other / "one.yaml").write_text(service("one.test", 80))
    async with files.plane(config_dirs=(other,)) as plane:
        assert set(ports(plane)) == {"one.test"}
    files.config.rename(files.folder / "elsewhere")
    async with files.plane() as plane:
        assert len(ports(plane)) == 3, "that of the first folder is still known"


def consul(stub: ConsulStub, **more: Any) -> dict[str, Any]:
    return {"registries": (ConsulRegistry((ConsulSettings(agent=Agent(stub.address), timing=TIMING, **more),)),)}


async def test_a_source_is_left_out_and_comes_back(files: Files) -> None:
    async with consul_stub() as stub:
        fill(stub, SERVICES, "10.0.0.1", index=7)
        async with files.plane(**consul(stub)) as plane:
            await eventually(lambda: served_by_consul(plane) == all_at("10.0.0.1"), what="it is served")
        async with files.plane() as plane:
            assert served_by_consul(plane) == {}
            assert len(ports(plane)) == 3
        stub.is_deaf = True
        async with files.plane(**consul(stub)) as plane:
            assert served_by_consul(plane) == all_at("10.0.0.1")
            assert "consul" in stale(plane)


async def test_other_settings_of_consul_are_another_picture(files: Files) -> None:
    """What was read under a filter says nothing of what is read without."""
    async with consul_stub() as stub:
        fill(stub, SERVICES, "10.0.0.1", index=7)
        async with files.plane(**consul(stub)) as plane:
            await eventually(lambda: served_by_consul(plane) == all_at("10.0.0.1"), what="it is served")
        stub.is_deaf = True
        async with files.plane(**consul(stub, service_tag="mesh"), sync_timeout=0.1) as plane:
            assert served_by_consul(plane) == {}
            assert stale(plane) <= {"files", "mesh"}
            assert "consul" in plane.state.unsynced()
