"""Kubernetes' strategic merge of an overlay into a Pod: lists with a merge key are merged entry by entry.

What is new comes after what is there, so that the patch of a Pod stays small. Source of the rules: Kubernetes,
"Strategic merge patch", and the merge keys in its API reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Pod = dict[str, Any]
"""A Pod, or a part of one, as plain JSON data. Functions of this room return new ones, and share what is unchanged."""

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""The keys of entries by the name of a list in a Pod. Other lists are replaced as a whole."""

_ONE_OF_ITS_KIND = {"volumes"}
"""Lists whose entries have a source, of which there is one: a new source replaces the old one."""
_DIRECTIVE = "$patch"


def overlaid(base: Any, over: Any, name: str = "") -> Any:
    """``base`` with ``over`` laid over it; ``name``: of the field that they are.

    ``null`` removes a field; ``$patch: delete`` and ``$patch: replace`` are carried out.
    """
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return _overlaid_object(base, over)
    if isinstance(base, list) and isinstance(over, list) and (key := _merge_key(name, base, over)):
        return _overlaid_list(base, over, key, name)
    return _clean(over)


def _overlaid_object(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    if over.get(_DIRECTIVE) == "replace":
        return dict(_clean(over))
    found = dict(base)
    for key, value in over.items():
        if key == _DIRECTIVE:
            continue
        if value is None or (isinstance(value, Mapping) and value.get(_DIRECTIVE) == "delete"):
            found.pop(key, None)
        else:
            found[key] = overlaid(found.get(key), value, key)
    return found


def _overlaid_list(base: list[Any], over: list[Any], key: str, name: str) -> list[Any]:
    if any(entry.get(_DIRECTIVE) == "replace" for entry in over):
        return [_clean(entry) for entry in over if entry.get(_DIRECTIVE) != "replace" or len(entry) > 1]
    found = list(base)
    places = {entry[key]: index for index, entry in reversed(list(enumerate(found)))}
    gone = set()
    for entry in over:
        index = places.get(entry[key])
        if entry.get(_DIRECTIVE) == "delete":
            gone |= {index} if index is not None else set()
        elif index is None:
            places[entry[key]] = len(found)
            found.append(_clean(entry))
        elif name in _ONE_OF_ITS_KIND:
            found[index] = _clean(entry) if len(entry) > 1 else found[index]
        else:
            found[index] = overlaid(found[index], entry)
    return [entry for index, entry in enumerate(found) if index not in gone]


def _merge_key(name: str, base: list[Any], over: list[Any]) -> str:
    """The merge key of a list; empty where it has none, or entries lack it."""
    key = MERGE_KEYS.get(name, "")
    complete = all(isinstance(entry, Mapping) and (key in entry or _DIRECTIVE in entry) for entry in (*base, *over))
    return key if key and complete else ""


def _clean(value: Any) -> Any:
    """The value without directives and without what is null."""
    if isinstance(value, Mapping):
        return {key: _clean(each) for key, each in value.items() if each is not None and key != _DIRECTIVE}
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return value
