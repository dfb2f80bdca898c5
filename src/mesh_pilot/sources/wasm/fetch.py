"""Fetching a module: from a file of this machine, a web server or a registry of images."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import trio

from mesh_pilot.model.modules import FILE, OCI, ModuleRef
from mesh_pilot.sources.jwks.fetch import FetchError
from mesh_pilot.sources.wasm.content import FetchedModule, unwrap
from mesh_pilot.sources.wasm.http import check_size, download
from mesh_pilot.sources.wasm.oci import ImageRegistry, parse_image
from mesh_pilot.sources.wasm.settings import WasmSettings

FETCH_SECONDS = 60.0
"""The time in which a module must have come in full."""
ClientFactory = Callable[[bool], AbstractAsyncContextManager[httpx.AsyncClient]]
"""Makes the HTTP client of a fetch; True: it verifies no certificates."""


async def fetch_module(
    ref: ModuleRef, settings: WasmSettings, client: ClientFactory, docker_config: bytes | None, mark: str
) -> FetchedModule:
    """The module, checked against the checksum that it must have. Raises FetchError.

    ``mark`` is that of the module that is there, empty for none; ``docker_config`` has credentials of registries.
    """
    if ref.url.startswith(FILE):
        return await trio.to_thread.run_sync(_from_file, ref, settings.module_bytes, mark)
    if ref.url.startswith(OCI):
        image = parse_image(ref.url)
        insecure = settings.is_insecure(image.host)
        async with client(insecure) as opened:
            registry = ImageRegistry(opened, image, docker_config, settings.module_bytes, is_insecure=insecure)
            return await registry.fetch(ref.sha256, mark)
    async with client(settings.is_insecure(httpx.URL(ref.url).netloc.decode())) as opened:
        return await _from_web(opened, ref, settings.module_bytes, mark)


def check_sha256(body: bytes, expected: str) -> None:
    """Raise FetchError for another module than the one that was asked for."""
    found = hashlib.sha256(body).hexdigest()
    if expected and found != expected:
        raise FetchError(f"has the checksum {found}, not {expected}")


def _from_file(ref: ModuleRef, limit: int, mark: str) -> FetchedModule:
    path = Path(ref.url.removeprefix(FILE))
    if not path.is_absolute():
        raise FetchError(f"{ref.url} is not an absolute path: file:///folder/file.wasm")
    try:
        # Not to wait for the writer of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FetchError(f"{path} is not a file")
            now = f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
            if now == mark:
                return FetchedModule(None, mark)
            body = file.read(limit + 1)
    except OSError as error:
        raise FetchError(f"{path} of the control plane's machine: {error.strerror or error}") from error
    check_size(len(body), limit)
    module = unwrap(body, limit)
    check_sha256(module, ref.sha256)
    return FetchedModule(module, now)


async def _from_web(client: httpx.AsyncClient, ref: ModuleRef, limit: int, mark: str) -> FetchedModule:
    headers = {"If-None-Match": mark} if mark else {}
    status, answer_headers, body = await download(client, ref.url, limit, headers)
    if status == httpx.codes.NOT_MODIFIED and mark:
        return FetchedModule(None, mark)
    if status != httpx.codes.OK:
        raise FetchError(f"{ref.url} answers {status}")
    module = await trio.to_thread.run_sync(unwrap, body, limit)
    check_sha256(module, ref.sha256)
    return FetchedModule(module, answer_headers.get("etag", ""))
