"""Control planes under test, as processes: what they are fed from, and what they cost."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from bench.stores import Cluster, Folder, Store

ROOT = Path(__file__).resolve().parent.parent

_ALL_THREADS = 2
"""The clock of the scheduler, in the id of a process' clock (``clock_getcpuclockid``)."""

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerError(Exception):
    """A server that does not start, or ends on its own."""


@attrs.frozen
class Work:
    """What a server says of its own work; all zero for one that can't be asked."""

    calls: Mapping[str, int] = attrs.Factory(dict)
    """Translator calls since the start, by function."""
    publish_count: int = 0
    publish_seconds: float = 0.0
    """Over all revisions: from the first event to the publication."""
    converged_count: int = 0
    converged_seconds: float = 0.0
    """Over all streams and changes: from the publication to the last ACK."""


class Server:
    """A control plane: its address, its process, and what it is fed from."""

    def __init__(self, name: str, address: str, pid: int, store: Store, http: str = "") -> None:
        self.name = name
        self.address = address
        self.pid = pid
        self.store = store
        self.http = http

    # -- what it costs

    def processes(self) -> list[int]:
        """Its process, and those below it: the fork server, and the other workers."""
        parents = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        found = [self.pid]
        for pid in found:
            found += sorted(child for child, parent in parents.items() if parent == pid)
        return found

    def cpu_seconds(self) -> float:
        """CPU time of all threads of all its processes, to the nanosecond where the kernel tells."""
        return sum(map(process_cpu_seconds, self.processes()))

    def waited_seconds(self) -> dict[int, float]:
        """How long each of its threads has waited for a core that another program had; a main thread has its process'
        number."""
        found = {}
        for pid in self.processes():
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with suppress(OSError):
                    found[int(task.parent.name)] = int(task.read_text().split()[1]) / 1e9
        return found

    def memory(self) -> tuple[float, float]:
        """Resident megabytes now, and at the most so far; of several processes, the sum of what each adds."""
        processes = self.processes()
        if len(processes) > 1:
            now = sum(proportional_memory(pid) for pid in processes)
            return now, now
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        now, most = (int(lines[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
        return now, most

    def work(self) -> Work:
        """Its own statistics; costs it some CPU."""
        if not self.http:
            return Work()
        told = self.get("/debug/statistics")
        debounce, converged = told["changes"]["debounce_seconds"], told["xds"]["xds"]["times"]["convergence_seconds"]
        return Work(
            told["memo"]["calls"],
            sum(debounce["counts"]),
            debounce["sum"],
            sum(converged["counts"]),
            converged["sum"],
        )

    def get(self, path: str) -> Any:
        with _OPENER.open(f"http://{self.http}{path}", timeout=60) as answer:
            return json.load(answer)

    def text(self, path: str) -> str:
        with _OPENER.open(f"http://{self.http}{path}", timeout=60) as answer:
            return str(answer.read().decode())


class OwnServer(Server):
    """A mesh-pilot that the bench starts and ends itself; it can be started again on the same addresses."""

    def __init__(
        self,
        name: str,
        folder: Path,
        source: Path | None = None,
        options: tuple[str, ...] = (),
        store: Store | None = None,
    ) -> None:
        """``source``: a checkout whose ``src`` is run instead of the installed package. ``store``: what it reads by its
        ``options``; else it is the folder."""
        grpc, http, monitoring = (f"127.0.0.1:{port}" for port in free_ports(3))
        super().__init__(name, grpc, 0, store or Folder(folder), http)
        self.folder = folder
        self.monitoring = monitoring
        plain = name.replace("/", "_")
        self._log = folder.parent / f"{plain}.log"
        self._command = [
            *(sys.executable, "-m", "mesh_pilot.cli", "discovery", "--trust-local", "--config-dir", str(folder)),
            *("--grpc-addr", grpc, "--http-addr", http, "--monitoring-addr", monitoring),
            *("--secure-grpc-addr", "127.0.0.1:0", "--log-level", "warning"),
            *options,
        ]
        self.state_folder = folder.parent / f"state of {plain}"
        self._environment = {**os.environ, "MESH_PILOT_STATE_DIR": str(self.state_folder)}
        if source is not None:
            self._environment["PYTHONPATH"] = str(source / "src")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 120) -> float:
        """Start it and wait until it is ready; returns how long that took."""
        began = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
        self.pid = self._process.pid
        while time.monotonic() - began < seconds:
            if self._process.poll() is not None:
                raise ServerError(f"{self.name} ended: {self._log.read_text(errors='replace')[-800:]}")
            try:
                _OPENER.open(f"http://{self.http}/ready", timeout=5).close()
                return time.monotonic() - began
            except OSError:
                time.sleep(max(0.02, (time.monotonic() - began) / 50))  # an answer costs the server CPU time, too
        self.stop()
        raise ServerError(f"{self.name} was not ready within {seconds:g} s")

    def stop(self, seconds: float = 5) -> None:
        """End it, the hard way if it takes long."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill(self) -> None:
        """As a crash does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


@contextmanager
def own_server(
    name: str,
    files: Mapping[str, str],
    *,
    source: Path | None = None,
    options: tuple[str, ...] = (),
    cluster: Cluster | None = None,
) -> Iterator[OwnServer]:
    """A server over these files, in its own folder; not started yet. Both are gone after the block.

    With a ``cluster`` it reads that, where the files are already.
    """
    if cluster is not None:
        options = ("--registries", "Kubernetes", "--kubeconfig", str(cluster.kubeconfig), *options)
        files = {}
    scratch = Path(tempfile.mkdtemp(prefix="mesh-pilot-bench-"))
    folder = scratch / "config"
    folder.mkdir()
    server = OwnServer(name, folder, source, options, cluster)
    try:
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        yield server
    finally:
        server.stop()
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for processes that are started in the block."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def compiled_modules() -> Iterator[None]:
    """Processes that are started in the block keep their modules compiled, as an installed package has them: the first
    one compiles."""
    with (
        tempfile.TemporaryDirectory(prefix="mesh-pilot-bench-") as folder,
        environment({"PYTHONPYCACHEPREFIX": folder}),
    ):
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        yield


@contextmanager
def filled(store: Store, files: Mapping[str, str]) -> Iterator[None]:
    """A store that others read, with these files in it during the block."""
    try:
        for file, text in files.items():
            store.write(file, text)
        yield
    finally:
        for file in files:
            store.remove(file)


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A git revision in its own work tree."""
    scratch = Path(tempfile.mkdtemp(prefix="mesh-pilot-bench-"))
    tree = scratch / "tree"
    git = ["git", "-C", str(ROOT), "worktree"]
    try:
        done = subprocess.run([*git, "add", "--detach", str(tree), revision], capture_output=True, text=True)
        if done.returncode:
            raise ServerError(f"cannot check out {revision}: {done.stderr.strip()}")
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], capture_output=True)
        shutil.rmtree(scratch, ignore_errors=True)


def process_cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, also of those that have ended."""
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | _ALL_THREADS)
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def proportional_memory(pid: int) -> float:
    """Megabytes of a process, of which pages that several share count by their share (Linux's Pss)."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["Pss"].split()[0]) / 1024


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nothing listens at now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
