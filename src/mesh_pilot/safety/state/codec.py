"""Items to bytes and back: equal, with the same origins, warnings and times.

MessagePack, in the layout of the model's own classes. A change of these classes that old bytes would not survive needs
another `FORMAT`.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import attrs
import betterproto2
import msgspec

from mesh_pilot.api.istio.mesh.v1alpha1 import MeshConfig, MeshNetworks
from mesh_pilot.istio.kinds import KINDS
from mesh_pilot.istio.meaning.descriptors import FieldDescriptor, descriptor_of
from mesh_pilot.istio.reading.encode_proto import encode as encode_proto
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
    NewValue,
    Quarantine,
    Refusal,
    ResolvedHost,
    RolloutPlan,
    RolloutState,
    Secret,
    WasmModule,
    Withheld,
    WorkloadHealth,
    item_key,
)
from mesh_pilot.model.service import Service

FORMAT = 1
"""The number of the layout."""

Key = tuple[str, ...]


class CodecError(ValueError):
    """An item that cannot be written, or bytes that can't be read: the reason."""


class _ItemRow(msgspec.Struct, array_like=True):
    """An encoded item."""

    collection: str
    """The first part of the item's key."""
    value: msgspec.Raw
    """The item without the parts below."""
    message: msgspec.Raw = msgspec.Raw(b"\xc0")
    """The item's protobuf message, by fields; nil: no message."""
    wire: bytes | None = None
    """The same as protobuf, if it has fields that we don't know."""


class _WithheldRow(msgspec.Struct, array_like=True):
    """An encoded Withheld."""

    key: Key
    refused: list[_ItemRow]
    served: list[_ItemRow]
    refusal: Refusal
    fields: tuple[str, ...]


class _QuarantineRow(msgspec.Struct, array_like=True):
    """An encoded Quarantine."""

    domain: str
    is_trial: bool
    withheld: list[_WithheldRow]
    within: tuple[str, ...] = ()


class _NewValueRow(msgspec.Struct, array_like=True):
    """An encoded NewValue."""

    key: Key
    new: list[_ItemRow]
    old: list[_ItemRow]
    is_held: bool
    start: list[_ItemRow] = []


class _RolloutRow(msgspec.Struct, array_like=True):
    """An encoded RolloutState."""

    plan: RolloutPlan
    changes: list[_NewValueRow]
    step: int
    canary: tuple[str, ...]
    is_paused: bool
    reason: str


_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "config": msgspec.msgpack.Decoder(Config),
    "service": msgspec.msgpack.Decoder(Service),
    "endpoints": msgspec.msgpack.Decoder(Endpoints),
    "mesh": msgspec.msgpack.Decoder(MeshConfigValue),
    "networks": msgspec.msgpack.Decoder(MeshNetworksValue),
    "secret": msgspec.msgpack.Decoder(Secret),
    "keys": msgspec.msgpack.Decoder(KeySet),
    "addresses": msgspec.msgpack.Decoder(ResolvedHost),
    "module": msgspec.msgpack.Decoder(WasmModule),
    "extension": msgspec.msgpack.Decoder(ExtensionInForce),
    "health": msgspec.msgpack.Decoder(WorkloadHealth),
    "quarantine": msgspec.msgpack.Decoder(_QuarantineRow),
    "rollout": msgspec.msgpack.Decoder(_RolloutRow),
    "owners": msgspec.msgpack.Decoder(HostOwners),
    "challenges": msgspec.msgpack.Decoder(Challenges),
}
"""Decoders by collection."""


def encode(item: Item) -> bytes:
    """The bytes of an item. Raises CodecError."""
    try:
        return _encoder.encode(_row(item))
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise CodecError(f"{'/'.join(item_key(item))} cannot be written: {error}") from error


def decode(data: bytes) -> Item:
    """The item of such bytes. Raises CodecError."""
    try:
        return _item(_rows.decode(data))
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CodecError(f"cannot be read: {error}") from error


def encode_key(key: Key) -> str:
    """A key as text."""
    return json.dumps(key)


def decode_key(text: str) -> Key:
    """The key of such a string. Raises CodecError."""
    try:
        key = json.loads(text)
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or not all(isinstance(part, str) for part in key):
        raise CodecError(f"{text[:100]!r} is not a key")
    return tuple(key)


def _row(item: Item) -> _ItemRow:
    collection = item_key(item)[0]
    match item:
        case Config(spec=message):
            return _with_message(collection, attrs.evolve(item, spec=None), message, KINDS[item.key.kind].message)
        case MeshConfigValue(config=message):
            return _with_message(collection, attrs.evolve(item, config=None), message, MeshConfig)
        case MeshNetworksValue(networks=message):
            return _with_message(collection, attrs.evolve(item, networks=None), message, MeshNetworks)
        case Quarantine():
            rows = [
                _WithheldRow(w.key, [*map(_row, w.refused)], [*map(_row, w.served)], w.refusal, w.fields)
                for w in item.withheld
            ]
            return _ItemRow(collection, _raw(_QuarantineRow(item.domain, item.is_trial, rows, item.within)))
        case RolloutState():
            values = [
                _NewValueRow(c.key, [*map(_row, c.new)], [*map(_row, c.old)], c.is_held, [*map(_row, c.start)])
                for c in item.changes
            ]
            row = _RolloutRow(item.plan, values, item.step, item.canary, item.is_paused, item.reason)
            return _ItemRow(collection, _raw(row))
        case _:
            return _ItemRow(collection, _raw(item))


def _with_message(collection: str, bare: object, message: object, expected: type[betterproto2.Message]) -> _ItemRow:
    if type(message) is not expected:
        raise TypeError(f"a {type(message).__name__} where a {expected.__name__} belongs")
    if has_unknown_fields(message):
        return _ItemRow(collection, _raw(bare), wire=encode_proto(message))
    return _ItemRow(collection, _raw(bare), _raw(message))


def _item(row: _ItemRow) -> Item:
    value = _DECODERS[row.collection].decode(row.value)
    match value:
        case Config():
            return attrs.evolve(value, spec=_message(row, KINDS[value.key.kind].message))
        case MeshConfigValue():
            return attrs.evolve(value, config=_message(row, MeshConfig))
        case MeshNetworksValue():
            return attrs.evolve(value, networks=_message(row, MeshNetworks))
        case _QuarantineRow():
            return Quarantine(value.domain, tuple(map(_withheld, value.withheld)), value.is_trial, value.within)
        case _RolloutRow():
            changes = tuple(map(_new_value, value.changes))
            return RolloutState(value.plan, changes, value.step, value.canary, value.is_paused, value.reason)
    found: Item = value
    return found


def _message(row: _ItemRow, expected: type[betterproto2.Message]) -> object:
    if row.wire is not None:
        return expected.parse(row.wire)
    message = _message_decoder(expected).decode(row.message)
    _share_in_lists(message)
    return message


def _share_in_lists(message: betterproto2.Message) -> None:
    """Make equal strings and maps of neighbours in a list of messages one object, as they are when they are read from
    files: the endpoints of a service mostly have their labels in common, and most of a mesh is endpoints."""
    for name, shared in _lists(type(message)):
        found: list[betterproto2.Message] = getattr(message, name)
        for before, after in pairwise(found):
            for field in shared:
                value = getattr(before, field)
                if value and getattr(after, field) == value:
                    setattr(after, field, value)


def _withheld(row: _WithheldRow) -> Withheld:
    refused, served = (tuple(map(_item, rows)) for rows in (row.refused, row.served))
    return Withheld(row.key, refused, served, row.refusal, row.fields)


def _new_value(row: _NewValueRow) -> NewValue:
    new, old, start = (tuple(map(_item, rows)) for rows in (row.new, row.old, row.start))
    return NewValue(row.key, new, old, row.is_held, start)


def has_private_key(item: Item) -> bool:
    """True for an item that must not be written as it is."""
    if isinstance(item, Quarantine):
        return any(map(has_private_key, (i for w in item.withheld for i in (*w.refused, *w.served))))
    return isinstance(item, Secret) and item.is_private


def has_unknown_fields(message: betterproto2.Message) -> bool:
    """True for a message with fields, at any depth, that its sender knows and we don't."""
    if message._unknown_fields:
        return True
    for name in _message_fields(type(message)):
        value = getattr(message, name)
        if not value:
            continue
        below = value if isinstance(value, list) else value.values() if isinstance(value, dict) else (value,)
        if any(isinstance(one, betterproto2.Message) and has_unknown_fields(one) for one in below):
            return True
    return False


@cache
def _lists(message: type[betterproto2.Message]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The fields that are lists of messages; of each the fields that are strings, or maps to strings."""
    fields = (field for field in descriptor_of(message).fields if field.repeated and field.message is not None)
    return tuple(
        (field.python_name, tuple(f.python_name for f in descriptor_of(field.message).fields if _is_shared(f)))
        for field in fields
    )


def _is_shared(field: FieldDescriptor) -> bool:
    kind = field.proto_type if field.value is None else field.value.proto_type
    return not field.repeated and kind == betterproto2.TYPE_STRING


@cache
def _message_fields(message: type[betterproto2.Message]) -> tuple[str, ...]:
    """The names of fields that may hold messages."""
    fields = ((field.python_name, field.value or field) for field in descriptor_of(message).fields)
    return tuple(name for name, field in fields if field.proto_type == betterproto2.TYPE_MESSAGE)


def _plain(value: object) -> object:
    """A frozen mapping as a dict, which is what a decoded one is."""
    return dict(value)  # type: ignore[call-overload]  # what is not a mapping raises the TypeError that the encoder wants


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_rows = msgspec.msgpack.Decoder(_ItemRow)


@cache
def _message_decoder(expected: type[betterproto2.Message]) -> msgspec.msgpack.Decoder[betterproto2.Message]:
    return msgspec.msgpack.Decoder(expected)


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))
