"""Types of Envoy's API by name: those of extensions are loaded when they are first named."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re

from google.protobuf import any_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from mesh_pilot.envoy.envoy_filter.patch import PatchError

PACKAGES = frozenset(("cel", "envoy", "google", "opentelemetry", "udpa", "xds"))
"""Where the types of Envoy's API lie: nothing else is ever loaded for a name in a config."""

_PACKAGE = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


def type_name(type_url: str) -> str:
    """The full name of a message in an Any's URL."""
    return type_url.rpartition("/")[2]


def find_type(type_url: str) -> Descriptor | None:
    """The type that a URL names, or None where it is not of Envoy's API."""
    name = type_name(type_url)
    return _loaded(name) or (_loaded(name) if _load(name.rpartition(".")[0]) else None)


def unpack(value: any_pb2.Any) -> Message:
    """The message in an Any. Raises PatchError where its type is not known or its bytes are not of it."""
    kind = find_type(value.type_url)
    if kind is None:
        raise PatchError(f"{type_name(value.type_url)} is not of Envoy's API")
    message = message_factory.GetMessageClass(kind)()
    try:
        message.ParseFromString(value.value)
    except (ValueError, DecodeError) as error:
        raise PatchError(f"this is no {type_name(value.type_url)}: {error}") from None
    return message


def _loaded(name: str) -> Descriptor | None:
    try:
        return descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:
        return None


def _load(package: str) -> bool:
    """Load a package of protobuf; its modules lie in the folder of that name. Whether there is one."""
    if not _PACKAGE.fullmatch(package) or package.partition(".")[0] not in PACKAGES:
        return False
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        return False
    for module in pkgutil.iter_modules(spec.submodule_search_locations or [] if spec else []):
        if module.name.endswith("_pb2"):
            importlib.import_module(f"{package}.{module.name}")
    return spec is not None
