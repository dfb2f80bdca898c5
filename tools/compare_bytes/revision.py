"""A revision: ``mesh-pilot discovery`` as it was then, once for each mesh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from tools.compare_bytes.client import SECONDS, Received, receive
from tools.compare_bytes.meshes import Case

FORKER = """
import json, os, pkgutil, sys
from contextlib import suppress
import mesh_pilot.cli
for module in pkgutil.walk_packages(mesh_pilot.__path__, "mesh_pilot."):
    with suppress(ImportError):
        if not module.name.endswith("__main__"):
            __import__(module.name)
print("loaded", mesh_pilot.__file__, flush=True)
for line in iter(sys.stdin.readline, ""):
    child = os.fork()
    if not child:
        print("started", os.getpid(), flush=True)
        mesh_pilot.cli.main(json.loads(line))
    os.waitpid(child, 0)
    print("ended", flush=True)
"""
"""A process that loads one revision and forks a ``mesh-pilot`` for each list of arguments (JSON, one a line) on its
standard input: a fork takes milliseconds, the imports more than a second. A module that cannot be imported is left to
those forks that need it."""


class RevisionError(Exception):
    """A revision that does not do what it is asked to, with the end of its log."""


class Revision:
    """One revision. State: the process that has loaded it, and how many control planes that has forked."""

    def __init__(self, name: str, tree: Path, scratch: Path, proxy: str) -> None:
        """``tree`` is a checkout, ``scratch`` a folder to make, ``proxy`` the HTTP proxy for fetching keys."""
        self.name = name
        self._scratch = scratch
        scratch.mkdir()
        self._log = scratch / "log"
        environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        environment |= {
            "PYTHONPATH": str(tree / "src"),
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "HTTP_PROXY": proxy,
            "HTTPS_PROXY": proxy,
        }
        with self._log.open("wb") as log:
            command = [sys.executable, "-c", FORKER]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        loaded = self._line("loaded")
        if not loaded or not Path(loaded).is_relative_to(tree):
            raise RevisionError(f"{name} was not loaded from {tree}: {loaded or self._log_end()}")
        self._planes = 0

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self, start: str) -> str:
        """The rest of the next line that begins with ``start``; empty if the process, or its fork, ends before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line.removeprefix(start).strip()
            if line.startswith("ended"):
                return ""
        return ""

    def _log_end(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-5:])

    @contextmanager
    def running(self, arguments: Iterable[str], authority: Path) -> Iterator[grpc.Channel]:
        """Run a control plane with these flags until the end of the block; gives a channel to it.

        ``authority`` is the folder of its CA, so that both revisions serve the same root certificate.
        """
        self._planes += 1
        socket = self._scratch / f"{self._planes}.sock"
        tcp = ("secure-grpc", "http", "monitoring")
        addresses = [f"--grpc-addr=unix://{socket}", *(f"--{name}-addr=127.0.0.1:0" for name in tcp)]
        own = (f"--ca-dir={authority}", "--no-state", "--trust-local", "--log-level=error")
        command = ["discovery", *addresses, *own, *arguments]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        child = int(self._line("started"))
        watchdog = threading.Timer(SECONDS, os.kill, (child, signal.SIGKILL))
        watchdog.start()
        ready = self._line("ready after")
        watchdog.cancel()
        if not ready:
            raise RevisionError(f"it did not become ready: {self._log_end()}")
        try:
            limits = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
            with grpc.insecure_channel(f"unix:{socket}", options=limits) as channel:
                yield channel
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            self._line("ended")

    def render(self, case: Case, authority: Path) -> dict[str, Received]:
        """What each proxy of a case is sent, by the proxy's name. Raises RevisionError."""
        with self.running(case.arguments, authority) as channel:
            try:
                return {entry["name"]: receive(channel, entry) for entry in case.proxies}
            except (grpc.RpcError, EOFError) as error:
                raise RevisionError(f"{error!r}\n{self._log_end()}") from None
