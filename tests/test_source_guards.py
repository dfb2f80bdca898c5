"""Sources that lose their objects, in a whole plane on real files: what is held, how it is said, and how it ends."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.model.guard import GuardOptions
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import SERVICE, running_plane

pytestmark = pytest.mark.plane

COUNT = 6


def service(name: str) -> str:
    return SERVICE.replace("reviews", name)


def write_all(folder: Path, count: int = COUNT) -> None:
    folder.mkdir(exist_ok=True)
    for n in range(count):
        (folder / f"s{n}.yaml").write_text(service(f"s{n}"))


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def move(folder: Path, to: Path) -> None:
    folder.rename(to)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "config"
    write_all(folder)
    return folder


class Operator:
    """A plane's operator: the pages, and the admin socket."""

    def __init__(self, plane: ControlPlane, socket_path: Path) -> None:
        self.plane = plane
        self.socket = socket_path

    def services(self) -> int:
        return self.plane.state.world.statistics().services

    def held(self) -> list[str]:
        return sorted(self.plane.state.reducer.intake.held())

    async def page(self, path: str) -> tuple[int, str]:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            reply = await client.get(f"http://{self.plane.addresses.http}{path}")
            return reply.status_code, reply.text

    async def order(self, method: str, path: str) -> tuple[int, Any]:
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        async with httpx.AsyncClient(transport=transport, timeout=60) as client:
            reply = await client.request(method, f"http://admin{path}")
            return reply.status_code, reply.json()


@asynccontextmanager
async def operated(*folders: Path, at: Path, **more: Any) -> AsyncIterator[Operator]:
    path = at / "admin.sock"
    async with running_plane(*folders, admin_socket=path, **more) as plane:
        await eventually(lambda: path.exists())
        yield Operator(plane, path)


async def test_an_emptied_folder_is_held_said_and_recovered(config: Path, tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with operated(config, at=tmp_path) as operator:
            empty(config)
            await eventually(lambda: operator.held() == ["files"])
            assert operator.services() == COUNT
            code, text = await operator.page("/ready?verbose")
            assert code == 200
            assert f"files: held: {COUNT} of {COUNT} objects of namespace shop went at once" in text
            assert "mesh-pilot admin accept files" in text
            code, text = await operator.page("/metrics")
            assert f'mesh_pilot_source_held_objects{{source="files"}} {float(COUNT)}' in text
            write_all(config)
            await eventually(lambda: not operator.held())
            assert operator.services() == COUNT
    (held,) = [entry for entry in logs if entry["event"] == "picture held"]
    assert held["log_level"] == "warning"
    assert held["source"] == "files"
    assert held["to_let_them_go"] == "mesh-pilot admin accept files"
    (recovered,) = [entry for entry in logs if entry["event"] == "held picture recovered"]
    assert recovered["gone"] == 0


async def test_what_comes_back_changed_takes_effect(config: Path, tmp_path: Path) -> None:
    async with operated(config, at=tmp_path) as operator:
        empty(config)
        await eventually(lambda: operator.held() == ["files"])
        (config / "s0.yaml").write_text(service("s0").replace("10.0.0.1", "10.0.0.99"))
        endpoints = operator.plane.state.world.endpoints

        def addresses() -> set[str]:
            return {e.address for key, found in endpoints.items() if key.host == "s0.test" for e in found}

        await eventually(lambda: addresses() == {"10.0.0.99"})
        assert operator.services() == COUNT


async def test_a_folder_that_is_unmounted_stays_in_force(config: Path, tmp_path: Path) -> None:
    """The source of files knows an unreadable folder and an empty mount point: nothing is lost, nothing held."""
    async with operated(config, at=tmp_path) as operator:

        def is_refused(reason: str) -> bool:
            return any(reason in str(rejected.problems) for rejected in operator.plane.state.world.rejections())

        move(config, tmp_path / "elsewhere")
        await eventually(lambda: is_refused("can't be read"))
        assert operator.services() == COUNT
        write_all(config, 0)
        await eventually(lambda: is_refused("was replaced by an empty folder"))
        assert (operator.services(), operator.held()) == (COUNT, [])
        move(config, tmp_path / "mount-point")
        move(tmp_path / "elsewhere", config)
        await eventually(lambda: not operator.plane.state.world.rejections())
        assert (operator.services(), operator.held()) == (COUNT, [])


async def test_a_folder_replaced_by_garbage_stays_in_force(config: Path, tmp_path: Path) -> None:
    async with operated(config, at=tmp_path) as operator:
        empty(config)
        for name in ("s0", *(f"other-{n}" for n in range(1, COUNT))):
            (config / f"{name}.yaml").write_text("}{ garbage")
        await eventually(lambda: operator.held() == ["files"])
        await eventually(lambda: len(operator.plane.state.world.rejections()) >= COUNT)
        assert operator.services() == COUNT
        empty(config)
        write_all(config)
        await eventually(lambda: not operator.plane.state.world.rejections() and not operator.held())
        assert operator.services() == COUNT


async def test_mesh_config_and_networks_stay_in_force_when_their_files_go(config: Path, tmp_path: Path) -> None:
    mesh, networks = tmp_path / "mesh.yaml", tmp_path / "networks.yaml"
    mesh.write_text("ingressClass: own\n")
    networks.write_text("networks: {near: {endpoints: [{fromCidr: 10.0.0.0/8}], gateways: []}}\n")
    async with operated(config, at=tmp_path, mesh_config=mesh, networks_config=networks) as operator:
        world = operator.plane.state.world
        before = world.mesh_settings()
        assert len(before) == 2
        mesh.unlink()
        networks.unlink()
        await eventually(lambda: len(world.rejections()) == 2)
        assert world.mesh_settings() == before
        mesh.write_text("ingressClass: other\n")
        networks.write_text("networks: {far: {endpoints: [{fromCidr: 10.0.0.0/8}], gateways: []}}\n")
        await eventually(lambda: not world.rejections() and world.mesh_settings() != before)


async def test_one_or_two_files_go_at_once(config: Path, tmp_path: Path) -> None:
    empty(config)
    write_all(config, 2)
    async with operated(config, at=tmp_path) as operator:
        empty(config)
        await eventually(lambda: operator.services() == 0)


@pytest.mark.parametrize("path", ["/accept/files", "/api/v1/sources/files/accept"], ids=["socket", "api"])
async def test_an_operator_lets_go_what_is_held(config: Path, tmp_path: Path, path: str) -> None:
    with capture_logs() as logs:
        async with operated(config, at=tmp_path) as operator:
            assert await operator.order("GET", "/status") == (200, {"sources": []})
            code, answer = await operator.order("POST", path)
            assert (code, answer["error"]) == (409, "nothing of files is held")
            code, answer = await operator.order("POST", path.replace("files", "nobody"))
            assert code == 404
            assert answer["error"].startswith("there is no source 'nobody'; there are mesh, files")
            empty(config)
            await eventually(lambda: operator.held() == ["files"])
            _, answer = await operator.order("GET", "/status")
            (entry,) = answer["sources"]
            assert (entry["source"], entry["state"], entry["objects"]) == ("files", "held", COUNT)
            code, answer = await operator.order("POST", path)
            assert (code, answer["gone"]) == (200, COUNT)
            assert operator.services() == 0
    (order,) = [entry for entry in logs if entry["event"] == "order"]
    assert (order["order"], order["source"], order["uid"]) == ("accept", "files", os.getuid())
    assert any(entry["event"] == "held picture accepted" for entry in logs)


async def test_the_command_gives_orders(config: Path, tmp_path: Path) -> None:
    async with operated(config, at=tmp_path) as operator:
        where = ("--admin-socket", str(operator.socket))

        async def command(*arguments: str) -> tuple[int, str]:
            done = await trio.to_thread.run_sync(lambda: mesh_pilot("admin", *arguments, *where))
            return done.code, done.out + done.err

        assert await command("status") == (0, "every source confirms what is in force\n")
        assert await command("accept", "files") == (1, "mesh-pilot: nothing of files is held\n")
        empty(config)
        await eventually(lambda: operator.held() == ["files"])
        code, text = await command("status")
        assert code == 1
        assert f"{COUNT} of {COUNT} objects of namespace" in text
        assert "to let them go: mesh-pilot admin accept files" in text
        code, text = await command("accept", "files")
        assert (code, text.startswith(f"files: {COUNT} objects go: ServiceEntry/shop/s0")) == (0, True)
        assert operator.services() == 0


# httpcore leaves a socket that could not connect to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("where", "reason"),
    [(["--admin-socket", "nowhere.sock"], "there is no nowhere.sock"), (["--admin-socket", "dead.sock"], "no server")],
)
def test_the_command_says_why_it_has_no_answer(
    where: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind("dead.sock")
    done = mesh_pilot("admin", "accept", "files", *where)
    assert done.code == 1
    assert done.err.startswith(f"mesh-pilot: {reason}")
    assert "Traceback" not in done.err


async def test_the_socket_is_its_owners_and_goes_with_the_plane(config: Path, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with operated(config, at=tmp_path) as operator:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await operator.order("GET", "/status"))[0] == 200, "the file of a dead process is replaced"
        with capture_logs() as logs:
            async with running_plane(config, admin_socket=path) as second:
                await eventually(lambda: any(entry["event"].startswith("no admin socket") for entry in logs))
                assert second.state.world.statistics().services == COUNT
        assert (await operator.order("GET", "/status"))[0] == 200, "a living one keeps it"
    assert not path.exists()


async def test_a_socket_that_cannot_be_removed_does_not_spoil_the_end(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.name == "admin.sock":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        unlink(path, missing_ok=missing_ok)

    async with operated(config, at=tmp_path) as operator:
        assert (await operator.order("GET", "/status"))[0] == 200
        monkeypatch.setattr(Path, "unlink", refuse)


async def test_a_socket_with_too_long_a_path_is_said(config: Path, tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with running_plane(config, admin_socket=tmp_path / ("x" * 101)):
            await eventually(lambda: any(entry["event"].startswith("no admin socket") for entry in logs))
    (entry,) = [entry for entry in logs if entry["event"].startswith("no admin socket")]
    assert "more than 100 bytes" in entry["reason"]


async def test_guards_can_be_set_and_turned_off(config: Path, tmp_path: Path) -> None:
    for guard in (None, GuardOptions(share=0.99), GuardOptions(minimum=COUNT + 1)):
        write_all(config)
        async with operated(config, at=tmp_path, guard=guard) as operator:
            for number in range(COUNT - (1 if guard else 0)):
                (config / f"s{number}.yaml").unlink()
            await eventually(lambda: operator.services() <= 1)
