"""Extension configurations that came over ECDS, as ``istioctl proxy-config ecds`` lists them."""

from __future__ import annotations

from mesh_pilot.inspection.dump import ConfigDump, DumpedResource, mapping, text_of
from mesh_pilot.inspection.listings.listing import Listing, Row, listing
from mesh_pilot.model.resource import EXTENSION, PREFIX

COLUMNS = ("ECDS NAME", "TYPE")


def list_extensions(dump: ConfigDump) -> Listing:
    """The extension configurations by type and name."""
    found = sorted(dump.of(EXTENSION), key=lambda each: (_type(each), each.name))
    return listing(dump, COLUMNS, [Row((each.name, _type(each)), each) for each in found])


def _type(resource: DumpedResource) -> str:
    return text_of(mapping(resource.message.get("typed_config")).get("@type")).removeprefix(PREFIX)
