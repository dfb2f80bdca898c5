"""Istio objects in Consul's KV store: one a key, ``<prefix>/<kind>/<namespace>/<name>``, in YAML or JSON."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mesh_pilot.config.decode import decode_document
from mesh_pilot.config.yaml import Document, load
from mesh_pilot.model.config import Config, ConfigError, ConfigKey, Origin, Problem

_SHAPE = "the key must be <prefix>/<kind>/<namespace>/<name>, such as mesh-pilot/config/VirtualService/shop/reviews"


def read_config(prefix: str, key: str, value: bytes, source: str) -> Config:
    """The object at a key. Raises ConfigError."""
    origin = Origin(source, location_of(key))
    kind, slash, rest = key.removeprefix(prefix).lstrip("/").partition("/")
    namespace, slash, name = rest.partition("/")
    if not slash or not name or "/" in name:
        raise ConfigError(origin, None, (Problem("", _SHAPE),))
    try:
        text = value.decode("utf-8-sig").replace("\t", " ") if value[:1] == b"{" else value.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(origin, None, (Problem("", f"is not UTF-8 text: {error.reason}"),)) from None
    config = decode_document(_placed(_only(text, origin), namespace, name), origin=origin, default_namespace=namespace)
    wanted = ConfigKey(kind, config.namespace and namespace, name)
    if (config.key.kind.lower(), *config.key[1:]) != (kind.lower(), *wanted[1:]):
        problem = Problem("metadata", f"the object is {config.key}, but its key says {kind}/{namespace}/{name}")
        raise ConfigError(config.origin, config.key, (problem,))
    return config


def location_of(key: str) -> str:
    """A key as people are told of it."""
    return f"consul {key}"


def _only(text: str, origin: Origin) -> Document:
    """The one object of a text. Raises ConfigError."""
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
    """A document with the name and namespace of its key, where it does not say them itself."""
    metadata = document.data.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        return document
    return attrs.evolve(
        document, data={**document.data, "metadata": {"namespace": namespace, "name": name, **metadata}}
    )
