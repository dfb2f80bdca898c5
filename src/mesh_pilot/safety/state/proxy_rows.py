"""Proxies as plain JSON and back: what a proxy said of itself, and what its connection vouched for."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from mesh_pilot.model.proxy import Proxy, parse_proxy
from mesh_pilot.model.service import Locality


def proxy_row(proxy: Proxy) -> dict[str, object]:
    """A proxy but for its id and its domains."""
    locality = proxy.locality
    return {
        "metadata": proxy.metadata,
        "locality": [locality.region, locality.zone, locality.subzone],
        "cluster": proxy.cluster,
        "version": proxy.version,
        "build": proxy.build,
        "identity": proxy.identity,
        "incremental": proxy.incremental,
    }


def proxy_of_row(node_id: str, row: Mapping[str, object]) -> Proxy:
    """The proxy of such a row. Raises NodeError for a malformed id, KeyError for a row without a field."""
    found = parse_proxy(
        node_id,
        _mapping(row["metadata"]),
        locality=Locality(*_texts(row["locality"])),
        cluster=str(row["cluster"]),
        version=str(row["version"]),
        build=str(row["build"]),
    )
    return attrs.evolve(found, identity=str(row["identity"]), incremental=bool(row["incremental"]))


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []
