"""Objects and requests of the API double: what an API server does with them, without any state."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from mesh_pilot.kubernetes.apiserver import ApiResource

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""
Place = tuple[str, str]
"""Group and plural."""


class Refusal(Exception):
    def __init__(self, status: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})

    def body(self) -> Object:
        found = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        return {**found, "code": self.status, "reason": self.reason, "message": str(self)}


@attrs.frozen
class Request:
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))


@attrs.frozen
class Selection:
    """The objects of a list or watch, and how they are shown."""

    resource: ApiResource
    version: str
    namespace: str
    labels: str
    fields: str
    is_metadata: bool

    def holds(self, found: Object | None) -> bool:
        return (
            found is not None
            and self.namespace in ("", found["metadata"].get("namespace", ""))
            and selects_labels(self.labels, found["metadata"].get("labels") or {})
            and selects_fields(self.fields, found)
        )

    def shown(self, found: Object) -> Object:
        return shown(found, self.resource, self.version, is_metadata=self.is_metadata)


def watch_line(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def place_of(resource: ApiResource) -> Place:
    return resource.group, resource.plural


def key_of(resource: ApiResource, found: Object) -> Key:
    metadata = found["metadata"]
    if resource.cluster_scoped:
        metadata.pop("namespace", None)
        return "", metadata["name"]
    return metadata.setdefault("namespace", "default"), metadata["name"]


def shown(found: Object, resource: ApiResource, version: str, *, is_metadata: bool = False) -> Object:
    if is_metadata:
        return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": found["metadata"]}
    return {**found, "apiVersion": resource.api_version(version), "kind": resource.kind}


def content_of(found: Object) -> Object:
    metadata = {
        n: v for n, v in found["metadata"].items() if n not in ("resourceVersion", "generation", "managedFields")
    }
    return {**{n: v for n, v in found.items() if n not in ("apiVersion", "kind")}, "metadata": metadata}


def group_of(path: str) -> tuple[str, list[str]]:
    head, *rest = path.strip("/").split("/")
    return ("", rest) if head == "api" else (rest[0] if rest else "", rest[1:])


def patched(request: Request, old: Object) -> Object:
    patch = json.loads(request.body)
    new: Object = copy.deepcopy(old)
    if "json-patch" not in request.headers.get("content-type", ""):
        found: Object = merged(new, patch)
        return found
    for step in patch:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at: Any = new
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if step["op"] == "test":
            if at.get(last) != step["value"]:
                raise Refusal(422, "Invalid", f"testing path {step['path']} failed")
        elif step["op"] == "remove":
            at.pop(int(last) if isinstance(at, list) else last)
        elif isinstance(at, list):
            index = len(at) if last == "-" else int(last)
            at[index : index + (step["op"] == "replace")] = [step["value"]]
        else:
            at[last] = step["value"]
    return new


def merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    new = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = merged(new.get(name), value)
    return new


def selects_labels(selector: str, labels: Mapping[str, str]) -> bool:
    return all(_holds(term.strip(), labels) for term in re.split(r",(?![^(]*\))", selector) if term.strip())


def _holds(term: str, labels: Mapping[str, str]) -> bool:
    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", term):
        name, operator, values = found.groups()
        return (labels.get(name) in {value.strip() for value in values.split(",")}) == (operator == "in")
    if found := re.fullmatch(r"([^!=\s]+)\s*(!=|==|=)\s*(\S*)", term):
        name, operator, value = found.groups()
        return (labels.get(name) == value) == (operator != "!=")
    return term[1:] not in labels if term.startswith("!") else term in labels


def selects_fields(selector: str, found: Mapping[str, Any]) -> bool:
    for term in filter(None, selector.split(",")):
        path, operator, value = re.split(r"(!=|==|=)", term, maxsplit=1)
        at: Any = found
        for part in path.split("."):
            at = at.get(part, "") if isinstance(at, Mapping) else ""
        if (str(at) == value) != (operator != "!="):
            return False
    return True
