"""What tests of several rooms share. ``support/`` has the larger helpers: import them as ``support.envoy``."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog
from support.binaries import require_binary


@pytest.fixture(autouse=True)
def _quiet_logs() -> Iterator[None]:
    """Whatever a test configures about logging ends with it."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """``free_ports(n)``: that many TCP ports that nothing listens on just now, all different."""

    def find(count: int) -> list[int]:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for sock in sockets:
                sock.bind(("127.0.0.1", 0))
            return [sock.getsockname()[1] for sock in sockets]

    return find


@pytest.fixture
def envoy_binary() -> Path:
    """The real Envoy; skips the test where there is none (in CI, where ``CI`` is set, that is a failure)."""
    return require_binary("envoy")
