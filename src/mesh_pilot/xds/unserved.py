"""Types that a client asks for and that are not served: it is answered with nothing, and the stream goes on.

That is what istiod does for a type that it has no generator for (``apigen``: "Still return an empty response - to not
break waiting code"). A client of Istio's asks for some of these beside Envoy's types, and one type that is not there
must not cost it the others.
"""

from __future__ import annotations

import attrs

from mesh_pilot.xds.held import EMPTY, content_digest
from mesh_pilot.xds.messages import DeltaRequest, Request, Response, Variant

MAX_TYPES = 16
"""Types of one stream that are answered; further ones are passed over."""

MAX_NAMES = 1000
"""Names of one type that are remembered until they can be told not to exist; further ones are passed over."""


@attrs.define
class _Asked:
    """One type. State: what is to be answered, and the last answer."""

    names: int | None = None
    """Hash of the names that were asked for last; None before the first request."""
    is_due: bool = False
    removed: dict[str, None] = attrs.field(factory=dict)
    """Delta: names that are told not to exist."""
    nonce: str = ""
    is_unacked: bool = False


class Unserved:
    """The conversation about such types on one stream, as pure as that about others. State: each type's."""

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._types: dict[str, _Asked] = {}

    def on_request(self, request: Request, type_url: str) -> bool:
        """Take in a request for a type that is not served; returns whether the stream asks for it the first time."""
        asked = self._types.get(type_url)
        is_first = asked is None
        if asked is None:
            if len(self._types) == MAX_TYPES:
                return False
            asked = self._types[type_url] = _Asked()
        if request.nonce and request.nonce == asked.nonce:
            asked.is_unacked = False
        if isinstance(request, DeltaRequest):
            asked.removed |= dict.fromkeys(request.subscribe[: MAX_NAMES - len(asked.removed)])
            asked.is_due |= is_first or bool(request.subscribe)
        elif not request.nonce or request.nonce == asked.nonce:
            names = hash(request.names)
            asked.is_due |= names != asked.names
            asked.names = names
        return is_first

    def next_response(self) -> Response | None:
        """An empty response that is due, if there is one; it counts as sent."""
        for type_url, asked in self._types.items():
            if asked.is_due and not asked.is_unacked:
                asked.is_due, asked.is_unacked = False, True
                removed, asked.removed = tuple(asked.removed), {}
                nonce = f"{content_digest((), removed):032x}"
                asked.nonce = nonce if nonce != asked.nonce else nonce + "+"
                return Response(self._variant, type_url, EMPTY.version, asked.nonce, (), removed)
        return None
