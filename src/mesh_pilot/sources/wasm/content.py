"""The bytes of a module out of what a server sent: plain, compressed, or in an archive. Nothing grows past a limit."""

from __future__ import annotations

import io
import tarfile
import zlib

import attrs

from mesh_pilot.sources.jwks.fetch import FetchError

MAGIC = b"\0asm"
PLUGIN_FILE = "plugin.wasm"
"""The file that is the module in an image that is made like one of containers."""

_GZIP = b"\x1f\x8b"
_HEADER_BYTES = 8
_TAR_MAGIC_AT = 257
_TAR_MAGIC = b"ustar"
_PADDING = 64 * 1024
_WRAPPINGS = 4
"""Wrappings that are taken off: an archive in a compressed archive is two."""


@attrs.frozen
class FetchedModule:
    """An answer to a fetch."""

    body: bytes | None = attrs.field(repr=False)
    """None: it is the one that was there before."""
    mark: str
    """Text by which the server tells whether it has another one: an entity tag, the digest of a manifest."""


def check_module(body: bytes) -> bytes:
    """The same bytes. Raises FetchError if they are no module."""
    if len(body) < _HEADER_BYTES or not body.startswith(MAGIC):
        raise FetchError("is not a WebAssembly module: it does not begin as one")
    return body


def unwrap(body: bytes, limit: int) -> bytes:
    """The module in a file: the file itself, or the first of an archive, compressed or not. Raises FetchError."""
    for _ in range(_WRAPPINGS):
        if body.startswith(_GZIP):
            body = _inflate(body, limit)
        elif body[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
            body = _member(body, "", limit)
        else:
            break
    if len(body) > limit:
        raise FetchError(f"has {len(body)} bytes; {limit} are taken (--wasm-module-bytes)")
    return check_module(body)


def from_layer(layer: bytes, limit: int) -> bytes:
    """The module in a compressed layer of an image: its ``plugin.wasm``. Raises FetchError."""
    return check_module(_member(_inflate(layer, limit), PLUGIN_FILE, limit))


def _inflate(body: bytes, limit: int) -> bytes:
    most = 2 * limit + _PADDING
    inflated = bytearray()
    try:
        while body:
            stream = zlib.decompressobj(wbits=31)
            inflated += stream.decompress(body, most + 1 - len(inflated))
            if len(inflated) > most:
                raise FetchError(f"is larger than {most} bytes when it is decompressed")
            if not stream.eof:
                raise FetchError("is compressed and ends too early")
            body = stream.unused_data if stream.unused_data.startswith(_GZIP) else b""
    except zlib.error as error:
        raise FetchError(f"cannot be decompressed: {error}") from None
    return bytes(inflated)


def _member(body: bytes, name: str, limit: int) -> bytes:
    """The file of this name, in any folder, in an archive; without a name the first."""
    try:
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as archive:
            for member in archive:
                if not member.isreg() or (name and member.name.rpartition("/")[2] != name):
                    continue
                if member.size > limit:
                    raise FetchError(f"has {member.size} bytes; {limit} are taken (--wasm-module-bytes)")
                file = archive.extractfile(member)
                return file.read() if file is not None else b""
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        raise FetchError(f"is an archive that cannot be read: {error}") from None
    raise FetchError(f"has no file {name}" if name else "is an empty archive")
