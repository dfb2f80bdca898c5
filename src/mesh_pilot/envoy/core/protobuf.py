"""Small messages of Envoy's that many translators need, and deterministic encoding: the same World, the same bytes."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from datetime import timedelta
from functools import lru_cache
from typing import TypeVar

from envoy.config.core.v3 import address_pb2, base_pb2, config_source_pb2, extension_pb2, grpc_service_pb2, protocol_pb2
from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.http.header_formatters.preserve_case.v3 import preserve_case_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.type.matcher.v3 import regex_pb2, string_pb2
from envoy.type.v3 import percent_pb2
from google.protobuf import any_pb2, descriptor_pool, duration_pb2, message, message_factory, wrappers_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from mesh_pilot.api.istio.networking import v1alpha3 as api
from mesh_pilot.engine import CycleError, Query
from mesh_pilot.mesh.names.resources import SYSTEM_ROOTS_SECRET
from mesh_pilot.mesh.virtual_services.rules import ANY_VALUE
from mesh_pilot.model.config import ConfigKey
from mesh_pilot.model.net import UNIX_PREFIX
from mesh_pilot.model.resource import IDENTITY_SECRET, PREFIX, TRUST_SECRET, Resource, make_resource
from mesh_pilot.world.view import View

SECRET_FETCH_TIMEOUT = timedelta(seconds=3)
"""The time that Envoy waits for a secret that only some listeners or clusters need, before it starts without it."""

AGENT_CLUSTER = "sds-grpc"
"""The static cluster of a proxy's bootstrap that reaches its agent's secrets."""

PRESERVE_CASE = "envoy.http.stateful_header_formatters.preserve_case"

UNLIMITED = 4294967295
"""Istio's "no limit" for circuit breakers: the largest uint32."""


def encode(msg: message.Message) -> bytes:
    """The encoded message; equal messages give the same bytes."""
    data: bytes = msg.SerializeToString(deterministic=True)
    return data


def any_of(msg: message.Message) -> any_pb2.Any:
    """A message wrapped in an Any, encoded deterministically."""
    return any_pb2.Any(type_url=PREFIX + msg.DESCRIPTOR.full_name, value=encode(msg))


def any_of_encoded(kind: type[message.Message], body: bytes) -> any_pb2.Any:
    """An encoded message of a type, wrapped in an Any."""
    return any_pb2.Any(type_url=PREFIX + kind.DESCRIPTOR.full_name, value=body)


def resource_of(name: str, msg: message.Message, configs: tuple[ConfigKey, ...] = ()) -> Resource:
    """A message as a resource; ``configs`` are the objects it was made from, to explain a NACK."""
    return make_resource(name, PREFIX + msg.DESCRIPTOR.full_name, encode(msg), configs)


def duration(value: timedelta) -> duration_pb2.Duration:
    """A Duration, exact to the microsecond."""
    result = duration_pb2.Duration()
    result.FromTimedelta(value)
    return result


def seconds(value: int) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=value)


def uint32(value: int) -> wrappers_pb2.UInt32Value:
    return wrappers_pb2.UInt32Value(value=value)


def uint64(value: int) -> wrappers_pb2.UInt64Value:
    return wrappers_pb2.UInt64Value(value=value)


def boolean(value: bool) -> wrappers_pb2.BoolValue:
    return wrappers_pb2.BoolValue(value=value)


def percent(value: float) -> percent_pb2.Percent:
    """0 to 100 as a double."""
    return percent_pb2.Percent(value=value)


def fractional_percent(value: float) -> percent_pb2.FractionalPercent:
    """0 to 100, in steps of a ten-thousandth of a percent."""
    return percent_pb2.FractionalPercent(
        numerator=round(value * 10_000), denominator=percent_pb2.FractionalPercent.MILLION
    )


def address(host: str, port: int) -> address_pb2.Address:
    """An IP (or a host name, if the cluster resolves names) and TCP port, or a Unix socket (``unix:///path``)."""
    if host.startswith(UNIX_PREFIX):
        return address_pb2.Address(pipe=address_pb2.Pipe(path=host.removeprefix(UNIX_PREFIX)))
    return address_pb2.Address(socket_address=address_pb2.SocketAddress(address=host, port_value=port))


def ads() -> config_source_pb2.ConfigSource:
    """Fetch over the same ADS stream, without a timeout."""
    return config_source_pb2.ConfigSource(
        ads=config_source_pb2.AggregatedConfigSource(),
        initial_fetch_timeout=duration_pb2.Duration(),
        resource_api_version=config_source_pb2.V3,
    )


def _agent() -> config_source_pb2.ConfigSource:
    """Fetch from the agent next to the proxy, without a timeout; as Istio has it."""
    cluster = grpc_service_pb2.GrpcService.EnvoyGrpc(cluster_name=AGENT_CLUSTER)
    return config_source_pb2.ConfigSource(
        api_config_source=config_source_pb2.ApiConfigSource(
            api_type=config_source_pb2.ApiConfigSource.GRPC,
            transport_api_version=config_source_pb2.V3,
            grpc_services=[grpc_service_pb2.GrpcService(envoy_grpc=cluster)],
            set_node_on_first_message_only=True,
        ),
        initial_fetch_timeout=duration_pb2.Duration(),
        resource_api_version=config_source_pb2.V3,
    )


def sds_secret(name: str, *, by_agent: bool = False) -> secret_pb2.SdsSecretConfig:
    """A reference to a secret, fetched over ADS; ``by_agent``: the agent serves it, if it is the mesh's own or the
    system's roots.

    Envoy waits for the mesh's own certificate and roots without a timeout, for nothing works without them. Other
    secrets may never come (a missing file, a credential not yet created), and one cluster's must not delay the start of
    the whole proxy: after ``SECRET_FETCH_TIMEOUT`` only their users fail, until the secret comes.
    """
    if name in (IDENTITY_SECRET, TRUST_SECRET):
        return secret_pb2.SdsSecretConfig(name=name, sds_config=_agent() if by_agent else ads())
    source = _agent() if by_agent and name == SYSTEM_ROOTS_SECRET else ads()
    source.initial_fetch_timeout.CopyFrom(duration(SECRET_FETCH_TIMEOUT))
    return secret_pb2.SdsSecretConfig(name=name, sds_config=source)


def transport_socket(name: str, config: message.Message) -> base_pb2.TransportSocket:
    return base_pb2.TransportSocket(name=name, typed_config=any_of(config))


def preserve_case() -> protocol_pb2.Http1ProtocolOptions.HeaderKeyFormat:
    """HTTP/1 header names are sent in the case in which they came."""
    return protocol_pb2.Http1ProtocolOptions.HeaderKeyFormat(
        stateful_formatter=extension_pb2.TypedExtensionConfig(
            name=PRESERVE_CASE, typed_config=any_of(preserve_case_pb2.PreserveCaseFormatterConfig())
        )
    )


def exact(value: str) -> string_pb2.StringMatcher:
    return string_pb2.StringMatcher(exact=value)


def prefix(value: str) -> string_pb2.StringMatcher:
    return string_pb2.StringMatcher(prefix=value)


def suffix(value: str) -> string_pb2.StringMatcher:
    return string_pb2.StringMatcher(suffix=value)


def string_match(value: api.StringMatch) -> string_pb2.StringMatcher | None:
    """Istio's StringMatch; None if any text matches."""
    if value.exact is not None:
        return exact(value.exact)
    if value.prefix is not None:
        return prefix(value.prefix)
    if value.regex is not None and value.regex != ANY_VALUE:
        return regex(value.regex)
    return None


def header_match(name: str, value: api.StringMatch) -> route_components_pb2.HeaderMatcher:
    """The matcher of a header with a value; one that is empty or matches any only asks for the header."""
    compared = string_match(value)
    if compared is None:
        return route_components_pb2.HeaderMatcher(name=name, present_match=True)
    return route_components_pb2.HeaderMatcher(name=name, string_match=compared)


def header_mismatch(name: str, value: api.StringMatch) -> route_components_pb2.HeaderMatcher:
    """The matcher of a header that must not have a value; requests without the header match."""
    matcher = header_match(name, value)
    matcher.invert_match = True
    matcher.treat_missing_header_as_empty = matcher.HasField("string_match")
    return matcher


def regex(value: str) -> string_pb2.StringMatcher:
    """The whole string matches an RE2 expression."""
    return string_pb2.StringMatcher(safe_regex=regex_pb2.RegexMatcher(regex=value))


# -- types of Envoy's API by name. Those of extensions are loaded when they are first asked for


API_PACKAGES = frozenset(("cel", "envoy", "google", "opentelemetry", "udpa", "xds"))
"""Top-level packages of Envoy's API. Nothing else is ever imported for a name in a config."""

_API_PACKAGE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


def type_name(type_url: str) -> str:
    """The full name of the message type in an Any's URL."""
    return type_url.rpartition("/")[2]


@lru_cache(maxsize=10_000)
def find_type(type_url: str) -> Descriptor | None:
    """The type that a URL names; None if it is not in Envoy's API."""
    name = type_name(type_url)
    return _loaded_type(name) or (_loaded_type(name) if _load_package(name.rpartition(".")[0]) else None)


def unpack(value: any_pb2.Any) -> Message:
    """The message in an Any. Raises ValueError if its type is unknown, or its bytes are not of that type."""
    kind = find_type(value.type_url)
    if kind is None:
        raise ValueError(f"{type_name(value.type_url)} is not of Envoy's API")
    message = message_factory.GetMessageClass(kind)()
    try:
        message.ParseFromString(value.value)
    except (ValueError, DecodeError) as error:
        raise ValueError(f"this is not of type {type_name(value.type_url)}: {error}") from None
    return message


def _loaded_type(name: str) -> Descriptor | None:
    try:
        return descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:
        return None


def _load_package(package: str) -> bool:
    """Import the modules of a protobuf package, which are in the folder of that name. False if there is none."""
    if not _API_PACKAGE.fullmatch(package) or package.partition(".")[0] not in API_PACKAGES:
        return False
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        return False
    for module in pkgutil.iter_modules(spec.submodule_search_locations or [] if spec else []):
        if module.name.endswith("_pb2"):
            importlib.import_module(f"{package}.{module.name}")
    return spec is not None


# -- optional parts of a resource: an internal error in one costs that part, not the resource


T = TypeVar("T")


def optional(view: View, part: Query[T], without: T) -> T:
    """The value of a part; ``without`` if it raises. The memo table knows the error, and the catalog reports it."""
    try:
        return part.get(view)
    except CycleError:
        raise  # The memo table has to see it: results computed inside a cycle must not be kept.
    except Exception:
        return without
