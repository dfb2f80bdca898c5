"""No private key and no token is on a page, in a log line, in the repr of a value, or in what a command prints."""

from __future__ import annotations

import gc
import importlib
import io
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import structlog
import trio
import yaml
from envoy.config.core.v3.base_pb2 import Node
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from google.protobuf.json_format import ParseDict
from google.rpc.status_pb2 import Status

import mesh_pilot as mesh_pilot_package
from mesh_pilot.app.control_plane import ControlPlane
from mesh_pilot.cli.lib.logs import LogFormat, configure, parse_levels
from mesh_pilot.cli.lib.process import log_statistics
from mesh_pilot.envoy.tls import secrets as credentials
from mesh_pilot.identity.tokens.join_tokens import JoinTokens
from mesh_pilot.model.resource import CLUSTER, SECRET
from mesh_pilot.model.spiffe import Identity
from mesh_pilot.net.rpc import Cardinality, CertificateFiles, GRPCError, client_tls, open_channel
from mesh_pilot.ops.app import debug_app
from mesh_pilot.ops.monitoring import monitoring_app
from mesh_pilot.ops.values import proxies
from mesh_pilot.sources.acme.protocol import new_key
from tests.support.certificates import CertificateFiles as Files
from tests.support.certificates import write_certificates
from tests.support.command import mesh_pilot
from tests.support.credentials import write_credential
from tests.support.markers import Marker, file_markers, given_away, key_markers, token_marker
from tests.support.planes import SERVICE, running_plane

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
EDGE = Identity("cluster.local", "shop", "edge")
NAMES = ("kubernetes://edge", "kubernetes://bad", "kubernetes://ordered", "default", "ROOTCA")

ORDERED = """
acme:
  directory: https://127.0.0.1:1/directory
  termsOfServiceAgreed: true
  credentials: [{name: shop/ordered, hosts: [ordered.test]}]
"""
ENDLESS = {"/api/v1/events"}
"""Paths whose answer ends with the client."""

EXAMPLES = {"{name}": "edge-1.shop", "{namespace}": "shop", "{kind}": "Gateway", "{type}": "SDS", "{host}": "a.shop"}
"""Values for the parameters of paths."""

QUERIES = ("", "?verbose", "?limit=5", "?name=workload_secret", "?proxy=edge-1.shop", "?kind=Secret")


def _filled(path: str) -> str:
    for parameter, value in EXAMPLES.items():
        path = path.replace(parameter, value)
    return path


@attrs.frozen
class Scene:
    """A control plane with keys and tokens of all kinds, whose log is kept."""

    folder: Path
    plane: ControlPlane
    log: io.StringIO
    token: str
    markers: list[Marker]

    async def stream(self, *, nack: bool = False) -> None:
        """A gateway that shows its token is given its secrets, and may refuse them."""
        node = {"id": "router~10.1.1.1~edge-1.shop~shop.svc.cluster.local", "metadata": {"NAMESPACE": "shop"}}
        files = CertificateFiles(trusted=self.folder / "ca.pem")
        request = DiscoveryRequest(type_url=CLUSTER, node=ParseDict(node, Node()))
        async with (
            open_channel(self.plane.addresses.secure_grpc, tls=client_tls(files)) as channel,
            channel.request(
                ADS,
                Cardinality.STREAM_STREAM,
                DiscoveryRequest,
                DiscoveryResponse,
                metadata={"authorization": f"Bearer {self.token}"},
            ) as call,
        ):
            await call.send_message(request)
            await call.recv_message()
            await call.send_message(DiscoveryRequest(type_url=SECRET, resource_names=NAMES))
            answer = await call.recv_message()
            assert answer is not None
            for resource in answer.resources:
                secret = Secret.FromString(resource.value)
                key = secret.tls_certificate.private_key.inline_bytes
                self.markers.extend(key_markers(f"sent {secret.name}", key))
            if nack:
                error = Status(message="Failed to load private key")
                await call.send_message(
                    DiscoveryRequest(
                        type_url=SECRET, resource_names=NAMES, response_nonce=answer.nonce, error_detail=error
                    )
                )
            await self.look_at_all_pages()

    async def look_at_all_pages(self) -> None:
        state, addresses = self.plane.state, self.plane.addresses
        apps = ((debug_app(state), addresses.http), (monitoring_app(state), addresses.monitoring))
        async with httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), timeout=60) as client:
            for app, address in apps:
                for path in (getattr(route, "path", "") for route in app.routes):
                    for query in QUERIES if path not in ENDLESS else ():
                        page = await client.get(f"http://{address}{_filled(path)}{query}")
                        assert given_away(self.markers, page.text) == [], page.url
        log_statistics(state, structlog.get_logger(scope="bootstrap").info)

    def look_at_all_values(self) -> None:
        """The repr of every object of ours that is in memory."""
        seen = 0
        for value in gc.get_objects():
            if str(type(value).__module__).startswith("mesh_pilot.") and not isinstance(value, type):
                seen += 1
                assert given_away(self.markers, repr(value)) == [], type(value)
        assert seen > 1000


@asynccontextmanager
async def scene(folder: Path, style: LogFormat) -> AsyncIterator[Scene]:
    log = io.StringIO()
    configure(parse_levels("debug"), style, log)
    (folder / "config").mkdir()
    (folder / "config" / "service.yaml").write_text(SERVICE)
    one = write_certificates(folder, "one")
    two = write_certificates(folder, "two")
    data = {"tls.crt": one.certificate.read_text(), "tls.key": two.key.read_text()}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bad", "namespace": "shop"},
        "stringData": data,
    }
    (folder / "config" / "secret.yaml").write_text(yaml.safe_dump(secret))
    write_credential(folder / "secrets", "shop/edge", one)
    (folder / "mesh.yaml").write_text(ORDERED)
    write_ordered(folder / "pki" / "acme", write_certificates(folder, "ordered", dns=("ordered.test",)))
    server = write_certificates(folder, "server")
    made = JoinTokens(folder / "pki" / "join-tokens").create(EDGE, timedelta(hours=1))
    tls = CertificateFiles(certificate=server.certificate, key=server.key, trusted=server.ca)
    async with running_plane(
        folder / "config",
        tls=tls,
        secrets_dir=folder / "secrets",
        ca_dir=folder / "pki",
        mesh_config=folder / "mesh.yaml",
    ) as plane:
        markers = [token_marker("the join token", made.text), *file_markers(folder)]
        yield Scene(folder, plane, log, made.text, markers)
    assert given_away(markers, log.getvalue()) == []


def write_ordered(folder: Path, files: Files) -> None:
    """A credential that an issuer signed, and the key of the account there."""
    for name, content in {
        "shop/ordered/tls.crt": files.certificate.read_bytes(),
        "shop/ordered/tls.key": files.key.read_bytes(),
        "account/account.key": new_key(),
    }.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch(mode=0o600)
        place.write_bytes(content)


@pytest.fixture(params=list(LogFormat))
async def shown(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    async with scene(tmp_path, request.param) as made:
        yield made


def test_the_markers_find_what_they_should(tmp_path: Path) -> None:
    """Else the other tests would pass by looking for nothing."""
    files = write_certificates(tmp_path, "one")
    made = JoinTokens(tmp_path).create(EDGE, timedelta(hours=1))
    markers = file_markers(tmp_path)
    assert {marker.name for marker in markers} == {"ca.key", "one.key", "keys.json"}
    key = files.key.read_bytes()
    for text in (key.decode(), repr(key), json.dumps(key.decode()), key.decode().replace("\n", "")):
        assert given_away(markers, text) == ["one.key"]
    assert given_away(markers, files.certificate.read_text() + files.ca.read_text()) == []
    assert given_away(markers, (tmp_path / "keys.json").read_text()) == ["keys.json"]
    assert given_away([token_marker("token", made.text)], f"Bearer {made.text}") == ["token"]


def test_fields_with_telling_names_are_in_no_repr() -> None:
    """Also of values that the other tests do not make."""
    telling = re.compile(r"(private_key|(\w+_)?(token|password|secret|secret_id))")
    shown = []
    for module in pkgutil.walk_packages(mesh_pilot_package.__path__, "mesh_pilot."):
        if module.name.startswith(("mesh_pilot.api", "mesh_pilot.cli.samples")) or module.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and attrs.has(value) and value.__module__ == module.name:
                fields = [field for field in attrs.fields(value) if telling.fullmatch(field.name) and field.repr]
                texts = ("str", "bytes", "str | None", "bytes | None")
                shown += [f"{value.__name__}.{field.name}" for field in fields if _written(field.type) in texts]
    assert shown == []


def _written(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


@pytest.mark.plane
async def test_nothing_private_is_on_a_page_in_the_log_or_in_a_repr(shown: Scene) -> None:
    await shown.stream()
    await shown.stream(nack=True)
    assert {"sent kubernetes://edge", "sent default"} <= {marker.name for marker in shown.markers}
    for damaged in (shown.token[:-3], shown.token + "x", shown.token.replace("mpjt_", "mpjt_x")):
        with pytest.raises(GRPCError) as caught:
            await attrs.evolve(shown, token=damaged).stream()
        assert given_away(shown.markers, str(caught.value)) == []
    shown.look_at_all_values()
    assert "is not the key of tls.crt" in shown.log.getvalue()


@pytest.mark.plane
async def test_an_internal_error_beside_a_key_tells_nothing_of_it(
    shown: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inline(pem: bytes) -> Any:
        text, lines = pem.decode(), pem.splitlines()
        raise RuntimeError(f"boom of {len(text)} characters in {len(lines)} lines")

    def page(*_: object) -> Any:
        lines = (shown.folder / "one.key").read_text().splitlines()
        raise RuntimeError(f"boom of a page with {len(lines)} lines")

    monkeypatch.setattr(credentials, "inline", inline)
    monkeypatch.setattr(proxies, "proxy_states", page)
    await shown.stream()
    with trio.fail_after(10):
        while "boom of a page" not in shown.log.getvalue():
            await trio.testing.wait_all_tasks_blocked(0.01)
    assert "Traceback" in shown.log.getvalue() or '"frames"' in shown.log.getvalue()
    assert "boom of" in shown.log.getvalue()


@pytest.mark.process
def test_commands_print_nothing_private(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    one, two = write_certificates(tmp_path, "one"), write_certificates(tmp_path, "two")
    data = {"tls.crt": one.certificate.read_text(), "tls.key": two.key.read_text()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bad"}, "stringData": data}
    (tmp_path / "config" / "secret.yaml").write_text(yaml.safe_dump(secret))
    folder = ("--token-dir", str(tmp_path / "tokens"))
    made = mesh_pilot("token", "create", "web", "--namespace", "shop", *folder)
    markers = [token_marker("the join token", made.out.strip()), *file_markers(tmp_path)]
    assert given_away(markers, made.err) == []
    commands = (
        ("token", "list", *folder),
        ("token", "list", "-o", "json", *folder),
        ("token", "rotate-key", *folder),
        ("analyze", str(tmp_path / "config")),
        ("analyze", "-o", "json", str(tmp_path / "config")),
    )
    for command in commands:
        done = mesh_pilot(*command)
        assert done.out, command
        assert given_away(markers, done.out + done.err) == [], command


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="Linux says whether a process may be dumped")
def test_the_memory_of_the_server_is_in_no_core_dump() -> None:
    ask = "import ctypes, resource as r; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *r.getrlimit(r.RLIMIT_CORE))"
    forbid = "from mesh_pilot.cli.lib.process import forbid_core_dumps as forbid; forbid();"

    def answer(program: str) -> list[str]:
        return subprocess.check_output([sys.executable, "-c", program], text=True).split()

    assert answer(ask)[0] == "1", "the question is the right one"
    assert answer(forbid + ask) == ["0", "0", "0"]
