"""Connections of a process are bounded below its limit on open files.

A process without a free descriptor can neither accept a connection nor read a file nor reach a registry. So connections
have a part of the descriptors only: those of all gRPC ports five eighths, those of each HTTP port a sixteenth.
"""

from __future__ import annotations

import math
import resource

__all__ = ["GRPC_SHARE", "HTTP_SHARE", "within_descriptors"]

GRPC_SHARE = 5 / 8
HTTP_SHARE = 1 / 16


def within_descriptors(wanted: float, share: float = HTTP_SHARE) -> float:
    """``wanted``, or the connections that have their ``share`` of the descriptors if those are fewer."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(1, math.floor(soft * share)))
