"""The text of lists and watches, cut into objects.

A page is cut without being decoded, which takes a millisecond a megabyte; then each object is decoded on its own, and
others have their turn in between. A thread would not help: the decoder holds the interpreter's lock.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from mesh_pilot.kubernetes.apiserver.access import KubernetesError
from mesh_pilot.kubernetes.apiserver.resource import Object

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""The largest event that is taken. etcd takes objects of 1.5 MB, unless it is told otherwise."""

MAX_LEVELS = 200
"""The deepest nesting that is read where the decoder gives up; API servers take 10,000 levels, readers 100."""

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class ListMetadata(msgspec.Struct):
    """``metadata`` of a list."""

    resource_version: str = msgspec.field(default="", name="resourceVersion")
    token: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """A page of a list, its objects still encoded."""

    metadata: ListMetadata
    items: list[msgspec.Raw] | None = None


class WatchEvent(msgspec.Struct):
    """A line of a watch, its object still encoded."""

    type: str
    object: msgspec.Raw


class RefusalStatus(msgspec.Struct):
    """The body of a refusal."""

    code: int = 0
    message: str = ""
    reason: str = ""


_PAGES = msgspec.json.Decoder(Page)
_EVENTS = msgspec.json.Decoder(WatchEvent)
_STATUSES = msgspec.json.Decoder(RefusalStatus)
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


_FLAT = rb'[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+"'
# Before 3.11.5, which Debian 12 has, a possessive repeat does not go back where what it repeats has failed half-way.
_AGAIN = b"*+" if sys.version_info >= (3, 11, 5) else b"*"
_BRACKETS = re.compile(rb"(?:%b|[\[{](?:%b)%b[\]}])%b([\[\]{}])" % (_FLAT, _FLAT, _AGAIN, _AGAIN), re.DOTALL)
"""The next bracket of what is not flat."""


def prune(text: bytes) -> bytes:
    """JSON without what is below the deepest level that is read: it is its object that is refused, not all the list."""
    parts: list[bytes] = []
    level = kept = at = 0
    while found := _BRACKETS.match(text, at):
        at = found.end()
        if found[1] in b"{[":
            level += 1
            if level == MAX_LEVELS + 1:
                parts.append(text[kept : found.start(1)])
        else:
            level -= 1
            if level == MAX_LEVELS:
                parts.append(b'"..."')
                kept = at
    return b"".join([*parts, text[kept:]])


T = TypeVar("T")


def _decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    try:
        return decoder.decode(text)
    except RecursionError:
        return decoder.decode(prune(text))


def read_page(text: bytes) -> Page:
    """Raises KubernetesError."""
    try:
        return _decode(_PAGES, text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise KubernetesError(f"not a list of Kubernetes: {error}") from None


def read_event(line: bytes) -> WatchEvent:
    """Raises KubernetesError."""
    try:
        return _decode(_EVENTS, line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise KubernetesError(f"not an event of a watch: {error}; it begins with {line[:40]!r}") from None


def read_object(text: msgspec.Raw) -> dict[str, Any]:
    """An object without ``managedFields``: these are as large as itself. Raises KubernetesError."""
    try:
        parts = _PARTS.decode(text)
        metadata = _PARTS.decode(parts["metadata"])
        metadata.pop("managedFields", None)
        decode = _ANY.decode
        found = {name: decode(part) for name, part in parts.items() if name != "metadata"}
        found["metadata"] = {name: decode(part) for name, part in metadata.items()}
    except (msgspec.MsgspecError, RecursionError, LookupError) as error:
        raise KubernetesError(f"not an object of Kubernetes: {type(error).__name__} {error}") from None
    return found


def read_status(text: bytes) -> RefusalStatus:
    """The status in a string; if it is not a status, the beginning of the string is the message."""
    try:
        status = _STATUSES.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        status = RefusalStatus()
    said = status.message or text[:200].decode("utf-8", "replace")
    status.message = "".join(c if c.isprintable() else " " for c in said[:500])
    return status


class LineBuffer:
    """Cuts text that comes bit by bit into lines. State: the beginning of a line whose end is still to come."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._bytes = 0

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The lines that are now complete. Raises KubernetesError for one that has no end."""
        *lines, rest = part.split(b"\n")
        for line in lines:
            if self._parts:
                line = b"".join([*self._parts, line])
                self._parts, self._bytes = [], 0
            if line.strip():
                yield line
        if rest:
            self._parts.append(rest)
            self._bytes += len(rest)
            if self._bytes > self._max_bytes:
                raise KubernetesError(f"an event of more than {self._max_bytes} bytes")


def object_key(found: Object) -> str:
    """Raises KubernetesError."""
    metadata = found["metadata"]
    name, namespace = metadata.get("name"), metadata.get("namespace") or ""
    if not isinstance(name, str) or not name or not isinstance(namespace, str):
        raise KubernetesError("an object without a name")
    return f"{namespace}/{name}"


def object_version(found: Object) -> str:
    return str(found["metadata"].get("resourceVersion") or "")


def is_before(one: str, other: str) -> bool:
    """True if a version is certainly older; they are numbers at every server that there is."""
    return one.isdigit() and other.isdigit() and int(one) < int(other)
