"""Who is let in at the web port: on loopback, elsewhere, over TLS, at the admin socket; and hostile callers."""

from __future__ import annotations

import base64
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mesh_pilot.app.access import AccessFiles, is_closed, is_local
from mesh_pilot.app.control_plane import control_plane
from mesh_pilot.app.settings import StartError
from mesh_pilot.net.http.connection import HttpLimits
from mesh_pilot.net.http.server import HttpServer
from mesh_pilot.net.rpc import CertificateFiles, open_listeners
from mesh_pilot.net.rpc.net import address_of
from mesh_pilot.net.rpc.tls import server_tls
from mesh_pilot.ops.access import sessions
from mesh_pilot.ops.access.gate import Gate, names_this_machine
from mesh_pilot.ops.access.read_again import AccessError
from mesh_pilot.ops.access.roles import AccessFile, AccessRules
from mesh_pilot.ops.access.settings import AccessSettings
from mesh_pilot.ops.api.route import ApiRoute
from mesh_pilot.ops.api.visitors import STILL_LET_IN, Role
from tests.support.certificates import write_certificates
from tests.support.envoy import eventually
from tests.support.planes import settings

VIEWER, OPERATOR = "a-token-that-may-view", "a-token-that-may-operate"
FILE = f"""\
# comment
view {VIEWER} grafana
operate sha256:{hashlib.sha256(OPERATOR.encode()).hexdigest()} alice
operate certificate spiffe://cluster.local/ns/ops/sa/deploy
"""


async def _answer(request: Request) -> Response:
    return PlainTextResponse(f"{request.method} {request.url.path}")


async def _found(_: Request) -> Any:
    return {}


ROUTES = [
    ApiRoute("/plan", "A change that only looks.", _found, method="POST", role=Role.VIEW),
    ApiRoute("/memory", "Costs something.", _found, role=Role.OPERATE),
    ApiRoute("/push", "Changes.", _found, method="POST", role=Role.OPERATE),
]
APP = Starlette(routes=[Route("/{rest:path}", _answer, methods=["GET", "POST", "PUT"])])

Ask = Callable[..., Awaitable[httpx.Response]]


@asynccontextmanager
async def gate(tmp_path: Path, *, tokens: bool = True, local: bool = False, **more: Any) -> AsyncIterator[Ask]:
    """A gate before an app that answers everything, and a function that asks it."""
    (tmp_path / "tokens").write_text(FILE)
    file = AccessFile(tmp_path / "tokens") if tokens else None
    server = HttpServer(Gate(APP, ROUTES, file=file, local=local), **more)
    listeners = await open_listeners("127.0.0.1:0")
    scheme = "https" if "tls" in more else "http"
    stop = trio.Event()
    async with trio.open_nursery() as nursery, httpx.AsyncClient(trust_env=False, timeout=60) as client:

        async def ask(method: str, path: str, **options: Any) -> httpx.Response:
            url = f"{options.pop('scheme', scheme)}://{address_of(listeners[0].socket)}{path}"
            return await options.pop("client", client).request(method, url, **options)

        ask.address = address_of(listeners[0].socket)  # type: ignore[attr-defined]  # for tests below HTTP
        nursery.start_soon(lambda: server.serve(listeners, stop, grace_seconds=0))
        yield ask
        nursery.cancel_scope.cancel()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(token: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"me:{token}".encode()).decode()}


OURS = {"x-mesh-pilot": "1"}
PUSH, PLAN, LOOK = ("POST", "/api/v1/push"), ("POST", "/api/v1/plan"), ("GET", "/api/v1/status")


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as found:
        yield found


async def test_on_loopback_everybody_may_look_and_a_change_needs_a_token(tmp_path: Path, logs: list[Any]) -> None:
    async with gate(tmp_path, local=True) as ask:
        for what, headers, status in (
            (LOOK, {}, 200),
            (("GET", "/"), {}, 200),
            (PLAN, OURS, 200),
            (PLAN, {}, 403),
            (PUSH, OURS, 403),
            (("GET", "/api/v1/memory"), {}, 403),
            (("GET", "/api/v1/memory"), bearer(OPERATOR), 200),
            (PUSH, bearer(VIEWER), 403),
            (PUSH, bearer(OPERATOR), 200),
            (PUSH, basic(OPERATOR), 403),
            (PUSH, {**OURS, **basic(OPERATOR)}, 200),
            (PUSH, {**OURS, **basic(OPERATOR), "origin": "https://evil.test"}, 403),
            (PUSH, {**bearer(OPERATOR), "sec-fetch-site": "cross-site"}, 403),
            (LOOK, bearer("a-token-that-nobody-has"), 401),
            (LOOK, {"host": "evil.test"}, 403),
            (LOOK, {"host": "evil.test:8080"}, 403),
            (LOOK, {"host": "localhost:8080"}, 200),
            (LOOK, {"host": "evil.test", **bearer(VIEWER)}, 200),
            (("GET", "/ready"), {"host": "evil.test"}, 200),
        ):
            reply = await ask(*what, headers=headers)
            assert reply.status_code == status, (what, headers, reply.text)
    orders = [(e["user"], e["by"], e["order"], e["status"]) for e in logs if e["event"] == "api order"]
    assert orders.count(("alice", "token", "POST /api/v1/push", 200)) == 2
    refused = [entry for entry in logs if entry["event"] == "request refused"]
    assert len(refused) == 2, "one line a minute for each address and status"
    assert OPERATOR not in str(logs)


async def test_elsewhere_nothing_but_what_monitoring_needs_is_for_everybody(tmp_path: Path) -> None:
    async with gate(tmp_path) as ask:
        for path in ("/ready", "/healthz", "/metrics", "/version", "/spiffe/bundle"):
            assert (await ask("GET", path)).status_code == 200
        for path in (
            "/",
            "/debug",
            "/debug/configz",
            "/api/v1/status",
            "/ready/",
            "//ready",
            "/ready?verbose",
            "/nothing",
        ):
            reply = await ask("GET", path)
            assert (reply.status_code, reply.headers["www-authenticate"]) == (401, 'Bearer realm="mesh-pilot"'), path
            assert (await ask("GET", path, headers=bearer(VIEWER))).status_code == 200
        assert "token is needed" in (await ask(*LOOK)).json()["error"]
        for wrong in ("Bearer", "Bearer  x", "Basic !!!", "Basic " + "A" * 4000, "Digest x", "Bearer " + "x" * 9000):
            assert (await ask(*LOOK, headers={"authorization": wrong})).status_code == 401
        assert (await ask(*LOOK, headers={"authorization": "Bearer " + "x" * 200_000})).status_code == 431


async def test_a_port_for_all_without_tokens_says_what_to_do_and_serves_nothing(
    tmp_path: Path, logs: list[Any]
) -> None:
    async with gate(tmp_path, tokens=False) as ask:
        assert (await ask("GET", "/metrics")).status_code == 200
        for path in ("/", "/debug", "/login"):
            reply = await ask("GET", path, headers=OURS)
            assert reply.status_code == 403
            assert "give mesh-pilot discovery --api-token-file" in reply.text
        assert (await ask(*LOOK, headers=bearer(VIEWER))).status_code == 403
    async with gate(tmp_path, tokens=False, local=True) as ask:
        assert (await ask(*LOOK, headers=bearer(VIEWER))).status_code == 200, "tokens mean nothing there"
        assert (await ask(*PUSH, headers=bearer(OPERATOR))).status_code == 403
    assert [entry["event"] for entry in logs] == ["request refused"] * 2


async def test_a_browser_logs_in_by_a_form_and_out_again(tmp_path: Path) -> None:
    async with gate(tmp_path) as ask:
        page = await ask("GET", "/debug", headers={"accept": "text/html"})
        assert (page.status_code, page.headers["location"]) == (303, "/login?next=/debug")
        form = await ask("GET", "/login?next=//evil.test/%22%3E%3Cscript%3E")
        assert 'value="/"' in form.text
        assert "default-src 'none'" in form.headers["content-security-policy"]
        wrong = await ask("POST", "/login", data={"token": "<script>", "next": "/"})
        for odd in (b"a&" * 50 + b"token=" + OPERATOR.encode(), b"\xff", b"token=%ff"):
            assert (await ask("POST", "/login", content=odd)).status_code == 401
        assert (await ask("POST", "/login", headers={"origin": "http://[x"})).status_code == 405
        assert (wrong.status_code, wrong.text.count("<script>")) == (401, 1), "its own"
        from_elsewhere = {"origin": "https://evil.test"}
        assert (await ask("POST", "/login", data={"token": OPERATOR}, headers=from_elsewhere)).status_code == 405
        assert form.headers["referrer-policy"] == "same-origin", "else browsers send the form with Origin: null"
        good = await ask("POST", "/login", data={"token": OPERATOR, "next": "/debug"})
        assert (good.status_code, good.headers["location"]) == (303, "/debug")
        cookie = good.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert OPERATOR not in cookie
        assert (await ask(*LOOK)).status_code == 200  # httpx keeps cookies
        assert (await ask(*PUSH)).status_code == 403
        assert (await ask(*PUSH, headers=OURS)).status_code == 200
        assert (await ask("POST", "/logout")).status_code == 303
        assert (await ask(*LOOK)).status_code == 401
        forged = {"cookie": f"{sessions.COOKIE}=forged"}
        assert (await ask(*LOOK, headers=forged)).status_code == 401


async def test_the_login_keeps_the_fragment_of_a_deep_link(tmp_path: Path) -> None:
    async with gate(tmp_path) as ask:
        form = await ask("GET", "/login?next=/%23/proxies/web-1.shop")
        assert 'value="/#/proxies/web-1.shop"' in form.text
        policy = form.headers["content-security-policy"]
        for inline in (sessions.SCRIPT, sessions.STYLE):
            assert inline in form.text
            assert f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'" in policy
        good = await ask("POST", "/login", data={"token": OPERATOR, "next": "/#/proxies/web-1.shop"})
        assert (good.status_code, good.headers["location"]) == (303, "/#/proxies/web-1.shop")


async def test_who_was_let_in_is_asked_for_again_while_a_stream_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh_pilot.ops.access.read_again.LOOK_SECONDS", 0)
    (tmp_path / "tokens").write_text(FILE)
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await PlainTextResponse("here")(scope, receive, send)

    asked = Gate(app, ROUTES, file=AccessFile(tmp_path / "tokens"), local=False)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(asked), base_url="http://plane", timeout=60) as client:
        await client.get("/api/v1/events", headers=bearer(VIEWER))
        await client.post("/login", data={"token": OPERATOR})
        await client.get("/api/v1/events")
        is_viewer, is_session = (scope[STILL_LET_IN] for scope in scopes)
        assert is_viewer() and is_session()
        await client.post("/logout")
        assert is_viewer() and not is_session()
        (tmp_path / "tokens").write_text(f"view:shop {VIEWER} viewer\n")
        assert not is_viewer(), "what the stream tells is of all namespaces"
        (tmp_path / "tokens").write_text("# nobody\n")
        assert not is_viewer()


def test_lines_of_one_token_or_certificate_add_up() -> None:
    lines = ("view", "edit:shop,bank", "operate:bank", "view:shop")
    rules = AccessRules.parse("".join(f"{each} {VIEWER} ci\n{each} certificate spiffe://m/ci\n" for each in lines), "t")
    expected = {"*": Role.VIEW, "shop": Role.EDIT, "bank": Role.OPERATE}
    for found in (rules.of_token(VIEWER), rules.of_certificate(["spiffe://m/ci"])):
        assert found is not None and found.grants == expected
    assert rules.of_token("another-token-for-all") is None and rules.of_certificate(["else"]) is None


async def test_over_tls_a_certificate_has_the_role_of_its_line(tmp_path: Path) -> None:
    files = write_certificates(tmp_path, "deploy", uris=("spiffe://cluster.local/ns/ops/sa/deploy",))
    tls = server_tls(
        CertificateFiles(certificate=files.certificate, key=files.key, trusted=files.ca),
        require_client_certificate=False,
    )
    async with gate(tmp_path, tls=tls) as ask:
        anybody = ssl.create_default_context(cafile=str(files.ca))
        known = ssl.create_default_context(cafile=str(files.ca))
        known.load_cert_chain(files.certificate, files.key)
        async with (
            httpx.AsyncClient(trust_env=False, verify=anybody, timeout=60) as stranger,
            httpx.AsyncClient(trust_env=False, verify=known, timeout=60) as deploy,
            httpx.AsyncClient(trust_env=False, timeout=60) as plain,
        ):
            assert (await ask(*LOOK, client=stranger)).status_code == 401
            assert (await ask(*LOOK, client=stranger, headers=bearer(VIEWER))).status_code == 200
            assert (await ask(*LOOK, client=deploy)).status_code == 200
            assert (await ask(*PUSH, client=deploy)).status_code == 403, "a browser sends certificates on its own"
            assert (await ask(*PUSH, client=deploy, headers=OURS)).status_code == 200
            login = await ask("POST", "/login", client=stranger, data={"token": OPERATOR})
            assert "Secure" in login.headers["set-cookie"]
            reply = await ask("GET", "/", client=plain, scheme="http")
            assert (reply.status_code, reply.text) == (400, "this port speaks TLS: use https://\n")


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\xff\xff", b"\x16" * 5000])
async def test_a_handshake_that_stalls_or_is_none_ends_its_connection(tmp_path: Path, begun: bytes) -> None:
    files = write_certificates(tmp_path, "web")
    tls = server_tls(CertificateFiles(certificate=files.certificate, key=files.key))
    async with gate(tmp_path, tls=tls, limits=HttpLimits(request_seconds=0.1)) as ask:
        host, port = ask.address.rsplit(":", 1)  # type: ignore[attr-defined]  # set by gate
        stream = await trio.open_tcp_stream(host, int(port))
        with trio.fail_after(10):
            if begun:
                await stream.send_all(begun)
            try:
                while await stream.receive_some(1000):
                    pass
            except trio.BrokenResourceError:
                pass
        await stream.aclose()
        known = ssl.create_default_context(cafile=str(files.ca))
        async with httpx.AsyncClient(trust_env=False, verify=known, timeout=60) as client:

            async def serves() -> bool:
                return (await ask("GET", "/ready", client=client)).status_code == 200

            # On a machine under load a good handshake may take longer than the limit, too.
            await eventually(serves, what="the port serves the next client")


def test_sessions_end_and_are_bounded() -> None:
    now = 0.0
    found = sessions.Sessions(lambda: now)
    first = found.begin(b"1")
    session = found.get(first)
    assert session is not None and session.digest == b"1"
    for _ in range(sessions.MOST):
        last = found.begin(b"2")
    assert found.get(first) is None
    now = sessions.HOURS * 3600.0
    assert found.get(last) is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("view only-two-words", ":1: write ROLE TOKEN NAME"),
        ("admin 0123456789abcdef me", "'admin' is not a role; there are view, edit, operate"),
        ("edit:Shop 0123456789abcdef me", "'Shop' is not the name of a namespace"),
        ("edit: 0123456789abcdef me", "a namespace is missing after edit:"),
        ("edit:shop, 0123456789abcdef me", "a namespace is missing after edit:"),
        ("view short me", "the token has less than 16 characters"),
        ("view sha256:abc me", "64 lower-case hexadecimal digits"),
    ],
)
def test_a_wrong_line_is_named(line: str, reason: str) -> None:
    with pytest.raises(AccessError, match=reason):
        AccessRules.parse(line, "tokens")


def test_a_changed_file_is_read_and_a_wrong_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    path = tmp_path / "tokens"
    path.write_text(FILE)
    monkeypatch.setattr("mesh_pilot.ops.access.read_again.LOOK_SECONDS", 0)
    file = AccessFile(path)
    path.write_text("nonsense")
    assert file.rules().of_token(VIEWER) is not None
    path.write_text("view another-token-for-all bob\n# longer")
    assert file.rules().of_token(VIEWER) is None
    assert [each["event"] for each in logs] == [
        "tokens of the web port cannot be read; those before are kept",
        "tokens of the web port read again",
    ]
    with pytest.raises(AccessError, match="No such file"):
        AccessFile(tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("10.1.1.1", True),
        ("localhost", True),
        ("a.localhost:1", True),
        ("", False),
        ("evil.test", False),
        ("127.0.0.1.evil.test:8080", False),
        ("localhost.evil.test", False),
        ("evil.test:80:80", False),
    ],
)
def test_the_hosts_that_no_name_of_the_internet_can_have(host: str, is_ours: bool) -> None:
    assert names_this_machine(host) is is_ours


@pytest.mark.parametrize(
    ("address", "is_ours"),
    [
        ("127.0.0.1:80", True),
        ("127.9.9.9:80", True),
        ("[::1]:80", True),
        ("unix:///run/web.sock", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("10.1.1.1:80", False),
        ("", False),
    ],
)
def test_the_addresses_that_only_this_machine_can_ask(address: str, is_ours: bool) -> None:
    assert is_local(address) is is_ours


def test_a_port_at_several_addresses_is_open_only_if_all_of_them_are_of_this_machine() -> None:
    for addresses, closed in (
        (["127.0.0.1:80", "[::1]:80"], False),
        (["127.0.0.1:80", "10.1.1.1:80"], True),
        ([], True),
    ):
        assert is_closed(AccessFiles(), addresses) is closed


async def test_a_wrong_token_file_keeps_a_plane_from_starting_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# ours\nview short me\n")
    with pytest.raises(StartError, match=r"--api-token-file: .*tokens:2: the token has less than 16 characters"):
        async with control_plane(settings(tmp_path, access=AccessSettings(token_file=tmp_path / "tokens"))):
            pass
