"""Objects as text: what is stored of an object that somebody sends, and which object a string holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mesh_pilot.base.reading import member
from mesh_pilot.istio.kinds import KindError, lookup
from mesh_pilot.istio.reading.yaml import Document, load
from mesh_pilot.istio.reading.yaml_text import yaml_text
from mesh_pilot.model.config import ConfigError, ConfigKey, Origin, Problem
from mesh_pilot.sources.config_store.base import Object

_OF_SERVERS = ("resourceVersion", "uid", "generation", "managedFields", "selfLink", "clusterName")
"""Metadata that a server adds, which has no meaning in a file."""

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def without_server_fields(document: Object) -> dict[str, Any]:
    """An object without the metadata that API servers add to it, in the order of its members."""
    metadata = document.get("metadata")
    found = dict(document)
    if isinstance(metadata, Mapping):
        kept = {name: value for name, value in metadata.items() if name not in _OF_SERVERS}
        annotations = kept.get("annotations")
        if isinstance(annotations, Mapping) and _APPLIED in annotations:
            kept["annotations"] = {name: value for name, value in annotations.items() if name != _APPLIED}
        found["metadata"] = kept
    return found


def version_in(document: Object) -> str:
    """The version that an object brings: ``metadata.resourceVersion``. Empty if it brings none."""
    version = member(document, "metadata", "resourceVersion")
    return str(version) if isinstance(version, (str, int)) else ""


def as_yaml(document: Object) -> bytes:
    """An object as the text of a file."""
    return yaml_text([document]).encode("utf-8", "surrogatepass")


def as_json(document: Object) -> bytes:
    """An object as the text of a file that YAML readers can read, too: they take fewer characters as they are."""
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-8", "surrogatepass")


_UNPRINTABLE = re.compile("[\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")


def objects_in(data: bytes, origin: Origin) -> list[Document | ConfigError]:
    """The objects of a string, and the error for each part that cannot be read."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return [ConfigError(origin, None, (Problem("", f"is not UTF-8 text: {error.reason}"),))]
    if text.lstrip()[:1] == "{":
        text = text.replace("\t", " ")  # JSON may be indented with tabs, YAML may not
    return list(load(text, origin))


def key_of(document: Object, default_namespace: str = "default") -> ConfigKey | None:
    """The key of an object; None if that cannot be told, or it is of a kind that is not read."""
    metadata = document.get("metadata")
    try:
        kind = lookup(str(document.get("apiVersion")), str(document.get("kind")))
    except KindError:
        return None
    if kind is None or not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        return None
    namespace = "" if kind.cluster_scoped else str(metadata.get("namespace") or default_namespace)
    return ConfigKey(kind.name, namespace, metadata["name"])
