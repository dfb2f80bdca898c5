"""VMs of a test: network namespaces on one bridge, each with a shell of root's, its own /etc, /var/lib and /run, a
Consul agent with ACLs on, and a stand-in for systemd. Programs are in /srv/bin, which units may see.

async with vms({"plane": "10.77.0.1", "web": "10.77.0.2"}) as lab:
    await lab["web"].type("ip address")
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import trio

from tests.support.binaries import require_binary
from tests.support.containers import opened
from tests.support.envoy import eventually
from tests.support.namespaces import ROOT, require_namespaces
from tests.support.tutorial import Terminal, put_tools

SAMPLE = ROOT / "samples" / "vm"
UNITS = Path(__file__).with_name("units.py")
MANAGEMENT = "5f1a1c1e-0000-4000-8000-000000000001"
AGENTS = "5f1a1c1e-0000-4000-8000-000000000002"

REAL = ("consul", "envoy")
"""Programs that are not stand-ins."""

_SETUP = """\
set -e
hostname {name}
cp -a /etc {home}/etc
rm -f {home}/etc/resolv.conf {home}/etc/passwd.lock {home}/etc/.pwd.lock
echo 'nameserver 10.77.0.253' > {home}/etc/resolv.conf
sed -i '/^istio-proxy:/d' {home}/etc/passwd {home}/etc/group {home}/etc/shadow {home}/etc/gshadow 2>/dev/null || true
rm -rf {home}/etc/mesh-pilot
mount --bind {home}/etc /etc
{opened}
for folder in /var/lib /run /srv; do mount -t tmpfs none $folder; done
mkdir -p /run/systemd/system /srv/bin
mount --bind {tools} /srv/bin
set +e
"""


_COPY = """\
#!{python}
# A stand-in for scp: the last argument is HOST:, a folder next to this VM's.
import shutil, sys
*files, target = [word for word in sys.argv[1:] if not word.startswith("-")]
for file in files:
    shutil.copy(file, "{vms}/" + target.rstrip(":") + "/")
"""

_UNITS = """\
#!/bin/sh
exec {python} {units} "$@"
"""
_JOURNAL = """\
#!/bin/sh
tail $HOME/proxy.log
"""


@attrs.define
class Vm:
    """A VM: its namespace, and the folder that commands work in."""

    name: str
    namespace: str
    address: str
    home: Path
    shell: Terminal | None = attrs.field(default=None, repr=False)

    async def type(self, command: str) -> str:
        """What a command prints in its shell; errors too."""
        assert self.shell is not None
        return await self.shell.type(command)

    def processes(self) -> dict[int, str]:
        """The command line of each process there."""
        done = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True)
        found = {}
        for pid in done.stdout.split():
            with suppress(OSError):
                found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found


@asynccontextmanager
async def vms(addresses: Mapping[str, str]) -> AsyncIterator[dict[str, Vm]]:
    """The VMs, of which the first runs the Consul server. All that runs there ends with the block."""
    require_namespaces()
    consul = require_binary("consul")
    stem = f"mpv{os.getpid()}"
    async with AsyncExitStack() as stack:
        # Not a folder of pytest's: those are for one user alone.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix=stem)))
        tools = _tools(folder, consul)
        bridge = f"{stem}-br"
        _namespace(stack, bridge)
        _ip(bridge, "link add br0 type bridge")
        _ip(bridge, "link set br0 up")
        lab = {}
        for name, address in addresses.items():
            vm = Vm(name, f"{stem}-{name}", address, folder / "vms" / name)
            _namespace(stack, vm.namespace)
            _ip(vm.namespace, f"link add eth0 type veth peer name {name} netns {bridge}")
            _ip(bridge, f"link set {name} master br0 up")
            _ip(vm.namespace, f"address add {address}/24 dev eth0")
            for interface in ("lo", "eth0"):
                _ip(vm.namespace, f"link set {interface} up")
            _ip(vm.namespace, "route add default via 10.77.0.254")
            lab[name] = vm
        for vm in lab.values():
            vm.shell = await stack.enter_async_context(_shell(vm, tools))
            stack.callback(_end, vm)
        first = next(iter(lab.values()))
        for vm in lab.values():
            await _start_consul(vm, first)
        yield lab


def _tools(folder: Path, consul: Path) -> Path:
    """A folder of programs for every user."""
    tools = folder / "bin"
    put_tools(tools, consul=consul)
    (folder / "vms").mkdir()
    folder.chmod(0o755)
    copy = tools / "scp"
    copy.write_text(_COPY.format(python=sys.executable, vms=folder / "vms"))
    for name, text in (("systemctl", _UNITS.format(python=sys.executable, units=UNITS)), ("journalctl", _JOURNAL)):
        (tools / name).write_text(text)
    for program in tools.iterdir():
        if not program.is_symlink():
            program.chmod(0o755)
    return tools


def _namespace(stack: AsyncExitStack, name: str) -> None:
    subprocess.run(["ip", "netns", "add", name], check=True)
    stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)


def _ip(namespace: str, command: str) -> None:
    subprocess.run(["ip", "-n", namespace, *command.split()], check=True, capture_output=True)


@asynccontextmanager
async def _shell(vm: Vm, tools: Path) -> AsyncIterator[Terminal]:
    """A shell in the VM, with mounts of its own."""
    shutil.copytree(SAMPLE, vm.home)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("CONSUL", "MESH_PILOT", "ENVOY", "XDG"))}
    env = {**inherited, "HOME": str(vm.home), "PATH": f"/srv/bin:/usr/sbin:/sbin:{os.environ['PATH']}"}
    env["PYTHONPATH"] = str(ROOT / "src")
    reachable = opened([Path(sys.base_prefix), Path(sys.prefix), ROOT, *(require_binary(name).parent for name in REAL)])
    process = await trio.lowlevel.open_process(
        ["ip", "netns", "exec", vm.namespace, "unshare", "--mount", "--uts", "bash"],
        cwd=vm.home,
        env=env,
        stdin=-1,
        stdout=-1,
        stderr=-2,
        start_new_session=True,
    )
    shell = Terminal(process, vm.home)
    try:
        said = await shell.type(
            _SETUP.format(name=vm.name, home=shlex.quote(str(vm.home)), opened=reachable, tools=shlex.quote(str(tools)))
        )
        assert not said, said
        yield shell
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


def _end(vm: Vm) -> None:
    """Kill whatever runs in the VM: one that is killed may have started another meanwhile."""
    for _ in range(50):
        pids = list(vm.processes())
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"processes in {vm.name} do not end: {vm.processes()}")


async def _start_consul(vm: Vm, server: Vm) -> None:
    """A Consul agent with a token for its node, as it is on VMs that have Consul."""
    acl = {"enabled": True, "default_policy": "deny", "tokens": {"agent": AGENTS, "default": AGENTS}}
    config = {
        "data_dir": "/var/lib/consul",
        "bind_addr": vm.address,
        "log_level": "warn",
        "performance": {"raft_multiplier": 1},
        "leave_on_terminate": True,
        "acl": acl,
    }
    if vm is server:
        acl["tokens"] = {"master": MANAGEMENT, "agent": MANAGEMENT}
        acl["enable_token_replication"] = False
        config |= {"server": True, "bootstrap_expect": 1}
        (vm.home / "management.token").write_text(MANAGEMENT)
    else:
        config |= {"retry_join": [server.address], "retry_interval": "1s"}
    (vm.home / "consul.json").write_text(json.dumps(config))
    await vm.type("consul agent -config-file consul.json > consul.log 2>&1 &")
    if vm is server:
        await eventually(_prints(vm, "consul members -token-file management.token", "alive"), what="consul's leader")
        rights = {"node": "write", "agent": "write", "service": "read"}
        rules = " ".join(f'{kind}_prefix "" {{ policy = "{right}" }}' for kind, right in rights.items())
        create = f"consul acl policy create -token-file management.token -name agents -rules '{rules}'"
        await eventually(_prints(vm, create, "agents"), what="consul's ACLs")
        create = f"consul acl token create -token-file management.token -secret {AGENTS} -policy-name agents"
        await eventually(_prints(vm, create, AGENTS), what="the agents' token")
    else:
        await eventually(_prints(vm, "curl -s http://127.0.0.1:8500/v1/status/leader", server.address), what=vm.name)


def _prints(vm: Vm, command: str, text: str) -> Callable[[], object]:
    async def is_so() -> bool:
        return text in await vm.type(command)

    return is_so
