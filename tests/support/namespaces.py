"""Network namespaces as machines: joined by a pair of interfaces, with somebody in each who listens and connects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.binaries import require_binary

PEER = Path(__file__).with_name("namespace_peer.py")
ROOT = Path(__file__).resolve().parents[2]
_probed: list[str] = []


def require_namespaces() -> None:
    """Skip the test unless this process can make network namespaces."""
    for tool in ("ip", "nft", "iptables-restore"):
        os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
        require_binary(tool)
    if not _probed:
        _probed.append(_obstacle())
    if _probed[0]:
        pytest.skip(f"no network namespaces: {_probed[0]}")


def _obstacle() -> str:
    if os.geteuid() != 0:
        return "they need root"
    name = f"mp-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()
    done = subprocess.run(["ip", "netns", "exec", name, "nft", "list", "tables"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], check=True)
    return done.stderr.strip()


@attrs.define
class Machine:
    """A namespace."""

    name: str
    ipv4: str
    ipv6: str
    peer: subprocess.Popen[str] | None = attrs.field(default=None, repr=False)

    def run(self, *command: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a program there, as root."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, *command], capture_output=True, text=True, check=False, **more
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done

    def mesh_pilot(self, *arguments: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ours there, with these variables."""
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **more}
        return self.run(sys.executable, "-m", "mesh_pilot.cli", *arguments, check=check, env=env)

    def listen(self, protocol: str, *ports: int, host: str = "", uid: int = 0) -> None:
        """Answer at these ports, of all addresses or of one."""
        for port in ports:
            self._do(do="listen", protocol=protocol, port=port, host=host, uid=uid)

    def ask(
        self,
        host: str,
        port: int,
        *,
        protocol: str = "tcp",
        uid: int = 1000,
        gid: int = 1000,
        source: str = "",
        mark: int = 0,
        timeout: float = 2.0,
    ) -> dict[str, Any]:
        """Who answers there, and what it sees of us; ``error`` instead if nobody does."""
        return self._do(
            do="ask",
            protocol=protocol,
            host=host,
            port=port,
            uid=uid,
            gid=gid,
            source=source,
            mark=mark,
            timeout=timeout,
        )

    def open(self, name: str, host: str, port: int, *, uid: int = 1000, busy: bool = False) -> int:
        """Open a connection to an echo server and keep it by this name; the port of the server that it reached."""
        return int(self._do(do="open", name=name, host=host, port=port, uid=uid, busy=busy)["listener"])

    def exchange(self, name: str) -> dict[str, Any]:
        """Send a line on an open connection; ``error`` is empty if all came back so far, ``exchanged`` their number."""
        return self._do(do="exchange", name=name)

    def _do(self, **command: Any) -> dict[str, Any]:
        assert self.peer is not None and self.peer.stdin is not None and self.peer.stdout is not None
        self.peer.stdin.write(json.dumps(command) + "\n")
        self.peer.stdin.flush()
        line = self.peer.stdout.readline()
        assert line, f"the peer in {self.name} has died"
        return dict(json.loads(line))


@contextmanager
def machines(count: int) -> Iterator[list[Machine]]:
    """As many machines on one bridge, in its own namespace."""
    require_namespaces()
    stem = f"mp{os.getpid()}"
    found = [Machine(f"{stem}-{n}", f"10.77.0.{n}", f"fd77::{n}") for n in range(1, count + 1)]
    bridge = f"{stem}-br"
    with ExitStack() as stack:
        for name in (bridge, *(machine.name for machine in found)):
            subprocess.run(["ip", "netns", "add", name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        _ip(bridge, "link add br0 type bridge")
        _ip(bridge, "link set br0 up")
        for n, machine in enumerate(found):
            _ip(machine.name, f"link add eth0 type veth peer name port{n} netns {bridge}")
            _ip(bridge, f"link set port{n} master br0 up")
            _ip(machine.name, f"address add {machine.ipv4}/24 dev eth0")
            _ip(machine.name, f"-6 address add {machine.ipv6}/64 dev eth0 nodad")
            for interface in ("lo", "eth0"):
                _ip(machine.name, f"link set {interface} up")
            _ip(machine.name, f"route add default via {found[-1].ipv4}" if machine is not found[-1] else "link show lo")
            machine.peer = subprocess.Popen(
                ["ip", "netns", "exec", machine.name, sys.executable, str(PEER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(_stop, machine.peer)
        yield found


def _ip(namespace: str, command: str) -> None:
    subprocess.run(["ip", "-n", namespace, *command.split()], check=True, capture_output=True)


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def has(tool: str) -> bool:
    return shutil.which(tool) is not None
