"""Warming: listeners and clusters that an Envoy has accepted and does not use yet, and what each waits for.

An agent reports them on its own stream, as it reports the health of the application: a request of the type ``WARMING``
whose error names them; without an error nothing warms. The report is JSON, because names may have any character.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum

import attrs

from mesh_pilot.model.resource import RESOURCE_TYPES

MAX_REPORTED = 20
"""Resources of one report. A proxy with more has one cause for most of them."""

MAX_REPORT = 256 * 1024
"""Characters of a report."""

MAX_AWAITED = 10
"""Things that one resource is said to wait for."""

MAX_NAME = 1000
"""Characters of a name in a report."""


class WaitKind(StrEnum):
    """The kinds of things that a resource waits for, in the words of tables."""

    RDS = "RDS"
    VHDS = "VHDS"
    SDS = "SDS"
    ECDS = "ECDS"
    EDS = "EDS"
    DNS = "DNS"
    HEALTH = "health checks"
    FETCH = "a download"
    IDENTITY = "the certificate of its agent"
    OTHER = "something else"


PATIENT = frozenset((WaitKind.DNS, WaitKind.HEALTH, WaitKind.FETCH, WaitKind.IDENTITY))
"""Waits that end by themselves, or by another party: no object is to blame."""


@attrs.frozen(order=True)
class Awaited:
    """One thing that a resource waits for."""

    kind: WaitKind
    name: str = ""
    """The name of the subscription; empty where nothing is subscribed to."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


@attrs.frozen
class WarmingResource:
    """A resource that an Envoy has accepted and does not use yet."""

    type_url: str
    name: str
    version: str = ""
    """The hash by which its Envoy tells versions apart; empty if it is not known."""
    waits_for: tuple[Awaited, ...] = ()

    @property
    def short(self) -> str:
        """The abbreviation of its type, such as ``LDS``."""
        return RESOURCE_TYPES[self.type_url].short

    @property
    def what(self) -> str:
        """Text: everything that it waits for."""
        return ", ".join(map(str, self.waits_for)) or str(WaitKind.OTHER)

    @property
    def is_patient(self) -> bool:
        """True if it may only take its time, so that nothing is withheld because of it."""
        return any(each.kind in PATIENT for each in self.waits_for)

    def __str__(self) -> str:
        return f"{self.short} {self.name} waits for {self.what}"


def encode_report(found: Iterable[WarmingResource]) -> str | None:
    """The report of an agent; None if nothing warms."""
    rows = [
        {
            "type": each.short,
            "name": each.name,
            "version": each.version,
            "waits_for": [[each.kind.name, each.name] for each in each.waits_for[:MAX_AWAITED]],
        }
        for each in found
    ]
    return json.dumps(rows[:MAX_REPORTED]) if rows else None


def read_report(report: str | None) -> tuple[WarmingResource, ...]:
    """The resources of a report. Raises ValueError for one that cannot be read."""
    if report is None:
        return ()
    if len(report) > MAX_REPORT:
        raise ValueError(f"it has {len(report):,} characters; {MAX_REPORT:,} is the limit")
    types = {resource_type.short: url for url, resource_type in RESOURCE_TYPES.items()}
    try:
        return tuple(
            WarmingResource(
                types[row["type"]],
                str(row["name"])[:MAX_NAME],
                str(row["version"])[:MAX_NAME],
                tuple(Awaited(WaitKind[kind], str(name)[:MAX_NAME]) for kind, name in row["waits_for"][:MAX_AWAITED]),
            )
            for row in json.loads(report)[:MAX_REPORTED]
        )
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
