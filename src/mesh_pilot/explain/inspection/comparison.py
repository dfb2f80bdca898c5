"""The comparison of what an Envoy has with what the control plane sent to it.

What Envoy adds on its own does not count: static resources, defaults that it fills in, the order of names and
endpoints, times, and the health that its own checks found.
"""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import attrs

from mesh_pilot.base.reading import as_object, as_objects, as_string
from mesh_pilot.explain.inspection.dump import ConfigDump, DumpedResource, DumpState, Message
from mesh_pilot.explain.inspection.listings.endpoints import HEALTHY, address_of, locality
from mesh_pilot.model.modules import module_stand_in
from mesh_pilot.model.redaction import redacted
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET

OVERPROVISIONING = 140
"""Envoy's default factor, which its dump writes out."""

CONTEXT = 3
"""Equal lines around those that differ."""


class DifferenceKind(StrEnum):
    CHANGED = "differs"
    MISSING = "missing in Envoy"
    LEFT_OVER = "only in Envoy"


@attrs.frozen
class ResourceDifference:
    """A resource that Envoy has otherwise than it was sent."""

    name: str
    kind: DifferenceKind
    lines: tuple[str, ...]
    """A unified diff of their JSON, from the control plane's to Envoy's."""
    made_from: tuple[str, ...] = ()
    note: str = ""
    """Envoy's reason, where it refused a version, or the state that its resource is in."""


@attrs.frozen
class TypeComparison:
    """The resources of a type."""

    type: str
    """The abbreviation of the type: ``CDS``."""
    title: str
    compared: int
    """Resources that the control plane sent."""
    differences: tuple[ResourceDifference, ...]

    @property
    def matches(self) -> bool:
        return not self.differences


def compare(plane: ConfigDump, envoy: ConfigDump) -> list[TypeComparison]:
    """The comparison of each type that the control plane sent, or of which Envoy has anything from it."""
    found = []
    for type_url, (short, title, normal) in _TYPES.items():
        sent, held = _of(plane, type_url), _of(envoy, type_url)
        if type_url in (ENDPOINT, SECRET):
            # Envoy lists hosts of clusters of every type, and secrets that the agent gave it.
            held = {name: each for name, each in held.items() if name in sent}
        else:
            held = {n: each for n, each in held.items() if n in sent or each.state is not DumpState.STATIC}
        if sent or held:
            errors = {each.name: each.error for each in envoy.of(type_url) if each.error}
            different = tuple(_differences(sent, held, normal, errors))
            found.append(TypeComparison(short, title, len(sent), different))
    return found


def _of(dump: ConfigDump, type_url: str) -> dict[str, DumpedResource]:
    return dump.routes if type_url == ROUTE else dump.in_use(type_url)


def _differences(
    sent: Mapping[str, DumpedResource],
    held: Mapping[str, DumpedResource],
    normal: Callable[[Message, Message], Any],
    errors: Mapping[str, str],
) -> Iterator[ResourceDifference]:
    for name in sorted(sent.keys() | held.keys()):
        ours, theirs = sent.get(name), held.get(name)
        note = " ".join(errors.get(name, "").split())
        if ours is None:
            if theirs is not None:
                lines = _lines(None, normal(theirs.message, {}))
                yield ResourceDifference(name, DifferenceKind.LEFT_OVER, lines, (), note)
            continue
        if theirs is None:
            lines = _lines(normal(ours.message, ours.message), None)
            yield ResourceDifference(name, DifferenceKind.MISSING, lines, ours.made_from, note)
            continue
        if "unknown" in ours.message and theirs.version == ours.version:
            continue  # the proxy brought it from an earlier connection: only its version is known
        before, after = normal(ours.message, ours.message), normal(theirs.message, ours.message)
        if before != after:
            state = "" if theirs.state is DumpState.ACTIVE else f"it is {theirs.state}"
            lines = _lines(before, after)
            yield ResourceDifference(name, DifferenceKind.CHANGED, lines, ours.made_from, note or state)


def _lines(before: Any, after: Any) -> tuple[str, ...]:
    old, new = (
        [] if each is None else json.dumps(each, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
        for each in (before, after)
    )
    return tuple(difflib.unified_diff(old, new, "control plane", "Envoy", lineterm="", n=CONTEXT))


# -- the form in which messages are compared; the second argument is the message that was sent


def _plain(message: Message, _: Message) -> Any:
    return redacted({name: member for name, member in message.items() if name != "@type"})


def _route(message: Message, sent: Message) -> Any:
    """Virtual hosts that come over VHDS are in no order."""
    table = dict(_plain(message, sent))
    if "vhds" in sent:
        hosts = as_objects(table, "virtual_hosts")
        table["virtual_hosts"] = sorted(hosts, key=lambda host: as_string(host, "name"))
    return table


def _endpoint(message: Message, sent: Message) -> Any:
    """An assignment as a mapping of its endpoints by address."""
    told = {address: _health(each) for address, _, each in _hosts(sent)}
    factor = as_object(message, "policy").get("overprovisioning_factor", OVERPROVISIONING)
    found: dict[str, Any] = {}
    for address, group, each in _hosts(message):
        shown: dict[str, Any] = {"weight": each.get("load_balancing_weight", 1)}
        # Of an endpoint that was told to be healthy, Envoy shows what its own checks found.
        if told.get(address, HEALTHY) != HEALTHY:
            shown["health_status"] = _health(each)
        if metadata := each.get("metadata"):
            shown["metadata"] = metadata
        endpoint = as_object(each, "endpoint")
        shown |= {name: endpoint[name] for name in ("hostname", "additional_addresses") if endpoint.get(name)}
        shown |= {"locality": locality(group.get("locality")), "priority": group.get("priority", 0)}
        if "load_balancing_weight" in group:
            shown["locality_weight"] = group["load_balancing_weight"]
        found[address] = shown
    return {"overprovisioning_factor": factor, "endpoints": found}


def _hosts(message: Message) -> Iterator[tuple[str, Message, Message]]:
    """Each endpoint with its address as a string and its group."""
    for group in as_objects(message, "endpoints"):
        for each in as_objects(group, "lb_endpoints"):
            address, port = address_of(as_object(each, "endpoint").get("address"))
            yield (f"{address}:{port}" if port else address), group, each


def _extension(message: Message, entry: Message) -> Any:
    """The settings of an extension with a string in place of its module's bytes, as the control plane shows them."""
    shown = _plain(message, entry)
    source: Message = as_object(shown)
    for name in _MODULE:
        source = as_object(source, name)
    body = source.get("inline_bytes")
    if not isinstance(body, str):
        return shown
    return _replaced(shown, _MODULE, {"inline_string": module_stand_in(base64.b64decode(body))})


_MODULE = ("typed_config", "config", "vm_config", "code", "local")
"""The path of a module in the settings of an extension."""


def _replaced(message: Message, path: tuple[str, ...], value: Message) -> Message:
    """A message with another value at a path."""
    if not path:
        return value
    return {**message, path[0]: _replaced(as_object(message.get(path[0])), path[1:], value)}


def _health(endpoint: Message) -> str:
    status = as_string(endpoint, "health_status")
    return {"": HEALTHY, "UNKNOWN": HEALTHY, "TIMEOUT": "UNHEALTHY"}.get(status, status)


_TYPES: Mapping[str, tuple[str, str, Callable[[Message, Message], Any]]] = {
    CLUSTER: ("CDS", "Clusters", _plain),
    ENDPOINT: ("EDS", "Endpoints", _endpoint),
    LISTENER: ("LDS", "Listeners", _plain),
    ROUTE: ("RDS", "Routes", _route),
    SECRET: ("SDS", "Secrets", _plain),
    EXTENSION: ("ECDS", "Extension configurations", _extension),
}
