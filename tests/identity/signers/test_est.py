"""EST as the signer: what every kind of CA does, credentials, and answers that make no sense."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from mesh_pilot.identity.signers.est.ca import EstCa
from mesh_pilot.identity.signers.est.settings import EstSettings
from mesh_pilot.identity.signers.remote import CaError
from mesh_pilot.identity.signers.signing import SigningError
from tests.identity.signers.conformance import AskedCa, SignerConformance, Story
from tests.identity.signers.fake_est import PASSWORD, FakeEst

CERTS_ONLY = {"content-type": "application/pkcs7-mime"}


def story(folder: Path, **more: Any) -> tuple[Story, FakeEst]:
    server = FakeEst()
    ca = EstCa(server.settings(folder, **more), server.transport())
    return Story(AskedCa(ca, server, "POST simpleenroll", PASSWORD, chooses_lifetime=True)), server


class TestEst(SignerConformance):
    @pytest.fixture
    def asked(self, tmp_path: Path) -> AskedCa:
        return story(tmp_path)[0].asked


async def test_a_password_is_read_at_each_request(tmp_path: Path, autojump_clock: MockClock) -> None:
    it, _ = story(tmp_path)
    (tmp_path / "password").write_text("wrong")
    with pytest.raises(CaError, match="401; give the server a user and password") as raised:
        await it.sign()
    assert raised.value.reason == "forbidden"
    (tmp_path / "password").write_text(PASSWORD)
    await it.sign()


async def test_a_refusal_has_the_words_of_the_server_in_a_line(tmp_path: Path, autojump_clock: MockClock) -> None:
    it, server = story(tmp_path)
    server.is_forbidden = True
    with pytest.raises(CaError, match="403 not a registrar; make this user or client certificate"):
        await it.sign()


async def test_a_request_that_waits_for_a_person_is_an_error_that_says_so(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    it, server = story(tmp_path)
    server.is_pending = True
    with pytest.raises(CaError, match="202, the request waits for approval") as raised:
        await it.sign()
    assert raised.value.reason == "busy"
    assert it.asked.count == 1, "an hour is more than those who ask wait"


async def test_the_intermediate_of_a_leaf_is_looked_for_where_the_answer_does_not_have_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    it, server = story(tmp_path)
    await it.sign()
    await it.sign()
    assert server.asked.count("GET cacerts") == 2, "for the first leaf, and for its roots"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(200, headers=CERTS_ONLY, content=b""), "is that EST"),
        (httpx.Response(204), "is that EST"),
        (httpx.Response(200, html="<html>login</html>"), "the answer is text/html"),
        (httpx.Response(200, headers=CERTS_ONLY, content=b"%%%"), "is not a PKCS #7"),
        (httpx.Response(200, headers=CERTS_ONLY, content=base64.b64encode(b"x" * 999)), "is not a PKCS #7"),
        (httpx.Response(302, headers={"location": "https://elsewhere"}), "name the server itself"),
        (httpx.Response(404), "the CA in label"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_an_error(
    answer: httpx.Response, says: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    it, server = story(tmp_path)
    server.answer = answer
    with pytest.raises(SigningError, match=says):
        await it.sign()


@given(st.binary(max_size=300))
def test_no_bytes_of_a_server_do_more_than_an_error(body: bytes) -> None:
    async def main() -> None:
        settings = EstSettings(address="https://est.example.com", client_certificate=None, user="", password_file=None)
        answer = httpx.Response(200, headers=CERTS_ONLY, content=base64.b64encode(body))
        with pytest.raises(SigningError):
            await EstCa(settings, httpx.MockTransport(lambda _: answer)).roots()

    trio.run(main)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"address": "http://est.example.com"}, "address: 'http://est.example.com' is not an https URL"),
        ({"address": "https://u:p@est.example.com"}, "address: the URL has a user"),
        ({"label": "a/b"}, "label: 'a/b' is not one segment"),
        ({"user": "a:b"}, "user: has a colon"),
        ({"password_file": None}, "user: goes with passwordFile"),
        ({"user": "", "password_file": None}, "name clientCertificate, or user and passwordFile"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    settings = FakeEst().settings(tmp_path)
    assert problem in "; ".join(map(str, attrs.evolve(settings, **change).problems()))
    assert [*settings.problems()] == []
