"""step-ca as the signer: what every kind of CA does, and the provisioner's key in all its places."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from joserfc.util import urlsafe_b64encode
from trio.testing import MockClock

from mesh_pilot.identity.signers.remote import CaError
from mesh_pilot.identity.signers.step_ca.ca import StepCa
from mesh_pilot.identity.signers.step_ca.provisioner import (
    MOST_ROUNDS,
    KeyFault,
    Provisioner,
    decrypted,
    provisioner_of,
)
from tests.identity.signers.conformance import AskedCa, SignerConformance, Story
from tests.identity.signers.fake_authority import NOW
from tests.identity.signers.fake_step_ca import FakeStepCa


async def at_once(run: Callable[..., Provisioner], *arguments: str) -> Provisioner:
    """In place of a thread, for which the test's clock would not wait."""
    return run(*arguments)


def story(folder: Path, step: FakeStepCa | None = None, **more: Any) -> tuple[Story, FakeStepCa]:
    step = step or FakeStepCa()
    ca = StepCa(step.settings(folder, **more), step.transport(), lambda: NOW, at_once)
    return Story(AskedCa(ca, step, "POST sign", step.password)), step


class TestStepCa(SignerConformance):
    @pytest.fixture
    def asked(self, tmp_path: Path) -> AskedCa:
        return story(tmp_path)[0].asked


async def test_its_revocation_list_is_not_asked_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    it, step = story(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.signer.run)
        await trio.sleep(1)
        assert step.asked == ["GET roots"]
        assert it.trust.own().crls == ()
        nursery.cancel_scope.cancel()


async def test_another_key_of_the_provisioner_is_taken_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    it, step = story(tmp_path)
    await it.sign()
    step.provisioner_key = FakeStepCa().provisioner_key
    await it.sign()
    assert step.asked.count("POST sign") == 3


async def test_a_token_that_is_refused_though_the_key_is_right_is_not_sent_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    it, step = story(tmp_path)
    (tmp_path / "other.jwk").write_text(json.dumps(FakeStepCa().provisioner_key.as_dict(private=True)))
    it, _ = story(tmp_path, step, key_file=tmp_path / "other.jwk")
    with pytest.raises(CaError, match=r"401 .*the key must be that of provisioner mesh.*clocks") as raised:
        await it.sign()
    assert raised.value.reason == "forbidden"
    assert step.asked.count("POST sign") == 1


@pytest.mark.parametrize("form", ["jwk", "pem", "jwe"])
async def test_a_key_that_the_ca_does_not_have_is_in_a_file(
    form: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    step = FakeStepCa()
    step.has_key = False
    forms: dict[str, Callable[[], str]] = {
        "jwk": lambda: json.dumps(step.provisioner_key.as_dict(private=True)),
        "pem": lambda: step.provisioner_key.as_pem(private=True).decode(),
        "jwe": step.encrypted,
    }
    with pytest.raises(CaError, match="the CA does not have its key; name a file in keyFile"):
        await story(tmp_path, step)[0].sign()
    file = tmp_path / "key"
    file.write_text(forms[form]())
    await story(tmp_path, step, key_file=file)[0].sign()


@pytest.mark.parametrize(
    ("change", "says", "reason"),
    [
        (lambda step, password: password.write_text("wrong"), "the password in passwordFile is not that of", "cred"),
        (lambda step, password: password.write_text("a\nb"), "no single line", "cred"),
        (lambda step, password: password.unlink(), "No such file", "cred"),
        (lambda step, password: setattr(step, "kind", "OIDC"), "is of the type OIDC: name one of type JWK", "refused"),
    ],
)
async def test_a_provisioner_that_cannot_be_used_says_why(
    change: Callable[[FakeStepCa, Path], None], says: str, reason: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    it, step = story(tmp_path)
    change(step, tmp_path / "password")
    with pytest.raises(CaError, match=says) as raised:
        await it.sign()
    assert raised.value.reason.startswith(reason)
    assert "POST sign" not in step.asked


async def test_a_provisioner_that_does_not_exist_is_an_error_with_those_that_do(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    it, _ = story(tmp_path, provisioner="mash")
    with pytest.raises(CaError, match=r"provisioner mash\) does not exist; the CA has: acme, mesh"):
        await it.sign()


def test_a_key_is_decrypted_with_as_many_rounds_as_step_takes_and_no_more() -> None:
    step = FakeStepCa()
    assert json.loads(decrypted(step.encrypted(250_000), step.password)) == step.provisioner_key.as_dict(private=True)
    for rounds, says in ((MOST_ROUNDS + 1, "at most"), (0, "at most")):
        rest = step.encrypted().partition(".")[2]
        header = {"alg": "PBES2-HS256+A128KW", "enc": "A256GCM", "p2c": rounds, "p2s": "AAAA"}
        head = urlsafe_b64encode(json.dumps(header).encode()).decode()
        with pytest.raises(KeyFault, match=says):
            decrypted(f"{head}.{rest}", step.password)


@pytest.mark.parametrize("text", ["", "x", "{}", "{", "a.b.c.d.e", '{"kty":"oct","k":"c2VjcmV0"}', "[" * 9999])
def test_no_key_of_others_does_more_than_an_error_without_it(text: str) -> None:
    with pytest.raises(KeyFault) as raised:
        provisioner_of("mesh", "kid", text, "password")
    assert "c2VjcmV0" not in str(raised.value)


def test_a_public_key_is_refused_and_no_key_is_in_a_repr() -> None:
    key = FakeStepCa().provisioner_key
    with pytest.raises(KeyFault, match="it is a public key"):
        provisioner_of("mesh", "kid", json.dumps(key.as_dict(private=False)), "")
    found = provisioner_of("mesh", "kid", json.dumps(key.as_dict(private=True)), "")
    assert str(key.as_dict(private=True)["d"]) not in repr(found)
