"""Every field of every foreign object is taken or listed; whatever a string holds, a migration ends, and lists it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh_pilot.istio.reading.decode import decode
from mesh_pilot.istio.reading.yaml_text import yaml_text
from mesh_pilot.migration.base.record import Migration
from mesh_pilot.migration.folder.report import files_of
from mesh_pilot.model.config import Origin
from tests.migration.dumps import HERE, SYSTEMS, migrate, read
from tests.support.sample import examples

Path = tuple[str | int, ...]

SILENT = {
    # What a server wrote, or counts: without any of it the result is the same.
    "metadata", "status", "kind", "Kind", "Name", "type", "name", "mesh", "CreateIndex", "ModifyIndex", "Precedence",
    "Type", "DestinationType", "Datacenter", "Node", "CheckID", "Status", "Checks", "ID",
    # Values that say what is so without them.
    "internalTrafficPolicy", "ipFamilies", "ipFamilyPolicy", "sessionAffinity", "protocol", "addressType", "phase",
    "addresses", "clusterIP", "clusterIPs", "targetPort", "targetRef", "finalizers", "disabled", "conditions",
    "DestinationServiceID", "LocalServiceAddress", "LocalServicePort", "apiVersion", "kuma.io/protocol",
}  # fmt: skip
"""Fields of the dumps that may be missed by nobody."""

WHOLE = ("Deployment", "ConfigMap", "Secret", "NetworkPolicy", "handler", "WorkloadEntry", "MeshAccessLog",
         "ZoneIngress", "mesh", "api-gateway", "Node", "Namespace")  # fmt: skip
"""Kinds of the dumps that are not taken, and so listed as a whole; or read in one field only."""

OF_IGNORED = ("waypoint", "broken", "istiod", "kube-dns", "reviews-v3-6c5f8d9c7-2xw8s", "route-all-default")
"""The same of single objects."""


def documents(system: str) -> list[dict[str, Any]]:
    texts = {file.name: file.read_bytes() for file in sorted((HERE / system).iterdir()) if file.is_file()}
    return [copy.deepcopy(dict(each.data)) for each in read(texts).objects]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(each, (*path, index))
    else:
        yield path


def without(value: Any, path: Path) -> Any:
    made = copy.deepcopy(value)
    holder = made
    for step in path[:-1]:
        holder = holder[step]
    del holder[path[-1]]
    return made


def outcome(found: Migration) -> tuple[object, ...]:
    """All that a migration says, without places: lines move."""
    untaken = sorted((each.object, each.field, each.reason, each.do) for each in found.untaken)
    return files_of(found), untaken, found.changes, found.taken


EXPLAINED = (
    ("consul", "service/web-sidecar-proxy/web-1-sidecar-proxy", ("Service", "Port")),  # of Consul's own proxy
)


def is_followed(document: dict[str, Any], path: Path) -> bool:
    metadata = document.get("metadata", {})
    name = metadata.get("name", document.get("name"))
    kind = document.get("kind", document.get("Kind", document.get("type")))
    return not SILENT & set(map(str, path)) and kind not in WHOLE and name not in OF_IGNORED


def is_below(path: Path, listed: list[str]) -> bool:
    """True if a field is in one that is listed as a whole."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    plain = [f"{each}." for each in listed] + [f"{each}[" for each in listed]
    return text.startswith(tuple(plain)) or text in listed


def cases() -> Iterator[Any]:
    for system in SYSTEMS:
        for index, document in enumerate(documents(system)):
            paths = [path for path in leaves(document) if is_followed(document, path)]
            if paths:
                yield pytest.param(system, index, paths, id=f"{system} {index}")


@pytest.mark.parametrize(("system", "index", "paths"), list(cases()))
def test_no_field_of_the_dumps_is_missed_in_silence(system: str, index: int, paths: list[Path]) -> None:
    whole = documents(system)
    found = migrate(system, json.dumps(whole), services=True)
    before = outcome(found)
    (name,) = {each.name for each in read({"dump": json.dumps([whole[index]])}).objects}
    listed = [each.field for each in found.untaken if each.object == name and each.field]
    silent = []
    for path in paths:
        if is_below(path, listed) or (system, name, path) in EXPLAINED:
            continue
        changed = [*whole[:index], without(whole[index], path), *whole[index + 1 :]]
        if outcome(migrate(system, json.dumps(changed), services=True)) == before:
            silent.append(path)
    assert silent == []


# -- whatever a string holds

NAMES = ["spec", "to", "from", "default", "targetRef", "kind", "name", "tags", "conf", "networking", "inbound", "port",
         "http", "matches", "path", "value", "type", "metadata", "items", "data", "Kind", "Name", "Sources", "Splits",
         "Listeners", "Services", "labels", "sources", "destinations", "match", "rules", "backendRefs", "weight",
         "address", "mtls", "Service", "Node", "ports", "selector", "endpoints", "hosts", "subsets"]  # fmt: skip
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["1s", "*", "Mesh"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


def assert_sound(found: Migration, system: str) -> None:
    """What was made is valid and stays in its folder, and the report can be written."""
    for made in found.objects:
        if made.document["kind"] != "ConfigMap":
            decode(made.document, origin=Origin("test"))
    for path in files_of(found):
        assert ".." not in path.split("/")
        assert not path.startswith("/")


@pytest.mark.parametrize("system", SYSTEMS)
@given(data=st.data())
@settings(max_examples=examples(60))
def test_a_dump_with_anything_in_it_ends_and_is_sound(system: str, data: st.DataObject) -> None:
    whole = documents(system)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(whole) - 1))
        paths = sorted(nodes(whole[index]), key=str)
        path = data.draw(st.sampled_from(paths))
        holder: Any = whole[index]
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = data.draw(VALUES)
    assert_sound(migrate(system, json.dumps(whole)), system)


def nodes(value: Any, path: Path = ()) -> Iterator[Path]:
    if path:
        yield path
    if isinstance(value, dict):
        for name, each in value.items():
            yield from nodes(each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from nodes(each, (*path, index))


@pytest.mark.parametrize("system", SYSTEMS)
@given(text=st.binary(max_size=60) | VALUES.map(lambda value: yaml_text([value]).encode()) | st.text().map(str.encode))
@settings(max_examples=examples(60))
def test_any_text_ends_and_is_listed(system: str, text: bytes) -> None:
    found = migrate(system, text)
    assert_sound(found, system)
    files = read({"dump": text})
    assert len(found.untaken) + sum(found.taken.values()) >= bool(files.objects or files.unread)
