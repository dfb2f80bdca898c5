"""The Lease of a leader, read, watched and written as client-go's leader election does: pure, by one clock of ours.

Times in a Lease are for people. Whether it has run out is decided by how long it has not changed since we first saw it
as it is, so clocks of replicas are never compared.

Source of the rules: Kubernetes, "Leases", and the package comment of client-go's ``leaderelection``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

Object = Mapping[str, Any]

LONGEST_SECONDS = 60.0
"""The longest TTL of ours. A Lease that says more, which whoever may edit it can write, ends after this time."""


@attrs.frozen
class LeaseRecord:
    """A Lease as it was read."""

    version: str
    """The resourceVersion of the Lease, different after every change."""
    holder: str = ""
    duration_seconds: float = 0.0
    transitions: int = 0
    acquired: str = ""
    renewed: str = ""

    @property
    def since(self) -> datetime | None:
        try:
            return datetime.fromisoformat(self.acquired)
        except ValueError:
            return None


def read_lease(found: Object) -> LeaseRecord:
    """The record of an object. Raises ValueError for what is not a Lease."""
    try:
        spec = found.get("spec") or {}
        return LeaseRecord(
            version=str(found["metadata"]["resourceVersion"]),
            holder=str(spec.get("holderIdentity") or ""),
            duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
            transitions=int(spec.get("leaseTransitions") or 0),
            acquired=str(spec.get("acquireTime") or ""),
            renewed=str(spec.get("renewTime") or ""),
        )
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a Lease: {error}") from None


def taken(found: Object, holder: str, duration_seconds: int, transitions: int, now: datetime) -> dict[str, Any]:
    """The object as a new holder writes it; its metadata, and with it the version that it replaces, are kept."""
    spec = {
        **(found.get("spec") or {}),
        "holderIdentity": holder,
        "leaseDurationSeconds": duration_seconds,
        "acquireTime": _time(now),
        "renewTime": _time(now),
        "leaseTransitions": transitions,
    }
    return {**found, "spec": spec}


def renewed(found: Object, now: datetime) -> dict[str, Any]:
    """The object as its holder renews it."""
    return {**found, "spec": {**(found.get("spec") or {}), "renewTime": _time(now)}}


def released(found: Object, now: datetime) -> dict[str, Any]:
    """The object as its holder leaves it: any other replica may take it at once."""
    spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": _time(now), "renewTime": _time(now)}
    return {**found, "spec": {**(found.get("spec") or {}), **spec}}


@attrs.define
class LeaseObserver:
    """State: the record seen last, and when it was first seen, by our own clock.

    The whole record, because a server that was restored from a backup gives the same versions to other writes.
    """

    duration_seconds: float
    """The duration that counts where a Lease has a shorter one; at most ``LONGEST_SECONDS``."""
    _record: LeaseRecord | None = None
    _since: float = 0.0

    def is_free(self, record: LeaseRecord, now: float) -> bool:
        """True if a Lease that was just read may be taken, in exactly this version."""
        if record != self._record:
            self._record, self._since = record, now
        if not record.holder:
            return True
        return now - self._since >= min(max(self.duration_seconds, record.duration_seconds), LONGEST_SECONDS)


def _time(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
