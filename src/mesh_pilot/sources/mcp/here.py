"""Who we are to what is read over MCP, and to those who read it from us.

Two control planes may read from each other, or many in a ring. What came from nowhere any more would then be kept alive
by going round. So each writes into an annotation of what it serves that it has passed here, and leaves out what it
reads with its own mark: the ring is cut where it closes, and a chain of control planes hands on everything.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Mapping
from pathlib import Path

import attrs

from mesh_pilot.config.mesh_defaults import ROOT_NAMESPACE

PLANES = "mesh-pilot.io/planes"
"""The annotation with the marks of the control planes that an object has passed, the first one first."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@attrs.frozen(kw_only=True)
class Here:
    """What sources have to know of the control plane that they are of."""

    root_namespace: str = ROOT_NAMESPACE
    domain: str = "cluster.local"
    """What host names of Kubernetes' services end with."""
    trust_domain: str = "cluster.local"
    plane: str = ""
    """Our mark on what we serve; empty: none, and nothing is left out."""


DEFAULT_HERE = Here()


def plane_mark(address: str) -> str:
    """A mark for who listens at an address of this machine: the same after a restart, another anywhere else."""
    parts = [socket.gethostname(), address]
    with contextlib.suppress(OSError):
        parts += [_BOOT.read_text(encoding="ascii"), str(_NETWORK.readlink())]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()


def marks(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The control planes that an object has passed."""
    return tuple(filter(None, annotations.get(PLANES, "").split(",")))


def marked(annotations: Mapping[str, str], plane: str) -> Mapping[str, str]:
    """The annotations of an object that is served by a control plane."""
    return {**annotations, PLANES: ",".join((*marks(annotations), plane))} if plane else annotations
