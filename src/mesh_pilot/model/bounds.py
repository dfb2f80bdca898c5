"""Limits on the requests of xDS clients. Exceeding one is refused with a reason that names its flag."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs

from mesh_pilot.model.flags import flag

_flag = partial(flag, section="What clients may ask for (0: no limit)")


@attrs.frozen(kw_only=True, cache_hash=True)
class Bounds:
    """The bounds of xDS clients; each is the flag of ``mesh-pilot discovery`` of the same name. 0: no bound."""

    max_streams: int = _flag(
        "--max-streams",
        default=10_000,
        least=0,
        help="xDS streams open at the same time.  0: no limit.",
        doc="xDS streams open at the same time: [who gives way](operating.md#who-gives-way-at-a-limit), [what "
        "happens](operating.md#what-a-client-may-ask). 0: no limit.",
    )
    """Streams open at the same time; at the limit one ends for a new one, see ``net.rpc.shares``."""
    max_request_bytes: int = _flag(
        "--max-request-bytes",
        default=16 * 1024 * 1024,
        least=0,
        help="Size of one xDS request.  0: no limit.",
        doc="Size of one xDS request. 0: gRPC's 64 MiB.",
    )
    """Size of one request. Of a Delta client that reconnects with 50,000 resources it is some 11 MB."""
    max_names: int = _flag(
        "--max-names", default=50_000, least=0, help="Resource names in one subscription.  0: no limit."
    )
    """Names in one subscription: those of one type on one stream."""
    max_name_length: int = _flag(
        "--max-name-length",
        default=1024,
        least=0,
        help="Characters of a resource name, a node id, a label's key or value.  0: no limit.",
    )
    """Characters of a resource name, of a node's id, of a label's key and of its value."""
    max_node_bytes: int = _flag(
        "--max-node-bytes",
        default=1024 * 1024,
        least=0,
        help="Size of a request without its resource names.  0: no limit.",
    )
    """Size of a request without the resource names in it, which is mostly the node."""
    max_node_values: int = _flag(
        "--max-node-values", default=10_000, least=0, help="Values in the metadata of a node.  0: no limit."
    )
    """Values in the metadata of a node, nested ones included. (Protocol Buffers limit the depth to 33.)"""
    max_labels: int = _flag("--max-labels", default=200, least=0, help="Labels of a node.  0: no limit.")
    """Labels of a node."""
    max_scopes_per_peer: int = _flag(
        "--max-scopes-per-peer",
        default=500,
        least=0,
        help="Namespaces, localities, ... of the proxies of one identity, or unproven ones at one address.  0: "
        "no limit.",
    )
    """Scopes of the open streams of one identity, or from one address where none is proven: namespace, DNS domain,
    locality, and anything else in a node that makes resources that other proxies do not share."""
    stream_requests_per_second: float = _flag(
        "--stream-requests-per-second",
        default=100.0,
        least=0,
        help="Requests of one stream that answer nothing; more wait.  0: no limit.",
    )
    """Requests of one stream that answer no response; more of them wait. Large ones count more than once."""
    max_requests_per_second: float = _flag(
        "--max-requests-per-second",
        default=500.0,
        least=0,
        help="New xDS streams; more wait, in order of arrival.  0: no limit.",
    )
    """New streams of all clients; more of them wait. The name is that of istiod's ``PILOT_MAX_REQUESTS_PER_SECOND``."""


DEFAULT_BOUNDS = Bounds()
"""The defaults."""


class BoundError(ValueError):
    """A client asks for more than it may.

    ``bound`` is the name of the field of ``Bounds``.
    """

    def __init__(self, bound: str, what: str, limit: int, count: int | None = None) -> None:
        """``what`` there is too much of; ``count`` where it was counted to the end."""
        found = "more" if count is None else f"{count:,}, more"
        super().__init__(f"{what}: {found} than the limit of {limit:,} (--{bound.replace('_', '-')})")
        self.bound = bound


def check(bounds: Bounds, bound: str, what: str, count: int) -> None:
    """Raises BoundError if there is more of something than the bound of this name allows."""
    limit: int = getattr(bounds, bound)
    if limit and count > limit:
        raise BoundError(bound, what, limit, count)


def check_labels(bounds: Bounds, labels: Mapping[str, str]) -> None:
    """Raises BoundError for too many labels, and for one that is too long."""
    check(bounds, "max_labels", "labels of the node", len(labels))
    for key, value in labels.items():
        check(bounds, "max_name_length", "characters in the key of a label", len(key))
        check(bounds, "max_name_length", f"characters in the value of label {key}", len(value))
