"""Certificates that a CA has signed in this run, and removed roots that are trusted for as long as these are in force.

A root that disappears from the files of an outside CA stays trusted until the last certificate that was signed under it
here ended: files that are replaced in the wrong order cost no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from cryptography import x509

from mesh_pilot.identity.authority.material import Material


class Issued:
    """State: by CA certificate its root, and the end of what it signed; of that, what its owners keep until then."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._ends: dict[x509.Certificate, tuple[x509.Certificate, datetime]] = {}
        self._kept_by_owners: dict[x509.Certificate, datetime] = {}
        self.kept_roots: dict[x509.Certificate, datetime] = {}
        """Removed roots, each with when it ceases to be trusted."""
        self.count = 0

    def __repr__(self) -> str:
        return f"<Issued {self.count}, {len(self.kept_roots)} removed roots kept>"

    def note(
        self, issuer: x509.Certificate, root: x509.Certificate, end: datetime, *, is_followed: bool = False
    ) -> None:
        """A CA certificate has signed; ``is_followed``: the owner replaces it as soon as another one signs."""
        _, last = self._ends.get(issuer, (None, end))
        self._ends[issuer] = root, max(end, last)
        if not is_followed:
            self._kept_by_owners[issuer] = max(end, self._kept_by_owners.get(issuer, end))

    @property
    def issuers(self) -> Collection[x509.Certificate]:
        """The CA certificates that have signed."""
        return self._ends.keys()

    def in_force(self) -> list[x509.Certificate]:
        """CA certificates of which something that was signed here is in force."""
        now = self._now()
        return [issuer for issuer, (_, end) in self._ends.items() if end > now]

    def last_end(self, signing: x509.Certificate) -> datetime | None:
        """When the last certificate ends that another CA certificate has signed, and that its owner keeps."""
        now = self._now()
        old = [end for issuer, end in self._kept_by_owners.items() if issuer != signing and end > now]
        return max(old, default=None)

    def keep_roots(self, before: Material, after: Material) -> None:
        """Keep roots that have disappeared while what they signed is in force, unless a rotation was finished."""
        finished = before.previous.certificate if before.previous is not None else None
        for root in before.roots:
            ends = [end for under, end in self._ends.values() if under == root]
            if root not in after.roots and root != finished and ends:
                self.kept_roots[root] = max(ends)
        for root in after.roots:
            self.kept_roots.pop(root, None)

    def drop_roots(self) -> list[x509.Certificate]:
        """Keep roots no longer whose time is over; these."""
        now = self._now()
        ended = [root for root, end in self.kept_roots.items() if end <= now]
        for root in ended:
            del self.kept_roots[root]
        return ended

    def seconds_to_next_drop(self) -> float:
        if not self.kept_roots:
            return float("inf")
        return max((min(self.kept_roots.values()) - self._now()).total_seconds(), 0.0) + 1.0
