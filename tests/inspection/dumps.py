"""Config dumps for tests, as small as they can be read."""

from __future__ import annotations

from typing import Any

ADMIN = "type.googleapis.com/envoy.admin.v3."


def section(name: str, **lists: Any) -> dict[str, Any]:
    """A section of a dump: ``section("Clusters", dynamic_active_clusters=[...])``."""
    return {"@type": f"{ADMIN}{name}ConfigDump", **lists}


def clusters(*messages: dict[str, Any], made_from: tuple[str, ...] = ()) -> dict[str, Any]:
    entries = [{"version_info": "1", "cluster": message, "made_from": list(made_from)} for message in messages]
    return section("Clusters", dynamic_active_clusters=entries)


def listeners(*messages: dict[str, Any], made_from: tuple[str, ...] = ()) -> dict[str, Any]:
    entries = [
        {"name": message["name"], "active_state": {"version_info": "1", "listener": message, "made_from": [*made_from]}}
        for message in messages
    ]
    return section("Listeners", dynamic_listeners=entries)


def routes(*messages: dict[str, Any], made_from: tuple[str, ...] = ()) -> dict[str, Any]:
    entries = [{"version_info": "1", "route_config": message, "made_from": list(made_from)} for message in messages]
    return section("Routes", dynamic_route_configs=entries)


def endpoints(*messages: dict[str, Any]) -> dict[str, Any]:
    return section("Endpoints", dynamic_endpoint_configs=[{"endpoint_config": message} for message in messages])


def secrets(*messages: dict[str, Any], warming: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    def entries(found: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        return [{"name": message["name"], "version_info": "1", "secret": message} for message in found]

    return section("Secrets", dynamic_active_secrets=entries(messages), dynamic_warming_secrets=entries(warming))


def assignment(cluster: str, *addresses: str, **more: Any) -> dict[str, Any]:
    """A ClusterLoadAssignment of ``address:port``."""
    hosts = [{"endpoint": {"address": socket(address)}, **more} for address in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": hosts}]}


def socket(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
