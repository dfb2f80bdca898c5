"""A reverse index: which members have a key, from the keys of each member."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from mesh_pilot.world.copying import Copied

K = TypeVar("K", bound=Hashable)
M = TypeVar("M", bound=Hashable)
V = TypeVar("V")

_NOBODY: Mapping[object, object] = MappingProxyType({})


class ReverseIndex(Copied, Generic[K, M, V]):
    """Members by key, with what each says of the key. A key without members is not there.

    State: `_members` by key, and the reverse: `_keys`, what each member says, by key.
    """

    def __init__(self) -> None:
        self._members: dict[K, dict[M, V]] = {}
        self._keys: dict[M, Mapping[K, V]] = {}

    def __repr__(self) -> str:
        return f"<ReverseIndex of {len(self._members)} keys and {len(self._keys)} members>"

    def put(self, member: M, says: Mapping[K, V]) -> list[K]:
        """Replace what a member says of each of its keys; nothing: it is not a member any more. The keys of which it
        says something else than before."""
        before = self._keys.get(member, {})
        changed = [key for key, value in says.items() if key not in before or before[key] != value]
        gone = [key for key in before if key not in says]
        for key in changed:
            self._members.setdefault(key, {})[member] = says[key]
        for key in gone:
            members = self._members[key]
            del members[member]
            if not members:
                del self._members[key]
        if says:
            self._keys[member] = says
        else:
            self._keys.pop(member, None)
        return changed + gone

    def __getitem__(self, key: K) -> Mapping[M, V]:
        """The members that have a key; empty without any."""
        return self._members.get(key, _NOBODY)  # type: ignore[arg-type]

    def latest(self, key: K) -> tuple[M, V] | None:
        """The member that took up a key last; None without any."""
        members = self._members.get(key)
        return next(reversed(members.items())) if members else None

    def __contains__(self, key: K) -> bool:
        return key in self._members

    def __iter__(self) -> Iterator[K]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)
