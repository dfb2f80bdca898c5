"""Logins of browsers: a form that takes a token, and a cookie instead of it."""

from __future__ import annotations

import base64
import hashlib
import html
import secrets
import time
from collections.abc import Callable
from importlib.resources import files
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

COOKIE = "mesh_pilot_session"
HOURS = 12
MOST = 1000
"""Sessions at a time; the oldest makes room."""

FORM = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>mesh-pilot: log in</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>mesh-pilot</h1>
{message}
<form method="post" action="/login">
<input type="hidden" name="next" value="{next}">
<p><label>Token <input type="password" name="token" autocomplete="current-password" required autofocus></label></p>
<p><button>Log in</button></p>
</form>
<p>A token is in a line of the file that the control plane was given with --api-token-file.</p>
</main>
<script>{script}</script>
</body>
</html>
"""

STYLE = (files("mesh_pilot.ops.access") / "login.css").read_text()

SCRIPT = """
const next = document.querySelector("[name=next]");
if (location.hash && !next.value.includes("#")) next.value += location.hash;
"""
"""A browser keeps the fragment of the page that it was sent here from, and does not send it: the form has to."""


def _allowed(inline: str) -> str:
    """The source of the policy that allows this text, and no other, in the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"


HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src {_allowed(STYLE)}; script-src {_allowed(SCRIPT)};"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "cache-control": "no-store",
    "referrer-policy": "same-origin",
}
"""With ``no-referrer``, browsers would send the form with ``Origin: null``, as if it were another site's."""


class Sessions:
    """The sessions, by the cookie's value: the digest of the token that each was begun with, and when it ends."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._found: dict[str, tuple[bytes, float]] = {}

    def begin(self, digest: bytes) -> str:
        """The value of the cookie."""
        while len(self._found) >= MOST:
            del self._found[next(iter(self._found))]
        value = secrets.token_urlsafe(32)
        self._found[value] = (digest, self._now() + HOURS * 3600)
        return value

    def digest(self, value: str) -> bytes | None:
        """The digest of the token of a session that has not ended."""
        digest, end = self._found.get(value, (None, 0.0))
        if digest is not None and self._now() >= end:
            del self._found[value]
            return None
        return digest

    def end(self, value: str) -> None:
        self._found.pop(value, None)


def form(following: str, message: str = "", status: int = 200) -> Response:
    """The page with the form."""
    shown = f'<p role="alert">{html.escape(message)}</p>' if message else ""
    text = FORM.format(message=shown, next=html.escape(local_path(following)), style=STYLE, script=SCRIPT)
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status, headers=HEADERS)


async def sent_form(request: Request) -> tuple[str, str]:
    """The token that was sent, and the page to go on with."""
    try:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:  # too many
        fields = {}
    return fields.get("token", [""])[0].strip(), local_path(fields.get("next", ["/"])[0])


def logged_in(following: str, value: str, *, secure: bool) -> Response:
    response = RedirectResponse(following, status_code=303, headers=HEADERS)
    response.set_cookie(COOKIE, value, max_age=HOURS * 3600, httponly=True, samesite="strict", secure=secure)
    return response


def logged_out() -> Response:
    response = RedirectResponse("/login", status_code=303, headers=HEADERS)
    response.delete_cookie(COOKIE)
    return response


def local_path(path: str) -> str:
    """A path on this port; ``/`` for anything that leads elsewhere."""
    is_local = path.startswith("/") and not path.startswith("//") and path.isprintable() and "\\" not in path
    return path if is_local and path.isascii() else "/"
