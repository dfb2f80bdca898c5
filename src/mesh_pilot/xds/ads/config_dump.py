"""The resources sent to a proxy in the form of ``/config_dump`` of Envoy's admin interface, with secrets redacted."""

from __future__ import annotations

import base64
from collections.abc import Callable

import attrs
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.extensions.filters.http.wasm.v3.wasm_pb2 import Wasm as HttpWasm
from envoy.extensions.filters.network.wasm.v3.wasm_pb2 import Wasm as NetworkWasm
from google.protobuf import descriptor_pool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from mesh_pilot.model.config import ConfigKey, Origin
from mesh_pilot.model.json import Json
from mesh_pilot.model.modules import module_stand_in
from mesh_pilot.model.redaction import redacted
from mesh_pilot.model.resource import CLUSTER, ENVOY_TYPES, LISTENER, PREFIX, SECRET, Resource
from mesh_pilot.xds.ads.status import TypeDump

Entry = dict[str, Json]


@attrs.frozen
class ObjectFacts:
    """The place of an object in force, and the hosts that it is for."""

    origin: Origin
    hosts: tuple[str, ...] = ()
    """Full host names and wildcards of a VirtualService, ServiceEntry or DestinationRule."""


def config_dump(
    dumps: tuple[TypeDump, ...],
    facts_of: Callable[[ConfigKey], ObjectFacts | None] | None = None,
    registry_of: Callable[[str], str] = lambda _: "",
) -> Json:
    """All types of one proxy. In addition to Envoy's fields, ``made_from`` has the objects that a resource was
    generated from.

    If `facts_of` tells them, ``origins`` has the places of these, and ``hosts`` the hosts that they are for; if
    `registry_of` tells it by host, ``registries`` has the registry of each cluster's service that no object declares.

    Envoy shows virtual hosts received over VHDS in their route tables; here they have a section.
    """
    sections: Json = [_section(dump) for dump in dumps]
    if facts_of is None:
        return {"configs": sections}
    keys = sorted({key for dump in dumps for resource in dump.resources for key in resource.configs})
    known = {str(key): facts for key in keys if (facts := facts_of(key)) is not None}
    return {
        "configs": sections,
        "origins": {key: str(facts.origin) for key, facts in known.items()},
        "hosts": {key: list(facts.hosts) for key, facts in known.items() if facts.hosts},
        "registries": {host: registry for host in _hosts(dumps) if (registry := registry_of(host))},
    }


def _hosts(dumps: tuple[TypeDump, ...]) -> list[str]:
    """The hosts of clusters such as ``outbound|80||reviews.test``."""
    names = {resource.name for dump in dumps if dump.type_url == CLUSTER for resource in dump.resources}
    return sorted({name.rpartition("|")[2] for name in names if name.count("|") == 3})


def _section(dump: TypeDump) -> Json:
    name, field, _ = _names_of(dump.type_url)
    return {
        "@type": f"type.googleapis.com/envoy.admin.v3.{name}",
        "version_info": dump.version,
        "accepted": dump.is_acked,
        field: [
            {**_entry(resource, resource_json(resource)), "made_from": [str(key) for key in resource.configs]}
            for resource in dump.resources
        ],
    }


def _names_of(type_url: str) -> tuple[str, str, str]:
    names = ENVOY_TYPES[type_url].dump
    assert names is not None
    return names


def resource_json(resource: Resource) -> Json:
    """The resource as JSON; if it cannot be decoded, the reason and its bytes in base64."""
    if not resource.body:
        return {"name": resource.name, "unknown": "the proxy brought it from an earlier connection"}
    try:
        name = resource.type_url.removeprefix(PREFIX)
        message = GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name)).FromString(resource.body)
        if isinstance(message, TypedExtensionConfig):
            _leave_out_module(message)
        shown: dict[str, Json] = MessageToDict(message, preserving_proto_field_name=True)
    except (DecodeError, TypeError, ValueError, RecursionError) as error:
        return {"name": resource.name, "unreadable": str(error), "bytes": base64.b64encode(resource.body).decode()}
    found: Json = redacted({"@type": resource.type_url, **shown})
    return found


def _leave_out_module(settings: TypedExtensionConfig) -> None:
    """Put a string in place of a module's bytes, which may be many."""
    for kind in (HttpWasm, NetworkWasm):
        plugin = kind()
        if settings.typed_config.Unpack(plugin):
            local = plugin.config.vm_config.code.local
            if local.inline_bytes:
                local.inline_string = module_stand_in(local.inline_bytes)
                settings.typed_config.Pack(plugin)


def _entry(resource: Resource, message: Json) -> Entry:
    """One resource of a section."""
    _, _, field = _names_of(resource.type_url)
    entry = {"version_info": resource.version, field: message}
    if resource.type_url == LISTENER:
        return {"name": resource.name, "active_state": entry}
    return {"name": resource.name, **entry} if resource.type_url == SECRET else entry
