"""Open files of the process: as many as the system permits, and connections bounded below them.

A process without a free descriptor can neither accept a connection nor read a file nor reach a registry. So connections
have a part of the descriptors only: those of all gRPC ports five eighths, those of each HTTP port a sixteenth.
"""

from __future__ import annotations

import contextlib
import math
import resource

__all__ = ["GRPC_SHARE", "HTTP_SHARE", "raise_descriptor_limit", "within_descriptors"]

GRPC_SHARE = 5 / 8
HTTP_SHARE = 1 / 16


def raise_descriptor_limit() -> None:
    """Raise the soft limit on open files to the hard one, as Go's programs do: a shell's soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system whose own limit is lower than the hard one says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def within_descriptors(wanted: float, share: float = HTTP_SHARE) -> float:
    """``wanted``, or the connections that have their ``share`` of the descriptors if those are fewer."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(1, math.floor(soft * share)))
