"""Istio objects in Consul's KV store: one a key, ``<prefix>/<kind>/<namespace>/<name>``, in YAML or JSON.

The key of an object without a namespace, such as a MeshPolicy, may leave it out.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import attrs

from mesh_pilot.base.reading import as_list, member
from mesh_pilot.istio.kinds import KINDS, kind_named, written_kind
from mesh_pilot.istio.reading.decode import decode_document
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.model.config import Config, ConfigError, ConfigKey, Origin, Problem

_CLUSTER_SCOPED = frozenset(kind.name.lower() for kind in KINDS.values() if kind.cluster_scoped)

Value = bytes | Problem
"""The value of a key, or the reason why it can't be read."""

_SHAPE = "the key must be <prefix>/<kind>/<namespace>/<name>, such as mesh-pilot/config/VirtualService/shop/reviews"


def read_tree(data: object) -> tuple[dict[str, Value], tuple[Problem, ...]]:
    """The value of each key in an answer, and the problems of the answer itself. Folders are skipped."""
    values: dict[str, Value] = {}
    problems: list[Problem] = []
    nameless = 0
    for entry in as_list(data):
        key = member(entry, "Key")
        if not isinstance(key, str) or not key:
            nameless += 1
        elif key in values:
            problems.append(Problem("Key", f"{key} is given twice; the first holds"))
        elif not key.endswith("/"):
            values[key] = _value(entry.get("Value"))
    if nameless:
        problems.append(Problem("Key", f"{nameless} entries without a key are passed over"))
    return values, tuple(problems)


def _value(text: object) -> Value:
    """The bytes of a key; Consul answers null where there are none."""
    if text is None:
        return b""
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else _NO_BASE64
    except ValueError:
        return _NO_BASE64


_NO_BASE64 = Problem("Value", "is not text in base64: what answers is not Consul")


def read_config(prefix: str, key: str, value: Value, source: str) -> Config:
    """The object at a key. Raises ConfigError."""
    origin = Origin(source, location_of(key))
    if isinstance(value, Problem):
        raise ConfigError(origin, None, (value,))
    kind, namespace, name = _parts(prefix, key)
    if not name or "/" in name:
        raise ConfigError(origin, None, (Problem("", _SHAPE),))
    try:
        text = value.decode("utf-8-sig").replace("\t", " ") if value[:1] == b"{" else value.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(origin, None, (Problem("", f"is not UTF-8 text: {error.reason}"),)) from None
    config = decode_document(_placed(_only(text, origin), namespace, name), origin=origin, default_namespace=namespace)
    wanted = ConfigKey(kind, config.namespace and namespace, name)
    kinds = config.key.kind.lower(), written_kind(config.key.kind).lower()
    if kind.lower() not in kinds or config.key[1:] != wanted[1:]:
        problem = Problem("metadata", f"the object is {config.key}, but its key says {kind}/{namespace}/{name}")
        raise ConfigError(config.origin, config.key, (problem,))
    return config


def named_by(prefix: str, key: str) -> ConfigKey | None:
    """The object that a key is of, whatever its value; None if it names none."""
    kind, namespace, name = _parts(prefix, key)
    known = kind_named(kind)
    if known is None or not name or "/" in name:
        return None
    return ConfigKey(known.name, "" if known.cluster_scoped else namespace, name)


def _parts(prefix: str, key: str) -> tuple[str, str, str]:
    """Kind, namespace and name in a key; the name is empty if it has not three parts."""
    kind, _, rest = key.removeprefix(prefix).lstrip("/").partition("/")
    namespace, slash, name = rest.partition("/")
    return (kind, namespace, name) if slash or kind.lower() not in _CLUSTER_SCOPED else (kind, "", rest)


def location_of(key: str) -> str:
    """The location of a key, for people."""
    return f"consul {key}"


def _only(text: str, origin: Origin) -> Document:
    """The one object of a string. Raises ConfigError."""
    found = list(load(text, origin))
    for document in found:
        if isinstance(document, ConfigError):
            raise document
    if len(found) != 1:
        raise ConfigError(origin, None, (Problem("", f"holds {len(found)} objects; a key holds one"),))
    (document,) = found
    assert isinstance(document, Document)
    return document


def _placed(document: Document, namespace: str, name: str) -> Document:
    """A document with the name and namespace of its key, unless it has its own."""
    metadata = document.data.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        return document
    return attrs.evolve(
        document, data={**document.data, "metadata": {"namespace": namespace, "name": name, **metadata}}
    )
