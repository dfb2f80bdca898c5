"""Types that a client requests and that are not served: it is answered with nothing, and the stream continues.

istiod does the same for a type that it has no generator for (``apigen``: "Still return an empty response - to not
break waiting code"). Istio's clients request some of these in addition to Envoy's types, and one type that is not
served must not cost them the others.
"""

from __future__ import annotations

import attrs

from mesh_pilot.engine.snapshots import EMPTY
from mesh_pilot.xds.ads.messages import DeltaRequest, Request, Response, Variant
from mesh_pilot.xds.ads.pending_response import content_digest

MAX_TYPES = 16
"""Types of one stream that are answered; further ones are ignored."""

MAX_NAMES = 1000
"""Names of one type that wait to be answered as removed; further ones are ignored."""


@attrs.define
class _UnservedType:
    """One type. State: what is to be answered, and the last answer."""

    names: int | None = None
    """Hash of the names that were requested last; None before the first request."""
    is_due: bool = False
    removed: dict[str, None] = attrs.field(factory=dict)
    """Delta: names to be answered as removed."""
    nonce: str = ""
    is_unacked: bool = False


class Unserved:
    """The types of one stream that are not served, as pure as ``Subscription``. State: that of each type."""

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._types: dict[str, _UnservedType] = {}

    def on_request(self, request: Request, type_url: str) -> bool:
        """Take in a request for a type that is not served; returns True for the first of the type on this stream."""
        unserved = self._types.get(type_url)
        is_first = unserved is None
        if unserved is None:
            if len(self._types) == MAX_TYPES:
                return False
            unserved = self._types[type_url] = _UnservedType()
        if request.nonce and request.nonce == unserved.nonce:
            unserved.is_unacked = False
        if isinstance(request, DeltaRequest):
            unserved.removed |= dict.fromkeys(request.subscribe[: MAX_NAMES - len(unserved.removed)])
            unserved.is_due |= is_first or bool(request.subscribe)
        elif not unserved.nonce or not request.nonce or request.nonce == unserved.nonce:
            names = hash(request.names)
            unserved.is_due |= names != unserved.names
            unserved.names = names
        return is_first

    @property
    def is_due(self) -> bool:
        """True if there is a response."""
        return bool(self._types) and any(each.is_due and not each.is_unacked for each in self._types.values())

    def next_response(self) -> Response | None:
        """An empty response that is due, if there is one; it counts as sent."""
        for type_url, unserved in self._types.items():
            if unserved.is_due and not unserved.is_unacked:
                unserved.is_due, unserved.is_unacked = False, True
                removed, unserved.removed = tuple(unserved.removed), {}
                nonce = f"{content_digest((), removed):032x}"
                unserved.nonce = nonce if nonce != unserved.nonce else nonce + "+"
                return Response(self._variant, type_url, EMPTY.version, unserved.nonce, (), removed)
        return None
