"""Config entries, intentions and catalogs of Consul Connect as objects of ours.

``consul.mesh`` converts what ``discovery --consul-mesh`` reads as well; gateways, upstreams and services are said here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from mesh_pilot.base.reading import as_object, as_string
from mesh_pilot.consul.mesh import ConsulMesh, LocationChange, MeshSettings
from mesh_pilot.consul.mesh.entries import IGNORE, KINDS
from mesh_pilot.consul.mesh.fields import Fields
from mesh_pilot.consul.mesh.intentions import INTENTION
from mesh_pilot.consul.mesh.values import EntryRef, object_name
from mesh_pilot.consul.source.mapping import RESERVED
from mesh_pilot.migration.base.left import reasons
from mesh_pilot.migration.base.making import make
from mesh_pilot.migration.base.reading import ForeignObject, foreign_object
from mesh_pilot.migration.base.record import MigrationRecord, Spec
from mesh_pilot.migration.consul.gateways import ConsulGateways
from mesh_pilot.migration.consul.services import ConsulCatalog
from mesh_pilot.migration.consul.values import ConsulOptions, leave_problems

INTENTIONS_KIND = "service-intentions"
GATEWAY_KINDS = ("ingress-gateway", "terminating-gateway")
TAKEN_KINDS = (*KINDS, INTENTIONS_KIND, *GATEWAY_KINDS)
"""Kinds of config entries that are taken."""

LEFT_KINDS = reasons("consul_kinds")
"""Other kinds, each with the reason and what to do."""

CRD_GROUP = "consul.hashicorp.com"

_CRD_KINDS = {"".join(part.title() for part in kind.split("-")): kind for kind in (*TAKEN_KINDS, *LEFT_KINDS)} | {
    "ControlPlaneRequestLimit": "control-plane-request-limit",
    "JWTProvider": "jwt-provider",
}


def migrate_consul(found: Iterable[ForeignObject], record: MigrationRecord, options: ConsulOptions) -> None:
    """Take the entries, intentions and services of a Consul."""
    _Conversion(record, options).run(found)


class _Conversion:
    """State: the entries and intentions that were taken, by name."""

    def __init__(self, record: MigrationRecord, options: ConsulOptions) -> None:
        self._record = record
        self._options = options
        self._mesh = ConsulMesh(
            MeshSettings(
                domain=options.domain, datacenter=options.datacenter, namespace=options.namespace, reserved=RESERVED
            )
        )
        self._mesh.set_default_allow(options.default_allow)
        self._catalog = ConsulCatalog(record, options)
        self._gateways = ConsulGateways(record, options, self._mesh)
        self._entries: dict[EntryRef, ForeignObject] = {}
        self._intentions: dict[tuple[str, str], tuple[Spec, ForeignObject]] = {}
        self._made: dict[tuple[str, str], tuple[Spec, tuple[str, ...], str]] = {}

    def run(self, found: Iterable[ForeignObject]) -> None:
        for each in found:
            self._put(each)
        for name, facts in self._catalog.facts():
            self._mesh.put_service(name, facts)
        self._mesh.put_intentions([data for _, (data, _) in sorted(self._intentions.items())])
        if self._intentions and not self._options.is_default_said:
            held = "allowed" if self._options.default_allow else "denied"
            reason = f"connections that no intention is about are {held}: see --consul-intention-default"
            self._record.change("intentions", reason)
        self._convert()
        self._catalog.finish(self._mesh)

    # -- what is read

    def _put(self, found: ForeignObject) -> None:
        entry = _as_entry(found)
        kind, name = _text(entry.data, "Kind"), _text(entry.data, "Name")
        if self._catalog.put(found):
            return
        if _has(entry.data, "SourceName") and _has(entry.data, "DestinationName"):
            self._put_intention(dict(entry.data), entry)
        elif kind in LEFT_KINDS:
            self._record.leave_object(entry, *LEFT_KINDS[kind])
        elif kind not in TAKEN_KINDS:
            reason = f"{kind!r} is not a kind of config entry that is known" if kind else "is nothing of Consul's"
            self._record.leave_object(found, reason)
        elif not name:
            self._record.leave_object(entry, "has no Name")
        elif _is_ignored(entry.data):
            self._record.leave_object(entry, f"the entry's Meta says {IGNORE} = ignore", is_needless=True)
        else:
            self._put_entry(EntryRef(kind, name), entry)

    def _put_entry(self, ref: EntryRef, entry: ForeignObject) -> None:
        first = self._entries.setdefault(ref, entry)
        if first is not entry:
            is_same = first.data == entry.data
            reason = f"is there twice: the first one is taken, at {first.where}"
            self._record.leave_object(entry, reason, "" if is_same else "keep one of them", is_needless=is_same)
            return
        self._record.take(ref.kind)
        if ref.kind == INTENTIONS_KIND:
            self._put_entry_of_intentions(ref.name, entry)
        elif ref.kind in GATEWAY_KINDS:
            self._gateways.put(ref, entry)
        else:
            self._mesh.put_entry(ref.kind, ref.name, self._gateways.without_destination(ref, entry))

    def _put_entry_of_intentions(self, destination: str, entry: ForeignObject) -> None:
        sources = _member(entry.data, "Sources")
        if not isinstance(sources, list):
            self._record.leave_object(entry, "has no list of sources", path="Sources")
            return
        for index, source in enumerate(sources):
            if not isinstance(source, Mapping):
                self._record.leave_object(entry, "is not an object", path=f"Sources[{index}]")
                continue
            said = {name: value for name, value in source.items() if _plain(name) not in ("name", "namespace")}
            tenant = _text(source, "Namespace")
            data = {
                **said,
                "SourceName": _text(source, "Name"),
                "DestinationName": destination,
                **({"SourceNS": tenant} if tenant else {}),
            }
            self._put_intention(data, entry, counts=False)
        fields = Fields(entry.data, "", [])
        leave_problems(self._record, entry, fields, ("Sources",), {"jwt": "write a RequestAuthentication"})

    def _put_intention(self, data: Spec, found: ForeignObject, *, counts: bool = True) -> None:
        key = (_text(data, "SourceName"), _text(data, "DestinationName"))
        first, _ = self._intentions.setdefault(key, (data, found))
        if first is data:
            self._record.taken[INTENTION] += counts
        elif counts or _said(first) != _said(data):
            is_same = _said(first) == _said(data)
            reason = "is there twice: the first one is taken"
            self._record.leave_object(found, reason, "" if is_same else "keep one of them", is_needless=is_same)

    # -- what is made

    def _convert(self) -> None:
        for changes in self._mesh.flush():
            for change in changes:
                self._take(change)
        for made, entries in self._gateways.objects(self._routes_of):
            self._merge(made, tuple(map(str, entries)), self._where(entries))
        for made, made_from, where in self._made.values():
            make(self._record, made, made_from, where)

    def _routes_of(self, service: str) -> Spec | None:
        """The routes of a service, as its VirtualService has them."""
        made = self._made.get(("VirtualService", object_name(service)))
        return made[0]["spec"] if made is not None else None

    def _take(self, change: LocationChange) -> None:
        name = change.location.removeprefix("consul ")
        for problem in change.problems:
            where, found = self._place(name, problem.path)
            self._record.leave(where, found or name, problem.path, problem.reason)
        for made in change.objects:
            document = _in_percent(made.document())
            self._merge(document, tuple(map(str, made.entries)), self._where(made.entries))

    def _merge(self, made: Spec, made_from: tuple[str, ...], where: str) -> None:
        """Note an object; of a DestinationRule that there is already, it takes the place of the TLS only."""
        key = (made["kind"], made["metadata"]["name"])
        held = self._made.get(key)
        if held is None:
            self._made[key] = (made, made_from, where)
            return
        policy = held[0]["spec"].setdefault("trafficPolicy", {})
        policy.update(made["spec"].get("trafficPolicy", {}))
        self._made[key] = (held[0], (*held[1], *made_from), held[2])

    def _place(self, name: str, path: str) -> tuple[str, str]:
        """The place of a problem, and the object that it is of."""
        kind, _, rest = name.partition("/")
        entry = self._entries.get(EntryRef(kind, rest))
        if entry is not None:
            return entry.where_of(path), entry.name
        source, arrow, destination = path.partition(": ")[0].partition(" => ")
        if arrow and (source, destination) in self._intentions:
            found = self._intentions[source, destination][1]
            return found.where, found.name
        return self._options.place, ""

    def _where(self, entries: Iterable[EntryRef]) -> str:
        for ref in entries:
            if ref in self._entries:
                return self._entries[ref].where
            for (_, destination), (_, found) in sorted(self._intentions.items()):
                if ref == EntryRef(INTENTION, destination):
                    return found.where
        return self._options.place


def _in_percent(made: Spec) -> Spec:
    """A VirtualService with weights that sum up to 100, where they can."""
    for http in made["spec"].get("http", ()):
        weights = [each["weight"] for each in http.get("route", ()) if "weight" in each]
        total = sum(weights)
        if total and 100 % total == 0:
            route = [{**each, "weight": each["weight"] * 100 // total} for each in http["route"]]
            http["route"] = route
    return made


def _as_entry(found: ForeignObject) -> ForeignObject:
    """A resource of Consul on Kubernetes as the config entry that it is; others as they are."""
    if not str(found.data.get("apiVersion", "")).startswith(f"{CRD_GROUP}/"):
        return found
    metadata, spec = found.data.get("metadata"), found.data.get("spec")
    kind = str(found.data.get("kind", ""))
    name = _text(metadata, "name")
    body: dict[str, Any] = dict(as_object(spec))
    if kind == "ServiceIntentions":
        destination = body.pop("destination", None)
        name = _text(destination, "name") or name
    if kind == "ProxyDefaults":
        name = "global"
    entry = {**body, "Kind": _CRD_KINDS.get(kind, kind), "Name": name}
    made = foreign_object(entry, found.place, lambda path: _line(found, path))
    return attrs.evolve(made, name=found.name)


def _line(found: ForeignObject, path: str) -> int:
    line = found.where_of(f"spec.{path}" if path else "").rpartition(":")[2]
    return int(line) if line.isdecimal() else 0


def _is_ignored(data: object) -> bool:
    return _text(_member(data, "Meta"), IGNORE) == "ignore"


def _said(data: Mapping[str, Any]) -> dict[str, Any]:
    """An intention without what Consul adds to it."""
    added = ("precedence", "createdat", "updatedat", "createindex", "modifyindex", "hash", "id", "meta", "description",
             "sourcetype", "type", "sourcens", "destinationns", "legacyid", "legacymeta", "legacycreatetime",
             "legacyupdatetime", "sourcepartition", "destinationpartition")  # fmt: skip
    return {_plain(name): value for name, value in data.items() if _plain(name) not in added and value}


def _plain(name: object) -> str:
    return str(name).replace("_", "").lower()


def _member(data: object, name: str) -> object:
    """A field in either of Consul's spellings."""
    if not isinstance(data, Mapping):
        return None
    if name in data:
        return data[name]
    plain = _plain(name)
    return next((value for key, value in data.items() if _plain(key) == plain), None)


def _has(data: object, name: str) -> bool:
    return isinstance(_member(data, name), str)


def _text(data: object, name: str) -> str:
    return as_string(_member(data, name))
