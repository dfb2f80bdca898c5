"""Hosts and localities that must not overlap, or must be covered, found without comparing all pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def overlapping_hosts(hosts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of indexes, the later first, of hosts that have a name in common; each host overlaps in one pair at most
    that it comes second in.

    So have `*.com` and `*.foo.com`, `a.b` and `*.b`, a host and itself.
    """
    # Reversed, a wildcard is a prefix of every name that it covers. The mark keeps a plain host from being one.
    return _prefixed([host[:0:-1] if host.startswith("*") else f"{host[::-1]}\0" for host in hosts])


def overlapping_localities(localities: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of indexes, the later first, of localities one of which is within the other: `a/*` and `a/b`."""
    plain = [locality.removesuffix("*").removesuffix("/") for locality in localities]
    return _prefixed([f"{locality}/" if locality else "" for locality in plain])


def _prefixed(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of indexes of texts one of which is a prefix of the other, found by sorting."""
    over: list[int] = []
    for index in sorted(range(len(texts)), key=lambda index: texts[index]):
        while over and not texts[index].startswith(texts[over[-1]]):
            over.pop()
        if over:
            yield max(index, over[-1]), min(index, over[-1])
        over.append(index)


class Cover:
    """A set of hosts that answers which names it covers: `*.b` covers `a.b` and `*.a.b`, in any case."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._exact = frozenset(host.lower() for host in hosts)
        self._endings = frozenset(host[1:] for host in self._exact if host.startswith("*"))
        self._lengths = sorted({len(ending) for ending in self._endings})

    def covers(self, host: str) -> bool:
        """True if every name that ``host`` covers (it may be a wildcard) is covered."""
        host = host.lower()
        if host in self._exact:
            return True
        bare = host.removeprefix("*")
        return any(bare[len(bare) - length :] in self._endings for length in self._lengths if length <= len(bare))
