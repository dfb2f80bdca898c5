"""Modules on web servers, in registries of images, and in files: which are taken, and who is told what."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.model.modules import ModuleRef
from mesh_pilot.net.fetching import Fetcher, FetchError
from mesh_pilot.sources.wasm.content import FetchedModule, unwrap
from mesh_pilot.sources.wasm.fetch import fetch_module
from mesh_pilot.sources.wasm.oci import parse_image
from mesh_pilot.sources.wasm.settings import WasmSettings
from tests.support.wasm_modules import marking

MODULE = marking("x-mark", "yes")
LIMIT = 4096
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
OCI = "application/vnd.oci.image.manifest.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"
WASM_LAYER = "application/vnd.module.wasm.content.layer.v1+wasm"
CONFIG_LAYER = "application/vnd.module.wasm.config.v1+json"


def archive(**files: bytes) -> bytes:
    """A tar archive; ``__`` in a name is a dot."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(name.replace("__", "."))
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return made.getvalue()


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@attrs.define
class HubDouble:
    """A registry, its place for tokens, and a store of blobs, as one handler of requests."""

    blobs: dict[str, bytes] = attrs.field(factory=dict)
    manifests: dict[str, tuple[str, bytes]] = attrs.field(factory=dict)
    """By tag or digest: type and content."""
    user: str = ""
    """Who may have images, ``user:password``; empty: anybody."""
    realm: str = "https://auth.test/token"
    scheme: str = "Bearer"
    requests: list[httpx.Request] = attrs.field(factory=list)

    def image(self, layers: Mapping[str, bytes], kind: str = OCI, tag: str = "v1") -> str:
        """Put an image with these layers there, by their types; gives its digest."""
        entries = []
        for media_type, body in layers.items():
            self.blobs[digest_of(body)] = body
            entries.append({"mediaType": media_type, "digest": digest_of(body), "size": len(body)})
        return self.put({"mediaType": kind, "layers": entries}, tag)

    def put(self, manifest: dict[str, Any], tag: str) -> str:
        body = json.dumps(manifest).encode()
        self.manifests[tag] = self.manifests[digest_of(body)] = (manifest.get("mediaType", ""), body)
        return digest_of(body)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        given = request.headers.get("authorization", "")
        basic = f"Basic {base64.b64encode(self.user.encode()).decode()}"
        if request.url.host == "auth.test":
            is_known = given == basic or b"refresh_token=" in request.content
            return httpx.Response(200, json={"token": "t0ken"}) if is_known else httpx.Response(401)
        if request.url.host == "store.test":
            assert not given, "the store of blobs is not told the token"
            return httpx.Response(200, content=self.blobs[request.url.path[1:]])
        if self.user and given not in ("Bearer t0ken", basic if self.scheme == "Basic" else "-"):
            challenge = f'{self.scheme} realm="{self.realm}",service="hub",scope="repository:team/mark:pull"'
            return httpx.Response(401, headers={"www-authenticate": challenge})
        kind, _, name = request.url.path.removeprefix("/v2/team/mark/").partition("/")
        if kind == "blobs":
            return httpx.Response(307, headers={"location": f"https://store.test/{name}"})
        media_type, body = self.manifests.get(name, ("", b""))
        return httpx.Response(200 if body else 404, content=body, headers={"content-type": media_type})


async def fetched(
    hub: HubDouble, url: str = "oci://hub.test/team/mark:v1", *, sha256: str = "", mark: str = "", **more: Any
) -> FetchedModule:
    def fetcher(is_insecure: bool) -> Fetcher:
        return Fetcher(transport=httpx.MockTransport(hub.answer))

    config = more.get("docker_config")
    body = json.dumps(config).encode() if config is not None else None
    return await fetch_module(ModuleRef(url, sha256), WasmSettings(module_bytes=LIMIT), fetcher, body, mark)


PLUGIN = gzip.compress(archive(etc=b"", **{"app/plugin__wasm": MODULE}))
GOOD = [
    ({DOCKER_LAYER: PLUGIN}, DOCKER),
    ({OCI_LAYER: PLUGIN}, OCI),
    ({OCI_LAYER: PLUGIN}, ""),
    ({CONFIG_LAYER: b"{}", WASM_LAYER: MODULE}, OCI),
    ({"application/wasm": MODULE}, OCI),
]
BAD = [
    ({}, OCI, "no layers"),
    ({OCI_LAYER: PLUGIN}, DOCKER, "no module"),
    ({"application/octet-stream": MODULE}, OCI, "no module: its layers are application/octet-stream"),
    ({WASM_LAYER: b"<html>"}, OCI, "not a WebAssembly module"),
    ({OCI_LAYER: gzip.compress(archive(other=MODULE))}, OCI, "has no file plugin.wasm"),
    ({OCI_LAYER: gzip.compress(MODULE)}, OCI, "an archive that cannot be read"),
    ({OCI_LAYER: b"\x1f\x8bnothing"}, OCI, "cannot be decompressed"),
    ({OCI_LAYER: PLUGIN[:-20]}, OCI, "ends too early"),
    ({OCI_LAYER: gzip.compress(bytes(1_000_000))}, OCI, "larger than 73728 bytes when it is decompressed"),
    ({WASM_LAYER: MODULE + bytes(LIMIT)}, OCI, "has more than 4096 bytes"),
]


async def test_images_that_istios_agent_takes_are_taken_and_others_refused_with_a_reason() -> None:
    for layers, kind in GOOD:
        hub = HubDouble()
        digest = hub.image(layers, kind)
        found = await fetched(hub)
        assert (found.body, found.mark) == (MODULE, digest)
        asked = len(hub.requests)
        assert (await fetched(hub, mark=digest)).body is None  # the same: no blob is fetched
        assert len(hub.requests) == asked + 1
        assert (await fetched(hub, f"oci://hub.test/team/mark@{digest}")).body == MODULE
        assert (await fetched(hub, sha256=digest.removeprefix("sha256:"))).body == MODULE
        with pytest.raises(FetchError, match="not sha256:0000"):
            await fetched(hub, sha256="0" * 64)
    for layers, kind, reason in BAD:
        hub = HubDouble()
        hub.image(layers, kind)
        with pytest.raises(FetchError, match=reason):
            await fetched(hub)


async def test_what_is_not_what_its_digest_says_is_refused() -> None:
    hub = HubDouble()
    digest = hub.image({WASM_LAYER: MODULE})
    hub.blobs[digest_of(MODULE)] = marking("x-other", "no")
    with pytest.raises(FetchError, match="other bytes"):
        await fetched(hub)
    hub.manifests[digest] = hub.manifests["v1"] = (OCI, b"{}")
    with pytest.raises(FetchError, match=r"answers with sha256:.* for sha256"):
        await fetched(hub, f"oci://hub.test/team/mark@{digest}")
    with pytest.raises(FetchError, match="has no team/mark v2"):
        await fetched(hub, "oci://hub.test/team/mark:v2")


async def test_of_several_platforms_one_is_taken() -> None:
    def entry(digest: str, system: str, architecture: str) -> dict[str, Any]:
        return {"digest": digest, "platform": {"os": system, "architecture": architecture}}

    hub = HubDouble()
    ours, other = hub.image({WASM_LAYER: MODULE}), hub.image({WASM_LAYER: b""}, tag="v2")
    listed = [entry(other, "linux", "arm64"), entry(ours, "linux", "amd64")]
    index = hub.put({"mediaType": INDEX, "manifests": listed}, "v1")
    for checksum in (index, ours):
        assert (await fetched(hub, sha256=checksum.removeprefix("sha256:"))).body == MODULE
    hub.put({"mediaType": INDEX, "manifests": [entry(other, "linux", "arm64"), {}]}, "v1")
    with pytest.raises(FetchError, match="linux/amd64 is not one of them"):
        await fetched(hub)


AUTHS = {"username": "jo", "password": "pa:ss"}


async def test_a_registry_is_told_who_asks_and_nobody_else_is() -> None:
    hub = HubDouble(user="jo:pa:ss")
    hub.image({WASM_LAYER: MODULE})
    encoded = base64.b64encode(b"jo:pa:ss").decode()
    for auth in (AUTHS, {"auth": encoded}, {"identitytoken": "me"}, {"registrytoken": "t0ken"}):
        for key in ("hub.test", "https://hub.test", "https://hub.test/v2/"):
            config = {"auths": {key: auth, "other.test": {"username": "x"}}}
            assert (await fetched(hub, docker_config=config)).body == MODULE
    hub.scheme = "Basic"
    assert (await fetched(hub, docker_config={"auths": {"hub.test": AUTHS}})).body == MODULE
    hub.scheme = "Bearer"
    for config, reason in (
        (None, "gives no token"),
        ({"auths": {"hub.test": {"username": "jo", "password": "other"}}}, "gives no token"),
        ({"auths": {"other.test": AUTHS}}, "has no credentials for hub.test"),
        ({"auths": []}, "not a Docker configuration"),
        ({"auths": {"hub.test": {"auth": "?"}}}, "not a Docker configuration"),
    ):
        with pytest.raises(FetchError, match=reason) as caught:
            await fetched(hub, docker_config=config)
        assert "pa:ss" not in str(caught.value)
    hub.realm, asked = "http://auth.test/token", len(hub.requests)
    with pytest.raises(FetchError, match="no place with https for its tokens"):
        await fetched(hub, docker_config={"auths": {"hub.test": AUTHS}})
    assert len(hub.requests) == asked + 1


class Endless(httpx.AsyncByteStream):
    """Zeros. State: how many were asked for."""

    def __init__(self) -> None:
        self.asked = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.asked < 1_000_000_000:
            self.asked += 64 * 1024
            await trio.lowlevel.checkpoint()
            yield bytes(64 * 1024)


@pytest.mark.parametrize("auth", [{"identitytoken": "me"}, AUTHS])
async def test_a_place_for_tokens_that_answers_without_end_is_left_at_the_limit(auth: dict[str, str]) -> None:
    endless = Endless()

    class Hub(HubDouble):
        async def answer(self, request: httpx.Request) -> httpx.Response:
            if request.url.host == "auth.test":
                return httpx.Response(200, stream=endless)
            return await super().answer(request)

    hub = Hub(user="jo:pa:ss")
    hub.image({WASM_LAYER: MODULE})
    with pytest.raises(FetchError, match="more than 65536 bytes"):
        await fetched(hub, docker_config={"auths": {"hub.test": auth}})
    assert endless.asked <= 3 * 64 * 1024


async def test_files_of_web_servers_are_unpacked_checked_and_not_sent_twice() -> None:
    answers: dict[str, tuple[int, dict[str, str], bytes]] = {
        "/plain": (200, {"etag": '"1"'}, MODULE),
        "/packed": (200, {}, gzip.compress(archive(mark=MODULE))),
        "/large": (200, {}, MODULE + bytes(LIMIT)),
        "/page": (200, {}, b"<html>"),
        "/gone": (404, {}, b""),
        "/round": (302, {"location": "https://web.test/round"}, b""),
    }

    class Web(HubDouble):
        async def answer(self, request: httpx.Request) -> httpx.Response:
            status, headers, body = answers[request.url.path]
            if request.headers.get("if-none-match") == headers.get("etag", "-"):
                return httpx.Response(304)
            return httpx.Response(status, headers=headers, content=body)

    found = await fetched(Web(), "https://web.test/plain", sha256=hashlib.sha256(MODULE).hexdigest())
    assert (found.body, found.mark) == (MODULE, '"1"')
    assert (await fetched(Web(), "https://web.test/plain", mark='"1"')).body is None
    assert (await fetched(Web(), "https://web.test/packed")).body == MODULE
    for path, sha256, reason in (
        ("plain", "0" * 64, "has the checksum"),
        ("large", "", "more than 4096 bytes"),
        ("page", "", "not a WebAssembly module"),
        ("gone", "", "answers 404"),
        ("round", "", "redirects"),
    ):
        with pytest.raises(FetchError, match=reason):
            await fetched(Web(), f"https://web.test/{path}", sha256=sha256)


async def test_files_are_read_once_and_nothing_but_files(tmp_path: Path) -> None:
    file, pipe = trio.Path(tmp_path / "mark.wasm"), tmp_path / "pipe"
    await file.write_bytes(MODULE)
    os.mkfifo(pipe)
    found = await fetched(HubDouble(), f"file://{file}")
    assert found.body == MODULE
    assert (await fetched(HubDouble(), f"file://{file}", mark=found.mark)).body is None
    for url, reason in (
        (f"file://{pipe}", "is not a file"),
        (f"file://{tmp_path}", "directory"),
        (f"file://{tmp_path}/none.wasm", "No such file"),
        ("file://mark.wasm", "not an absolute path"),
    ):
        with pytest.raises(FetchError, match=reason):
            await fetched(HubDouble(), url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("oci://ghcr.io/team/mark:v1", ("ghcr.io", "team/mark", "v1")),
        ("oci://localhost:5000/mark", ("localhost:5000", "mark", "latest")),
        ("oci://mark", ("index.docker.io", "library/mark", "latest")),
        ("oci://team/mark:v1", ("index.docker.io", "team/mark", "v1")),
        ("oci://docker.io/team/mark", ("index.docker.io", "team/mark", "latest")),
        (f"oci://ghcr.io/a/b@sha256:{'1' * 64}", ("ghcr.io", "a/b", f"sha256:{'1' * 64}")),
        ("oci://ghcr.io/", None),
        ("oci://ghcr.io/A/b", None),
        ("oci://ghcr.io/a/../b", None),
        ("oci://ghcr.io/a:t?x", None),
        ("oci://ghcr.io/a@md5:1", None),
    ],
)
def test_references_to_images(url: str, expected: tuple[str, str, str] | None) -> None:
    if expected is None:
        with pytest.raises(FetchError):
            parse_image(url)
    else:
        image = parse_image(url)
        assert (image.host, image.repository, image.reference) == expected


@given(
    st.binary(max_size=300)
    | st.binary(max_size=300).map(gzip.compress)
    | st.binary(max_size=600).map(lambda b: archive(a=b))
)
def test_no_bytes_are_unpacked_to_more_than_the_limit_or_raise_anything_else(body: bytes) -> None:
    with suppress(FetchError):
        assert len(unwrap(body, 100)) <= 100
