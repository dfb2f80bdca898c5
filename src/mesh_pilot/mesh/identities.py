"""Who may answer for a service: the identities that clients accept in its certificates.

A value of its own, so that endpoints which come and go under the same identities leave clusters alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from mesh_pilot.incremental import derived
from mesh_pilot.mesh.mesh_defaults import cluster_defaults
from mesh_pilot.model.service import Endpoint, ServiceKey
from mesh_pilot.security.spiffe import SCHEME
from mesh_pilot.world.view import View

_place = attrgetter("address", "port", "workload")


@derived
def port_endpoints(view: View, service: ServiceKey, port: str) -> tuple[Endpoint, ...]:
    """The endpoints that serve one port (by name) of a service, by address."""
    return tuple(sorted((e for e in view.endpoints(service) if e.service_port == port), key=_place))


@derived
def identities(view: View, service: ServiceKey, port: str) -> tuple[str, ...]:
    """Subject alternative names to accept from a service's port: those of its endpoints' service accounts, also under
    the trust domain's aliases, and those that the service declares. Sorted."""
    found = view.service(service)
    names = {e.service_account for e in port_endpoints(view, service, port)}
    names.discard("")
    if found is not None:
        names.update(found.subject_alt_names)
    aliases = cluster_defaults(view).trust_domain_aliases
    return tuple(sorted(_with_aliases(names, aliases) if aliases else names))


def _with_aliases(names: Iterable[str], aliases: Iterable[str]) -> set[str]:
    result = set(names)
    for name in names:
        _, slash, rest = name.removeprefix(SCHEME).partition("/")
        if name.startswith(SCHEME) and slash:
            result.update(f"{SCHEME}{alias}/{rest}" for alias in aliases)
    return result
