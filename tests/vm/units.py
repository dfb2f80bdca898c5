"""A stand-in for systemctl on a VM of a test: runs units of /etc/systemd/system as they say, as far as ours say it.

What a unit that notifies prints is appended to ``$HOME/proxy.log``. Units start in the order of the calls.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

STATE = Path("/run/units")
POLL_SECONDS = 0.05


def setting(unit: str, name: str) -> str:
    """The last value of a setting; empty if it is not there."""
    text = Path(f"/etc/systemd/system/{unit}.service").read_text(encoding="utf-8")
    values = [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{name}=")]
    return values[-1] if values else ""


def run(unit: str, name: str) -> int:
    """Run a command that a unit names."""
    return subprocess.run(shlex.split(setting(unit, name)), check=False).returncode


def supervise(unit: str) -> None:
    """Run the service, and again whenever it ends, until it is stopped."""
    user, folder = setting(unit, "User"), setting(unit, "StateDirectory")
    notify = STATE / f"{unit}.notify"
    ready = STATE / f"{unit}.ready"
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(notify))
    notify.chmod(0o777)
    env = {**os.environ, "NOTIFY_SOCKET": str(notify)}
    env |= {"STATE_DIRECTORY": f"/var/lib/{folder}", "RUNTIME_DIRECTORY": f"/run/{folder}"}
    with Path(os.environ["HOME"], "proxy.log").open("ab") as log:
        while (STATE / f"{unit}.wanted").exists():
            process = subprocess.Popen(
                shlex.split(setting(unit, "ExecStart")), env=env, stdout=log, stderr=log, user=user, group=user
            )
            (STATE / f"{unit}.pid").write_text(str(process.pid))
            told.settimeout(POLL_SECONDS)
            while process.poll() is None:
                with suppress(TimeoutError):
                    if b"READY=1" in told.recv(4096):
                        ready.touch()
            (STATE / f"{unit}.pid").unlink()  # another process may get the number
            ready.unlink(missing_ok=True)
            if (STATE / f"{unit}.wanted").exists():
                time.sleep(float(setting(unit, "RestartSec")))
    told.close()
    notify.unlink()


def is_active(unit: str) -> bool:
    return (STATE / f"{unit}.wanted").exists()


def start(unit: str) -> int:
    if is_active(unit):
        return 0
    if setting(unit, "Type") == "oneshot":
        code = run(unit, "ExecStart")
        if code == 0:
            (STATE / f"{unit}.wanted").touch()
        return code
    (STATE / f"{unit}.wanted").touch()
    nothing = subprocess.DEVNULL
    supervisor = [sys.executable, __file__, "supervise", unit]
    subprocess.Popen(supervisor, start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing)
    while not (STATE / f"{unit}.ready").exists():
        time.sleep(POLL_SECONDS)
    return 0


def stop(unit: str) -> int:
    if not is_active(unit):
        return 0
    (STATE / f"{unit}.wanted").unlink()
    if setting(unit, "Type") == "oneshot":
        return run(unit, "ExecStop")
    _tell(unit, signal.SIGTERM)
    while (STATE / f"{unit}.notify").exists():
        time.sleep(POLL_SECONDS)
    return 0


def reload(unit: str) -> int:
    if setting(unit, "Type") == "oneshot":
        return run(unit, "ExecReload")
    _tell(unit, signal.SIGHUP)
    return 0


def _tell(unit: str, number: int) -> None:
    """Send a signal to the service, if it runs just now."""
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((STATE / f"{unit}.pid").read_text()), number)


def main(verb: str, *rest: str) -> int:
    STATE.mkdir(exist_ok=True)
    units = [word for word in rest if not word.startswith("-")]
    for unit in units:
        match verb:
            case "supervise":
                supervise(unit)
            case "start":
                code = start(unit)
            case "stop" | "disable":
                code = stop(unit)
            case "restart":
                code = stop(unit) or start(unit)
            case "reload-or-restart":
                code = reload(unit) if is_active(unit) else start(unit)
            case "enable":
                code = 0
            case _:
                return 1
        if verb != "supervise" and code != 0:
            return code
    return 0 if units or verb == "daemon-reload" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
