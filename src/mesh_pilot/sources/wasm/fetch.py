"""Fetching a module: from a file of this machine, a web server or a registry of images."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import trio

from mesh_pilot.model.modules import FILE, OCI, ModuleRef
from mesh_pilot.net.fetching import FetchedAnswer, Fetcher, FetchError, TooLarge, shown_url
from mesh_pilot.sources.wasm.content import FetchedModule, Unpacking
from mesh_pilot.sources.wasm.oci import ImageRegistry, parse_image
from mesh_pilot.sources.wasm.settings import WasmSettings

FETCH_SECONDS = 60.0
"""The time in which a module must have come in full."""
MAX_MARK = 1024
"""The length of an entity tag; a longer one is not used."""

Fetchers = Callable[[bool], Fetcher]
"""The fetcher for a module; True: one that verifies no certificates."""


async def fetch_module(
    ref: ModuleRef, settings: WasmSettings, fetchers: Fetchers, docker_config: bytes | None, mark: str
) -> FetchedModule:
    """The module, checked against the checksum that it must have. Raises FetchError.

    ``mark`` is that of the module that is there, empty for none; ``docker_config`` has credentials of registries.
    """
    if ref.url.startswith(FILE):
        return await _from_file(ref, settings.module_bytes, mark)
    if ref.url.startswith(OCI):
        image = parse_image(ref.url)
        insecure = settings.is_insecure(image.host)
        registry = ImageRegistry(
            fetchers(insecure), image, docker_config, settings.module_bytes, FETCH_SECONDS, is_insecure=insecure
        )
        return await registry.fetch(ref.sha256, mark)
    host = urlsplit(ref.url).netloc.rpartition("@")[2]
    return await _from_web(fetchers(settings.is_insecure(host)), ref, settings.module_bytes, mark)


async def _checked(unpacking: Unpacking, ref: ModuleRef, mark: str) -> FetchedModule:
    module = unpacking.finish()
    found = (await trio.to_thread.run_sync(partial(hashlib.sha256, module))).hexdigest() if ref.sha256 else ""
    if found != ref.sha256:
        raise FetchError(f"has the checksum {found}, not {ref.sha256}")
    return FetchedModule(module, mark)


async def _from_file(ref: ModuleRef, limit: int, mark: str) -> FetchedModule:
    path = Path(ref.url.removeprefix(FILE))
    if not path.is_absolute():
        raise FetchError(f"{ref.url} is not an absolute path: file:///folder/file.wasm")
    now, body = await trio.to_thread.run_sync(_read, path, limit, mark)
    if body is None:
        return FetchedModule(None, mark)
    with Unpacking.of_file(limit) as unpacking:
        for _ in unpacking.feed(body):
            await trio.lowlevel.checkpoint()
        return await _checked(unpacking, ref, now)


def _read(path: Path, limit: int, mark: str) -> tuple[str, bytes | None]:
    """The mark of a file as it is now, and its content if that is another one."""
    try:
        # Not to wait for the writer of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FetchError(f"{path} is not a file")
            now = f"{status.st_ino} {status.st_mtime_ns} {status.st_size}"
            if now == mark:
                return now, None
            if status.st_size > limit:
                raise FetchError(f"{path} has more than {limit} bytes (--wasm-module-bytes)")
            return now, file.read(limit)
    except OSError as error:
        raise FetchError(f"{path} of the control plane's machine: {error.strerror or error}") from None


async def _from_web(fetcher: Fetcher, ref: ModuleRef, limit: int, mark: str) -> FetchedModule:
    headers = {"If-None-Match": mark} if mark else {}
    with Unpacking.of_file(limit) as unpacking:
        try:
            answer = await fetcher.ask(
                ref.url, limit=limit, seconds=FETCH_SECONDS, headers=headers, take=unpacking.feed
            )
        except TooLarge as error:
            raise FetchError(f"{error} (--wasm-module-bytes)") from None
        if answer.status == HTTPStatus.NOT_MODIFIED and mark:
            return FetchedModule(None, mark)
        if answer.status != HTTPStatus.OK:
            raise FetchError(f"{shown_url(ref.url)} answers {answer.status}")
        return await _checked(unpacking, ref, _mark(answer))


def _mark(answer: FetchedAnswer) -> str:
    tag: str = answer.headers.get("etag", "")
    return tag if len(tag) <= MAX_MARK else ""
