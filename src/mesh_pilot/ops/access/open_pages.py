"""The pages of the web port that are for everybody, and what to do where only these are left."""

from __future__ import annotations

from typing import Any

import attrs

from mesh_pilot.net.http.connection import App

OPEN = ("/ready", "/healthz", "/metrics", "/version", "/spiffe/bundle")
"""Pages for everybody, as on the metrics port; not ``/ready?verbose``, which names resources."""

WHAT_TO_DO = (
    "this port is not on a loopback address, and no login is set up: give mesh-pilot discovery --api-token-file or"
    " --api-people-file, or --http-addr 127.0.0.1:8080 (docs/operating.md, Access)"
)


@attrs.frozen
class OpenFirst:
    """An ASGI app: a page for everybody is the metrics port's, which loads little; all else goes to the gate."""

    monitoring: App
    gate: App

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_open = scope["type"] == "http" and scope["path"] in OPEN and not scope["query_string"]
        await (self.monitoring if is_open else self.gate)(scope, receive, send)
