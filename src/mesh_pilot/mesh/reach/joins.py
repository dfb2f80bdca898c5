"""Joins over the shards of a scope that read what changed, and not every shard.

A read of a derived value takes about 1 µs, and a large mesh has hundreds of shards. So a join reads groups of shards,
and a group its shards: of 256 a change costs 16 reads twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from mesh_pilot.engine import Derived, derived
from mesh_pilot.world.shards import all_shards, subshards
from mesh_pilot.world.view import View

T = TypeVar("T")

FEW_BITS = 4
"""Up to ``1 <<`` this many shards are read one by one."""


def shard_groups(shards: range) -> range:
    """The larger shards by which to join these, all of a scope: the same where there are few."""
    bits = _bits(shards)
    return all_shards(bits // 2) if bits > FEW_BITS else shards


def values_by_shard(view: View, shards: range, of: Derived[..., T], *args: object) -> Mapping[int, T]:
    """``of(view, *args, shard)`` for each of all shards of a scope."""
    if _bits(shards) <= FEW_BITS:
        return {shard: of(view, *args, shard) for shard in shards}
    found: dict[int, T] = {}
    for group in shard_groups(shards):
        found.update(_values_of_group(view, of, args, group, _bits(shards)))
    return found


@derived
def _values_of_group(
    view: View, of: Derived[..., Any], args: tuple[object, ...], group: int, bits: int
) -> Mapping[int, Any]:
    return {shard: of(view, *args, shard) for shard in subshards(group, bits)}


def _bits(shards: range) -> int:
    return shards.start.bit_length() - 1
