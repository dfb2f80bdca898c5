"""Clusters, as ``istioctl proxy-config clusters`` lists them."""

from __future__ import annotations

import attrs

from mesh_pilot.base.reading import as_string
from mesh_pilot.explain.inspection.dump import ConfigDump, DumpedResource
from mesh_pilot.explain.inspection.listings.listing import Listing, Row, listing, named
from mesh_pilot.model.resource import CLUSTER

COLUMNS = ("SERVICE FQDN", "PORT", "SUBSET", "DIRECTION", "TYPE", "DESTINATION RULE")


@attrs.frozen
class ParsedClusterName:
    """The parts of a name such as ``outbound|9080|v1|reviews.test``; any other name is its host."""

    host: str
    subset: str = ""
    port: int = 0
    direction: str = ""
    udp: bool = False
    """True for the cluster of datagrams, ``outbound|53/udp||dns.test``."""

    @classmethod
    def parse(cls, name: str) -> ParsedClusterName:
        parts = name.split("|", 3)
        port = parts[1].removesuffix("/udp") if len(parts) == 4 else ""
        if not port.isascii() or not port.isdigit():
            return cls(name)
        direction, written, subset, host = parts
        return cls(host, subset, int(port), direction, udp=written != port)


@attrs.frozen
class ClusterFilter:
    """The clusters to list; what is empty lets all through."""

    fqdn: str = ""
    """Part of the name."""
    port: int = 0
    subset: str = ""
    """Part of the subset's name."""
    direction: str = ""

    def admits(self, name: str) -> bool:
        parsed = ParsedClusterName.parse(name)
        return (
            self.fqdn in name
            and self.port in (0, parsed.port)
            and self.subset in parsed.subset
            and self.direction.lower() in ("", parsed.direction.lower())
        )


def list_clusters(dump: ConfigDump, wanted: ClusterFilter) -> Listing:
    """The clusters by host, subset, port and direction."""
    found = [resource for resource in dump.of(CLUSTER) if wanted.admits(resource.name)]
    rows = (Row(_cells(each), each) for each in sorted(found, key=lambda each: sort_key(each.name)))
    return listing(dump, COLUMNS, rows)


def sort_key(name: str) -> tuple[str, str, int, str]:
    """The order of clusters, and of what belongs to clusters."""
    parsed = ParsedClusterName.parse(name)
    return parsed.host, parsed.subset, parsed.port, parsed.direction


def discovery_type(message: DumpedResource) -> str:
    """The way in which a cluster finds its hosts: ``EDS``, ``STRICT_DNS``, or the name of an extension."""
    extension = as_string(message.message, "cluster_type", "name")
    return extension or as_string(message.message, "type") or "STATIC"


def _cells(resource: DumpedResource) -> tuple[str, ...]:
    name = ParsedClusterName.parse(resource.name)
    port = f"{name.port}{'/udp' if name.udp else ''}" if name.direction else ""
    rules = named(resource.made_from, "DestinationRule")
    return name.host, port, name.subset, name.direction, discovery_type(resource), rules
