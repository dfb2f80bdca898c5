"""The programs that change the rules: found, run, and their failures told in one line with what to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mesh_pilot.agent.interception.settings import InterceptionError

_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin")
_NET_ADMIN = 1 << 12
_TIMEOUT_SECONDS = 60.0

_ADVICE = (
    (
        ("you must be root", "operation not permitted", "permission denied"),
        "that needs CAP_NET_ADMIN in the network namespace: run it with sudo, or as ExecStartPre=+ of a unit",
    ),
    (
        (
            "can't initialize",
            "unable to initialize",
            "table does not exist",
            "no such file or directory",
            "protocol not supported",
        ),
        "the kernel has no module for it: try `modprobe -a nf_tables nft_redir nft_tproxy iptable_nat`, or the other"
        " --backend",
    ),
    (
        ("extension", "couldn't load match", "couldn't load target", "no chain/target/match by that name"),
        "the kernel or this iptables has no module for it: try `modprobe -a xt_owner xt_REDIRECT xt_TPROXY xt_CT`, or"
        " --backend nft",
    ),
    (("incompatible, use 'nft' tool", "incompatible"), "nft has made rules in that table: use --backend nft"),
    (("xtables lock", "holding the xtables"), "another program is changing rules: try again"),
    (("unknown option", "syntax error"), "this version of the tool is too old: update it, or use the other --backend"),
)
"""Signs in the words of the tools, in lower case, with what to do."""


def find(name: str) -> str | None:
    """The path of a program, also in the folders that only root's PATH has."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_SYSTEM_FOLDERS))


def needed(name: str, package: str) -> str:
    """The path of a program. Raises InterceptionError."""
    path = find(name)
    if path is None:
        raise InterceptionError(f"there is no {name} on this machine: install the package {package}")
    return path


def run(command: Sequence[str], text: str = "") -> str:
    """The output of a program for this input. Raises InterceptionError."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise InterceptionError(f"{command[0]} does not start: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise InterceptionError(f"{command[0]} did not end within {_TIMEOUT_SECONDS:.0f} s: try again") from None
    if done.returncode != 0:
        raise InterceptionError(_explained(Path(command[0]).name, done.stderr or done.stdout or "", done.returncode))
    return done.stdout


def _explained(tool: str, said: str, code: int) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("#", "Try "))]
    reason = lines[0] if lines else f"exit code {code}"
    reason = re.sub(rf"^(?:{re.escape(tool)}(?: v\S+(?: \(\w+\))?)?: )+", "", reason)
    lower = said.lower()
    advice = next((advice for signs, advice in _ADVICE if any(sign in lower for sign in signs)), "")
    return f"{tool}: {reason}" + (f"; {advice}" if advice else "")


def check_rights() -> None:
    """Raise InterceptionError unless this process may change the rules."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        raise InterceptionError("rules of iptables and nftables exist on Linux only") from None
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    if not int(effective, 16) & _NET_ADMIN:
        raise InterceptionError(
            "changing the rules needs root (CAP_NET_ADMIN): run it with sudo; `mesh-pilot iptables show` needs none"
        )
