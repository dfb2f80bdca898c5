"""Every test of this room leaves no socket behind."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from tests.rpc.rpc_support import open_sockets


@pytest.fixture(autouse=True)
def no_socket_is_left_behind() -> Iterator[None]:
    """grpcio closes its sockets in threads of its own, a moment later."""
    before = open_sockets()
    yield
    for attempt in range(10_000):
        if open_sockets() <= before:
            return
        if attempt == 0:  # a channel in a cycle of references
            gc.collect()
        time.sleep(0.005)
    pytest.fail(f"{open_sockets() - before} sockets are left")
