"""Questions about a request that logins and the gate have in common."""

from __future__ import annotations

import base64
import binascii

from starlette.requests import Request

from mesh_pilot.ops.web.responses import printable

SAFE = ("GET", "HEAD")
"""Methods that change nothing."""

MOST_SHOWN = 500
"""Characters of a path, and of a body, in the log."""


def is_https(request: Request) -> bool:
    return request.scope.get("scheme") == "https"


def token_of(header: str) -> str:
    """The token in an Authorization header: a bearer's, or the password of Basic; empty if there is none."""
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return ""
    return ""


def is_bearer(request: Request) -> bool:
    return request.headers.get("authorization", "").lower().startswith("bearer ")


def is_same_origin(request: Request) -> bool:
    """False if a browser says that a page of another site asks.

    ``Origin`` is for browsers that do not send ``Sec-Fetch-Site``, as over plain HTTP to another machine.
    """
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2].lower() == request.headers.get("host", "").lower()


def peer_of(request: Request) -> str:
    return f"{request.client.host}" if request.client is not None else "unix"


def shown_path(request: Request) -> str:
    query = request.scope.get("query_string", b"").decode("ascii", "replace")
    return printable(f"{request.scope['path']}{'?' + query if query else ''}")[:MOST_SHOWN]
