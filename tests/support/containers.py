"""Containers for tests, with a root folder each: a program finds its files where a manifest mounts them.

host = stack.enter_context(network("10.45.0.1"))                         # a network with nothing but these addresses
command = container(folder, mounts={"/etc/cacerts": files}, hosts={"pilot.svc": "10.45.0.1"})
subprocess.Popen([*host.enter, *command, "mesh-pilot", "discovery"])

Programs and libraries are those of this machine; ``/etc``, ``/var`` and ``/run`` are new. There is no other isolation.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import attrs
from trio._core import _thread_cache

from tests.support.namespaces import require_namespaces

_OWN = ("etc", "var", "run", "lost+found", "old_root")
_COPIED = ("ld.so.cache", "nsswitch.conf", "passwd", "group", "localtime")
_CLONE_NEWNET = 0x40000000


@attrs.frozen
class Network:
    """A network namespace."""

    name: str

    @property
    def enter(self) -> Sequence[str]:
        """What a command begins with to run there."""
        return ("ip", "netns", "exec", self.name)

    def run(self, *command: str, text: str = "") -> None:
        done = subprocess.run([*self.enter, *command], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    @contextmanager
    def joined(self) -> Iterator[None]:
        """This thread is in it for the length of the block, and so are the processes that it starts.

        Trio starts processes in threads that it keeps, which are where they were started: the block has its own.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        own, new = Path("/proc/thread-self/ns/net"), Path("/run/netns") / self.name
        with own.open("rb") as before, new.open("rb") as there:
            assert libc.setns(there.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                with patch.object(_thread_cache, "THREAD_CACHE", _thread_cache.ThreadCache()):
                    yield
            finally:
                assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def network(*addresses: str) -> Iterator[Network]:
    """A network namespace in which only loopback is up, with more addresses."""
    require_namespaces()
    made = Network(f"mp{os.getpid()}-net")
    subprocess.run(["ip", "netns", "add", made.name], check=True)
    try:
        made.run("ip", "link", "set", "lo", "up")
        for address in addresses:
            made.run("ip", "address", "add", f"{address}/32", "dev", "lo")
        yield made
    finally:
        subprocess.run(["ip", "netns", "del", made.name], check=True)


def container(
    folder: Path,
    *,
    mounts: Mapping[str, Path],
    hosts: Mapping[str, str],
    hostname: str = "",
    programs: Iterable[Path] = (),
) -> Sequence[str]:
    """What a command begins with to run with its own root in ``folder``.

    ``mounts``: files and folders of this machine by their path there; ``hosts``: the addresses of names;
    ``programs``: folders that every user must reach.
    """
    root = folder / "root"
    lines = ["set -e", "mount --make-rprivate /", opened(programs)]
    if hostname:
        lines.append(f"hostname {shlex.quote(hostname)}")
    for entry in sorted(Path("/").iterdir()):
        inside = root / entry.name
        if entry.name in _OWN or inside.exists():
            continue
        if entry.is_symlink():
            root.mkdir(parents=True, exist_ok=True)
            inside.symlink_to(entry.readlink())
        elif entry.is_dir():
            inside.mkdir(parents=True)
            lines.append(f"mount --rbind {shlex.quote(str(entry))} {shlex.quote(str(inside))}")
    for name in ("etc", "run", "var"):
        (root / name).mkdir(parents=True)
    (root / "var" / "run").symlink_to("/run")
    for name in _COPIED:
        if (source := Path("/etc") / name).exists():
            shutil.copyfile(source, root / "etc" / name)
    known = {"localhost": "127.0.0.1", **hosts}
    (root / "etc" / "hosts").write_text("".join(f"{address} {name}\n" for name, address in known.items()))
    for inside_path, outside in mounts.items():
        target = root / _below(inside_path)
        if outside.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        lines.append(f"mount --rbind {shlex.quote(str(outside))} {shlex.quote(str(target))}")
    lines.append(f'exec chroot {shlex.quote(str(root))} "$@"')
    return ("unshare", "--mount", "--uts", "sh", "-c", "\n".join(lines), "sh")


def opened(needed: Iterable[Path]) -> str:
    """Commands that let every user reach these folders, in this mount namespace alone.

    A folder above them that is for one user alone (root's home, say) is covered by one that has nothing else in it.
    """
    closed: dict[Path, set[Path]] = {}
    for path in {path.resolve() for path in needed}:
        for above in reversed(path.parents):
            if not above.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(above, set()).add(path)
                break
    script = []
    for above, paths in closed.items():
        script += ["mount -t tmpfs -o mode=755 none /mnt"]
        for path in paths:
            inside = shlex.quote(f"/mnt/{path.relative_to(above)}")
            script += [f"mkdir -p {inside}", f"mount --bind {shlex.quote(str(path))} {inside}"]
        script += [f"mount --rbind /mnt {shlex.quote(str(above))}"]
    return "\n".join(script)


def _below(path: str) -> str:
    """A path below the root, without the link that ``/var/run`` is."""
    path = path.lstrip("/")
    return path.removeprefix("var/") if path.startswith("var/run/") else path
