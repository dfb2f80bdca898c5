"""Real gRPC without proxies for a test: grpcio processes whose control plane we are.

async with grpc_peers(mesh, tmp_path) as peers:
    backend = await peers.start("backend")
    client = await peers.start("client")
    port = await backend.serve("v1")
    assert await client.answers("xds:///reviews.example.com:9000", count=10) == {"v1": 10}
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.support.certificates import CertificateFiles
from tests.support.envoy import eventually

SCRIPT = Path(__file__).with_name("grpc_peer.py")
PAGE = Path(__file__).parents[2] / "docs" / "proxyless-grpc.md"


def bootstrap(
    control_plane: str,
    *,
    name: str,
    namespace: str = "shop",
    ip: str = "127.0.0.1",
    labels: Mapping[str, str] | None = None,
    certificates: CertificateFiles | None = None,
) -> dict[str, Any]:
    """gRPC's bootstrap for a workload: the one that the documentation shows, with what is its own filled in."""
    block = re.search(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    shown: dict[str, Any] = json.loads(block[1])
    shown["xds_servers"][0]["server_uri"] = control_plane
    shown["node"]["id"] = f"sidecar~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local"
    shown["node"]["metadata"] |= {"NAMESPACE": namespace, "INSTANCE_IPS": ip, "LABELS": dict(labels or {})}
    if certificates is None:
        del shown["certificate_providers"]
    else:
        shown["certificate_providers"]["default"]["config"] |= {
            "certificate_file": str(certificates.certificate),
            "private_key_file": str(certificates.key),
            "ca_certificate_file": str(certificates.ca),
        }
    return shown


def grpc_environment(bootstrap: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a process with this bootstrap, and without the settings that gRPC would find in ours."""
    ours = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("GRPC_")}
    return {**ours, "GRPC_XDS_BOOTSTRAP_CONFIG": json.dumps(bootstrap), "GRPC_VERBOSITY": "ERROR"}


@attrs.define(eq=False)
class GrpcPeer:
    """A process that calls and serves."""

    process: trio.Process
    log: Path
    _lines: trio.abc.ReceiveStream = attrs.field(repr=False)
    _rest: bytes = b""

    async def do(self, what: str, **order: Any) -> Any:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps({"do": what, **order}).encode() + b"\n")
        while b"\n" not in self._rest:
            more = await self._lines.receive_some()
            assert more, f"the process ended: {self.log.read_text()[-2000:]}"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    async def serve(self, name: str, **options: Any) -> int:
        """A server that says this name; its port."""
        return int(await self.do("serve", name=name, **options))

    async def call(self, target: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self.do("call", target=target, **options)
        return answer

    async def answers(self, target: str, count: int = 20, **options: Any) -> Counter[str]:
        """Who answered, or with what status calls failed."""
        return Counter((await self.call(target, count=count, **options))["answers"])

    async def until_answered_by(self, names: set[str], target: str, count: int = 20, **options: Any) -> None:
        """Wait until calls are answered by exactly these."""

        async def only() -> bool:
            return set(await self.answers(target, count, **options)) == names

        await eventually(only, what=f"{target} answered by {sorted(names)} only")


@attrs.define
class GrpcPeers:
    """Starts peers; all are gone when the block is left."""

    control_plane: str
    folder: Path
    _nursery: trio.Nursery = attrs.field(repr=False)

    async def start(self, name: str, *, trace: str = "", **node: Any) -> GrpcPeer:
        """``trace``: grpcio's tracers to switch on, to find out why a test fails (``xds_client``)."""
        log = self.folder / f"{name}.log"
        environment = grpc_environment(bootstrap(self.control_plane, name=name, **node))
        if trace:
            environment |= {"GRPC_TRACE": trace, "GRPC_VERBOSITY": "DEBUG"}
        with log.open("wb") as errors:
            run = partial(
                trio.run_process,
                [sys.executable, SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                check=False,
            )
            process: trio.Process = await self._nursery.start(run)
        assert process.stdout is not None
        return GrpcPeer(process, log, process.stdout)


@asynccontextmanager
async def grpc_peers(control_plane: str, folder: Path) -> AsyncIterator[GrpcPeers]:
    """``control_plane``: where its plaintext xDS is (``host:port``)."""
    async with trio.open_nursery() as nursery:
        yield GrpcPeers(control_plane, folder, nursery)
        nursery.cancel_scope.cancel()
