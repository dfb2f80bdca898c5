"""TLS credentials from Secret objects and from folders of PEM files."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml

from mesh_pilot.model.events import Delete, Grant, Rejected, Secret
from mesh_pilot.sources.files import file_source
from mesh_pilot.sources.files.pem import certificates
from mesh_pilot.sources.files.secrets import make_credential
from tests.sources.conformance import Follower, running
from tests.support.certificates import write_certificates

PEM = dict[str, bytes]


@pytest.fixture
def pem(tmp_path: Path) -> Callable[[str], PEM]:
    """The parts of a credential, by name; all of one CA."""
    (tmp_path / "pem").mkdir()

    def make(name: str) -> PEM:
        files = write_certificates(tmp_path / "pem", name)
        return {
            "tls.crt": files.certificate.read_bytes(),
            "tls.key": files.key.read_bytes(),
            "ca.crt": files.ca.read_bytes(),
        }

    return make


def secret_object(name: str, parts: PEM, *, kind: str = "kubernetes.io/tls", plain: bool = False) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "shop"},
        "type": kind,
    }
    if plain:
        document["stringData"] = {part: value.decode() for part, value in parts.items()}
    else:
        document["data"] = {part: base64.b64encode(value).decode() for part, value in parts.items()}
    return str(yaml.safe_dump(document))


def config_map(name: str, data: dict[str, str]) -> str:
    metadata = {"name": name, "namespace": "shop"}
    return str(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}))


def secrets(follower: Follower) -> dict[str, Secret]:
    return {item.name: item for item in follower.picture.items.values() if isinstance(item, Secret)}


async def test_secret_objects_become_credentials(tmp_path: Path, pem: Callable[[str], PEM]) -> None:
    one = pem("one")
    generic = {"cert": one["tls.crt"], "key": one["tls.key"], "cacert": one["ca.crt"]}
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.yaml").write_text(
        "---\n".join(
            (
                secret_object("tls", one),
                secret_object("generic", generic, kind="Opaque"),
                secret_object("plain", one, plain=True),
                secret_object("tls-cacert", {"ca.crt": one["ca.crt"]}, kind="Opaque"),
                config_map("roots", {"ca.crt": one["ca.crt"].decode()}),
                config_map("other", {"text": "none of ours"}),
            )
        )
    )
    async with running(file_source([str(folder)])) as follower:
        await follower.until_synced()
        assert follower.picture.rejected == {}
        found = secrets(follower)
        expected = Secret("tls", "shop", one["tls.crt"], one["tls.key"], one["ca.crt"])
        assert found["tls"] == expected
        assert found["generic"].private_key == found["plain"].private_key == expected.private_key
        assert found["tls-cacert"] == Secret("tls-cacert", "shop", ca_certificates=one["ca.crt"])
        assert found["configmap/roots"] == Secret("configmap/roots", "shop", ca_certificates=one["ca.crt"])
        assert "configmap/other" not in found


async def test_secrets_of_other_types_or_without_certificates_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.yaml").write_text(
        secret_object("basic", {"password": b"{}"}, kind="kubernetes.io/basic-auth")
        + "---\n"
        + secret_object("password", {"password": b"hunter2"}, kind="Opaque")
    )
    async with running(file_source([str(folder)])) as follower:
        await follower.until_synced()
        assert follower.picture.rejected == {}
        assert follower.picture.items == {}


async def test_a_bad_secret_is_rejected_with_line_and_field_and_without_what_it_holds(
    tmp_path: Path, pem: Callable[[str], PEM]
) -> None:
    parts = pem("one") | {"tls.key": pem("two")["tls.key"]}
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.yaml").write_text(secret_object("mixed", parts))
    async with running(file_source([str(folder)])) as follower:
        await follower.until_synced()
        (rejected,) = follower.picture.rejected.values()
        assert [(p.path, p.reason, p.line) for p in rejected.problems] == [
            ("data[tls.key]", "is not the key of tls.crt", 5)
        ]
        assert rejected.key == ("secret", "shop", "mixed")
        assert "PRIVATE" not in repr(rejected)


async def test_a_secret_that_is_not_base64_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    folder.mkdir()
    text = secret_object("x", {"tls.crt": b"x", "tls.key": b"y"}).replace("eQ==", "-----BEGIN")
    (folder / "a.yaml").write_text(text)
    async with running(file_source([str(folder)])) as follower:
        await follower.until_synced()
        (rejected,) = follower.picture.rejected.values()
        assert rejected.problems[0].path == "data[tls.key]"
        assert "base64" in rejected.problems[0].reason


async def test_a_folder_of_credentials_is_read_and_rotated_without_a_gap(
    tmp_path: Path, pem: Callable[[str], PEM]
) -> None:
    folder = tmp_path / "credentials"
    (folder / "shop-cert").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "stray.pem").write_text("x")
    (folder / "tls.key").write_text("x")
    one, two = pem("one"), pem("two")
    for name, value in one.items():
        (folder / "shop-cert" / name).write_bytes(value)
    async with running(file_source([], credentials=[str(folder)])) as follower:
        await follower.until_synced()
        assert secrets(follower) == {
            "shop-cert": Secret("shop-cert", "", one["tls.crt"], one["tls.key"], one["ca.crt"])
        }
        # Certificate and key are two files: for a moment they do not fit together.
        for name, value in two.items():
            (folder / "shop-cert" / name).write_bytes(value)
        await follower.until(lambda picture: secrets(follower)["shop-cert"].private_key == two["tls.key"])
        assert secrets(follower)["shop-cert"].certificate_chain == two["tls.crt"]
        assert not any(isinstance(event, Delete | Rejected) for event in follower.events)
        (folder / "new").mkdir()
        for name, value in one.items():
            (folder / "new" / name).write_bytes(value)
        await follower.until(lambda picture: "new" in secrets(follower))
        for file in (folder / "shop-cert").iterdir():
            file.unlink()
        await follower.until(lambda picture: "shop-cert" not in secrets(follower))


async def test_the_folder_of_a_namespace_holds_its_credentials_and_grants_are_a_file(
    tmp_path: Path, pem: Callable[[str], PEM]
) -> None:
    folder = tmp_path / "credentials"
    for place in ("shop/edge", "edge", "shop/deep/er"):
        (folder / place).mkdir(parents=True)
        for name, value in pem("one").items():
            (folder / place / name).write_bytes(value)
    (folder / "edge" / "grants.yaml").write_text("- shop\n- bank/web  # its sidecars, too\n")
    async with running(file_source([], credentials=[str(folder)])) as follower:
        await follower.until_synced()
        found = {(s.namespace, s.name): s.grants for s in follower.picture.items.values() if isinstance(s, Secret)}
        granted = (Grant("shop"), Grant("bank", "web"))
        assert found == {("shop", "edge"): (), ("", "edge"): granted}
        (folder / "edge" / "grants.yaml").unlink()
        await follower.until(lambda picture: Grant("shop") not in _grants(picture.items.values()))


def _grants(items: Iterable[object]) -> set[Grant]:
    return {grant for item in items if isinstance(item, Secret) for grant in item.grants}


@pytest.mark.parametrize(
    "text", ["shop", "{a: b}", "[1]", "[", "", "- Shop", "- shop/", "- '*'", "- a/b/c", "- '\u0455hop'"]
)
def test_grants_of_another_form_are_refused(pem: Callable[[str], PEM], text: str) -> None:
    secret, problems = make_credential("x", "", pem("one") | {"grants.yaml": text.encode()})
    assert [problem.path for problem in problems] == ["grants.yaml"]
    assert secret.grants == ()


@pytest.mark.parametrize(
    ("text", "grants"),
    [
        ("shop, bank/web", (Grant("shop"), Grant("bank", "web"))),
        ("", ()),
        ("shop,,shop", (Grant("shop"),)),
        ("*", None),
    ],
)
async def test_the_grants_of_a_secret_object_are_an_annotation(
    tmp_path: Path, pem: Callable[[str], PEM], text: str, grants: tuple[Grant, ...] | None
) -> None:
    document = yaml.safe_load(secret_object("tls", pem("one")))
    document["metadata"]["annotations"] = {"mesh-pilot/grants": text}
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "a.yaml").write_text(yaml.safe_dump(document))
    async with running(file_source([str(folder)])) as follower:
        await follower.until_synced()
        if grants is None:
            (rejected,) = follower.picture.rejected.values()
            assert "mesh-pilot/grants" in rejected.problems[0].path
        else:
            assert secrets(follower)["tls"].grants == grants


async def test_a_credential_that_does_not_fit_together_is_rejected_and_the_last_good_one_stays(
    tmp_path: Path, pem: Callable[[str], PEM]
) -> None:
    folder = tmp_path / "credentials"
    (folder / "shop-cert").mkdir(parents=True)
    one = pem("one")
    for name, value in one.items():
        (folder / "shop-cert" / name).write_bytes(value)
    async with running(file_source([], credentials=[str(folder)])) as follower:
        await follower.until_synced()
        (folder / "shop-cert" / "tls.key").write_bytes(pem("two")["tls.key"])
        await follower.until(lambda picture: bool(picture.rejected))
        (rejected,) = follower.picture.rejected.values()
        assert rejected.origin.location == f"{folder}/shop-cert"
        assert str(rejected.problems[0]) == "tls.key: is not the key of tls.crt"
        assert secrets(follower)["shop-cert"].private_key == one["tls.key"]


async def test_credentials_may_stand_within_a_config_folder(tmp_path: Path, pem: Callable[[str], PEM]) -> None:
    folder = tmp_path / "config"
    (folder / "credentials" / "shop").mkdir(parents=True)
    for name, value in pem("one").items():
        (folder / "credentials" / "shop" / name).write_bytes(value)
    async with running(file_source([str(folder)], credentials=[str(folder / "credentials")])) as follower:
        await follower.until_synced()
        assert set(secrets(follower)) == {"shop"}


@pytest.mark.parametrize(
    ("parts", "problems"),
    [
        ({}, [": holds no certificate"]),
        ({"tls.crt": b"x"}, ["tls.crt: is not a chain", "tls.crt: has no private key"]),
        ({"key": b"x"}, ["key: is not an unencrypted PEM private key", "key: has no certificate"]),
        ({"cacert": b"x"}, ["cacert: is not a list of PEM certificates"]),
        ({"cacert": b"x", "ca.crt": b"x"}, ["ca.crt: says the same as cacert", "cacert: is not a list"]),
        ({"cacert": b"x", "crl": b"x"}, ["cacert: is not a list", "crl: is not a PEM certificate revocation list"]),
    ],
)
def test_what_is_wrong_with_a_credential_is_all_said(parts: PEM, problems: list[str]) -> None:
    _, found = make_credential("x", "", parts)
    texts = [f"{problem.path}: {problem.reason}" for problem in found]
    assert len(texts) == len(problems)
    for text, start in zip(texts, problems, strict=True):
        assert text.startswith(start)


def test_a_credential_never_shows_its_key(pem: Callable[[str], PEM]) -> None:
    secret, problems = make_credential("x", "", pem("one"))
    assert problems == ()
    assert "PRIVATE" not in repr(secret)


NUMBERED_ZERO = b"""\
-----BEGIN CERTIFICATE-----
MIIBXDCCAQKgAwIBAgIBADAKBggqhkjOPQQDAjAMMQowCAYDVQQDDAF4MCAXDTI2
MTEyODA3MjI0MloYDzIxMjYxMTA0MDcyMjQyWjAMMQowCAYDVQQDDAF4MFkwEwYH
KoZIzj0CAQYIKoZIzj0DAQcDQgAElsNjZTyCzJ3892h59+/h8GlgTel1P06d0DJW
aoVLfda7k227+yUkNJO0DGi9f769JcfNEgI4YOFFcrt4LFR+j6NTMFEwHQYDVR0O
BBYEFDG3ZP0i6k4v+Ehcqq7OOhuc6YRRMB8GA1UdIwQYMBaAFDG3ZP0i6k4v+Ehc
qq7OOhuc6YRRMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAPBu
AlI1fpyhO3ROmYoz4LPbzI4VGBKgM2PeVXuM/qOBAiAaQwRkn9Goo6ZUCM6p+Yhg
xE1v5TnjrBtCP8xH6jCoRg==
-----END CERTIFICATE-----
"""


def test_a_certificate_that_only_our_library_warns_of_is_read_in_silence() -> None:
    """Its serial number is 0. Warnings are errors in tests."""
    (found,) = certificates(NUMBERED_ZERO) or ()
    assert found.subject.rfc4514_string() == "CN=x"
