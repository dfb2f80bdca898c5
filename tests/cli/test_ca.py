"""``mesh-pilot ca`` on a folder, without and with a running control plane."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result

from mesh_pilot.cli import cli
from mesh_pilot.identity.authority.authority import Authority
from mesh_pilot.identity.authority.folder import FolderStore
from mesh_pilot.identity.authority.material import Material, pem, read_material
from mesh_pilot.identity.trust.bundles import TrustStore
from tests.support.authorities import LeafRequest, cacerts, make_ca, write_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ca"


def ca(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["ca", *words, "--ca-dir", str(folder)])


def done(folder: Path, *words: str) -> str:
    result = ca(folder, *words)
    assert result.exit_code == 0, result.output
    return result.output


def material(folder: Path) -> Material:
    return read_material(trio.run(FolderStore(folder).read).files, "ca", datetime.now(UTC))


NOBODY = ("--pilot", "127.0.0.1:1")
"""A control plane that does not answer."""


def test_a_root_is_made_once_and_printed(folder: Path) -> None:
    done(folder, "init")
    assert done(folder, "root").encode() == pem(material(folder).root)
    again = ca(folder, "init")
    assert again.exit_code == 1
    assert "has a CA already" in again.output


def test_a_rotation_is_three_steps_in_their_order(folder: Path) -> None:
    done(folder, "init")
    old = material(folder).root
    assert "next step is: mesh-pilot ca rotate begin" in ca(folder, "rotate", "finish", *NOBODY).output
    done(folder, "rotate", "begin")
    assert len(material(folder).roots) == 2
    assert material(folder).root == old
    assert "next step is: mesh-pilot ca rotate switch" in ca(folder, "rotate", "begin").output
    done(folder, "rotate", "switch", "--force", *NOBODY)
    new = material(folder).root
    assert new != old
    done(folder, "rotate", "finish", "--force", *NOBODY)
    assert material(folder).roots == (new,)


def test_begin_says_where_the_old_root_cannot_sign_the_new_one(folder: Path) -> None:
    write_files(folder, cacerts(make_ca("root", path_length=0)))
    assert "need the output of mesh-pilot ca root there before switch" in done(folder, "rotate", "begin")


def test_a_rotation_under_way_says_what_files_need_before_its_end(folder: Path) -> None:
    done(folder, "init")
    assert "before finish" not in done(folder, "status", *NOBODY)
    assert "pathlen" not in done(folder, "rotate", "begin")
    assert "before finish, replace the roots of clients that know them from a file" in done(folder, "status", *NOBODY)
    assert "before finish" in done(folder, "rotate", "switch", "--force", *NOBODY)


def test_a_step_waits_for_control_planes_that_do_not_answer(folder: Path) -> None:
    done(folder, "init")
    done(folder, "rotate", "begin")
    refused = ca(folder, "rotate", "switch", *NOBODY)
    assert refused.exit_code == 1
    assert "does not say whether proxies have followed" in refused.output
    assert material(folder).next is not None
    found = json.loads(done(folder, "status", "-o", "json", *NOBODY))
    assert (found["phase"], found["next"]) == ("begun", "mesh-pilot ca rotate switch")
    assert len(found["waitingFor"]) == 1


def test_an_outside_root_is_not_rotated_here(folder: Path) -> None:
    root = make_ca("root")
    write_files(folder, cacerts(make_ca("middle", root), root))
    refused = ca(folder, "rotate", "begin")
    assert refused.exit_code == 1
    assert "its key is not here" in refused.output


def test_certificates_are_revoked_by_file_and_by_number(folder: Path, tmp_path: Path) -> None:
    done(folder, "init")

    async def signed() -> bytes:
        authority = await Authority.open(FolderStore(folder), TrustStore(), now=lambda: datetime.now(UTC))
        return (await authority.sign(LeafRequest(lifetime=timedelta(hours=1)).signing)).chain

    leaf = tmp_path / "leaf.pem"
    leaf.write_bytes(trio.run(signed))
    assert "revoked: " in done(folder, "revoke", str(leaf), "0A:0b")
    (crl,) = material(folder).crls
    assert 0x0A0B in {entry.serial_number for entry in crl}
    assert len(list(crl)) == 2


@pytest.mark.parametrize(
    ("argument", "message"),
    [("xyz", "neither a file nor a serial number"), ("{stranger}", "whose key is not here")],
)
def test_what_cannot_be_revoked_is_refused(folder: Path, tmp_path: Path, argument: str, message: str) -> None:
    done(folder, "init")
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes(pem(make_ca("stranger").certificate))
    refused = ca(folder, "revoke", argument.format(stranger=stranger))
    assert refused.exit_code == 1
    assert message in refused.output


def test_a_folder_without_a_ca_is_an_error_for_people(folder: Path) -> None:
    for words in (("status",), ("root",), ("revoke", "1"), ("rotate", "begin")):
        refused = ca(folder, *words)
        assert refused.exit_code == 1
        assert "has no CA" in refused.output
