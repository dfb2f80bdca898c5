"""Options of a migration from Consul, and how fields that its entries leave over are listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from mesh_pilot.consul.mesh.fields import Fields
from mesh_pilot.migration.base.reading import ForeignObject
from mesh_pilot.migration.base.record import MigrationRecord


@attrs.frozen(kw_only=True)
class ConsulOptions:
    """Choices of a migration from Consul."""

    domain: str = "consul"
    datacenter: str = ""
    namespace: str = "default"
    """The mesh's namespace of services that do not say."""
    services: bool = False
    """Services of the catalog become ServiceEntries; without it, they stay in Consul."""
    default_allow: bool = True
    """The policy for connections that no intention is about."""
    is_default_said: bool = True
    """False: no input said what holds, and it is taken for granted."""
    place: str = "consul"
    """The place, for people, of what is of no entry."""


def leave_problems(
    record: MigrationRecord,
    found: ForeignObject,
    fields: Fields,
    read: Iterable[str],
    reasons: Mapping[str, str | None],
) -> None:
    """List the problems of an object's fields, and the fields that were not read; ``read``: names read elsewhere."""
    for name in read:
        fields.has(name)
        fields.strings(name)
    fields.problems[:] = [problem for problem in fields.problems if problem.path not in tuple(read)]
    fields.finish(reasons)
    for problem in fields.problems:
        record.leave_object(found, problem.reason, path=problem.path)
