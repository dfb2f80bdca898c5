"""``mesh-pilot token`` from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.identity.trust.callers import AuthenticationError, TrustDomains
from mesh_pilot.model.spiffe import Identity
from tests.support.command import mesh_pilot

SHOP = ("--namespace", "shop", "--service-account", "web")


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
    assert "mesh-pilot proxy sidecar --token-file FILE --tls-ca ROOTS --pilot HOST:15012" in made.err
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
            ["create", "--namespace", "a/b", "--service-account", "c", "--token-dir", "{there}"],
            1,
            "is not the SPIFFE id",
        ),
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
