"""A rate limit server with the configuration of envoyproxy/ratelimit: Envoy's API over gRPC, counts in its memory.

    with limiter(port, limits("shop", "[{key: x-user, rate_limit: {unit: day, requests_per_unit: 2}}]")) as server:
        ...
        assert server.told == [[("x-user", "ann")]]

A unit never ends: no test depends on the time of day. As a program (``python -m tests.support.limiter``) it takes the
environment of the real one, for pages that tell to start that.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import grpc
import yaml
from envoy.service.ratelimit.v3 import rls_pb2

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
Answer = rls_pb2.RateLimitResponse
Entries = list[tuple[str, str]]


def limits(domain: str, descriptors: str) -> dict[str, Any]:
    """A configuration: the descriptors of a domain, as YAML."""
    return {"domain": domain, "descriptors": yaml.safe_load(descriptors)}


@attrs.define
class Limiter:
    """What is limited, and what it was told. State: the counts."""

    configs: Sequence[Mapping[str, Any]]
    told: list[Entries] = attrs.field(factory=list)
    """The descriptors of all requests, in turn."""
    _counts: Counter[tuple[Any, ...]] = attrs.field(factory=Counter)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def forget(self) -> None:
        """Begin to count again."""
        self._counts.clear()
        self.told.clear()

    def answer(self, request: rls_pb2.RateLimitRequest, _: grpc.ServicerContext) -> Answer:
        with self._lock:
            statuses = [self._status(request.domain, descriptor) for descriptor in request.descriptors]
        over = any(status.code == Answer.OVER_LIMIT for status in statuses)
        return Answer(overall_code=Answer.OVER_LIMIT if over else Answer.OK, statuses=statuses)

    def _status(self, domain: str, descriptor: Any) -> Answer.DescriptorStatus:
        entries = [(entry.key, entry.value) for entry in descriptor.entries]
        self.told.append(entries)
        allowed = next((_limit(c["descriptors"], entries) for c in self.configs if c["domain"] == domain), None)
        if allowed is None:
            return Answer.DescriptorStatus(code=Answer.OK)
        self._counts[domain, *entries] += 1
        left = allowed - self._counts[domain, *entries]
        return Answer.DescriptorStatus(
            code=Answer.OK if left >= 0 else Answer.OVER_LIMIT,
            current_limit=Answer.RateLimit(requests_per_unit=allowed, unit=Answer.RateLimit.DAY),
            limit_remaining=max(left, 0),
        )


def _limit(tree: Sequence[Mapping[str, Any]], entries: Entries) -> int | None:
    """The number for a descriptor; None: it has no limit. A node with the value comes before one for any."""
    (key, value), *rest = entries
    named = [node for node in tree if node["key"] == key]
    exact = [node for node in named if node.get("value") == value]
    for node in (*exact, *(node for node in named if "value" not in node)):
        if rest:
            return _limit(node.get("descriptors", ()), rest)
        return int(node["rate_limit"]["requests_per_unit"]) if "rate_limit" in node else None
    return None


@contextmanager
def limiter(port: int, *configs: Mapping[str, Any]) -> Iterator[Limiter]:
    """A server on this port of the loopback."""
    held = Limiter(configs)
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(
        held.answer,
        request_deserializer=rls_pb2.RateLimitRequest.FromString,
        response_serializer=Answer.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": handler})
    server.add_generic_rpc_handlers((handlers,))
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    server.start()
    try:
        yield held
    finally:
        server.stop(None).wait()


def main() -> None:
    """Serve until somebody ends the process."""
    folder = Path(os.environ["RUNTIME_ROOT"], os.environ["RUNTIME_SUBDIRECTORY"], "config")
    configs = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(folder.iterdir())]
    with limiter(int(os.environ["GRPC_PORT"]), *configs):
        threading.Event().wait()


if __name__ == "__main__":
    main()
