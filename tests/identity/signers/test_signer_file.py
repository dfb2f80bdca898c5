"""The file of ``--ca-signer``: each mistake is an error with its line, and all mistakes are told at once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.app.settings import StartError
from mesh_pilot.app.signers import KINDS, named_ca
from mesh_pilot.identity.signers.vault.ca import VaultCa

GOOD = "kind: vault\naddress: https://vault:8200\nrole: mesh\ntokenFile: token\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("address: https://ca\n", [":1: kind: is missing; known: " + ", ".join(KINDS)]),
        ("kind: stepca\n", [":1: kind: there is no kind 'stepca'; did you mean stepCA?"]),
        ("kind: 5\n", [":1: kind: there is no kind 5; known: "]),
        ("kind: [\n", ["not valid YAML"]),
        ("- kind: vault\n", [":1: "]),
        ("", ["has 0 YAML objects"]),
        (GOOD + "---\n" + GOOD, ["has 2 YAML objects"]),
        (GOOD + "rol: x\n", [':5: rol: unknown field "rol"; did you mean role?']),
        (GOOD + "mount: 5\n", [":5: mount: is not a string: write it in quotes"]),
        (GOOD + "mount: []\n", [":5: mount: is not a string"]),
        (GOOD + "appRole: x\n", [":5: appRole: is not an object"]),
        (
            GOOD + "appRole:\n  roleid: x\n",
            [":6: appRole.roleid: unknown", ":5: appRole.secretIdFile: is missing"],
        ),
        ("kind: est\naddress: http://x\n", [":2: address: 'http://x' is not an https URL", ":1: name clientCert"]),
        ("kind: stepCA\naddress: https://[\nprovisioner: m\nkeyFile: k\n", [":2: address: 'https://[' is not a URL"]),
        ("kind: stepCA\naddress: https://ca\nprovisioner: m\n", [":1: passwordFile: is missing"]),
    ],
)
def test_a_mistake_is_an_error_with_its_line(text: str, says: list[str], tmp_path: Path) -> None:
    file = tmp_path / "signer.yaml"
    file.write_text(text)
    with pytest.raises(StartError) as raised:
        named_ca(file)
    lines = "\n".join(raised.value.lines)
    for each in says:
        assert f"{file}{each}" in lines or each in lines


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "signer.yaml").write_text(GOOD + "caCertificates: ca.pem\nroots: /etc/roots.pem\n")
    found = named_ca(tmp_path / "signer.yaml")
    assert isinstance(found.ca, VaultCa)
    assert (found.files.trusted, found.roots) == (tmp_path / "ca.pem", Path("/etc/roots.pem"))


@given(st.text(max_size=200) | st.sampled_from(["kind: vault\naddress: {", "kind: !!python/object:os.x {}"]))
def test_no_text_does_more_than_an_error(text: str) -> None:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        with pytest.raises(StartError):
            named_ca(Path(file.name))
