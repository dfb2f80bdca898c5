"""This control plane's identity towards MCP peers, and the annotation that breaks configuration loops.

Control planes may read from each other in a ring. Without a mark, an object whose origin deleted it would circulate for
ever. As HTTP proxies do with ``Via``, each control plane appends its id to an annotation of what it serves, and ignores
objects that carry its own id.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from collections.abc import Mapping
from pathlib import Path

import attrs

from mesh_pilot.istio.reading.mesh import ROOT_NAMESPACE

PLANES_ANNOTATION = "mesh-pilot.io/planes"
"""Lists the ids of the control planes that an object has passed, in order, separated by commas."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


@attrs.frozen
class SinkNode:
    """The identity that an MCP client sends with its requests."""

    id: str
    annotations: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@attrs.frozen(kw_only=True)
class PlaneIdentity:
    """The settings of this control plane that its MCP sources depend on."""

    root_namespace: str = ROOT_NAMESPACE
    domain: str = "cluster.local"
    """Suffix of the host names of Kubernetes services."""
    trust_domain: str = "cluster.local"
    plane_id: str = ""
    """Id in PLANES_ANNOTATION; empty: objects are not marked, and none is ignored."""
    host: str = attrs.field(factory=lambda: socket.gethostname().split(".")[0] or "mesh-pilot")

    def mcp_node(self) -> SinkNode:
        return SinkNode(f"{self.host}.{self.root_namespace}", {"agent": "mesh-pilot"})

    def xds_node(self) -> SinkNode:
        """A proxy's node id, as xDS servers expect it: ``sidecar~ip~name.namespace~domain``."""
        namespace = self.root_namespace
        domain = f"{namespace}.svc.{self.domain}"
        return SinkNode(f"sidecar~127.0.0.1~{self.host}.{namespace}~{domain}", {"NAMESPACE": namespace})


DEFAULT_IDENTITY = PlaneIdentity()


def plane_id_of(address: str) -> str:
    """The id of the control plane that listens at an address: stable across restarts, different on other machines."""
    parts = [socket.gethostname(), address]
    with contextlib.suppress(OSError):
        parts += [_BOOT_ID.read_text(encoding="ascii"), str(_NETWORK_NAMESPACE.readlink())]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()


def planes_passed(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The ids of the control planes that an object has passed."""
    return tuple(filter(None, annotations.get(PLANES_ANNOTATION, "").split(",")))


def with_plane(annotations: Mapping[str, str], plane_id: str) -> Mapping[str, str]:
    """The annotations of an object as a control plane serves it."""
    if not plane_id:
        return annotations
    return {**annotations, PLANES_ANNOTATION: ",".join((*planes_passed(annotations), plane_id))}
