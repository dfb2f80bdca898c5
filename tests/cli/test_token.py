"""``mesh-pilot token`` from outside."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from mesh_pilot.cli.proxy.bundle import read
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.identity.trust.callers import AuthenticationError, TrustDomains
from mesh_pilot.model.spiffe import Identity
from tests.support.command import mesh_pilot

SHOP = ("web", "--namespace", "shop")


@pytest.mark.smoke
def test_a_token_is_made_listed_and_revoked(tmp_path: Path) -> None:
    folder = ("--token-dir", str(tmp_path / "tokens"))
    plane = JoinTokens(tmp_path / "tokens")
    assert mesh_pilot("token", "list", *folder).out == "there are no join tokens\n"
    made = mesh_pilot("token", "create", *SHOP, "--single-use", "--cidr", "10.0.0.0/8", *folder)
    text = made.out.strip()
    (record,) = plane.records()
    assert made.code == 0
    assert made.err.startswith("Next: ") and made.err.count("\n") == 1
    assert f"mesh-pilot token revoke {record.id}" in made.err
    assert "with --bundle FILE, by which mesh-pilot proxy join does all of it" in made.err
    assert text not in made.err

    listed = mesh_pilot("token", "list", *folder)
    row = listed.out.splitlines()[1].split()
    assert row[:3] == [record.id, "spiffe://cluster.local/ns/shop/sa/web", "valid"]
    assert row[4:6] == ["0/1", "10.0.0.0/8"]
    assert text.split(".")[2] not in listed.out

    known = TrustDomains("cluster.local")
    assert plane.redeem(text, "10.1.1.1:5", known) == Identity("cluster.local", "shop", "web")
    assert " used-up " in mesh_pilot("token", "list", *folder).out
    revoked = mesh_pilot("token", "revoke", record.id, *folder)
    assert revoked.out == f"revoked {record.id} of spiffe://cluster.local/ns/shop/sa/web, used once\n"
    with pytest.raises(AuthenticationError, match="was revoked"):
        plane.redeem(text, "10.1.1.1:5", known)


def test_the_output_for_machines_has_everything(tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text("trustDomain: corp.example\n")
    env = {"MESH_PILOT_CA_DIR": str(tmp_path / "ca"), "MESH_PILOT_MESH_CONFIG": str(tmp_path / "mesh.yaml")}
    made = json.loads(mesh_pilot("token", "create", *SHOP, "--uses", "3", "--ttl", "30m", "-o", "json", env=env).out)
    assert made.pop("token").startswith("mpjt_")
    (listed,) = json.loads(mesh_pilot("token", "list", "-o", "json", env=env).out)
    assert listed == made
    assert (made["identity"], made["max_uses"], made["state"]) == ("spiffe://corp.example/ns/shop/sa/web", 3, "valid")
    assert (tmp_path / "ca" / "join-tokens" / "keys.json").exists()


def test_a_bundle_has_all_that_a_machine_needs_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    ca, bundle = ("--ca-dir", str(tmp_path / "ca")), tmp_path / "web.join"
    mesh_pilot("ca", "init", *ca)
    (tmp_path / "consul.token").write_text("secret\n")
    (tmp_path / "proxy.yaml").write_text(
        f"dns: true\nprobe: {{httpGet: {{port: 9080}}}}\nconsul-token-file: {tmp_path}/consul.token\nname: 1.10\n"
    )
    more = ("--pilot", "10.0.0.1:15012", "--pilot", "10.0.0.2:15012", "--config", str(tmp_path / "proxy.yaml"))
    made = mesh_pilot("token", "create", "web", "-n", "shop", *ca, "--bundle", str(bundle), *more)
    assert (made.code, stat.S_IMODE(bundle.stat().st_mode)) == (0, 0o600)
    assert made.out.endswith(
        "for spiffe://cluster.local/ns/shop/sa/web at the control plane 10.0.0.1:15012, 10.0.0.2:15012\n"
    )
    assert (
        made.err.endswith("\n") and "run there, before " in made.err and "mesh-pilot proxy join web.join; " in made.err
    )
    found = read(bundle)
    assert str(found.identity) == "spiffe://cluster.local/ns/shop/sa/web"
    assert found.settings == {
        "dns": True,
        "probe": {"httpGet": {"port": 9080}},
        "name": "1.10",
        "pilot": ["10.0.0.1:15012", "10.0.0.2:15012"],
    }
    assert found.files["tls-ca"] == mesh_pilot("ca", "root", *ca).out
    assert found.files["consul-token-file"] == "secret\n"
    token = found.files["token-file"].strip()
    assert token not in made.out + made.err
    known = TrustDomains("cluster.local")
    plane = JoinTokens(tmp_path / "ca" / "join-tokens")
    assert plane.redeem(token, "10.1.1.1:5", known) == Identity("cluster.local", "shop", "web")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("plaintext: true", "{file}:1: a bundle cannot have plaintext: remove the line"),
        ("nmae: web", "{file}:1: there is no setting 'nmae'; did you mean name?"),
        ("consul-token-file: /nowhere", "{file}:1: consul-token-file /nowhere: No such file or directory"),
        ("admin-port: many", "{file}:1: admin-port: 'many' is not a valid integer"),
    ],
)
def test_settings_that_no_machine_could_use_make_no_token(line: str, says: str, tmp_path: Path) -> None:
    ca, file = ("--ca-dir", str(tmp_path / "ca")), tmp_path / "proxy.yaml"
    mesh_pilot("ca", "init", *ca)
    file.write_text(line)
    done = mesh_pilot("token", "create", *SHOP, *ca, "--bundle", str(tmp_path / "b"), "--config", str(file))
    assert done.code == 2 and says.format(file=file) in done.err
    assert mesh_pilot("token", "list", *ca).out == "there are no join tokens\n"


def test_the_key_is_rotated(tmp_path: Path) -> None:
    folder = ("--token-dir", str(tmp_path))
    first = json.loads(mesh_pilot("token", "create", *SHOP, "-o", "json", *folder).out)["key"]
    assert mesh_pilot("token", "rotate-key", *folder).out.endswith("no longer accepted: none\n")
    assert first in mesh_pilot("token", "rotate-key", "--drop-old", *folder).out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ["create", *SHOP],
            2,
            "name the folder of the control plane's join tokens with --token-dir, --ca-dir or --state-dir",
        ),
        (["create", *SHOP, "--token-dir", "{there}", "--single-use", "--uses", "2"], 2, "contradict each other"),
        (["create", *SHOP, "--token-dir", "{there}", "--ttl", "60d"], 2, "'60d' is not a duration"),
        (["create", *SHOP, "--token-dir", "{there}", "--ttl", "999h"], 1, "at most 30 days"),
        (["create", *SHOP, "--token-dir", "{there}", "--cidr", "10.0.0.1/8"], 2, "has host bits set"),
        (
            ["create", "c", "--namespace", "a/b", "--token-dir", "{there}"],
            1,
            "is not the SPIFFE id",
        ),
        (["create", *SHOP, "--token-dir", "{there}", "--pilot", "a:1"], 2, "--pilot and --config are for a --bundle"),
        (
            ["create", *SHOP, "--token-dir", "{there}", "--bundle", "b"],
            2,
            "say by which roots the control plane is known",
        ),
        (["create", *SHOP, "--ca-dir", "{there}", "--bundle", "b"], 1, "{there} has no CA"),
        (["create", *SHOP, "--token-dir", "{there}/file/x"], 1, "Not a directory"),
        (["create", *SHOP, "--token-dir", "{there}", "--mesh-config", "{there}/no"], 1, "{there}/no: can't be read"),
        (["revoke", "0123456789abcdef", "--token-dir", "{there}"], 1, "there is no join token 0123456789abcdef"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], code: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = mesh_pilot("token", *(argument.format(there=tmp_path) for argument in arguments))
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("mesh-pilot: ") and done.err.count("\n") == 1
    assert says.format(there=tmp_path) in done.err
