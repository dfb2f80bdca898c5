"""Extension configurations that came over ECDS, as ``istioctl proxy-config ecds`` lists them."""

from __future__ import annotations

from mesh_pilot.base.reading import as_string
from mesh_pilot.explain.inspection.dump import ConfigDump, DumpedResource
from mesh_pilot.explain.inspection.listings.listing import Listing, Row, listing
from mesh_pilot.model.resource import EXTENSION, PREFIX

COLUMNS = ("ECDS NAME", "TYPE")


def list_extensions(dump: ConfigDump) -> Listing:
    """The extension configurations by type and name."""
    found = sorted(dump.of(EXTENSION), key=lambda each: (_type(each), each.name))
    return listing(dump, COLUMNS, [Row((each.name, _type(each)), each) for each in found])


def _type(resource: DumpedResource) -> str:
    return as_string(resource.message, "typed_config", "@type").removeprefix(PREFIX)
