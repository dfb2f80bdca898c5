"""The SPIFFE bundle endpoint: the mesh's own roots, for other trust domains that federate with this one."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.responses import Response

from mesh_pilot.identity.trust.bundles import TrustStore
from mesh_pilot.identity.trust.spiffe_bundles import BundleDocument, write_bundle

REFRESH_HINT_SECONDS = 300


class BundleEndpoint:
    """``/spiffe/bundle``. State: the last document, and the roots that it has.

    The sequence number is the time of the last change in seconds: it grows over restarts, and nothing has to be stored.
    """

    def __init__(self, trust: TrustStore, now: Callable[[], float] = time.time) -> None:
        self._trust = trust
        self._now = now
        self._sequence = 0
        self._roots: tuple[bytes, ...] = ()
        self._document = ""

    def answer(self) -> Response:
        """The document; 503 while there is no root."""
        roots = self._trust.own().roots
        if not roots:
            return Response("there is no root yet\n", status_code=503, media_type="text/plain")
        if roots != self._roots:
            self._sequence = max(int(self._now()), self._sequence + 1)
            self._roots = roots
            self._document = write_bundle(BundleDocument(roots, self._sequence, REFRESH_HINT_SECONDS))
        return Response(self._document + "\n", media_type="application/json")
