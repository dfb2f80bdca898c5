"""Ask a real Envoy whether it would take listeners and clusters, without running it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from envoy.config.bootstrap.v3 import bootstrap_pb2
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import config_source_pb2
from envoy.config.listener.v3 import listener_pb2

from tests.support.binaries import require_binary

XDS = "xds"
FIRST_PORT = 10_000


def complaints(folder: Path, listeners: Iterable[bytes], clusters: Iterable[bytes] = ()) -> str:
    """What Envoy says against a static configuration of these encoded messages; empty if it takes them all.

    Listeners' names and ports are made unique first, so that those of many proxies can be asked at once; of clusters
    with one name the last is asked.
    """
    envoy = require_binary("envoy")
    bootstrap = _bootstrap()
    for number, body in enumerate(dict.fromkeys(listeners)):
        listener = listener_pb2.Listener.FromString(body)
        listener.name = f"{number}/{listener.name}"
        if listener.address.HasField("socket_address"):
            for address in (listener.address, *(each.address for each in listener.additional_addresses)):
                address.socket_address.port_value = FIRST_PORT + number
        bootstrap.static_resources.listeners.append(listener)
    decoded = [cluster_pb2.Cluster.FromString(body) for body in clusters]
    bootstrap.static_resources.clusters.extend({c.name: c for c in decoded}.values())
    path = folder / "bootstrap.pb"
    path.write_bytes(bootstrap.SerializeToString())
    command = [str(envoy), "--mode", "validate", "--log-level", "error", "-c", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _bootstrap() -> bootstrap_pb2.Bootstrap:
    """A node with a server of ADS and load reports, for the references to it, and our limit for regular expressions."""
    bootstrap = bootstrap_pb2.Bootstrap()
    bootstrap.node.id = bootstrap.node.cluster = "check"
    ads = bootstrap.dynamic_resources.ads_config
    ads.api_type = config_source_pb2.ApiConfigSource.GRPC
    ads.transport_api_version = config_source_pb2.V3
    ads.grpc_services.add().envoy_grpc.cluster_name = XDS
    bootstrap.cluster_manager.load_stats_config.CopyFrom(ads)
    server = bootstrap.static_resources.clusters.add(name=XDS)
    server.load_assignment.cluster_name = XDS
    endpoint = server.load_assignment.endpoints.add().lb_endpoints.add().endpoint
    endpoint.address.socket_address.address = "127.0.0.1"
    endpoint.address.socket_address.port_value = 1
    bootstrap.layered_runtime.layers.add(name="static").static_layer["re2.max_program_size.error_level"] = 32768
    return bootstrap
