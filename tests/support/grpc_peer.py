"""A grpcio process of a test: it calls, and serves, as it is told by lines of JSON on its standard input.

Run by ``proxyless.py`` in a separate process, because grpcio reads its xDS bootstrap once a process. Each line
``{"do": name, ...}`` is answered by one line: what the function of that name returns, or ``{"error": ...}``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.experimental
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport

METHOD = "/test.Echo/Say"


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers any unary call with JSON: its name and the metadata it got; or as it was told to behave."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self.failures = 0
        """How many of the next calls fail."""
        self.code = grpc.StatusCode.UNAVAILABLE
        self.hangs = False
        self.utilization = 0.0
        """Its load as it reports it with each answer, at a hundred calls a second; 0: it reports none."""

    def service(self, call: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self.say)

    def say(self, request: bytes, context: Any) -> bytes:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            context.abort(self.code, f"{self.name} was told to")
        if self.hangs:
            over = threading.Event()
            if context.add_callback(over.set):
                over.wait()
        if self.utilization:
            report = OrcaLoadReport(application_utilization=self.utilization, rps_fractional=100)
            context.set_trailing_metadata((("endpoint-load-metrics-bin", report.SerializeToString()),))
        metadata = {k: v for k, v in context.invocation_metadata() if isinstance(v, str)}
        return json.dumps({"name": self.name, "metadata": metadata}).encode()


class Peer:
    def __init__(self) -> None:
        self.channels: dict[tuple[str, bool], grpc.Channel] = {}
        self.servers: list[grpc.Server] = []
        self.echoes: dict[str, Echo] = {}

    def serve(self, name: str, address: str = "127.0.0.1:0", xds: bool = False) -> int:
        """Start a server (by xDS: it has TLS where its listener says so) and return its port."""
        echo = self.echoes[name] = Echo(name)
        server = grpc.server(ThreadPoolExecutor(8), handlers=(echo,), xds=xds)
        if xds:
            plain = grpc.insecure_server_credentials()
            port = server.add_secure_port(address, grpc.xds_server_credentials(plain))
        else:
            port = server.add_insecure_port(address)
        server.start()
        self.servers.append(server)
        return int(port)

    def behave(self, name: str, failures: int = 0, code: str = "UNAVAILABLE", hangs: bool = False) -> int:
        """Change how a server answers from now on; returns how many calls it had since the last time."""
        echo = self.echoes[name]
        echo.failures, echo.code, echo.hangs = failures, grpc.StatusCode[code], hangs
        calls, echo.calls = echo.calls, 0
        return calls

    def report(self, name: str, utilization: float) -> None:
        """Have a server report its load (ORCA) from now on."""
        self.echoes[name].utilization = utilization

    def call(
        self,
        target: str,
        count: int = 1,
        method: str = METHOD,
        timeout: float = 5,
        tls: bool = False,
        metadata: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Call one after another: who answered or with what status it failed, and what the last one said."""
        channel = self.channels.get((target, tls))
        if channel is None:
            plain = grpc.experimental.insecure_channel_credentials()
            made = (
                grpc.secure_channel(target, grpc.xds_channel_credentials(plain))
                if tls
                else grpc.insecure_channel(target)
            )
            channel = self.channels[target, tls] = made
        say = channel.unary_unary(method)
        answers: Counter[str] = Counter()
        last = ""
        started = time.monotonic()
        for _ in range(count):
            try:
                last = say(b"", timeout=timeout, metadata=list((metadata or {}).items())).decode()
                answers[json.loads(last)["name"]] += 1
            except grpc.RpcError as error:
                answers[error.code().name] += 1
                last = str(error.details())
        return {"answers": answers, "last": last, "seconds": time.monotonic() - started}

    def close(self, target: str) -> None:
        """Close a channel: the next call to it makes a new one."""
        for key in [key for key in self.channels if key[0] == target]:
            self.channels.pop(key).close()


def main() -> None:
    peer = Peer()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = getattr(peer, order.pop("do"))(**order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # without waiting for calls that hang


if __name__ == "__main__":
    main()
