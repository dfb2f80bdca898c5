"""One service made of several versions: of registries, and of the ServiceEntries of a namespace for one host.

A port is known by its number: of two with one number the first counts, and endpoints serve the number that their own
version declares. Names only join endpoints to ports within a version, because everybody calls the first port ``http``.
In the merged service names are unique: a port whose name is taken by another number has the number behind its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from mesh_pilot.model.service import Endpoint, Port, Service


def merged_service(versions: Sequence[Service]) -> Service:
    """The service of several registries and of ServiceEntries, those with precedence first: all ports and addresses."""
    first = versions[0]
    if len(versions) == 1:
        return first
    addresses, by_cluster = _merged_addresses(versions)
    ports = _joined_ports(versions)
    return attrs.evolve(first, ports=ports, addresses=addresses, cluster_addresses=by_cluster)


def declared_service(services: Sequence[Service]) -> Service:
    """The service that several ServiceEntries, oldest first, declare for one host.

    Younger ones with the same resolution and location add the ports that it lacks.
    """
    first = services[0]
    alike = [s for s in services if (s.resolution, s.external) == (first.resolution, first.external)]
    return attrs.evolve(first, ports=_joined_ports(alike)) if len(alike) > 1 else first


def endpoints_by_number(
    endpoints: tuple[Endpoint, ...], versions: Iterable[Service], merged: Service
) -> tuple[Endpoint, ...]:
    """Endpoints of a version, under the names that their ports have in the merged service; those of ports that it does
    not have are left out. ``versions`` are those that the endpoints can be of: the first of their cluster that has the
    port counts."""
    candidates = [(version.cluster_id, _new_names(version, merged)) for version in versions]
    if all(old == new for _, names in candidates for old, new in names.items()):
        return endpoints
    found = []
    for endpoint in endpoints:
        name = _new_name(endpoint, candidates)
        if name == endpoint.service_port:
            found.append(endpoint)
        elif name:
            found.append(attrs.evolve(endpoint, service_port=name))
    return tuple(found)


def _new_names(version: Service, merged: Service) -> dict[str, str]:
    """The names of ports in the merged service, empty if it lacks them, by the names in a version of it."""
    by_number = {port.number: port.name for port in merged.ports}
    return {port.name: by_number.get(port.number, "") for port in version.ports}


def _new_name(endpoint: Endpoint, candidates: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """The new name of an endpoint's port; the old one if no version declares it."""
    having = [(cluster, names) for cluster, names in candidates if endpoint.service_port in names]
    of_cluster = (names for cluster, names in having if cluster == endpoint.cluster_id)
    names = next(of_cluster, having[0][1] if having else {})
    return names.get(endpoint.service_port, endpoint.service_port)


def _joined_ports(versions: Iterable[Service]) -> tuple[Port, ...]:
    ports: dict[int, Port] = {}
    names: set[str] = set()
    for port in (port for version in versions for port in version.ports):
        if port.number not in ports:
            name = port.name
            while name in names:
                name = f"{name}-{port.number}"
            names.add(name)
            ports[port.number] = port if name == port.name else attrs.evolve(port, name=name)
    return tuple(ports.values())


def _merged_addresses(
    versions: Sequence[Service],
) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """The addresses of a service: those in its first cluster; and by cluster, if there are several.

    An address in a cluster means nothing in another one.
    """
    clusters = list(dict.fromkeys(v.cluster_id for v in versions if v.cluster_id and v.addresses))
    if len(clusters) < 2:
        return tuple(dict.fromkeys(a for v in versions for a in v.addresses)), ()
    found = tuple(
        (each, tuple(dict.fromkeys(a for v in versions if v.cluster_id in ("", each) for a in v.addresses)))
        for each in clusters
    )
    return found[0][1], found
