"""``python -m mesh_pilot.cli.discovery.worker``, which ``discovery`` starts: other workers are forked from it."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING

from mesh_pilot.base.output import take_standard_outputs
from mesh_pilot.cli.lib.libraries import leave_out_httpx_command, load_betterproto2, load_structlog
from mesh_pilot.cli.lib.logs import LogFormat, LogLevels, configure, parse_levels
from mesh_pilot.cli.lib.process import THRESHOLDS, forbid_core_dumps, log_statistics, outlive_signals

if TYPE_CHECKING:
    from mesh_pilot.app.control_plane import ControlPlane

FORK_SERVER = 0
"""The number of the fork server in logs."""


def worker_command(levels: LogLevels, style: LogFormat) -> tuple[str, ...]:
    """The command line, to which the number of a socket's descriptor is appended."""
    return (sys.executable, "-m", "mesh_pilot.cli.discovery.worker", levels.text(), style.value)


def main() -> None:
    """Serve forks until the first worker is gone."""
    # Ctrl-C and systemd's SIGTERM come to all processes: the first worker tells the others what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    take_standard_outputs()
    outlive_signals()
    forbid_core_dumps()
    levels, style = parse_levels(sys.argv[1]), LogFormat(sys.argv[2])
    load_structlog()
    load_betterproto2()
    leave_out_httpx_command()
    configure(levels, style, sys.stderr, worker=FORK_SERVER)
    gc.disable()  # until a worker begins: what is loaded from here on is shared by all
    from mesh_pilot.app.settings import StartError
    from mesh_pilot.app.worker_process import run_worker
    from mesh_pilot.replicas.workers.fork_server import serve_forks

    def begin_worker(number: int) -> None:
        configure(levels, style, sys.stderr, worker=number)
        gc.set_threshold(*THRESHOLDS)
        gc.enable()

    with socket.socket(fileno=int(sys.argv[3])) as sock:
        serve_forks(sock, begin_worker, partial(run_worker, log_statistics=_log_statistics), plain=StartError)


def _log_statistics(plane: ControlPlane) -> None:
    import structlog

    log_statistics(plane.state, structlog.get_logger(scope="bootstrap").info)


if __name__ == "__main__":
    main()
