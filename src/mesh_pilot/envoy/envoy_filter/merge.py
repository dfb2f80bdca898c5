"""Merging a partial message into a generated one, as protobuf merges: fields that are set override, lists grow,
entries of maps are replaced. There are three differences:

- durations, wrapped scalars and other messages for one value are replaced, so that an explicit ``0s`` or ``false``
  counts;
- the configs of filters and transport sockets are merged inside their Any;
- lists can be replaced (``MERGE_AND_REPLACE_LIST``);
- of lists in which each name may be only once (upgrades), entries of a name are merged.
"""

from __future__ import annotations

from typing import Any

from envoy.config.core.v3 import base_pb2
from google.protobuf import any_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from mesh_pilot.envoy.core.protobuf import any_of, type_name, unpack
from mesh_pilot.envoy.envoy_filter.patch import Operation, Patch, PatchError

SINGLE_VALUES = frozenset(
    f"google.protobuf.{name}"
    for name in (
        "Any", "BoolValue", "BytesValue", "DoubleValue", "Duration", "FloatValue", "Int32Value", "Int64Value",
        "StringValue", "Timestamp", "UInt32Value", "UInt64Value",
    )
)  # fmt: skip
"""Message types that are one value, which is replaced and not merged."""

TYPED_CONFIG = "typed_config"

_NAMED_ONCE = {
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.upgrade_configs": "upgrade_type",
    "envoy.config.route.v3.RouteAction.upgrade_configs": "upgrade_type",
}
"""Lists of which Envoy refuses two entries of a name, whatever its case: each with the field that has the name."""


def merge(
    target: Message, source: Message, *, replace_lists: bool = False, without: frozenset[str] = frozenset()
) -> None:
    """Merge a message into another of its type, except for the fields named by ``without``."""
    for field, value in source.ListFields():
        if field.name in without:
            continue
        if _is_repeated(field):
            if replace_lists and not _is_map(field):
                target.ClearField(field.name)
            _extend(getattr(target, field.name), value, field)
        elif field.message_type is None:
            setattr(target, field.name, value)
        elif field.message_type.full_name in SINGLE_VALUES:
            getattr(target, field.name).CopyFrom(value)
        else:
            inner = getattr(target, field.name)
            inner.SetInParent()
            merge(inner, value, replace_lists=replace_lists)


def merge_patch(target: Message, patch: Patch, *, without: frozenset[str] = frozenset()) -> None:
    """Merge the value of a patch with the operation MERGE or MERGE_AND_REPLACE_LIST."""
    merge(target, patch.message, replace_lists=replaces_lists(patch), without=without)


def replaces_lists(patch: Patch) -> bool:
    return patch.operation is Operation.MERGE_AND_REPLACE_LIST


def check_name(target: Any, source: Any) -> None:
    """Raises PatchError if a merge would rename what other resources refer to by name."""
    if source.name and source.name != target.name:
        raise PatchError(f"{target.name} can't be renamed to {source.name} by a merge: others refer to it")


def merge_any(target: any_pb2.Any, source: any_pb2.Any, *, replace_lists: bool = False) -> any_pb2.Any:
    """The Any of a message with another of its type merged into it. Raises PatchError if the types differ."""
    if type_name(target.type_url) != type_name(source.type_url):
        raise PatchError(f"{type_name(source.type_url)} can't be merged into {type_name(target.type_url)}")
    try:
        merged, partial = unpack(target), unpack(source)
    except ValueError as error:
        raise PatchError(str(error)) from None
    merge(merged, partial, replace_lists=replace_lists)
    return any_of(merged)


def merge_filter(target: Any, patch: Patch) -> None:
    """Merge into a filter, and inside its config. Raises PatchError if the types of the configs differ."""
    source: Any = patch.message
    lists = replaces_lists(patch)
    if not source.HasField(TYPED_CONFIG):
        merge(target, source, replace_lists=lists)
        return
    if not target.HasField(TYPED_CONFIG):
        raise PatchError(f"{target.name} has no config to merge into: it is discovered")
    merged = merge_any(target.typed_config, source.typed_config, replace_lists=lists)
    merge(target, source, replace_lists=lists, without=frozenset((TYPED_CONFIG,)))
    target.typed_config.CopyFrom(merged)


def fits_filter(target: Any, patch: Patch) -> bool:
    """True if a patch can be merged into a filter: it has no config, or one of the same type."""
    source: Any = patch.message
    if not source.HasField(TYPED_CONFIG):
        return True
    return target.HasField(TYPED_CONFIG) and type_name(target.typed_config.type_url) == type_name(
        source.typed_config.type_url
    )


def merge_socket(target: base_pb2.TransportSocket, source: base_pb2.TransportSocket, *, replace_lists: bool) -> None:
    """Merge into a transport socket, inside its config if the types are the same; otherwise replace the config."""
    same = type_name(target.typed_config.type_url) == type_name(source.typed_config.type_url)
    if target.HasField(TYPED_CONFIG) and source.HasField(TYPED_CONFIG) and same:
        merged = merge_any(target.typed_config, source.typed_config, replace_lists=replace_lists)
        target.typed_config.CopyFrom(merged)
        target.name = source.name or target.name
    else:
        merge(target, source)


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _extend(target: Any, value: Any, field: FieldDescriptor) -> None:
    entry = field.message_type
    if field.full_name in _NAMED_ONCE:
        _extend_by_name(target, value, _NAMED_ONCE[field.full_name])
    elif entry is None or not _is_map(field):
        target.extend(value)
    elif entry.fields_by_name["value"].message_type is None:
        target.update(value)
    else:
        for key in value:
            target[key].CopyFrom(value[key])


def _extend_by_name(target: Any, value: Any, name: str) -> None:
    """Add the entries of a list, those of a name that is there already into the one that is there."""
    for source in value:
        wanted = getattr(source, name).lower()
        found = next((entry for entry in target if getattr(entry, name).lower() == wanted), None)
        if found is None:
            target.append(source)
        else:
            merge(found, source)
