"""Shards: hosts split by a stable hash, so that indexes of all hosts, and what is derived from them, are kept in parts.

A shard is a number whose first bit is set: ``ALL_HOSTS`` contains every host, and each bit appended to a number halves
its shard. A mesh has ``1 << bits`` shards, enough to keep each one small; a scope with few hosts may use fewer, larger
ones. Hosts are ordered by their hash, which does not depend on the number of shards.
"""

from __future__ import annotations

import zlib

ALL_HOSTS = 1
"""The shard of every host."""

WILDCARD_HOSTS = 0
"""Used in place of a shard: VirtualServices with a wildcard host are listed here, too."""

ASKING = -2
"""Used in place of a shard: VirtualServices with a rule that asks an authorizer are listed here, too."""

CROSS_SHARD = -1
"""Used in place of a shard: what hosts of several shards have in common, and is therefore planned together."""

MAX_BITS = 10
HOSTS_PER_SHARD = 64
"""The number of shards doubles when they have more hosts on average, and halves when they have an eighth of it."""


def host_hash(host: str) -> int:
    """32 bits, the same in every process, regardless of case."""
    return zlib.crc32(host.lower().encode("utf-8", "surrogatepass"))


def shard_of(host: str, bits: int) -> int:
    """The shard of a host among ``1 << bits``."""
    return 1 << bits | host_hash(host) >> (32 - bits)


def all_shards(bits: int) -> range:
    """All shards, in the order of hosts."""
    return range(1 << bits, 2 << bits)


def subshards(shard: int, bits: int) -> range:
    """The shards, of ``1 << bits``, that a larger one consists of."""
    shift = bits + 1 - shard.bit_length()
    return range(shard << shift, (shard + 1) << shift)


def shard_bits_for(hosts: int, current: int = 0) -> int:
    """The bits for a number of hosts; ``current`` unless shards are clearly too large or too small."""
    bits = current
    while bits < MAX_BITS and hosts > HOSTS_PER_SHARD << bits:
        bits += 1
    while bits and hosts < HOSTS_PER_SHARD // 8 << bits:
        bits -= 1
    return bits
