"""Ports for servers of tests."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress


def free_ports(count: int) -> list[int]:
    """That many TCP ports that nothing listens on just now, all different.

    They are below those that the system gives to connections and to listeners on port 0, and picked at random: what
    else runs on the machine is unlikely to take them before the test does.
    """
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            sock = stack.enter_context(socket.socket())
            port = random.SystemRandom().randrange(10_000, 32_000)
            with suppress(OSError):
                sock.bind(("", port))
                found.append(port)
    return found
