"""Types of Envoy's API by name. Those of extensions are loaded when they are first asked for."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from functools import lru_cache

from google.protobuf import any_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

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
        raise ValueError(f"this is no {type_name(value.type_url)}: {error}") from None
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
