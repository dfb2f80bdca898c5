"""The waits of an Envoy that has a message: resources that the message names and does not have.

A listener or cluster *warms* until every name in it is answered; for a name that is never answered, until
``initial_fetch_timeout`` is over, and with ``0s`` forever. An Envoy that starts is not ready before. Fetches that only
begin with a request (on-demand clusters) are not listed, nor are files, which Envoy reads at once.

Rules: Envoy's "Initialization" and xDS documents, and its code where those are silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from google.protobuf import any_pb2
from google.protobuf.message import Message

from mesh_pilot.envoy.core.protobuf import any_of, find_type, seconds, type_name, unpack
from mesh_pilot.envoy.refusals.declared import is_map
from mesh_pilot.envoy.refusals.extensions import in_typed_struct
from mesh_pilot.model.resource import ENDPOINT, EXTENSION, ROUTE, SECRET

FETCH_SECONDS = 15
"""Envoy's ``initial_fetch_timeout`` where none is set."""

_OTHER_SERVERS = ("api_config_source",)
_OURS = ("ads", "self")
"""Config sources by what they are: another server's, or the stream that the message came by."""


@attrs.frozen
class Wait:
    """A resource that a message names and that Envoy needs first."""

    type_url: str
    """The type; empty for types that this control plane never sends."""
    name: str
    kind: str
    """The kind in messages: ``route table``."""
    types: tuple[str, ...] = ()
    """The names of the types that an extension config may have; empty: any."""


_Named = Iterator[tuple[Wait, Any]]
"""Waits, each with its ConfigSource."""


def waits(message: Message) -> Iterator[Wait]:
    """The resources that Envoy fetches from this control plane before it uses a message."""
    for wait, source in _fetches(message):
        if source.WhichOneof("config_source_specifier") in _OURS:
            yield wait


def limit_other_waits(message: Message) -> list[str]:
    """Limit how long Envoy waits for what other servers send, where the message does not say so itself.

    Changes the message in place; returns the resources that it limits, for messages.
    """
    found: list[str] = []
    _limit(message, found)
    return list(dict.fromkeys(found))


def _limit(message: Message, found: list[str]) -> bool:
    changed = False
    for wait, source in _named(message):
        if source.WhichOneof("config_source_specifier") in _OTHER_SERVERS and not _is_limited(source):
            source.initial_fetch_timeout.CopyFrom(seconds(FETCH_SECONDS))
            found.append(f"the {wait.kind} {wait.name}".rstrip())
            changed = True
    for inner in _children(message):
        if isinstance(inner, any_pb2.Any):
            decoded = _decoded(inner)
            if decoded is not None and _limit(decoded, found):
                inner.CopyFrom(any_of(decoded))
                changed = True
        else:
            changed = _limit(inner, found) or changed
    return changed


def _is_limited(source: Any) -> bool:
    return bool(source.HasField("initial_fetch_timeout") and source.initial_fetch_timeout.ToNanoseconds() > 0)


def _fetches(message: Message) -> _Named:
    pending = [message]
    while pending:
        current = pending.pop()
        if isinstance(current, any_pb2.Any):
            decoded = _decoded(current)
            if decoded is not None:
                pending.append(decoded)
            continue
        yield from _named(current)
        pending.extend(_children(current))


def _children(message: Message) -> Iterator[Message]:
    """The messages right below a message, in lists and maps, too."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                yield from value.values()
        elif field.is_repeated:
            yield from value
        else:
            yield value


def _decoded(packed: any_pb2.Any) -> Message | None:
    """The message in an Any, or in the TypedStruct there; None if its type is unknown or its bytes are not of it."""
    if find_type(packed.type_url) is None:
        return None
    try:
        message = unpack(packed)
        return in_typed_struct(message) or message
    except ValueError:
        return None  # ``check`` refuses it


# -- which fields of which messages name something


def _named(message: Any) -> _Named:
    rule = _RULES.get(message.DESCRIPTOR.full_name)
    if rule is not None:
        yield from rule(message)


def _table(rds: Any) -> _Named:
    yield Wait(ROUTE, rds.route_config_name, "route table"), rds.config_source


def _scopes(scoped: Any) -> _Named:
    if scoped.HasField("scoped_rds"):
        yield Wait("", scoped.name, "list of scoped routes"), scoped.scoped_rds.scoped_rds_config_source
    for scope in scoped.scoped_route_configurations_list.scoped_route_configurations:
        if scope.route_configuration_name and not scope.on_demand:
            yield Wait(ROUTE, scope.route_configuration_name, "route table"), scoped.rds_config_source


def _other_table(rds: Any) -> _Named:
    yield Wait("", rds.route_config_name, "route table of another protocol"), rds.config_source


def _extension(owner: Any) -> _Named:
    discovery = owner.config_discovery
    source = discovery.config_source
    is_forever = source.HasField("initial_fetch_timeout") and not _is_limited(source)
    # With a default, Envoy uses that once the wait is over, or at once.
    has_way_out = discovery.HasField("default_config") and not is_forever
    if owner.HasField("config_discovery") and not (has_way_out or discovery.apply_default_config_without_warming):
        types = tuple(type_name(url) for url in discovery.type_urls)
        yield Wait(EXTENSION, owner.name, "extension config", types), source


def _secret(config: Any) -> _Named:
    if config.HasField("sds_config"):
        yield Wait(SECRET, config.name, "secret"), config.sds_config


def _endpoints(cluster: Any) -> _Named:
    config = cluster.eds_cluster_config
    if cluster.type == Cluster.EDS and not cluster.HasField("cluster_type"):
        yield Wait(ENDPOINT, config.service_name or cluster.name, "endpoints of"), config.eds_config


def _listener(listener: Any) -> _Named:
    if listener.HasField("fcds_config"):
        yield Wait("", listener.fcds_config.name, "filter chains"), listener.fcds_config.config_source


def _resource(owner: Any) -> _Named:
    yield Wait("", owner.resource_name, "resource"), owner.config_source


_NETWORK = "envoy.extensions.filters.network"

_RULES: Mapping[str, Callable[[Any], _Named]] = {
    f"{_NETWORK}.http_connection_manager.v3.Rds": _table,
    f"{_NETWORK}.http_connection_manager.v3.ScopedRoutes": _scopes,
    f"{_NETWORK}.thrift_proxy.v3.Trds": _other_table,
    f"{_NETWORK}.dubbo_proxy.v3.Drds": _other_table,
    f"{_NETWORK}.generic_proxy.v3.GenericRds": _other_table,
    f"{_NETWORK}.http_connection_manager.v3.HttpFilter": _extension,
    "envoy.config.listener.v3.Filter": _extension,
    "envoy.config.listener.v3.ListenerFilter": _extension,
    "envoy.config.cluster.v3.Filter": _extension,
    "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig.SessionFilter": _extension,
    "envoy.extensions.filters.http.composite.v3.DynamicConfig": _extension,
    "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig": _secret,
    "envoy.config.cluster.v3.Cluster": _endpoints,
    "envoy.config.listener.v3.Listener": _listener,
    "envoy.extensions.access_loggers.filters.process_ratelimit.v3.DynamicTokenBucket": _resource,
    "envoy.extensions.clusters.aggregate.v3.AggregateClusterResource": _resource,
}
