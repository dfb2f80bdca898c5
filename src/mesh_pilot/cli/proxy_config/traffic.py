"""Traffic in the listings of clusters and endpoints: what the proxy counted of each cluster in the last minute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from mesh_pilot.cli.lib.traffic_cells import success
from mesh_pilot.cli.plane.requests import PAGE
from mesh_pilot.cli.proxy_config.source import DumpSource
from mesh_pilot.model.counts import short_rate

if TYPE_CHECKING:
    from mesh_pilot.explain.inspection.listings.listing import Listing

COLUMNS = ("A SECOND", "SUCCESS")


def with_traffic(source: DumpSource, listing: Listing) -> Listing:
    """The listing with rates of its clusters, if a control plane has them; endpoints have those of their cluster."""
    counts = _counts(source) if source.is_plane else {}
    if not any(row.resource.name in counts for row in listing.rows):
        return listing
    rows = [attrs.evolve(row, cells=(*row.cells, *_cells(counts.get(row.resource.name)))) for row in listing.rows]
    names = dict.fromkeys(row.resource.name for row in listing.rows)
    messages = [
        {**message, "traffic": counts[name]} if name in counts else message
        for name, message in zip(names, listing.messages, strict=True)
    ]
    return attrs.evolve(listing, columns=(*listing.columns, *COLUMNS), rows=tuple(rows), messages=tuple(messages))


def _counts(source: DumpSource) -> Mapping[str, Mapping[str, Any]]:
    """The edges of the proxy by the names of clusters; none if the control plane does not tell."""
    try:
        found = source.plane.get("/traffic", proxy=source.proxy, inbound="true", limit=PAGE)["items"]
        return {_cluster(edge["called"]): edge for edge in found}
    except (click.ClickException, KeyError, TypeError):  # a listing is worth having without them
        return {}


def _cluster(called: Mapping[str, Any]) -> str:
    if called["kind"] != "service":
        return str(called["name"])
    return f"outbound|{called['port']}|{called['subset']}|{called['name']}"


def _cells(counts: Mapping[str, Any] | None) -> tuple[str, str]:
    return (short_rate(counts["per_second"]), success(counts)) if counts is not None else ("", "")
