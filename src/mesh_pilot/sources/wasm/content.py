"""The bytes of a module out of what a server sends: plain, compressed, or in an archive.

They are unpacked as they come, in small steps between which other tasks run, so that no answer holds the loop, a thread
or more memory than the module may have. Anything else is refused at its first bytes. Archives are read by
hand, as far as an archive with a module needs it: POSIX ustar, with long names of GNU tar and of pax.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

import attrs

from mesh_pilot.net.fetching import FetchError, Gunzip
from mesh_pilot.net.fetching.bodies import GZIP, STEP_BYTES

MAGIC = b"\0asm"
PLUGIN_FILE = "plugin.wasm"
"""The file that is the module in an image that is made like one of containers."""
MAX_MEMBERS = 10_000
"""Members of an archive."""
MAX_NAME_BYTES = 64 * 1024
"""The size of a member that only has the name of the next."""

_HEADER_BYTES = 8
_BLOCK = 512
_TAR_MAGIC_AT = 257
_TAR_MAGIC = b"ustar"
_PADDING = 64 * 1024
_WRAPPINGS = 4
"""Wrappings that are taken off: an archive in a compressed archive is two."""
_FILES = b"0\0007"
_UNREADABLE = "is an archive that cannot be read"


@attrs.frozen
class FetchedModule:
    """An answer to a fetch."""

    body: bytearray | None = attrs.field(repr=False)
    """None: it is the one that was there before. Whoever is done with it clears it: frames of errors may hold it."""
    mark: str
    """Text by which the server tells whether it has another one: an entity tag, the digest of a manifest."""


class Unpacker(Protocol):
    """Something that bytes go through."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bytes that come out, in pieces, some of them empty. To be taken to the end. Raises FetchError."""

    def finish(self) -> Iterator[bytes]:
        """No more will come: what is left. Raises FetchError for what was cut short."""


class Gunzipped:
    """An `Unpacker`: gzip, to a limit that leaves room for an archive with a module."""

    def __init__(self, limit: int) -> None:
        self._gunzip = Gunzip(2 * limit + _PADDING)
        self.feed = self._gunzip.feed

    def finish(self) -> Iterator[bytes]:
        self._gunzip.finish()
        return iter(())


class Untarred:
    """An `Unpacker`: the file of a name, in any folder, in an archive; without a name the first file.

    State: the header that is being read; the bytes to come of the member and of its padding, and what they are for.
    """

    def __init__(self, limit: int, name: str = "") -> None:
        self._limit = limit
        self._name = name
        self._header = bytearray()
        self._left = self._padding = 0
        self._use = "skip"
        """``skip``, ``file``, or ``L`` or ``x``: the next member's name."""
        self._text = bytearray()
        self._long_name = ""
        self._members = 0
        self._is_over = self._is_found = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        rest = memoryview(data)
        while rest and not self._is_over:
            if self._left:
                part, rest = rest[: self._left], rest[self._left :]
                self._left -= len(part)
                if self._use == "file":
                    yield bytes(part)
                elif self._use != "skip":
                    self._text += part
                if not self._left:
                    self._member_ended()
            elif self._padding:
                skipped = min(self._padding, len(rest))
                self._padding -= skipped
                rest = rest[skipped:]
            else:
                wanted = _BLOCK - len(self._header)
                self._header += rest[:wanted]
                rest = rest[wanted:]
                if len(self._header) == _BLOCK:
                    self._begin(bytes(self._header))
                    self._header.clear()

    def finish(self) -> Iterator[bytes]:
        if not self._is_found or self._left:
            if self._left or self._header:
                raise FetchError(f"{_UNREADABLE}: it ends too early")
            raise FetchError(f"has no file {self._name}" if self._name else "is an empty archive")
        return iter(())

    def _begin(self, header: bytes) -> None:
        if not any(header):
            self._is_over = True
            return
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise FetchError(f"is an archive of more than {MAX_MEMBERS} files")
        # As the format counts: the bytes of the sum itself are blanks.
        if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * 0x20:
            raise FetchError(f"{_UNREADABLE}: the checksum of a header is wrong")
        size, kind = _number(header[124:136]), header[156:157]
        name = self._long_name or _text(header[:100])
        self._use = "skip"
        if kind in (b"L", b"x"):
            if size > MAX_NAME_BYTES:
                raise FetchError(f"{_UNREADABLE}: a name of {size} bytes")
            self._use = kind.decode()
        elif kind != b"g":
            self._long_name = ""
            is_folder = kind == b"\0" and name.endswith("/")  # as before POSIX
            if kind in _FILES and not is_folder and (not self._name or name.rpartition("/")[2] == self._name):
                if size > self._limit:
                    raise FetchError(f"has {size} bytes; {self._limit} are taken (--wasm-module-bytes)")
                self._use, self._is_found = "file", True
        self._left, self._padding = size, -size % _BLOCK
        if not size:
            self._member_ended()

    def _member_ended(self) -> None:
        if self._use == "file":
            self._is_over = True
        elif self._use == "L":
            self._long_name = _text(bytes(self._text))
        elif self._use == "x":
            self._long_name = _pax_path(bytes(self._text)) or self._long_name
        self._text.clear()


class Unwrapped:
    """An `Unpacker` of a file that is told by its first bytes: itself, or what is in an archive or a compressed file.

    State: the first bytes until they are enough, then the unpackers that they ask for.
    """

    def __init__(self, limit: int, wrappings: int = _WRAPPINGS) -> None:
        self._limit = limit
        self._wrappings = wrappings
        self._head: bytearray | None = bytearray()
        self._stages: tuple[Unpacker, ...] = ()

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._head is not None:
            self._head += data
            if len(self._head) < _BLOCK:
                return
            data = self._opened(self._head)
        yield from through(self._stages, data)

    def finish(self) -> Iterator[bytes]:
        if self._head is not None:
            data = self._opened(self._head)
            yield from through(self._stages, data)
        yield from at_the_end(self._stages)

    def _opened(self, head: bytearray) -> bytes:
        self._head = None
        inner: Unpacker | None = None
        if self._wrappings and head.startswith(GZIP):
            inner = Gunzipped(self._limit)
        elif self._wrappings and head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
            inner = Untarred(self._limit)
        if inner is not None:
            self._stages = (inner, Unwrapped(self._limit, self._wrappings - 1))
        return bytes(head)


def through(stages: tuple[Unpacker, ...], data: bytes) -> Iterator[bytes]:
    """The pieces that come out behind the last one."""
    if not stages:
        yield data
        return
    for piece in stages[0].feed(data):
        yield from through(stages[1:], piece) if piece else (b"",)


def at_the_end(stages: tuple[Unpacker, ...]) -> Iterator[bytes]:
    """The pieces that are left in them, those of the first of them first."""
    for index, stage in enumerate(stages):
        for piece in stage.finish():
            yield from through(stages[index + 1 :], piece)


class Unpacking:
    """A module that is being received. State: its bytes so far.

    with Unpacking.of_file(limit) as unpacking:
        for _ in unpacking.feed(part):
            ...  # others' turn
        module = unpacking.finish()
    """

    def __init__(self, limit: int, *stages: Unpacker) -> None:
        self.module = bytearray()
        self._limit = limit
        self._stages = stages

    @classmethod
    def of_file(cls, limit: int) -> Unpacking:
        """The module in a file, or in the first file of an archive; either may be compressed."""
        return cls(limit, Unwrapped(limit))

    @classmethod
    def of_layer(cls, limit: int) -> Unpacking:
        """The ``plugin.wasm`` in a compressed layer of an image."""
        return cls(limit, Gunzipped(limit), Untarred(limit, PLUGIN_FILE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Free the bytes after an error: frames in its traceback may live long."""
        if error is not None:
            self.module.clear()

    def feed(self, data: bytes) -> Iterator[None]:
        """Take more, step by step. Raises FetchError."""
        for start in range(0, len(data), STEP_BYTES):
            yield from self._taken(through(self._stages, data[start : start + STEP_BYTES]))

    def finish(self) -> bytearray:
        """The module. Raises FetchError if the bytes are not a module."""
        for _ in self._taken(at_the_end(self._stages)):
            pass
        if len(self.module) < _HEADER_BYTES:
            raise FetchError(_NO_MODULE)
        return self.module

    def _taken(self, pieces: Iterator[bytes]) -> Iterator[None]:
        for piece in pieces:
            self.module += piece
            if not self.module.startswith(MAGIC[: len(self.module)]):
                raise FetchError(_NO_MODULE)
            if len(self.module) > self._limit:
                raise FetchError(f"has more than {self._limit} bytes (--wasm-module-bytes)")
            yield


_NO_MODULE = "is not a WebAssembly module: it does not begin as one"


def unwrap(body: bytes, limit: int) -> bytearray:
    """The module in a file that is there in full. Raises FetchError."""
    unpacking = Unpacking.of_file(limit)
    for _ in unpacking.feed(body):
        pass
    return unpacking.finish()


def _number(field: bytes) -> int:
    """A number of a header: octal digits, or binary if the first bit is set. Raises FetchError."""
    if field[0] & 0x80:
        if field[0] != 0x80:
            raise FetchError(f"{_UNREADABLE}: a size below 0, or beyond all that is taken")
        return int.from_bytes(field[1:])
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if not all(digit in b"01234567" for digit in digits):
        raise FetchError(f"{_UNREADABLE}: a number of a header is not octal")
    return int(digits or b"0", 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "replace")


def _pax_path(records: bytes) -> str:
    """The path in pax records, ``LENGTH KEY=VALUE`` and a line feed; empty if they name none. Raises FetchError."""
    while records:
        digits, _, _ = records[:20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = records[len(digits) + 1 : length - 1]
        if length <= len(digits) + 1 or length > len(records):
            raise FetchError(f"{_UNREADABLE}: a pax record of a wrong length")
        key, _, value = record.partition(b"=")
        if key == b"path":
            return value.decode("utf-8", "replace")
        if key == b"size":
            raise FetchError(f"{_UNREADABLE}: a file of 8 GiB or more")
        records = records[length:]
    return ""
