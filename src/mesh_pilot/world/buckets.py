"""Buckets: hosts parted by a stable hash, so that a list of all can be kept, read and derived from in parts.

A bucket is a number whose first bit is set: ``ALL`` holds every host, and of each bucket the numbers made by adding
bits at its end are parts. A mesh has ``1 << bits`` of them, as many as keep each small; what is derived from only a
few hosts may use coarser ones. Hosts have an order by hash which no number of buckets changes.
"""

from __future__ import annotations

import zlib

ALL = 1
"""The bucket of every host."""

STEP = 1
"""Bits by which the parts grow finer at a time."""
MOST_BITS = 10
FULL = 64
"""Hosts to a bucket from which on there are more buckets; with an eighth of it there are fewer."""


def place_of(host: str) -> int:
    """Where a host stands in the order of hosts: 32 bits, the same in any process, whatever the case of letters."""
    return zlib.crc32(host.lower().encode())


def bucket_of(host: str, bits: int) -> int:
    """The bucket of a host where there are ``1 << bits``."""
    return 1 << bits | place_of(host) >> (32 - bits)


def buckets(bits: int) -> range:
    """All buckets, in the order of hosts."""
    return range(1 << bits, 2 << bits)


def parts(bucket: int, bits: int) -> range:
    """Which of ``1 << bits`` buckets a coarser one is made of."""
    shift = bits + 1 - bucket.bit_length()
    return range(bucket << shift, (bucket + 1) << shift)


def bits_for(hosts: int, held: int = 0) -> int:
    """Into how many buckets to part so many hosts; ``held`` is how they are parted now, which lasts for a while."""
    bits = held
    while bits < MOST_BITS and hosts > FULL << bits:
        bits += STEP
    while bits and hosts < FULL // 8 << bits:
        bits -= STEP
    return bits
