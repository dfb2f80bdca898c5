"""Join tokens: what each is good for, and every way in which one is refused."""

from __future__ import annotations

import base64
import hmac
import json
import os
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey

from mesh_pilot.identity.authenticators.authentication import Authentication
from mesh_pilot.identity.authenticators.join_token import JoinToken
from mesh_pilot.identity.tokens.join_tokens import PREFIX, JoinTokens
from mesh_pilot.identity.tokens.store import TokenStore, TokenStoreError
from mesh_pilot.identity.trust.callers import (
    AuthenticationError,
    AuthenticatorUnavailable,
    Caller,
    Credentials,
    TrustDomains,
)
from mesh_pilot.model.spiffe import Identity

WEB = Identity("cluster.local", "shop", "web")
HOUR = timedelta(hours=1)
OWN = TrustDomains("cluster.local")
PEER = "192.0.2.7:4000"


@attrs.define
class Clock:
    now: datetime = datetime(2026, 11, 23, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@attrs.frozen
class Tokens:
    """Tokens in a folder, at a time that the test sets."""

    folder: Path
    clock: Clock

    @property
    def plane(self) -> JoinTokens:
        """As a process has them that was just started."""
        return JoinTokens(self.folder, now=self.clock)

    def reason(self, text: str, address: str = PEER, known: TrustDomains = OWN) -> str:
        """The reason why a token is refused; empty where it is accepted."""
        try:
            self.plane.redeem(text, address, known)
        except AuthenticationError as error:
            assert text not in str(error)
            return error.reason
        return ""


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "ca" / "join-tokens", Clock())


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def claims_of(text: str) -> dict[str, object]:
    part = text.split(".")[1]
    found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    assert isinstance(found, dict)
    return found


def signed_by_hmac(key_id: str | None, claims: dict[str, object], secret: bytes) -> str:
    text = f"{encoded({'alg': 'HS256', 'kid': key_id})}.{encoded(claims)}"
    signature = hmac.digest(secret, text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def test_a_token_makes_its_bearer_the_workload_that_it_names_until_it_ends(tokens: Tokens) -> None:
    made = tokens.plane.create(WEB, HOUR, created_by="ada")
    assert made.text.startswith("mpjt_")
    assert tokens.plane.redeem(made.text, PEER, OWN) == WEB
    assert tokens.plane.redeem(made.text, PEER, OWN) == WEB
    (record,) = tokens.plane.records()
    assert (record.uses, record.last_address, record.created_by) == (2, PEER, "ada")
    tokens.clock.now += HOUR
    assert tokens.reason(made.text) == "expired"


def test_a_token_for_one_use_is_used_once_also_after_a_restart(tokens: Tokens) -> None:
    made = tokens.plane.create(WEB, HOUR, max_uses=1)
    assert [tokens.reason(made.text), tokens.reason(made.text)] == ["", "replayed"]


def test_of_many_at_once_only_so_many_are_accepted_as_the_token_allows(tokens: Tokens) -> None:
    made = tokens.plane.create(WEB, HOUR, max_uses=3)
    planes = [tokens.plane for _ in range(8)]
    start = threading.Barrier(len(planes))
    reasons: list[str] = []

    def redeem(plane: JoinTokens) -> None:
        start.wait()
        try:
            plane.redeem(made.text, PEER, OWN)
        except AuthenticationError as error:
            reasons.append(error.reason)

    threads = [threading.Thread(target=redeem, args=(plane,)) for plane in planes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reasons == ["replayed"] * 5
    assert tokens.plane.records()[0].uses == 3


def test_a_revoked_token_is_refused_and_the_others_are_not(tokens: Tokens) -> None:
    first, second = (tokens.plane.create(WEB, HOUR) for _ in range(2))
    with pytest.raises(KeyError):
        tokens.plane.revoke([first.record.id, "0" * 16])
    assert tokens.reason(first.text) == ""
    tokens.plane.revoke([first.record.id])
    assert (tokens.reason(first.text), tokens.reason(second.text)) == ("revoked", "")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("10.1.2.3:4000", ""),
        ("[::ffff:10.1.2.3]:4000", ""),
        ("[2001:db8::7]:4000", ""),
        ("192.0.2.7:4000", "address"),
        ("[2001:db9::7]:4000", "address"),
        ("unix:///run/pilot.sock", "address"),
        ("10.1.2.3.example:4000", "address"),
    ],
)
def test_a_token_may_be_bound_to_networks(tokens: Tokens, address: str, reason: str) -> None:
    made = tokens.plane.create(WEB, HOUR, networks=["10.0.0.0/8", "2001:db8::/32"])
    assert tokens.reason(made.text, address) == reason


def test_a_token_is_for_the_trust_domain_that_it_was_made_for_and_for_its_successor(tokens: Tokens) -> None:
    made = tokens.plane.create(WEB, HOUR)
    assert tokens.reason(made.text, known=TrustDomains("new.example")) == "audience"
    renamed = TrustDomains("new.example", frozenset(["cluster.local"]))
    assert str(tokens.plane.redeem(made.text, PEER, renamed)) == "spiffe://new.example/ns/shop/sa/web"


def test_a_new_key_leaves_tokens_in_force_until_they_end(tokens: Tokens) -> None:
    before = tokens.plane.create(WEB, HOUR)
    added, dropped = tokens.plane.rotate_key()
    after = tokens.plane.create(WEB, 2 * HOUR)
    assert (after.record.key_id, dropped) == (added, [])
    assert [tokens.reason(before.text), tokens.reason(after.text)] == ["", ""]
    tokens.clock.now += HOUR
    _, dropped = tokens.plane.rotate_key()
    assert dropped == [before.record.key_id]
    assert [tokens.reason(before.text), tokens.reason(after.text)] == ["unknown_key", ""]


def test_after_a_leak_of_the_key_all_tokens_made_so_far_are_refused(tokens: Tokens) -> None:
    made = tokens.plane.create(WEB, HOUR)
    tokens.plane.rotate_key(drop_old=True)
    assert tokens.reason(made.text) == "unknown_key"
    assert tokens.reason(tokens.plane.create(WEB, HOUR).text) == ""


Forgery = Callable[[Tokens, str, ECKey], str]

FORGERIES: dict[str, tuple[str, Forgery]] = {
    "changed claims": (
        "signature",
        lambda _, text, key: ".".join(
            [
                text.split(".")[0],
                encoded(claims_of(text) | {"sub": "spiffe://cluster.local/ns/bank/sa/vault"}),
                text.split(".")[2],
            ]
        ),
    ),
    "cut off": ("signature", lambda _, text, key: text[:-4]),
    "another key under our key's name": (
        "signature",
        lambda _, text, key: (
            PREFIX + jwt.encode({"alg": "ES256", "kid": key.kid}, claims_of(text), ECKey.generate_key("P-256"))
        ),
    ),
    "another key": (
        "unknown_key",
        lambda _, text, key: (
            PREFIX + jwt.encode({"alg": "ES256", "kid": "mine"}, claims_of(text), ECKey.generate_key("P-256"))
        ),
    ),
    "no algorithm": (
        "algorithm",
        lambda _, text, key: PREFIX + f"{encoded({'alg': 'none', 'kid': key.kid})}.{encoded(claims_of(text))}.",
    ),
    "the public key as a secret": (
        "algorithm",
        lambda _, text, key: PREFIX + signed_by_hmac(key.kid, claims_of(text), key.as_pem(private=False)),
    ),
    "a stolen key, an id that was never given": (
        "unknown",
        lambda _, text, key: (
            PREFIX + jwt.encode({"alg": "ES256", "kid": key.kid}, claims_of(text) | {"jti": "0" * 16}, key)
        ),
    ),
    "a stolen key, the id of another token": (
        "unknown",
        lambda _, text, key: (
            PREFIX + jwt.encode({"alg": "ES256", "kid": key.kid}, claims_of(text) | {"exp": 2**40}, key)
        ),
    ),
    "a stolen key, a path for an id": (
        "unknown",
        lambda _, text, key: (
            PREFIX + jwt.encode({"alg": "ES256", "kid": key.kid}, claims_of(text) | {"jti": "../../root-key"}, key)
        ),
    ),
    "without an end": (
        "form",
        lambda _, text, key: PREFIX + jwt.encode({"alg": "ES256", "kid": key.kid}, {"jti": "x", "aud": "y"}, key),
    ),
    "no token": ("form", lambda _, text, key: PREFIX + "hello"),
    "endless": ("form", lambda _, text, key: text + "A" * 100_000),
    "look-alikes": ("form", lambda _, text, key: text.replace("e", "\u0435")),
}


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_token_is_refused_with_its_reason(tokens: Tokens, name: str) -> None:
    reason, forge = FORGERIES[name]
    made = tokens.plane.create(WEB, HOUR)
    key = ECKey.import_key(json.loads((tokens.folder / "keys.json").read_text())["keys"][0])
    assert tokens.reason(forge(tokens, made.text, key)) == reason
    assert tokens.reason(made.text) == ""


@given(st.one_of(st.text(), st.lists(st.text(), min_size=3, max_size=3).map(".".join)))
def test_whatever_is_shown_is_refused_and_nothing_else_happens(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    tokens = Tokens(tmp_path_factory.getbasetemp() / "fuzzed", Clock())
    if not tokens.folder.exists():
        tokens.plane.create(WEB, HOUR)
    with pytest.raises(AuthenticationError):
        tokens.plane.redeem(PREFIX + text, PEER, OWN)


def test_the_text_of_a_token_is_nowhere(tokens: Tokens) -> None:
    made = tokens.plane.create(WEB, HOUR)
    signature = made.text.split(".")[2]
    assert signature not in repr((made, tokens.plane, tokens.plane.records()))
    for file in tokens.folder.iterdir():
        assert signature not in file.read_text()


def test_nobody_else_can_read_the_files(tokens: Tokens) -> None:
    mask = os.umask(0)
    try:
        tokens.plane.create(WEB, HOUR)
    finally:
        os.umask(mask)
    for folder in (tokens.folder, tokens.folder.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in tokens.folder.iterdir()} == {0o600}


def test_a_key_that_others_can_read_is_not_used(tokens: Tokens) -> None:
    made = tokens.plane.create(WEB, HOUR)
    (tokens.folder / "keys.json").chmod(0o644)
    with pytest.raises(TokenStoreError, match=r"has mode 0644; others must have no access: chmod 600"):
        tokens.plane.redeem(made.text, PEER, OWN)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"keys": [{"kty": "EC", "d": "hunter2"}]}'])
@pytest.mark.parametrize("file", ["keys.json", "{id}.json"])
def test_files_that_cannot_be_read_let_nobody_in_and_are_not_quoted(tokens: Tokens, file: str, content: str) -> None:
    made = tokens.plane.create(WEB, HOUR)
    (tokens.folder / file.format(id=made.record.id)).write_text(content)
    with pytest.raises(TokenStoreError, match="join-tokens") as caught:
        tokens.plane.redeem(made.text, PEER, OWN)
    assert "hunter2" not in str(caught.value)


def test_records_of_tokens_are_dropped_a_month_after_they_end(tokens: Tokens) -> None:
    old = tokens.plane.create(WEB, HOUR)
    tokens.clock.now += timedelta(days=29)
    assert tokens.reason(old.text) == "expired"
    tokens.plane.create(WEB, HOUR)
    assert len(tokens.plane.records()) == 2
    tokens.clock.now += timedelta(days=2)
    tokens.plane.create(WEB, HOUR)
    assert old.record not in tokens.plane.records()


@pytest.mark.parametrize(
    ("identity", "lifetime", "networks"),
    [
        (Identity("cluster.local", "shop/sa/x", "web"), HOUR, []),
        (Identity("cluster.local", "", "web"), HOUR, []),
        (Identity("cluster.local", "Shop", "web"), HOUR, []),
        (Identity("cluster.local", "shop", "w\u0435b"), HOUR, []),
        (WEB, timedelta(), []),
        (WEB, timedelta(days=31), []),
        (WEB, HOUR, ["10.0.0.1/8"]),
    ],
)
def test_what_no_token_can_have_is_refused(
    tokens: Tokens, identity: Identity, lifetime: timedelta, networks: list[str]
) -> None:
    with pytest.raises(ValueError, match=r".+"):
        tokens.plane.create(identity, lifetime, networks=networks)
    assert tokens.plane.records() == []


def showing(token: str, *, tls: bool = True) -> Credentials:
    return Credentials(PEER, tls, metadata={"authorization": [f"Bearer {token}"]})


async def test_the_bearer_of_a_token_is_a_caller(tokens: Tokens) -> None:
    chain = Authentication([JoinToken(tokens.plane, lambda: OWN)])
    made = tokens.plane.create(WEB, HOUR, max_uses=1)
    assert await chain.caller(showing(made.text, tls=False)) is None, "it may have been overheard"
    with pytest.raises(AuthenticationError, match="of a kind that is known"):
        await chain.caller(showing("eyJ.eyJ.x"))
    assert await chain.caller(showing(made.text)) == Caller(WEB, "join_token")
    with pytest.raises(AuthenticationError, match=f"{made.record.id} was already used 1 of 1 times"):
        await chain.caller(showing(made.text))
    assert chain.refused["join_token", "replayed"] == 1


async def test_tokens_of_other_kinds_are_left_to_others(tokens: Tokens) -> None:
    assert await JoinToken(tokens.plane, lambda: OWN).authenticate(showing("eyJ.eyJ.x")) is None
    assert await JoinToken(tokens.plane, lambda: OWN).authenticate(Credentials(PEER, True)) is None


async def test_a_control_plane_without_tokens_says_so() -> None:
    with pytest.raises(AuthenticationError, match="started without --token-dir"):
        await JoinToken(None, lambda: OWN).authenticate(showing(PREFIX + "a.b.c"))


async def test_while_the_record_cannot_be_read_the_bearer_has_to_try_again(
    tokens: Tokens, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tokens.plane.create(WEB, HOUR)
    whole = (tokens.folder / "keys.json").read_text()
    (tokens.folder / "keys.json").write_text("{")
    authenticator = JoinToken(tokens.plane, lambda: OWN)
    for _ in range(3):
        with pytest.raises(AuthenticatorUnavailable, match="cannot be checked now"):
            await authenticator.authenticate(showing(made.text))
    assert capsys.readouterr().out.count("join tokens cannot be checked") == 1
    TokenStore(tokens.folder).put_keys(json.loads(whole))
    assert await authenticator.authenticate(showing(made.text)) == WEB
