"""People who log in at a real issuer: by a browser's steps and by tokens; their roles, and hostile callers."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import structlog
import trio
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from mesh_pilot.app.settings import StartError
from mesh_pilot.ops.access.logins import GRACE_SECONDS, LoginError, Logins
from mesh_pilot.ops.access.people import PeopleFile, PeopleRules, Person
from mesh_pilot.ops.access.read_again import AccessError
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.api.visitors import Role
from tests.support.envoy import eventually
from tests.support.openid import CLI_CLIENT, CLIENT, Issuer, confirm, issuer
from tests.support.planes import SERVICE, running_plane
from tests.support.ports import free_ports

pytestmark = [pytest.mark.process]

OFFLINE = {"scopes": ["openid", "profile", "email", "groups", "offline_access"]}
BANK = SERVICE.replace("shop", "bank").replace("reviews", "ledger")


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as found:
        yield found


class Mesh:
    """A plane whose page people log in at."""

    def __init__(self, url: str, at: Issuer, file: Path) -> None:
        self.url, self.issuer, self.file = url, at, file

    def browser(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await trio.to_thread.run_sync(call, *arguments)

    def log_in(self, browser: httpx.Client, subject: str, following: str = "/") -> httpx.Response:
        """Everything from the link on the page to the page after the login."""
        begun = browser.get("/login/people", params={"next": following})
        assert begun.status_code == 303, begun.text
        back = confirm(browser, begun.headers["location"], subject)
        assert back.headers["location"].startswith(self.url), back.text
        return browser.get(back.headers["location"])

    def token(self, **claims: Any) -> str:
        """A token as the issuer signs it."""
        key = KeySet.import_key_set(self.issuer.settings["jwks"]).keys[0]
        assert isinstance(key, RSAKey)
        now = int(time.time())
        usual = {"iss": self.issuer.url, "sub": "u-2", "aud": CLI_CLIENT, "iat": now, "exp": now + 600}
        whole = {**usual, "email": "bob@example.com", "groups": ["shop-team"], **claims}
        return jwt.encode({"alg": "RS256", "kid": key.kid}, {k: v for k, v in whole.items() if v is not None}, key)

    async def ask(self, method: str, path: str, token: str, **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=60) as client:
            return await client.request(method, path, headers={"authorization": f"Bearer {token}"}, **more)


@asynccontextmanager
async def mesh(tmp_path: Path, *, starts: bool = True, seconds: int = 3600, **more: Any) -> AsyncIterator[Mesh]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    config = tmp_path / "config"
    config.mkdir()
    (config / "shop.yaml").write_text(SERVICE)
    (config / "bank.yaml").write_text(BANK)
    with issuer(tmp_path, url, starts=starts, id_token_seconds=seconds) as at:
        file = tmp_path / "people.yaml"
        file.write_text(at.people(url, **more))
        access = AccessSettings(people_file=file)
        store = {"config_store": str(config)}
        async with running_plane(config, access=access, http_addr=f"0.0.0.0:{port}", **store):
            yield Mesh(url, at, file)


async def test_a_person_logs_in_with_a_browser_and_logs_out_here_and_there(tmp_path: Path, logs: list[Any]) -> None:
    async with mesh(tmp_path) as found:
        with found.browser() as browser:
            form = await found.run(lambda: browser.get("/", headers={"accept": "text/html"}))
            assert (form.status_code, form.headers["location"]) == (303, "/login?next=/")
            page = await found.run(browser.get, "/login?next=/%23/proxies")
            assert f"Log in at {found.issuer.url}" in page.text
            assert "password" not in page.text, "there is no file of tokens"
            done = await found.run(found.log_in, browser, "u-2", "/#/objects")
            assert done.status_code == 200 and 'content="0;url=/#/objects"' in done.text
            session = next(each for each in done.headers.get_list("set-cookie") if "mesh_pilot_session" in each)
            assert "HttpOnly" in session and "SameSite=strict" in session and "Secure" not in session
            who = (await found.run(browser.get, "/api/v1/whoami")).json()
            assert who["name"] == "bob@example.com" and who["subject"] == "u-2" and who["groups"] == ["shop-team"]
            assert who["roles"] == {"shop": "edit", "cart": "view"} and who["role"] is None and who["may_log_out"]
            out = await found.run(browser.post, "/logout")
            assert f'content="0;url={found.issuer.url}/session/end?client_id={CLIENT}&amp;id_token_hint=' in out.text
            assert (await found.run(browser.get, "/api/v1/whoami")).status_code == 401
    login = next(each for each in logs if each["event"] == "login")
    assert (login["user"], login["subject"], login["roles"]) == ("bob@example.com", "u-2", "view in cart, edit in shop")


async def test_nobody_is_logged_in_by_a_login_that_another_browser_has_begun(tmp_path: Path) -> None:
    async with mesh(tmp_path) as found:
        with found.browser() as attacker, found.browser() as victim:
            begun = await found.run(attacker.get, "/login/people")
            back = (await found.run(confirm, attacker, begun.headers["location"], "u-1")).headers["location"]
            for name, value in (("mesh_pilot_session", "fixed"), ("mesh_pilot_login_0123456789ab", "e30=.forged")):
                victim.cookies.set(name, value)
            reply = await found.run(victim.get, back)
            assert reply.status_code == 400 and "this browser has begun no such login" in reply.text
            assert (await found.run(victim.get, "/api/v1/whoami")).status_code == 401
            first = await found.run(attacker.get, back)
            value = attacker.cookies["mesh_pilot_session"]
            assert first.status_code == 200 and value != "fixed"
            assert (await found.run(attacker.get, back)).status_code == 400, "a code is good for once"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("code=abc", 400),
        ("state=abc&code=abc", 400),
        ("state=" + "x" * 5000 + "&code=abc", 400),
        ("state=%ff%00&code=%ff", 400),
        ("state=OURS", 400),
        ("state=OURS&code=" + "x" * 5000, 400),
        ("state=OURS&code=never-given", 403),
        ("state=OURS&error=access_denied&error_description=%3Cscript%3Ealert(1)%3C/script%3E", 403),
        ("state=OURS&code=abc&iss=https://evil.test", 400),
    ],
)
async def test_what_the_callback_may_be_sent(tmp_path: Path, query: str, status: int) -> None:
    async with mesh(tmp_path) as found:
        with found.browser() as browser:
            begun = await found.run(browser.get, "/login/people")
            state = httpx.URL(begun.headers["location"]).params["state"]
            reply = await found.run(browser.get, f"/login/callback?{query.replace('OURS', state)}")
            assert reply.status_code == status, reply.text
            assert "<script>alert" not in reply.text
            assert "mesh_pilot_session" not in browser.cookies


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.test/", "//evil.test", "/\\evil.test", "javascript:alert(1)", "\t//x"]
)
async def test_a_login_leads_nowhere_else(tmp_path: Path, elsewhere: str) -> None:
    async with mesh(tmp_path) as found:
        with found.browser() as browser:
            done = await found.run(found.log_in, browser, "u-2", elsewhere)
            assert 'content="0;url=/"' in done.text
            begun = await found.run(lambda: browser.get("/login/people", headers={"host": "evil.test"}))
            assert begun.headers["location"].startswith(f"{found.url}/login/people"), "only one address is sent back to"


async def test_tokens_of_the_issuer_are_taken_and_others_are_not(tmp_path: Path) -> None:
    async with mesh(tmp_path) as found:
        now = int(time.time())
        stranger = RSAKey.generate_key(2048, auto_kid=True)
        forged = jwt.encode({"alg": "RS256"}, {"iss": found.issuer.url, "sub": "u-1", "aud": CLIENT}, stranger)
        none = ".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in ({"alg": "none"}, {"iss": found.issuer.url, "sub": "u-1", "aud": CLIENT, "exp": now + 60})
        )
        for token, status, reason in (
            (found.token(), 200, ""),
            (found.token(aud=CLIENT), 200, ""),
            (found.token(aud=["other", CLIENT]), 200, ""),
            (found.token(exp=now - 1), 200, ""),
            (found.token(iat=now + 20, nbf=now + 20), 200, ""),
            (found.token(aud="another-app"), 401, "is for 'another-app'"),
            (found.token(aud=None), 401, "no claim 'aud'"),
            (found.token(exp=now - 60), 401, "expired"),
            (found.token(nbf=now + 120), 401, "not valid yet; compare the clocks"),
            (found.token(iss="https://evil.test"), 401, "not known"),
            (found.token(sub=None), 401, "no subject"),
            (found.token(sub="u-9", groups=["x" * 6_000]), 403, "no role"),
            (found.token(groups=["x" * 30_000]), 431, ""),
            (found.token(groups={"a": ["shop-team"]}), 403, "no role"),
            (found.token()[:-4] + "AAAA", 401, "not signed by"),
            (forged, 401, "token is refused"),
            (none + ".", 401, "not known"),
        ):
            reply = await found.ask("GET", "/api/v1/whoami", token)
            if status == 431:
                assert reply.status_code in (400, 401, 413, 431), reply.text
                continue
            assert reply.status_code == status and reason in reply.text, (reply.status_code, reply.text, reason)


async def test_an_address_that_the_issuer_has_not_verified_is_nobodys(tmp_path: Path) -> None:
    roles = [{"role": "operate", "users": ["alice@example.com"]}]
    async with mesh(tmp_path, roles=roles) as found:
        alice = found.token(sub="u-1", email="alice@example.com", email_verified=True)
        assert (await found.ask("GET", "/api/v1/whoami", alice)).json()["role"] == "operate"
        other = found.token(sub="u-4", email="alice@example.com", email_verified=False)
        reply = await found.ask("GET", "/api/v1/whoami", other)
        assert reply.status_code == 403 and "u-4 has no role here" in reply.text


async def test_a_person_sees_and_changes_only_their_namespaces(tmp_path: Path, logs: list[Any]) -> None:
    async with mesh(tmp_path) as found:
        bob = found.token()

        async def got(path: str) -> Any:
            return (await found.ask("GET", f"/api/v1{path}", bob)).json()

        assert {each["namespace"] for each in (await got("/objects"))["items"]} == {"shop"}
        assert {each["namespace"] for each in (await got("/services"))["items"]} == {"shop"}
        assert (await got("/services"))["total"] == 1
        assert (await got("/search?q=test"))["objects"]["total"] == 1
        assert "ledger" not in json.dumps([await got(path) for path in ("/endpoints", "/history", "/graph", "/now")])
        one = "/api/v1/config/ServiceEntry/{0}/{1}"
        assert (await found.ask("GET", one.format("shop", "reviews"), bob)).status_code == 200
        hidden = await found.ask("GET", one.format("bank", "ledger"), bob)
        assert hidden.status_code == 403
        assert hidden.json()["error"] == (
            "this needs view in namespace bank, and bob@example.com has view in cart, edit in shop"
        )
        body = SERVICE.replace("v1}", "v2}")
        assert (
            await found.ask("PUT", f"{one.format('shop', 'reviews')}?wait=30", bob, content=body)
        ).status_code == 200
        own = await got("/history/2")
        assert [each.partition(", ")[2] for each in own["causes"]] == ["by bob@example.com"]
        for namespace, role in (("bank", "edit"), ("cart", "edit")):
            text = body.replace("shop", namespace)
            reply = await found.ask("PUT", one.format(namespace, "reviews"), bob, content=text)
            assert reply.status_code == 403 and f"this needs {role} in namespace {namespace}" in reply.text
        smuggled = await found.ask("PUT", one.format("shop", "ledger"), bob, content=BANK)
        assert smuggled.status_code in (400, 422), "the namespace in the body is that of the path"
        push = await found.ask("POST", "/api/v1/push", bob)
        assert push.status_code == 403 and "this needs operate in some namespace" in push.text
        assert (await found.ask("GET", "/debug/configz", bob)).status_code == 403
        alice = found.token(sub="u-1", email="alice@example.com", groups=["platform"])
        assert (await found.ask("POST", "/api/v1/push", alice)).status_code == 200
    changed = next(each for each in logs if each["event"] == "config changed")
    assert (changed["user"], changed["subject"], changed["by"]) == ("bob@example.com", "u-2", "login")
    orders = [each for each in logs if each["event"] == "api order" and each["order"] == "POST /api/v1/push"]
    assert [(each["user"], each["subject"]) for each in orders] == [("alice@example.com", "u-1")]


async def test_a_plane_starts_without_its_issuer_and_logins_say_so(tmp_path: Path) -> None:
    async with mesh(tmp_path, starts=False) as found:
        with found.browser() as browser:
            assert (await found.run(browser.get, "/ready")).status_code == 200
            reply = await found.run(browser.get, "/login/people")
            assert reply.status_code == 503 and "fail now; the control plane" in reply.text
            assert (await found.run(browser.get, "/ready")).text.startswith(f"ready\nlogins: {found.issuer.url}/")
            assert (await found.ask("GET", "/api/v1/whoami", found.token())).status_code == 503
            await found.run(found.issuer.start)

            async def is_sent_there() -> bool:
                return bool((await found.run(browser.get, "/login/people")).status_code == 303)

            await eventually(is_sent_there, what="a login")

            async def is_well() -> bool:
                said = await found.ask("GET", "/api/v1/whoami", found.token())
                return said.status_code == 200 and (await found.run(browser.get, "/ready")).text == "ready\n"

            await eventually(is_well, what="nothing is told any more")


async def test_while_the_issuer_is_away_known_keys_count_and_its_new_keys_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh_pilot.identity.authenticators.issuer_keys.RETRY_SECONDS", 0.0)
    async with mesh(tmp_path) as found:
        before = found.token()
        assert (await found.ask("GET", "/api/v1/whoami", before)).status_code == 200
        await found.run(found.issuer.stop)
        assert (await found.ask("GET", "/api/v1/whoami", before)).status_code == 200
        found.issuer.new_keys()
        after = found.token()
        assert (await found.ask("GET", "/api/v1/whoami", after)).status_code == 503
        await found.run(found.issuer.start)
        assert (await found.ask("GET", "/api/v1/whoami", after)).status_code == 200
        assert (await found.ask("GET", "/api/v1/whoami", before)).status_code == 401


async def test_a_session_is_renewed_with_the_groups_of_then_until_the_issuer_ends_it(tmp_path: Path) -> None:
    page = "http://127.0.0.1:1"
    with issuer(tmp_path, page) as at:
        file = tmp_path / "people.yaml"
        file.write_text(at.people(page, **OFFLINE))
        logins = Logins(PeopleFile(file))
        url, cookie, value = await logins.begin("/#/objects")
        with httpx.Client(trust_env=False) as browser:
            back = await trio.to_thread.run_sync(confirm, browser, url, "u-2")
        query = dict(httpx.URL(back.headers["location"]).params)
        session, following = await logins.finish(query, {cookie: value})
        assert following == "/#/objects" and session.person.groups == ("shop-team",)

        async def person_after(seconds: float) -> Person | None:
            """The person so many seconds after the end of the latest token."""
            session.person = attrs.evolve(session.person, until=time.time() - seconds)
            session.tried_at = float("-inf")
            return await logins.person_now(session)

        at.account("u-2", groups=["platform"])
        assert (await logins.person_now(session)) is session.person and session.person.groups == ("shop-team",)
        renewed = await person_after(0)
        assert renewed is not None and renewed.groups == ("platform",) and renewed.until > time.time()
        at.stop()
        assert (away := await person_after(60)) is not None and away.groups == ("platform",)
        with pytest.raises(LoginError, match="the issuer does not answer") as caught:
            await person_after(GRACE_SECONDS + 1)
        assert caught.value.status == 503
        await trio.to_thread.run_sync(at.start)
        assert await person_after(0) is None, "it knows no such login any more"
        file.write_text(at.people(page, issuer="http://127.0.0.1:2"))
        assert await Logins(PeopleFile(file)).person_now(session) is None, "the login of another issuer"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("- a list", "is not an object with issuer"),
        ("{issuer: [", "is not YAML"),
        ({"issuer": None}, "issuer is not a string"),
        ({"issuer": "http://sso.test"}, "is not https"),
        ({"issuer": "sso.test"}, "issuer"),
        ({"url": "https://pilot.test/mesh"}, "url has a path"),
        ({"colour": "red"}, "'colour' is not known; there are issuer"),
        ({"roles": [{"role": "admin", "groups": ["a"]}]}, r"roles \[0\]: role is not one of view, edit, operate"),
        ({"roles": [{"role": "view"}]}, r"roles \[0\]: names neither groups nor users"),
        ({"roles": [{"role": "view", "groups": []}]}, r"roles \[0\]: groups is not a list of strings"),
        ({"roles": [{"role": "view", "groups": ["a"], "namespaces": ["Shop"]}]}, "has 'Shop', which is neither"),
        ({"roles": "all"}, "roles is not a list of objects"),
    ],
)
def test_what_is_wrong_with_a_file_of_people_is_named(change: Any, reason: str) -> None:
    usual = {"issuer": "https://sso.test", "clientId": "a", "url": "https://pilot.test", "roles": []}
    text = change if isinstance(change, str) else json.dumps({**usual, **change})
    with pytest.raises(AccessError, match=f"^people.yaml: .*{reason}"):
        PeopleRules.parse(text, "people.yaml")


def test_the_largest_role_of_several_rules_counts_in_each_namespace() -> None:
    roles = [
        {"role": "view", "groups": ["all"]},
        {"role": "operate", "groups": ["all"], "namespaces": ["shop"]},
        {"role": "view", "users": ["bob"], "namespaces": ["shop"]},
    ]
    known = {"issuer": "https://sso.test", "clientId": "a", "url": "https://pilot.test", "roles": roles}
    claims = {"sub": "1", "name": "bob", "exp": 1, "realm": {"roles": ["all"]}}
    rules = PeopleRules.parse(json.dumps({**known, "userClaim": "name", "groupsClaim": "[realm][roles]"}), "x")
    visitor = rules.visitor(rules.person(claims), "login")
    assert visitor.grants == {"*": Role.VIEW, "shop": Role.OPERATE}
    assert visitor.may(Role.EDIT, "shop") and not visitor.may(Role.EDIT, "bank") and visitor.may(Role.VIEW, "bank")
    assert not visitor.may(Role.EDIT) and visitor.may_somewhere(Role.EDIT)


async def test_a_wrong_file_stops_the_start_and_a_wrong_change_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    monkeypatch.setattr("mesh_pilot.ops.access.read_again.LOOK_SECONDS", 0)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("{}")
    with pytest.raises(StartError, match=r"--api-people-file: .*wrong.yaml: issuer is missing"):
        async with running_plane(access=AccessSettings(people_file=wrong)):
            pass
    async with mesh(tmp_path) as found:
        bob, whole = found.token(), found.file.read_text()
        found.file.write_text("{}")
        assert (await found.ask("GET", "/api/v1/whoami", bob)).status_code == 200
        assert any("cannot be read; those before are kept" in each["event"] for each in logs)
        found.file.write_text(json.dumps({**json.loads(whole), "roles": []}))
        assert (await found.ask("GET", "/api/v1/whoami", bob)).status_code == 403
