"""The settings of workers."""

from __future__ import annotations

import attrs


@attrs.frozen
class WorkerSettings:
    """The number of processes that share the gRPC ports, and the start of the others."""

    count: int = 1
    """The first one included."""
    command: tuple[str, ...] = ()
    """The command line of the fork server; the number of its socket's descriptor is appended."""
    stuck_seconds: float = 30.0
    """A worker that has not answered for this time is ended, and another one started in its place."""
    buffered_bytes: int = 64 << 20
    """So much may wait for a worker that does not read; then it is replaced as well."""
