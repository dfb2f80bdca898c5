"""A gRPC server that takes what Envoys report, of any service: spans, access logs.

with collector() as its:
    ...  # an Envoy calls 127.0.0.1:its.port
    assert its.messages("/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs
import grpc


@attrs.frozen
class Report:
    """A message of a call."""

    method: str
    metadata: Mapping[str, str]
    message: bytes


class Collector(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Takes any call, unary or streaming, and answers with an empty message at its end."""

    def __init__(self) -> None:
        self.port = 0
        self.reports: list[Report] = []
        """What came so far, oldest first."""

    def service(self, call: Any) -> Any:
        def take(messages: Iterator[bytes], context: Any) -> bytes:
            metadata = {k: v for k, v in context.invocation_metadata() if isinstance(v, str)}
            for message in messages:
                self.reports.append(Report(call.method, metadata, message))
            return b""

        return grpc.stream_unary_rpc_method_handler(take)

    def of(self, method: str) -> list[Report]:
        """The reports of a method, given by the end of its path."""
        return [report for report in self.reports if report.method.endswith(method)]


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a free port of the loopback, gone when the block is left."""
    its = Collector()
    with ThreadPoolExecutor(32) as threads:  # a stream holds one as long as it is open
        server = grpc.server(threads, handlers=(its,))
        its.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield its
        finally:
            server.stop(grace=None).wait()
