"""A config dump read: the resources of a proxy by type and name, as plain JSON with protobuf's names of fields.

A dump may be the control plane's, a live Envoy's (with static, warming and refused resources, and endpoints where
``?include_eds`` asked for them), or a file of either, also as ``istioctl proxy-config all -o json`` writes it. The
state of hosts comes from Envoy's ``/clusters?format=json``. Whatever is missing or odd in a dump is left out.

Envoy: "envoy.admin.v3.ConfigDump" and the messages that it contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs

from mesh_pilot.base.reading import as_object, as_objects, as_string, as_strings
from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET, VIRTUAL_HOST

Message: TypeAlias = "Mapping[str, Any]"
"""A message of Envoy's API as JSON, with the names of its protobuf fields."""

_NONE: Message = MappingProxyType({})


class DumpError(Exception):
    """No config dump can be read from a string; says why in one line."""


class DumpState(StrEnum):
    """The use that a proxy makes of a resource, in the order in which it is shown."""

    ACTIVE = "active"
    STATIC = "static"
    WARMING = "warming"
    DRAINING = "draining"
    REFUSED = "refused"


@attrs.frozen
class DumpedResource:
    """One resource of a dump."""

    type_url: str
    name: str
    message: Message
    state: DumpState = DumpState.ACTIVE
    version: str = ""
    last_updated: str = ""
    """As Envoy writes it (RFC 3339); empty in the control plane's dump."""
    error: str = ""
    """The reason of an Envoy that refuses a newer version of it."""
    made_from: tuple[str, ...] = ()
    """The objects that it was generated from: ``VirtualService/shop/reviews``. Only in the control plane's dump."""


@attrs.frozen
class ConfigDump:
    """The resources of one proxy."""

    resources: tuple[DumpedResource, ...] = ()
    """In the order of the dump. A name may be there several times: active and warming, or static without a name."""
    bootstrap: Message = _NONE
    origins: Mapping[str, str] = MappingProxyType({})
    """The place of each object that resources were made from: ``config/reviews.yaml:12``. Only in the plane's dump."""
    object_hosts: Mapping[str, Sequence[str]] = MappingProxyType({})
    """The hosts that each of these objects is for. Only in the plane's dump."""
    registries: Mapping[str, str] = MappingProxyType({})
    """Registries by host, for services that no object declares: ``Consul``. Only in the plane's dump."""
    host_statuses: Mapping[str, Sequence[Message]] = MappingProxyType({})
    """Envoy's ``HostStatus`` of each host by cluster, where ``/clusters`` was read too."""
    accepted: Mapping[str, bool] = MappingProxyType({})
    """Type URLs, each with True if the proxy accepted the last response. Only in the plane's dump."""
    states: Mapping[tuple[str, str], str] = MappingProxyType({})
    """The reasons why resources that were sent are not in use, by type URL and name. Only in the plane's dump."""
    kept_back: Mapping[str, str] = MappingProxyType({})
    """The objects that the proxy does not have as they are written, and why. Only in the plane's dump."""

    def of(self, type_url: str) -> tuple[DumpedResource, ...]:
        """The resources of a type, in the order of the dump."""
        return tuple(resource for resource in self.resources if resource.type_url == type_url)

    def in_use(self, type_url: str) -> dict[str, DumpedResource]:
        """The resources of a type by name: the version that takes traffic; where there is none, the one warming."""
        found: dict[str, DumpedResource] = {}
        ranks = [*DumpState]
        for resource in self.of(type_url):
            if resource.state is DumpState.REFUSED or not resource.name:
                continue
            other = found.get(resource.name)
            if other is None or ranks.index(resource.state) < ranks.index(other.state):
                found[resource.name] = resource
        return found

    @property
    def clusters(self) -> dict[str, DumpedResource]:
        return self.in_use(CLUSTER)

    @property
    def endpoints(self) -> dict[str, DumpedResource]:
        """The ClusterLoadAssignments, by their cluster's name or its EDS service name."""
        return self.in_use(ENDPOINT)

    @property
    def listeners(self) -> dict[str, DumpedResource]:
        return self.in_use(LISTENER)

    @property
    def routes(self) -> dict[str, DumpedResource]:
        """The route tables that listeners request by name, with the virtual hosts that came over VHDS."""
        tables = self.in_use(ROUTE)
        for host in self.in_use(VIRTUAL_HOST).values():
            table = tables.get(host.name.rpartition("/")[0])
            if table is not None:
                tables[table.name] = _with_host(table, host)
        return tables

    @property
    def secrets(self) -> dict[str, DumpedResource]:
        return self.in_use(SECRET)

    @property
    def extensions(self) -> dict[str, DumpedResource]:
        return self.in_use(EXTENSION)

    def place(self, key: str) -> str:
        """The place of an object, empty if it is not known."""
        return self.origins.get(key, "")


def _with_host(table: DumpedResource, host: DumpedResource) -> DumpedResource:
    own = {name: member for name, member in host.message.items() if name != "@type"}
    hosts = [*as_objects(table.message, "virtual_hosts"), own]
    return attrs.evolve(
        table,
        message={**table.message, "virtual_hosts": hosts},
        made_from=tuple(dict.fromkeys((*table.made_from, *host.made_from))),
    )


# -- reading


def read_dump(text: str | bytes, where: str = "the dump") -> ConfigDump:
    """A config dump, and whatever belongs to it, from JSON texts that follow one another.

    Each is a dump, a list of its sections, or the answer of ``/clusters?format=json``. Raises DumpError.
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
        documents = [*_documents(decoded)]
        found = [dump_of(document) for document in documents]
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{where} is not JSON: {error}; a config dump is what Envoy's /config_dump answers") from None
    good = [dump for dump in found if dump is not None]
    if not good:
        raise DumpError(f"{where} is not a config dump: it has no configs; Envoy's /config_dump answers with one")
    return merged(*good)


def _documents(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    position = len(text) - len(text.lstrip())
    while position < len(text):
        document, position = decoder.raw_decode(text, position)
        yield document
        position += len(text[position:]) - len(text[position:].lstrip())


def dump_of(document: Any) -> ConfigDump | None:
    """The dump in a JSON value; None for a value that is not a dump."""
    # Three producers write dumps in as many shapes: Envoy an object with sections, istioctl the list of sections alone
    # (in protobuf's camel case), Envoy's /clusters the state of hosts. A shape that none of them has is not a dump.
    if isinstance(document, list):
        sections = as_objects(document)
        if not any(_section_name(section) in _SECTIONS for section in sections):
            return None
        document = {"configs": document}
    if not isinstance(document, Mapping):
        return None
    statuses = document.get("cluster_statuses", document.get("clusterStatuses"))
    if isinstance(statuses, list):
        return ConfigDump(host_statuses=_host_statuses([_snake(each) for each in as_objects(statuses)]))
    if not isinstance(document.get("configs"), list):
        return None
    resources: list[DumpedResource] = []
    bootstrap = _NONE
    accepted: dict[str, bool] = {}
    for section in as_objects(document["configs"]):
        name = _section_name(section)
        if name == "BootstrapConfigDump":
            bootstrap = as_object((_snake(section) if _is_camel(section) else section).get("bootstrap"))
        elif name in _SECTIONS:
            part = _SECTIONS[name]
            section = _snake(section) if _is_camel(section) else section
            resources += part.resources(section)
            if isinstance(section.get("accepted"), bool):
                accepted[part.type_url] = section["accepted"]
    origins = {str(key): as_string(place) for key, place in as_object(document, "origins").items()}
    hosts = {str(key): as_strings(found) for key, found in as_object(document, "hosts").items()}
    registries = {str(host): as_string(name) for host, name in as_object(document, "registries").items()}
    states = {
        (str(type_url), str(name)): as_string(text)
        for type_url, of_type in as_object(document, "states").items()
        for name, text in as_object(of_type).items()
    }
    kept_back = {str(key): as_string(text) for key, text in as_object(document, "kept_back").items()}
    return ConfigDump(
        tuple(resources),
        bootstrap,
        origins,
        hosts,
        registries,
        accepted=accepted,
        states=states,
        kept_back=kept_back,
    )


def merged(*dumps: ConfigDump) -> ConfigDump:
    """One dump of several parts: a dump with its host statuses, or a dump for each type."""
    # Parts of one proxy do not contradict each other, so later entries may replace earlier ones; but a proxy has one
    # bootstrap, and the part that has none must not hide it.
    return ConfigDump(
        resources=tuple(resource for dump in dumps for resource in dump.resources),
        bootstrap=next((dump.bootstrap for dump in dumps if dump.bootstrap), _NONE),
        origins={key: place for dump in dumps for key, place in dump.origins.items()},
        registries={host: name for dump in dumps for host, name in dump.registries.items()},
        object_hosts={key: hosts for dump in dumps for key, hosts in dump.object_hosts.items()},
        host_statuses={name: hosts for dump in dumps for name, hosts in dump.host_statuses.items()},
        accepted={url: is_accepted for dump in dumps for url, is_accepted in dump.accepted.items()},
        states={key: text for dump in dumps for key, text in dump.states.items()},
        kept_back={key: text for dump in dumps for key, text in dump.kept_back.items()},
    )


def with_made_from(dump: ConfigDump, plane: ConfigDump) -> ConfigDump:
    """An Envoy's dump in which resources name the objects that the control plane made those of their names from."""
    known = {(each.type_url, each.name): each.made_from for each in (*plane.resources, *plane.routes.values())}
    resources = tuple(
        attrs.evolve(each, made_from=each.made_from or known.get((each.type_url, each.name), ()))
        for each in dump.resources
    )
    return attrs.evolve(
        dump,
        resources=resources,
        origins=plane.origins,
        object_hosts=plane.object_hosts,
        registries=plane.registries,
        states=plane.states,
        kept_back=plane.kept_back,
    )


def _section_name(section: Message) -> str:
    return as_string(section, "@type").rpartition(".")[2]


def _host_statuses(statuses: Sequence[Message]) -> dict[str, Sequence[Message]]:
    return {as_string(each, "name"): as_objects(each, "host_statuses") for each in statuses}


@attrs.frozen
class _DumpSection:
    """A section of a dump: its lists with the state of what is in them, and the field of an entry with the message."""

    type_url: str
    field: str
    lists: Mapping[str, DumpState]

    def resources(self, section: Message) -> Iterator[DumpedResource]:
        for name, state in self.lists.items():
            for entry in as_objects(section, name):
                yield from self.entry(entry, state)

    def entry(self, entry: Message, state: DumpState) -> Iterator[DumpedResource]:
        message = entry.get(self.field)
        error = _error(entry)
        if not isinstance(message, Mapping):
            if not error:
                return
            message, state = (
                as_object(entry, "error_state", "failed_configuration"),
                DumpState.REFUSED,
            )
        yield DumpedResource(
            self.type_url,
            _name(message) or as_string(entry, "name"),
            message,
            state,
            as_string(entry, "version_info"),
            as_string(entry, "last_updated"),
            error,
            _made_from(entry),
        )


class _ListenerSection(_DumpSection):
    """Listeners: a dynamic one has a message for each of its states."""

    def entry(self, entry: Message, state: DumpState) -> Iterator[DumpedResource]:
        if "listener" in entry:
            yield from super().entry(entry, state)
            return
        states = {"active": DumpState.ACTIVE, "warming": DumpState.WARMING, "draining": DumpState.DRAINING}
        error = _error(entry)
        found = False
        for name, each in states.items():
            held = as_object(entry, f"{name}_state")
            if isinstance(held.get("listener"), Mapping):
                found = True
                shared = {"name": entry.get("name"), "made_from": entry.get("made_from")}
                for resource in super().entry({**shared, **held}, each):
                    yield attrs.evolve(resource, error=error)
        if error and not found:
            failed = as_object(entry, "error_state", "failed_configuration")
            name = as_string(entry, "name") or _name(failed)
            yield DumpedResource(self.type_url, name, failed, DumpState.REFUSED, error=error)


_SECTIONS: Mapping[str, _DumpSection] = {
    "ClustersConfigDump": _DumpSection(
        CLUSTER,
        "cluster",
        {
            "dynamic_active_clusters": DumpState.ACTIVE,
            "dynamic_warming_clusters": DumpState.WARMING,
            "static_clusters": DumpState.STATIC,
        },
    ),
    "EndpointsConfigDump": _DumpSection(
        ENDPOINT,
        "endpoint_config",
        {"dynamic_endpoint_configs": DumpState.ACTIVE, "static_endpoint_configs": DumpState.STATIC},
    ),
    "ListenersConfigDump": _ListenerSection(
        LISTENER, "listener", {"dynamic_listeners": DumpState.ACTIVE, "static_listeners": DumpState.STATIC}
    ),
    "RoutesConfigDump": _DumpSection(
        ROUTE,
        "route_config",
        {"dynamic_route_configs": DumpState.ACTIVE, "static_route_configs": DumpState.STATIC},
    ),
    "VirtualHostsConfigDump": _DumpSection(VIRTUAL_HOST, "virtual_host", {"dynamic_virtual_hosts": DumpState.ACTIVE}),
    "SecretsConfigDump": _DumpSection(
        SECRET,
        "secret",
        {
            "dynamic_active_secrets": DumpState.ACTIVE,
            "dynamic_warming_secrets": DumpState.WARMING,
            "static_secrets": DumpState.STATIC,
        },
    ),
    "EcdsConfigDump": _DumpSection(EXTENSION, "ecds_filter", {"ecds_filters": DumpState.ACTIVE}),
}


def _name(message: Message) -> str:
    return as_string(message, "name") or as_string(message, "cluster_name")


def _error(entry: Message) -> str:
    return as_string(entry, "error_state", "details")


def _made_from(entry: Message) -> tuple[str, ...]:
    found = entry.get("made_from")
    return tuple(str(key) for key in found) if isinstance(found, list) else ()


# -- values that may be anything


def number_of(value: object) -> int:
    """The value if it is a whole number, also as a string (protobuf's JSON of 64 bits), else 0."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


# -- istioctl's spelling

_CAMEL = re.compile(r"[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+")
_FREE = frozenset({"filter_metadata", "typed_per_filter_config", "typed_filter_metadata", "labels", "metadata_match"})
"""Fields whose keys are names, not fields. Beneath them only typed messages are of Envoy's API."""


def _is_camel(section: Message) -> bool:
    return any(_CAMEL.fullmatch(name) for name in section)


def _snake(value: Any, free: bool = False) -> Any:
    """JSON with the names of protobuf fields, from JSON with lowerCamelCase names."""
    if isinstance(value, Mapping):
        free = free and "@type" not in value
        found: dict[str, Any] = {}
        for name, member in value.items():
            field = name if free or not _CAMEL.fullmatch(name) else _snake_name(name)
            found[field] = _snake(member, free or field in _FREE)
        return found
    return [_snake(each, free) for each in value] if isinstance(value, list) else value


def _snake_name(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter.group().lower()}", name)
