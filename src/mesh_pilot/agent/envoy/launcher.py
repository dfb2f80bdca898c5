"""Becomes Envoy, after seeing to it that Envoy ends when the agent does, however that ends.

Run as a script by its path, with ``python -I -S``: the agent's process id, then Envoy's command. Between fork and exec
of the agent itself, with its threads, no Python can run safely. The process keeps its id. It imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""Linux, prctl(2). The signal comes when the thread that forked us ends, so the agent forks in its main thread."""


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    os.setsid()  # a Ctrl-C on the terminal reaches the agent alone, which stops Envoy in order
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the agent ended before Envoy began")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execv(command[0], command)
    except OSError as error:
        raise SystemExit(f"cannot run {command[0]}: {error.strerror}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
