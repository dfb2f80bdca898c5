"""The fetcher: one answer in bounded time, from an address that was checked, without secrets in what it says."""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address

import attrs
import httpx
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.net.fetching import OWNER, Fetcher, FetchError, shown_url
from mesh_pilot.net.fetching.addresses import LOOKUPS, CheckedTransport, Lookups, check_address
from mesh_pilot.net.fetching.fetcher import MAX_REDIRECTS

DIRECT: dict[str, str] = {}
"""No proxy."""


@attrs.define
class Web:
    """A network of servers by address, and the names of its DNS. What is asked is noted."""

    names: dict[str, list[Sequence[str]]] = attrs.field(factory=dict)
    """The answers to lookups, one after the other; the last one again and again."""
    redirects: dict[str, str] = attrs.field(factory=dict)
    away: frozenset[str] = frozenset()
    asked: list[str] = attrs.field(factory=list)

    async def resolve(self, host: str) -> Sequence[str]:
        await trio.lowlevel.checkpoint()
        answers = self.names.get(host)
        if not answers:
            raise OSError(-2, "Name or service not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def answer(self, request: httpx.Request) -> httpx.Response:
        await trio.lowlevel.checkpoint()
        self.asked.append(f"{request.url.host} as {request.headers['host']}")
        assert request.extensions["sni_hostname"] == request.headers["host"].partition(":")[0].strip("[]")
        if request.url.host in self.away:
            raise httpx.ConnectError("refused")
        where = self.redirects.get(request.headers["host"])
        return httpx.Response(302, headers={"location": where}) if where else httpx.Response(200, content=b"{}")

    def fetcher(self) -> Fetcher:
        return Fetcher(transport=CheckedTransport(httpx.MockTransport(self.answer), self.resolve))


async def ask(fetcher: Fetcher, url: str, **more: int) -> int:
    return (await fetcher.ask(url, limit=1000, seconds=5, **more)).status


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.1.1]", "[::169.254.1.1]", "[fd00:ec2::254]", "[fd20:ce::254]",
     "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "100.100.100.200", "168.63.129.16", "metadata.test", "two.test"],
)  # fmt: skip
async def test_link_local_and_metadata_addresses_are_not_asked_directly_or_by_redirect(host: str) -> None:
    names: dict[str, list[Sequence[str]]] = {
        "metadata.test": [["169.254.169.254"]],
        "two.test": [["10.1.1.1", "fd20:ce::254"]],
        "good.test": [["10.1.1.1"]],
    }
    web = Web(names, {"good.test": f"http://{host}/latest/meta-data"})
    for url in (f"http://{host}/", "http://good.test/"):
        with pytest.raises(FetchError, match="link-local and metadata addresses are not asked"):
            await ask(web.fetcher(), url)
    assert web.asked == ["10.1.1.1 as good.test"]


async def test_the_address_that_was_checked_is_the_one_that_is_asked() -> None:
    web = Web({"rebound.test": [["10.1.1.1"], ["169.254.169.254"]], "alias.test": [["10.1.1.1"]]})
    assert await ask(web.fetcher(), "http://rebound.test/") == 200
    with pytest.raises(FetchError, match=r"leads to rebound\.test at 169\.254"):
        await ask(web.fetcher(), "http://rebound.test/")
    assert await ask(web.fetcher(), "https://alias.test:8443/") == 200
    assert web.asked == ["10.1.1.1 as rebound.test", "10.1.1.1 as alias.test:8443"]


async def test_of_several_addresses_the_next_is_asked_if_one_is_away_and_few_are_tried() -> None:
    web = Web({"a.test": [["10.0.0.1", "2001:db8::1", "10.0.0.3"]]}, away=frozenset({"10.0.0.1"}))
    assert await ask(web.fetcher(), "http://a.test/") == 200
    assert web.asked == ["10.0.0.1 as a.test", "2001:db8::1 as a.test"]
    many = [f"10.0.0.{number}" for number in range(200)]
    web = Web({"a.test": [many], "none.test": [[]]}, away=frozenset(many))
    with pytest.raises(FetchError, match="refused"):
        await ask(web.fetcher(), "http://a.test/")
    assert len(web.asked) == 4
    with pytest.raises(FetchError, match=r"none\.test has no address"):
        await ask(web.fetcher(), "http://none.test/")


async def test_redirects_are_few_and_to_servers_of_http() -> None:
    web = Web({"a.test": [["10.0.0.1"]], "b.test": [["10.0.0.2"]]}, {"a.test": "http://b.test/x"})
    assert await ask(web.fetcher(), "http://a.test/") == 200
    assert await ask(web.fetcher(), "http://a.test/", redirects=0) == 302
    web.redirects["b.test"] = "http://a.test/"
    web.asked.clear()
    with pytest.raises(FetchError, match=f"redirects more than {MAX_REDIRECTS} times"):
        await ask(web.fetcher(), "http://a.test/")
    assert len(web.asked) == MAX_REDIRECTS + 1
    for where in ("file:///etc/passwd", "gopher://a.test/", "http://[v1.a]/", "http://a.test:x/"):
        web.redirects["a.test"] = where
        with pytest.raises(FetchError):
            await ask(web.fetcher(), "http://a.test/")
    with pytest.raises(FetchError, match="is not https"):
        await ask(web.fetcher(), "http://a.test/", https_only=True)


@pytest.mark.parametrize(
    "url",
    ["http://[v1.a]/m.wasm", "http://\uff41/", "http://[x", "http://a..b/", "http://a:b/", "http://\u2488com/", "",
     "http://a/\n", "http:///x", "x", "http://a:99999/", "http://" + "a" * 300, "http://user:p\u00e4ss@/"],
)  # fmt: skip
async def test_a_url_that_cannot_be_asked_is_an_error_like_others(url: str) -> None:
    with pytest.raises(FetchError):
        await ask(Web().fetcher(), url)


@given(st.text(max_size=30).map("http://".__add__) | st.text(max_size=30))
def test_no_url_raises_anything_else(url: str) -> None:
    async def once() -> None:
        await ask(Web().fetcher(), url)

    with pytest.raises(FetchError):
        trio.run(once)


async def test_an_error_that_nobody_foresaw_is_an_error_of_the_fetch() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise ExceptionGroup("odd", [KeyError("x")])

    with pytest.raises(FetchError, match="odd"):
        await ask(Fetcher(transport=httpx.MockTransport(answer)), "http://a.test/")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://login.test/keys", "https://login.test/keys"),
        ("http://jo:pa55@login.test:80/keys?api_key=pa55#pa55", "http://login.test:80/keys?..."),
        ("http://jo:pa/55@login.test/", "http://jo:pa/55@login.test/"),
        ("oci://jo:pa55@hub.test/team/mark:v1", "oci://hub.test/team/mark:v1"),
        ("file:///opt/mark.wasm", "file:///opt/mark.wasm"),
        ("jo:pa55@login.test", "login.test"),
        ("robots@example.com", "example.com"),
        ("http://jo:pa55@[x/", "http://..."),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


async def test_what_is_said_of_a_fetch_has_no_secret_of_its_url() -> None:
    for host in ("nowhere.test", "169.254.169.254", "a.test", "[x", "a..b"):
        with pytest.raises(FetchError) as caught:
            await ask(
                Web({"a.test": [["10.0.0.1"]]}, away=frozenset({"10.0.0.1"})).fetcher(),
                f"http://jo:pa55@{host}/?k=pa55",
            )
        assert "pa55" not in str(caught.value)


# -- over a network


@asynccontextmanager
async def server(*script: bytes | float, more: bytes = b"") -> AsyncIterator[str]:
    """A server that sends bytes and waits so many seconds, by turns, then ``more`` without end, or nothing."""

    async def handle(stream: trio.SocketStream) -> None:
        try:
            await stream.receive_some()
            for step in script:
                if isinstance(step, float):
                    await trio.sleep(step)
                else:
                    await stream.send_all(step)
            while more:
                await stream.send_all(more)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield f"http://localhost:{listeners[0].socket.getsockname()[1]}/x"
        nursery.cancel_scope.cancel()


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("script", "more", "reason"),
    [
        ((), b"", "Server disconnected"),
        ((b"SSH-2.0\r\n\r\n",), b"", "SSH-2.0"),
        ((HEAD + b"content-length: 5\r\n\r\nab",), b"", "without sending complete"),
        ((HEAD + b"\r\n",), bytes(9999), "more than 1000 bytes"),
        ((HEAD + b"transfer-encoding: chunked\r\n\r\n",), b"1\r\nx\r\n", "more than 1000 bytes"),
        ((HEAD,), b"x: y\r\n", "head of the answer is longer"),
        ((), b"HTTP/1.1 100 Continue\r\n\r\n", "head of the answer is longer"),
        ((b"HTTP/1.1 302 Found\r\nlocation: /y\r\ncontent-length: 9999999\r\n\r\n",), bytes(9999), "redirects more"),
    ],
)
async def test_odd_answers_are_errors(script: Sequence[bytes | float], more: bytes, reason: str) -> None:
    async with server(*script, more=more) as url:
        with pytest.raises(FetchError, match=reason):
            await Fetcher(environment=DIRECT).ask(url, limit=1000, seconds=60)


async def test_the_time_is_for_all_of_it() -> None:
    fetcher = Fetcher(environment=DIRECT)
    drip = (HEAD + b"\r\n", *[b" ", 0.01] * 1000)
    for script in (drip, (60.0,), (HEAD, 60.0)):
        async with server(*script) as url:
            with trio.fail_after(5), pytest.raises(FetchError, match=r"has not answered in full within 0.2 s"):
                await fetcher.ask(url, limit=10_000, seconds=0.2)


async def test_nobodys_cookies_are_told_to_others_and_no_connection_is_kept() -> None:
    seen: list[bytes] = []

    async def handle(stream: trio.SocketStream) -> None:
        seen.append(bytes(await stream.receive_some()))
        await stream.send_all(HEAD + b"set-cookie: a=b\r\ncontent-length: 2\r\n\r\n{}")
        await stream.receive_some()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        fetcher = Fetcher(environment=DIRECT)
        for _ in range(2):
            found = await fetcher.ask(
                f"http://127.0.0.1:{listener.socket.getsockname()[1]}/", limit=10, seconds=5, headers={"X-Who": "me"}
            )
            assert found.body == b"{}"
        nursery.cancel_scope.cancel()
    assert len(seen) == 2
    assert not any(b"cookie" in request.lower() for request in seen)
    assert all(b"X-Who: me" in request and b"Accept-Encoding: identity" in request for request in seen)


async def test_one_tls_context_is_made_for_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ssl.SSLContext] = []
    real = httpx.create_ssl_context

    def create() -> ssl.SSLContext:
        made.append(real())
        return made[-1]

    monkeypatch.setattr(httpx, "create_ssl_context", create)
    fetcher = Fetcher(environment=DIRECT)
    for _ in range(5):
        with pytest.raises(FetchError):
            await fetcher.ask("http://127.0.0.1:1/", limit=10, seconds=5)
    assert len(made) == 1


async def test_a_proxy_of_the_environment_is_asked_for_names_and_never_for_such_addresses() -> None:
    async with server(HEAD + b"content-length: 2\r\n\r\n{}") as url:
        fetcher = Fetcher(environment={"HTTP_PROXY": url.removesuffix("/x")})
        assert (await fetcher.ask("http://only.the.proxy.knows/", limit=10, seconds=5)).status == 200
        with pytest.raises(FetchError, match="metadata addresses are not asked"):
            await fetcher.ask("http://169.254.169.254/", limit=10, seconds=5)


async def test_lookups_that_hang_are_their_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def look(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host == "slow.test":
            release.wait(20)
        return [(2, 1, 6, "", ("10.0.0.1", 0))]

    monkeypatch.setattr("socket.getaddrinfo", look)
    lookups = Lookups()

    async def slow() -> None:
        OWNER.set("evil")
        await lookups("slow.test")

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(LOOKUPS + 5):
                nursery.start_soon(slow)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(5):
                assert await lookups("good.test") == ["10.0.0.1"]
            nursery.cancel_scope.cancel()
    finally:
        release.set()


def test_addresses_of_servers_may_be_private_and_loopback() -> None:
    for address in ("10.0.0.1", "127.0.0.1", "::1", "192.168.1.1", "fd00::1", "2001:db8::1", "64:ff9b::a00:1"):
        check_address("a.test", ip_address(address))
