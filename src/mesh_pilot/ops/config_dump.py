"""What a proxy was sent, in the shape of ``/config_dump`` of Envoy's admin interface, keys and passwords blanked."""

from __future__ import annotations

import base64
from collections.abc import Callable

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.base_pb2 import DataSource
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_components_pb2 import VirtualHost
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.transport_sockets.tls.v3.secret_pb2 import Secret
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from mesh_pilot.model.resource import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET, VIRTUAL_HOST, Resource
from mesh_pilot.ops.answers import Json
from mesh_pilot.xds.status import TypeDump

Entry = dict[str, Json]

BLANK = b"[redacted]"


def config_dump(dumps: tuple[TypeDump, ...]) -> Json:
    """All types of one proxy. Beside Envoy's fields, ``made_from`` names the objects that a resource came from.

    Envoy has virtual hosts that came by themselves in its route tables; here they have a section of their own.
    """
    return {"configs": [_section(dump) for dump in dumps]}


def _section(dump: TypeDump) -> Json:
    name, field, entry = _SECTIONS[dump.type_url]
    return {
        "@type": f"type.googleapis.com/envoy.admin.v3.{name}",
        "version_info": dump.version,
        "accepted": dump.is_acked,
        field: [
            {**entry(resource, _message(resource)), "made_from": [str(key) for key in resource.configs]}
            for resource in dump.resources
        ],
    }


def _message(resource: Resource) -> Json:
    """The resource as JSON; where it can't be read, why, and its bytes in base64."""
    if not resource.body:
        return {"name": resource.name, "unknown": "the proxy brought it from an earlier connection"}
    try:
        message = _MESSAGES[resource.type_url].FromString(resource.body)
        if isinstance(message, Secret):
            _blank(message)
        shown: dict[str, Json] = MessageToDict(message, preserving_proto_field_name=True)
    except (DecodeError, TypeError, ValueError, RecursionError) as error:
        return {"name": resource.name, "unreadable": str(error), "bytes": base64.b64encode(resource.body).decode()}
    return {"@type": resource.type_url, **shown}


def _blank(secret: Secret) -> None:
    """Take out what must not be shown, as Envoy does."""
    certificate = secret.tls_certificate
    for source in (certificate.private_key, certificate.password, secret.generic_secret.secret):
        if source.WhichOneof("specifier") is not None:
            source.CopyFrom(DataSource(inline_bytes=BLANK))
    for key in secret.session_ticket_keys.keys:
        key.CopyFrom(DataSource(inline_bytes=BLANK))


def _named(field: str) -> Callable[[Resource, Json], Entry]:
    return lambda resource, message: {"version_info": resource.version, field: message}


def _listener(resource: Resource, message: Json) -> Entry:
    return {"name": resource.name, "active_state": {"version_info": resource.version, "listener": message}}


def _secret(resource: Resource, message: Json) -> Entry:
    return {"name": resource.name, "version_info": resource.version, "secret": message}


_MESSAGES: dict[str, type[Message]] = {
    CLUSTER: Cluster,
    ENDPOINT: ClusterLoadAssignment,
    LISTENER: Listener,
    ROUTE: RouteConfiguration,
    VIRTUAL_HOST: VirtualHost,
    SECRET: Secret,
    EXTENSION: TypedExtensionConfig,
}

_SECTIONS: dict[str, tuple[str, str, Callable[[Resource, Json], Entry]]] = {
    CLUSTER: ("ClustersConfigDump", "dynamic_active_clusters", _named("cluster")),
    ENDPOINT: ("EndpointsConfigDump", "dynamic_endpoint_configs", _named("endpoint_config")),
    LISTENER: ("ListenersConfigDump", "dynamic_listeners", _listener),
    ROUTE: ("RoutesConfigDump", "dynamic_route_configs", _named("route_config")),
    VIRTUAL_HOST: ("VirtualHostsConfigDump", "dynamic_virtual_hosts", _named("virtual_host")),
    SECRET: ("SecretsConfigDump", "dynamic_active_secrets", _secret),
    EXTENSION: ("EcdsConfigDump", "ecds_filters", _named("ecds_filter")),
}
