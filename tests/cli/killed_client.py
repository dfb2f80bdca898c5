"""A process with many ADS streams that reads without an end, to be killed: ``killed_client.py PORT STREAMS``."""

from __future__ import annotations

import sys
import threading

import grpc
from envoy.service.discovery.v3 import discovery_pb2

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"


def main(port: str, streams: str) -> None:
    forever = threading.Event()
    answered = threading.Semaphore(0)

    def follow(number: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
        node = {"id": f"sidecar~10.0.1.{number}~killed-{number}.default~default.svc.cluster.local"}
        first = discovery_pb2.DiscoveryRequest(type_url=CLUSTER, node=node).SerializeToString()

        def requests():  # type: ignore[no-untyped-def]
            yield first
            forever.wait()

        for _ in channel.stream_stream(ADS)(requests()):
            answered.release()

    for number in range(int(streams)):
        threading.Thread(target=follow, args=(number,), daemon=True).start()
    for _ in range(int(streams)):
        answered.acquire()
    print("streaming", flush=True)
    forever.wait()


main(*sys.argv[1:])
