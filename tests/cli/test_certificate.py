"""``mesh-pilot certificate`` against a running control plane: the first certificate by a token, the next on its own."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import CertificateFiles
from tests.support.certificates import write_certificates
from tests.support.command import Done, mesh_pilot
from tests.support.envoy import eventually
from tests.support.planes import running_plane

pytestmark = pytest.mark.plane


WEB = Identity("cluster.local", "shop", "web")


@attrs.frozen
class Machine:
    """A workload's machine, which knows the control plane's root."""

    plane: ControlPlane
    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "own"

    @property
    def tokens(self) -> JoinTokens:
        return JoinTokens(self.folder / "ca" / "join-tokens")

    def new_token(self, uses: int = 1) -> str:
        text = self.tokens.create(WEB, timedelta(hours=1), max_uses=uses).text
        (self.folder / "token").write_text(f"{text}\n")
        return text

    def uses(self) -> list[int]:
        """How often each token was used."""
        return [record.uses for record in self.tokens.records()]

    def leaf(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate((self.out / "cert-chain.pem").read_bytes())

    async def ask(self, *more: str, token: bool = True) -> Done:
        """Run the command. What is in ``more`` comes last, and counts."""
        known = self.folder / "ca" / "root-cert.pem"
        arguments = ["--pilot", self.plane.addresses.secure_grpc, "--tls-ca", str(known), "--out-dir", str(self.out)]
        if token:
            arguments += ["--token-file", str(self.folder / "token")]
        return await trio.to_thread.run_sync(mesh_pilot, "certificate", *arguments, *more)


@asynccontextmanager
async def machine(folder: Path, **more: object) -> AsyncIterator[Machine]:
    (folder / "config").mkdir()
    async with running_plane(folder / "config", ca_dir=folder / "ca", **more) as plane:
        yield Machine(plane, folder)


def assert_one_line(done: Done, *, code: int, says: str) -> None:
    assert (done.code, done.out) == (code, ""), done.err
    assert done.err.startswith("mesh-pilot: ") and done.err.count("\n") == 1, done.err
    assert says in done.err, done.err


@pytest.mark.smoke
async def test_the_first_certificate_is_by_a_token_and_the_next_by_the_first(tmp_path: Path) -> None:
    async with machine(tmp_path) as own:
        text = own.new_token()
        first = await own.ask("--ttl", "2h")
        assert first.code == 0, first.err
        assert str(WEB) in first.out and text not in first.out + first.err
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in own.out.iterdir()}
        assert modes == {"key.pem": 0o600, "cert-chain.pem": 0o644, "root-cert.pem": 0o644}
        assert stat.S_IMODE(own.out.stat().st_mode) == 0o700
        assert (own.out / "root-cert.pem").read_bytes() == (tmp_path / "ca" / "root-cert.pem").read_bytes()
        before = own.leaf()
        assert before.not_valid_after_utc - datetime.now(UTC) <= timedelta(hours=2)

        early = await own.ask("--if-due")
        assert (early.code, early.out) == (0, "") and "is due at" in early.err
        assert own.leaf() == before

        renewed = await own.ask(token=False)
        assert renewed.code == 0, renewed.err
        after = own.leaf()
        assert after.serial_number != before.serial_number
        assert after.public_key() != before.public_key(), "each certificate has its own key"
        key = load_pem_private_key((own.out / "key.pem").read_bytes(), None)
        assert key.public_key() == after.public_key()
        assert own.uses() == [1], "the renewal was not use of the token"
        assert {file.name for file in own.out.iterdir()} == modes.keys(), "nothing is left over"


async def test_a_certificate_that_is_due_is_renewed(tmp_path: Path) -> None:
    async with machine(tmp_path) as own:
        own.new_token()
        await own.ask("--ttl", "40s")  # signed as from a minute ago: more than half of its life is over
        before = own.leaf()
        renewed = await own.ask("--if-due", token=False)
        assert renewed.code == 0, renewed.err
        assert own.leaf() != before


async def test_a_control_plane_with_a_certificate_of_another_ca_is_known_by_that_ca_at_renewals_too(
    tmp_path: Path,
) -> None:
    server = write_certificates(tmp_path, "server")
    tls = CertificateFiles(certificate=server.certificate, key=server.key)
    async with machine(tmp_path, tls=tls) as own:
        own.new_token()
        for _ in range(2):
            done = await own.ask("--tls-ca", str(server.ca))
            assert done.code == 0, done.err
        assert own.uses() == [1]


async def test_what_goes_wrong_is_one_line_and_costs_no_use_of_the_token(tmp_path: Path) -> None:
    other = write_certificates(tmp_path, "other")
    (tmp_path / "file").touch()
    (tmp_path / "empty").touch()
    async with machine(tmp_path) as own:
        own.new_token()
        assert_one_line(await own.ask(token=False), code=2, says="give a token with --token-file")
        assert_one_line(await own.ask("--token-file", f"{tmp_path}/no"), code=1, says=f"{tmp_path}/no: No such file")
        assert_one_line(await own.ask("--token-file", f"{tmp_path}/empty"), code=1, says="it holds no token")
        assert_one_line(await own.ask("--tls-ca", str(other.ca)), code=1, says="the peer's certificate is refused")
        assert_one_line(await own.ask("--tls-ca", f"{tmp_path}/no"), code=1, says=f"{tmp_path}/no: No such file")
        assert_one_line(await own.ask("--tls-server-name", "else.test"), code=1, says="else.test")
        assert_one_line(await own.ask("--pilot", "127.0.0.1:1"), code=1, says="127.0.0.1:1")
        assert_one_line(await own.ask("--pilot", own.plane.addresses.http), code=1, says=own.plane.addresses.http)
        assert_one_line(await own.ask("--out-dir", f"{tmp_path}/file/own"), code=1, says="Not a directory")
        assert_one_line(await own.ask("--out-dir", "/proc/own"), code=1, says="/proc/own")
        assert own.uses() == [0]
        assert list(own.out.iterdir()) == []


async def test_a_token_that_is_wrong_or_spent_is_told_apart(tmp_path: Path) -> None:
    async with machine(tmp_path) as own:
        text = own.new_token()
        (tmp_path / "wrong").write_text(f"{text[:-8]}AAAAAAAA")
        wrong = await own.ask("--token-file", str(tmp_path / "wrong"))
        assert_one_line(wrong, code=1, says="signs nothing")
        assert "UNAUTHENTICATED" in wrong.err and text[:-8] not in wrong.err
        assert (await own.ask()).code == 0
        spent = await own.ask("--out-dir", str(tmp_path / "second"))
        assert_one_line(spent, code=1, says="was already used 1 of 1 times")
        assert own.uses() == [1]


async def test_a_certificate_that_has_ended_or_lost_its_key_is_none(tmp_path: Path) -> None:
    async with machine(tmp_path) as own:
        own.new_token(uses=2)
        await own.ask()
        (own.out / "key.pem").unlink()
        assert_one_line(await own.ask(token=False), code=2, says="no certificate in force")
        again = await own.ask()
        assert again.code == 0, again.err
        assert own.uses() == [2]


async def test_a_revoked_certificate_is_refused_and_the_message_says_what_to_do(tmp_path: Path) -> None:
    async with machine(tmp_path) as own:
        own.new_token()
        await own.ask()
        ca = ["--ca-dir", str(tmp_path / "ca"), str(own.out / "cert-chain.pem")]
        done = await trio.to_thread.run_sync(mesh_pilot, "ca", "revoke", *ca)
        assert done.code == 0, done.err
        authority = own.plane.state.callers.authority
        assert authority is not None
        await eventually(lambda: bool(authority.material.crls), what="the control plane has the list")
        assert_one_line(await own.ask(token=False), code=1, says="revoked")
