"""Differences of two revisions: objects in YAML, and a proxy's resources in JSON."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence

import attrs
import yaml

from mesh_pilot.explain.plan.past_world import resource_lines
from mesh_pilot.istio.reading.encode_json import to_json
from mesh_pilot.model.config import Config
from mesh_pilot.model.events import (
    Challenges,
    Endpoints,
    ExtensionInForce,
    HostOwners,
    Item,
    KeySet,
    MeshConfigValue,
    MeshNetworksValue,
    Quarantine,
    ResolvedHost,
    RolloutState,
    Secret,
    WasmModule,
    WorkloadHealth,
)
from mesh_pilot.model.json import Json
from mesh_pilot.model.resource import RESOURCE_TYPES, Resource
from mesh_pilot.model.service import Service
from mesh_pilot.ops.values.configs import show_config
from mesh_pilot.ops.values.services import endpoints_json, service_json
from mesh_pilot.safety.quarantine.clients import in_words
from mesh_pilot.safety.state.reader import PastPictures, name_of


@attrs.frozen
class ObjectDifference:
    """An object in which two revisions differ."""

    name: str
    action: str
    diff: Sequence[str]
    """A unified diff of YAML."""


@attrs.frozen
class Difference:
    """A thing of which two revisions differ; no lines: it is not there."""

    name: str
    before: Sequence[str]
    after: Sequence[str]

    @property
    def action(self) -> str:
        return "add" if not self.before else "delete" if not self.after else "update"

    def lines(self, older: int, newer: int) -> Iterator[str]:
        """The difference as a unified diff."""
        old = f"{self.name} (revision {older})" if self.before else "/dev/null"
        new = f"{self.name} (revision {newer})" if self.after else "/dev/null"
        return difflib.unified_diff(self.before, self.after, old, new, lineterm="")

    def shown(self, older: int, newer: int) -> ObjectDifference:
        return ObjectDifference(self.name, self.action, list(self.lines(older, newer)))


def object_differences(older: PastPictures, newer: PastPictures) -> Iterator[Difference]:
    """The objects of sources that differ, by name."""
    found: dict[tuple[str, str], Difference] = {}
    for source in dict.fromkeys((*older.items, *newer.items)):
        before, after = older.items.get(source, {}), newer.items.get(source, {})
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            if old != new:
                found[name_of(key), source] = Difference(name_of(key), item_lines(old), item_lines(new))
    for name in sorted(found):
        yield found[name]


def resource_differences(
    older: Mapping[str, Mapping[str, Resource]], newer: Mapping[str, Mapping[str, Resource]]
) -> Iterator[Difference]:
    """The resources of a proxy that differ, by type in the order in which they are sent, and name."""
    for type_url, resource_type in RESOURCE_TYPES.items():
        before, after = older.get(type_url, {}), newer.get(type_url, {})
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if old != new:
                yield Difference(f"{resource_type.short} {name}", resource_lines(old), resource_lines(new))


def item_lines(item: Item | None) -> list[str]:
    """An object in YAML; no lines if there is none."""
    if item is None:
        return []
    text: str = yaml.safe_dump(_plain(_item_json(item)), sort_keys=False, allow_unicode=True, width=120)
    return text.splitlines()


def _item_json(item: Item) -> Json:
    # What is secret or large is shown by its digest: a diff must tell that it has changed, and nothing of what it is.
    match item:
        case Config():
            return show_config(item)
        case Service():
            return service_json(item)
        case Endpoints():
            return endpoints_json(item.service, item.endpoints)
        case MeshConfigValue(config=message) | MeshNetworksValue(networks=message):
            shown: Json = to_json(message)
            return shown
        case Secret():
            parts = {"certificate_chain": item.certificate_chain, "ca_certificates": item.ca_certificates}
            digests = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items() if part}
            return {"name": item.name, "namespace": item.namespace, "sha256": digests}
        case WorkloadHealth():
            return {"healthy": item.is_healthy, "reason": item.reason}
        case ResolvedHost():
            return {"host": item.host, "addresses": list(item.addresses)}
        case WasmModule():
            return {"url": item.ref.url, "sha256": item.sha256, "trouble": item.trouble}
        case ExtensionInForce():
            return {"object": str(item.key), "url": item.module.ref.url, "sha256": item.module.sha256}
        case KeySet():
            return {"issuer": item.issuer, "url": item.url, "keys": item.keys}
        case Quarantine():
            return {"from": in_words(item.domain), "withheld": [name_of(each.key) for each in item.withheld]}
        case RolloutState():
            objects = [name_of(each.key) for each in item.changes]
            return {"share": item.share, "canary": len(item.canary), "objects": objects, "taken_back": item.reason}
        case Challenges():
            return {"hosts": [each.host for each in item.answers], "paths": [each.path for each in item.answers]}
        case HostOwners():
            return {"host": item.host, "gateway": item.gateway, "namespaces": [each.namespace for each in item.order]}


def _plain(value: Json) -> object:
    """The same of Python's own containers, which YAML can write."""
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    return value
