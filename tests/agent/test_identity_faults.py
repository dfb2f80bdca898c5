"""What goes wrong with an identity is one line with what to do, and costs nothing that is there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs

from mesh_pilot.agent.bootstrap.envoy_bootstrap import Pilot
from mesh_pilot.agent.identity.folder import CHAIN, KEY, ROOTS, CertificateFolder
from mesh_pilot.agent.identity.identity import WorkloadIdentity
from mesh_pilot.agent.identity.rotator import CertificateRotator
from mesh_pilot.agent.settings import AgentError, AgentFolders, CredentialSettings, PlaneSettings
from mesh_pilot.identity.authority.material import key_pem, pem
from mesh_pilot.net.rpc import CertificateFiles
from tests.agent.identities import WEB, Machine, plane_of, running
from tests.agent.test_identity_folder import material
from tests.support.command import mesh_pilot
from tests.support.envoy import eventually
from tests.support.troubles import is_quoted
from tests.support.x509_parts import named, unsigned


def lines(logs: Sequence[Any], event: str) -> list[Any]:
    return [line for line in logs if line["event"] == event]


async def until_held(own: WorkloadIdentity) -> None:
    with trio.fail_after(30):
        await own.material.wait_for(lambda value: value is not None)


@pytest.mark.plane
async def test_a_spent_token_is_told_and_a_new_one_is_tried_at_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with plane_of(machine) as plane:
        text = machine.new_token(uses=1)
        async with running(machine.identity(plane.addresses.secure_grpc)) as own:
            await until_held(own)
        for file in machine.kept.iterdir():  # there, although the agent ended at once
            file.unlink()
        with capture_logs() as logs:
            async with running(machine.identity(plane.addresses.secure_grpc)) as own:
                with trio.fail_after(30):
                    await own.settled.wait_for(bool)
                assert own.material.value is None and own.statistics().failures >= 1
                await trio.sleep(0.5)
                (line,) = lines(logs, "no certificate")
                assert is_quoted(line)
                assert "already used 1 of 1 times" in line["reason"] and str(machine.token_file) in line["advice"]
                assert text not in str(logs)
                machine.new_token()
                await until_held(own)
                assert own.statistics().last_failure == ""


@pytest.mark.plane
async def test_a_missing_token_is_told_and_taken_once_it_is_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with plane_of(machine) as plane:
        with capture_logs() as logs:
            async with running(machine.identity(plane.addresses.secure_grpc)) as own:
                with trio.fail_after(30):
                    await own.settled.wait_for(bool)
                (line,) = lines(logs, "no certificate")
                assert f"{machine.token_file}: No such file" in line["reason"]
                assert own.call_metadata() == {}
                machine.new_token()
                await until_held(own)


@pytest.mark.process
async def test_a_revoked_certificate_gives_way_to_the_token(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with plane_of(machine) as plane:
        machine.new_token()
        async with running(machine.identity(plane.addresses.secure_grpc)) as own:
            await until_held(own)
            await eventually(lambda: (machine.kept / CHAIN).exists())
            before = own.material.value
        arguments = ["--ca-dir", str(tmp_path / "ca"), str(machine.kept / CHAIN)]
        done = await trio.to_thread.run_sync(mesh_pilot, "ca", "revoke", *arguments)
        assert done.code == 0, done.err
        authority = plane.state.callers.authority
        assert authority is not None
        await eventually(lambda: bool(authority.material.crls))
        old = time.time() - 20 * 3600  # it is due
        os.utime(machine.kept / CHAIN, (old, old))
        with capture_logs() as logs:
            own = machine.identity(plane.addresses.secure_grpc)
            async with running(own):
                assert own.material.value == before, "it is kept until there is another"
                assert isinstance(own._source, CertificateRotator)
                own._source.hasten()
                with trio.fail_after(30):
                    await own.material.wait_for(lambda value: value != before)
        (line,) = lines(logs, "certificate not renewed")
        assert "revoked" in line["reason"] and line["proof"] == "certificate"
        assert str(machine.token_file) in line["advice"]


@pytest.mark.plane
async def test_a_full_disk_is_told_and_written_to_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    monkeypatch.setattr("mesh_pilot.agent.identity.rotator.SAVE_SECONDS", 0.05)
    async with plane_of(machine) as plane:
        machine.new_token(uses=1)
        with capture_logs() as logs:
            full = OSError(28, "No space left on device", "key.pem")
            own = machine.identity(plane.addresses.secure_grpc)
            with mock.patch.object(CertificateFolder, "save", side_effect=full):
                async with running(own):
                    await until_held(own)
                    await eventually(lambda: not own.statistics().is_kept)
                    await trio.sleep(0.2)
                    (line,) = lines(logs, "certificate not kept")
                    assert is_quoted(line)
                    assert "key.pem: No space left on device" in line["reason"]
                    mock.patch.stopall()
                    with mock.patch.object(CertificateFolder, "save", _SAVE):
                        await eventually(lambda: own.statistics().is_kept)
        assert machine.uses() == [1]
        assert CertificateFolder(machine.kept).load().material == own.material.value


_SAVE = CertificateFolder.save


@pytest.mark.plane
async def test_a_folder_that_cannot_be_written_costs_no_service(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    async with plane_of(machine) as plane:
        machine.new_token()
        (tmp_path / "state").touch()
        with capture_logs() as logs:
            async with running(machine.identity(plane.addresses.secure_grpc)) as own:
                await until_held(own)
                await eventually(lambda: bool(lines(logs, "certificate not kept")))
        (line,) = lines(logs, "certificate not kept")
        assert "state" in line["reason"] and "restart will need a token" in line["advice"]


@pytest.mark.plane
@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
async def test_a_clock_an_hour_off_is_told_and_the_certificate_is_used(tmp_path: Path, ahead: float) -> None:
    machine = Machine(tmp_path)
    async with plane_of(machine) as plane:
        machine.new_token()
        own = WorkloadIdentity(
            CredentialSettings(token_file=machine.token_file, lifetime=600.0),
            PlaneSettings((Pilot.parse(plane.addresses.secure_grpc),), ca=machine.root),
            machine.folders,
            wall=lambda: time.time() + ahead,
        )
        with capture_logs() as logs:
            async with running(own):
                await until_held(own)
                await trio.sleep(0.2)
        (line,) = lines(logs, "clock differs")
        said = "minutes behind" if ahead < 0 else "minutes ahead"
        assert is_quoted(line)
        assert said in line["reason"] and "timedatectl" in line["advice"]
        assert own.statistics().renewals == 1, "no storm of renewals"


@pytest.mark.plane
@pytest.mark.parametrize(("begins", "ends", "says"), [(2.5, 3.0, "2.5 hours behind"), (-9.0, -3.0, "3.0 hours ahead")])
async def test_a_control_plane_that_is_not_believed_for_its_time_is_told_with_the_difference(
    tmp_path: Path, begins: float, ends: float, says: str
) -> None:
    machine = Machine(tmp_path)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = unsigned(named("ca"), named("ca"), ca_key.public_key(), begins=timedelta(-1), ends=timedelta(1))
    ca_leaf = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        ca_key, hashes.SHA256()
    )
    hours = {"begins": timedelta(hours=begins), "ends": timedelta(hours=ends)}
    leaf = (
        unsigned(named("plane"), named("ca"), key.public_key(), **hours)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("plane.test")]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    (tmp_path / "plane.pem").write_bytes(pem(leaf))
    (tmp_path / "plane.key").write_bytes(key_pem(key))
    (tmp_path / "known.pem").write_bytes(pem(ca_leaf))
    tls = CertificateFiles(certificate=tmp_path / "plane.pem", key=tmp_path / "plane.key")
    async with plane_of(machine, tls=tls) as plane:
        machine.new_token()
        own = WorkloadIdentity(
            CredentialSettings(token_file=machine.token_file),
            PlaneSettings(
                (Pilot.parse(plane.addresses.secure_grpc),), ca=tmp_path / "known.pem", server_name="plane.test"
            ),
            machine.folders,
        )
        with capture_logs() as logs:
            async with running(own):
                with trio.fail_after(30):
                    await own.settled.wait_for(bool)
        line = lines(logs, "no certificate")[0]
        assert is_quoted(line)
        assert says in line["reason"] and "clock" in line["advice"]
        assert machine.uses() == [0]


async def test_nobody_who_answers_is_told_once_and_tried_for_ever(tmp_path: Path, autojump_clock: Any) -> None:
    machine = Machine(tmp_path)
    autojump_clock.autojump_threshold = 0.05  # threads count as waiting
    machine.token_file.write_text("mpjt_a.b.c")
    with capture_logs() as logs:
        async with running(machine.identity("127.0.0.1:1")) as own:
            await trio.sleep(60)
            assert 4 <= own.statistics().failures <= 1000
    (line,) = lines(logs, "no certificate")
    assert "127.0.0.1:1" in line["reason"] and "tried again" in line["advice"]
    assert "mpjt_" not in str(logs)


async def test_outages_of_a_renewal_are_waited_out_with_backoff_though_there_is_a_token(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(function: Any, *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)  # time would jump while a thread works
    kept = CertificateFolder(tmp_path / "state" / "identity")
    kept.create()
    kept.save(material())
    machine = Machine(tmp_path)
    machine.token_file.write_text("mpjt_a.b.c")
    begins = datetime.now(UTC).timestamp() + 20 * 3600  # it is due
    own = WorkloadIdentity(
        CredentialSettings(token_file=machine.token_file),
        PlaneSettings((Pilot.parse("127.0.0.1:1"),), plaintext=True),
        machine.folders,
        wall=lambda: begins + trio.current_time(),
    )
    async with running(own):
        await trio.sleep(3600)
        assert 80 <= own.statistics().failures <= 180, "one in half a minute, at the mean"


def test_settings_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    folders = AgentFolders(tmp_path, tmp_path)
    planes = PlaneSettings((Pilot.parse("127.0.0.1:1"),), ca=tmp_path / "none.pem")
    with pytest.raises(AgentError, match=r"none\.pem.*No such file.*mesh-pilot ca root"):
        WorkloadIdentity(CredentialSettings(), planes, folders)
    planes = PlaneSettings((Pilot.parse("127.0.0.1:1"),))
    with pytest.raises(AgentError, match="give all three files"):
        WorkloadIdentity(CredentialSettings(certificate=tmp_path / "c.pem"), planes, folders)


async def test_files_of_somebody_else_are_used_as_they_are_and_read_again(tmp_path: Path, autojump_clock: Any) -> None:
    autojump_clock.autojump_threshold = 0.05
    first, second = material("web"), material("other")
    files = {"certificate": tmp_path / "c.pem", "key": tmp_path / "k.pem", "roots": tmp_path / "r.pem"}

    def write(found: Any) -> None:
        for name, content in (("certificate", found.chain), ("key", found.key), ("roots", found.roots)):
            files[name].write_bytes(content)

    planes = PlaneSettings((Pilot.parse("127.0.0.1:1"),), plaintext=True)
    with capture_logs() as logs:
        own = WorkloadIdentity(CredentialSettings(**files), planes, AgentFolders(tmp_path, tmp_path))
        async with running(own):
            await trio.sleep(3)
            assert own.material.value is None
            (line,) = lines(logs, "certificate files not usable")
            assert "No such file" in line["reason"]
            write(first)
            assert await own.material.wait_for(bool) == first
            files["key"].write_bytes(second.key)
            await trio.sleep(3)
            assert own.material.value == first, "half of a change is not a change"
            assert "for another key" in lines(logs, "certificate files not usable")[1]["reason"]
            write(second)
            await own.material.wait_for(lambda value: value == second)
        assert own.statistics().identity == str(WEB).replace("sa/web", "sa/other")
    assert "PRIVATE" not in str(logs)


async def test_the_end_is_warned_of_and_told(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return work(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)  # else hours go by while a thread has its turn
    kept = CertificateFolder(tmp_path / "identity")
    kept.create()
    kept.save(material())
    begins = datetime.now(UTC).timestamp()
    planes = PlaneSettings((Pilot.parse("127.0.0.1:1"),), plaintext=True)
    with capture_logs() as logs:
        own = WorkloadIdentity(
            CredentialSettings(),
            planes,
            AgentFolders(tmp_path, tmp_path),
            wall=lambda: begins + trio.current_time(),
        )
        async with running(own):
            await trio.sleep(20 * 3600)
            assert not lines(logs, "certificate ends soon")
            assert lines(logs, "certificate not renewed"), "it is due, and nobody signs"
            await trio.sleep(2 * 3600)
            assert len(lines(logs, "certificate ends soon")) == 1
            assert not lines(logs, "certificate ended")
            await trio.sleep(6 * 3600)
            assert len(lines(logs, "certificate ended")) == 1
            assert own.material.value is not None, "it stays: the clock may be wrong"


def test_names_of_files_are_istios() -> None:
    assert (KEY, CHAIN, ROOTS) == ("key.pem", "cert-chain.pem", "root-cert.pem")
