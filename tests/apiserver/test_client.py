"""Requests to an API server: with which credentials, over which way, and what is said of a failure."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio

from mesh_pilot.kubernetes.apiserver import (
    Access,
    ApiClient,
    ApiServerError,
    ExecPlugin,
    KubernetesError,
    Pem,
    credentials,
)
from mesh_pilot.net.fetching.proxies import proxy_of
from tests.support import certificates
from tests.support.api_double import IN_MEMORY, PODS, TOKEN, ApiDouble
from tests.support.api_double import serving as serving_double

VERSION = "client.authentication.k8s.io/v1"


async def test_a_token_file_is_read_for_each_request_and_again_when_it_was_refused(tmp_path: Path) -> None:
    file, double = tmp_path / "token", ApiDouble([PODS])
    file.write_text("first\n")
    double.token = "first"
    access = Access(server="http://double", token=Pem(path=file))
    async with ApiClient(access, transport=double.transport()) as client:
        await client.list_all(PODS)
        double.token = "second"
        file.write_text("second")
        await client.list_all(PODS)
        double.requests.clear()
        double.token = "third"
        with pytest.raises(ApiServerError, match=r"^http://double: GET /api/v1/pods is refused: 401 Unauthorized$"):
            await client.get("/api/v1/pods")
        assert len(double.requests) == 1, "there is no other token"
        file.unlink()
        with pytest.raises(KubernetesError, match=r"cannot read .*token: No such file"):
            await client.get("/api/v1/pods")


@pytest.mark.parametrize("token", [b"", b"secret\nmore", b"secret\0", "s\u00e9cret".encode()])
async def test_a_token_that_is_none_is_not_sent_and_not_shown(token: bytes, tmp_path: Path) -> None:
    file, double = tmp_path / "token", ApiDouble([PODS])
    file.write_bytes(token)
    async with ApiClient(Access(server="http://double", token=Pem(path=file)), transport=double.transport()) as client:
        with pytest.raises(KubernetesError, match=r"^http://double: its token is not one line of printable ASCII$"):
            await client.list_all(PODS)
    assert not double.requests


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"server": "https://\u2019.x"}, "its URL can't be used"),
        ({"server": "https://a..b"}, "idna"),
        ({"server": "http://a", "proxy": "http://me:secret@b:port"}, "its proxy can't be used"),
    ],
)
async def test_an_address_that_is_none_is_one_line(settings: dict[str, str], reason: str) -> None:
    access = Access(**settings)  # type: ignore[arg-type]  # all texts
    assert "secret" not in repr(access)
    async with ApiClient(access) as client:
        with pytest.raises(KubernetesError, match=reason) as error:
            await client.get("/api")
    assert "secret" not in str(error.value)


@attrs.define
class Plugin:
    """A command that gives the credentials of a file, and notes that it ran."""

    folder: Path

    def give(self, status: object = None, *, kind: str = "ExecCredential", text: str = "") -> ExecPlugin:
        found = {"apiVersion": VERSION, "kind": kind, "status": status}
        (self.folder / "answer").write_text(text or json.dumps(found))
        return self.run(f'echo "$KUBERNETES_EXEC_INFO $A" >> {self.folder}/runs; cat {self.folder}/answer')

    def run(self, script: str, **settings: Any) -> ExecPlugin:
        command = self.folder / "login"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        return ExecPlugin(api_version=VERSION, command=str(command), environment=(("A", "b"),), **settings)

    @property
    def runs(self) -> list[str]:
        return (self.folder / "runs").read_text().splitlines()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    monkeypatch.setattr(credentials, "PLUGIN_PAUSE_SECONDS", 0.0)
    return Plugin(tmp_path)


@pytest.mark.process
async def test_a_plugin_is_asked_once_until_its_token_expires_or_is_refused(plugin: Plugin) -> None:
    double = ApiDouble([PODS], token="one")
    access = Access(server="http://double", plugin=plugin.give({"token": "one"}))
    async with ApiClient(access, transport=double.transport()) as client:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(client.get, "/api/v1/pods")
        request, _, setting = plugin.runs[0].rpartition(" ")
        assert (len(plugin.runs), setting) == (1, "b")
        assert json.loads(request) == {"apiVersion": VERSION, "kind": "ExecCredential", "spec": {"interactive": False}}
        double.token = "two"
        plugin.give({"token": "two", "expirationTimestamp": "2020-01-01T00:00:00Z"})
        await client.get("/api/v1/pods")
        assert len(plugin.runs) == 2, "after the 401"
        await client.get("/api/v1/pods")
        assert len(plugin.runs) == 3, "it was expired"
        plugin.give({"token": "two", "expirationTimestamp": "2999-01-01T00:00:00.5+01:00"})
        await client.get("/api/v1/pods")
        await client.get("/api/v1/pods")
        assert len(plugin.runs) == 4


@pytest.mark.process
async def test_what_a_plugin_does_wrong_is_one_line(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    async def reason(found: ExecPlugin) -> str:
        access = Access(server="http://double", plugin=found)
        async with ApiClient(access, transport=ApiDouble([PODS]).transport()) as client:
            with pytest.raises(KubernetesError) as error:
                await client.get("/api/v1/pods")
        assert "\n" not in str(error.value)
        assert str(error.value).startswith("http://double: the exec plugin ")
        return str(error.value)

    failing = plugin.run("echo at first >&2; echo not logged in >&2; exit 3", install_hint="see https://x")
    assert (await reason(failing)).endswith("login failed with status 3: not logged in; see https://x")
    none = ExecPlugin(api_version=VERSION, command="no-such-login", install_hint="get it")
    assert (await reason(none)).endswith("no-such-login cannot be run: No such file or directory; get it")
    for status, text in (
        (None, "it has no status"),
        ({}, "it has neither a token nor a certificate"),
        ({"clientCertificateData": "x"}, "it has a certificate without its key, or a key without its certificate"),
        ({"token": "secret\nmore"}, "the token is not one line of printable ASCII"),
        ({"token": "secret", "expirationTimestamp": "soon"}, "Invalid isoformat string: 'soon'"),
    ):
        found = await reason(plugin.give(status))
        assert found.endswith(f"gave no ExecCredential of {VERSION}: {text}")
        assert "secret" not in found
    assert (await reason(plugin.give({"token": "secret"}, kind="Other"))).endswith("the kind is another")
    assert (await reason(plugin.give(text="secret {"))).endswith("not JSON")
    flood = plugin.run("exec yes what a plugin says without end")
    assert (await reason(flood)).endswith("gave more than 1000000 bytes, and was ended")
    assert (await reason(plugin.run("yes | head -c 300000 >&2; echo at last >&2; exit 4"))).endswith("at last")
    monkeypatch.setattr(credentials, "PLUGIN_SECONDS", 0.05)
    assert (await reason(plugin.run("exec sleep 60"))).endswith("does it wait for somebody?")


@pytest.mark.process
async def test_certificates_of_files_and_plugins_and_the_name_in_the_servers(plugin: Plugin, tmp_path: Path) -> None:
    server = certificates.write_certificates(tmp_path, "server", dns=("api.internal",))
    user = certificates.write_certificates(tmp_path, "user")
    double = ApiDouble([PODS], token="")
    async with serving_double(double, tls=certificates.serving(server, mutual=True)) as access:
        files = attrs.evolve(
            access, authority=Pem(path=user.ca), certificate=Pem(path=user.certificate), key=Pem(path=user.key)
        )
        async with ApiClient(files) as client:
            await client.get("/api/v1/pods")
            newer = certificates.write_certificates(tmp_path, "newer")
            user.certificate.write_bytes(newer.certificate.read_bytes())
            user.key.write_bytes(newer.key.read_bytes())
            assert client._http is not None
            before = client._http.client
            await client.get("/api/v1/pods")
            assert client._http.client is not before, "with the new certificate"
            assert before.is_closed
        data = {"clientCertificateData": user.certificate.read_text(), "clientKeyData": user.key.read_text()}
        given = attrs.evolve(files, certificate=Pem(), key=Pem(), plugin=plugin.give(data), server_name="api.internal")
        async with ApiClient(given) as client:
            await client.get("/api/v1/pods")
        for wrong, reason in (
            ({"server_name": "other"}, "not valid for 'other'|Hostname mismatch"),
            ({"authority": Pem()}, "certificate verify failed"),
            ({"certificate": Pem(), "key": Pem()}, "."),
            ({"key": Pem(path=server.key)}, "its certificate files can't be used: .*; PEM is wanted, with"),
        ):
            async with ApiClient(attrs.evolve(files, **wrong)) as client:
                with pytest.raises(KubernetesError, match=rf"^https://127.0.0.1:\d+: .*({reason})") as error:
                    await client.get("/api/v1/pods")
                assert "\n" not in str(error.value)
        async with ApiClient(attrs.evolve(files, authority=Pem(), verify=False)) as client:
            await client.get("/api/v1/pods")


async def test_a_proxy_is_gone_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = certificates.write_certificates(tmp_path, "server", dns=("api.internal",))
    asked: list[str] = []
    double = ApiDouble([PODS])
    async with serving_double(double, tls=certificates.serving(server)) as access, trio.open_nursery() as nursery:
        port = int(access.server.rpartition(":")[2])
        listeners = await nursery.start(partial(trio.serve_tcp, partial(tunnel, asked, port), 0, host="127.0.0.1"))
        proxy = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        far = attrs.evolve(
            access, server="https://api.far:6443", authority=Pem(path=server.ca), server_name="api.internal"
        )
        async with ApiClient(attrs.evolve(far, proxy=proxy)) as client:
            await client.get("/api/v1/pods")
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        async with ApiClient(far) as client:
            await client.get("/api/v1/pods")
        assert asked == ["CONNECT api.far:6443 HTTP/1.1"] * 2
        nursery.cancel_scope.cancel()


async def tunnel(asked: list[str], port: int, stream: trio.SocketStream) -> None:
    """An HTTP proxy that has one server behind it."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += await stream.receive_some()
    asked.append(head.decode().splitlines()[0])
    far = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")

    async def pass_on(source: trio.SocketStream, target: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for part in source:
                await target.send_all(part)

    async with far, stream, trio.open_nursery() as nursery:
        nursery.start_soon(pass_on, far, stream)
        await pass_on(stream, far)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("server", "exceptions", "proxied"),
    [
        ("https://api.far", "", True),
        ("https://api.far", "other, api.near", True),
        ("https://api.far", "*", False),
        ("https://api.far", "far", False),
        ("https://api.far", ".far", False),
        ("https://far", ".far", True),
        ("https://api.far", "*.far", False),
        ("https://notfar", "far", True),
        ("https://api.far:6443", "api.far:6443", False),
        ("https://api.far:6443", "api.far:443", True),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "10.1.2.3", False),
        ("https://11.1.2.3", "10.0.0.0/8,x/y", True),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "fd00::1", False),
        ("https://127.0.0.1", "", False),
        ("https://localhost:1", "", False),
        ("http://api.far", "", False),
    ],
)
def test_the_environment_says_what_goes_through_a_proxy(server: str, exceptions: str, proxied: bool) -> None:
    found = proxy_of(server, {"https_proxy": "proxy:3128", "NO_PROXY": exceptions})
    assert found == ("http://proxy:3128" if proxied else "")


async def test_requests_are_made_as_somebody_else_if_the_kubeconfig_says_so() -> None:
    found: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        found.append(request)
        return httpx.Response(200, json={})

    headers = (("Impersonate-Group", "a"), ("Impersonate-Group", "b"), ("accept-encoding", "identity"))
    access = Access(server="https://api/prefix", password="jane:pw", headers=headers)
    async with ApiClient(access, transport=httpx.MockTransport(answer)) as client:
        await client.get("/version")
    assert found[0].headers.get_list("impersonate-group") == ["a", "b"]
    assert found[0].headers["accept-encoding"] == "identity"
    assert found[0].headers["authorization"] == "Basic amFuZTpwdw=="
    assert found[0].url == "https://api/prefix/version", "a server behind a path"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: httpx.Response(200, text="<html>"), "GET /x: what answers is not an API server"),
        (lambda: httpx.Response(200, json=[1]), "GET /x: what answers is not an API server"),
        (lambda: httpx.Response(200, content=b"[" * 999), "GET /x: what answers is not an API server"),
        (lambda: httpx.Response(302, text="go\n\x1b[0m there"), r"GET /x is refused: 302 go  \[0m there"),
        (lambda: httpx.Response(500, json={"message": 7}), r'GET /x is refused: 500 {"message":7}'),
        (lambda: httpx.Response(404, json={"message": "not\nfound", "code": 404}), "GET /x is refused: 404 not found"),
        (lambda: httpx.Response(200, content=b"x" * 2000), "GET /x: more than 1000 bytes"),
    ],
)
async def test_an_odd_answer_is_one_line(answer: Callable[[], httpx.Response], reason: str) -> None:
    transport = httpx.MockTransport(lambda _: answer())
    async with ApiClient(IN_MEMORY, transport=transport) as client:
        with pytest.raises(KubernetesError, match=f"^http://double: {reason}$"):
            await client.request("GET", "/x", max_bytes=1000)


async def test_who_does_not_answer_is_given_up(free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    async with ApiClient(Access(server=f"http://127.0.0.1:{port}")) as client:
        with pytest.raises(KubernetesError, match=rf"^http://127.0.0.1:{port}: "):
            await client.get("/x")
    double = ApiDouble([PODS], token=TOKEN, silent=True)
    async with serving_double(double) as access, ApiClient(access, answer_seconds=0.05) as client:
        with pytest.raises(KubernetesError, match=r"it says nothing for 0.05 s$"):
            await client.get("/x")
    with pytest.raises(RuntimeError, match="inside `async with`"):
        await client.get("/x")
