"""Sessions of browsers: a page to log in at, by a token or as a person, and a cookie instead of either."""

from __future__ import annotations

import base64
import hashlib
import html
import secrets
import time
from collections.abc import Callable
from importlib.resources import files
from urllib.parse import parse_qs, urlencode

import attrs
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from mesh_pilot.ops.access.logins import PersonSession

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
{ways}
</main>
<script>{script}</script>
</body>
</html>
"""

BY_TOKEN = """\
<form method="post" action="/login">
<input type="hidden" name="next" value="{next}">
<p><label>Token <input type="password" name="token" autocomplete="current-password" required{focus}></label></p>
<p><button>Log in</button></p>
</form>
<p>A token is in a line of the file that the control plane was given with --api-token-file.</p>
"""

BY_ISSUER = """\
<p><a class="issuer" href="/login/people?{query}"{focus}>Log in at {issuer}</a></p>
"""

ON = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0;url={next}">
<title>mesh-pilot: {title}</title>
</head>
<body><p><a href="{next}">Go on</a></p></body>
</html>
"""
"""The page after a login at an issuer. A redirect would still be the issuer's navigation, with which browsers do not
send a cookie that is ``SameSite=Strict``."""

STYLE = (files("mesh_pilot.ops.access") / "login.css").read_text()

SCRIPT = """
const next = document.querySelector("[name=next]");
if (next && location.hash && !next.value.includes("#")) next.value += location.hash;
const issuer = document.querySelector(".issuer");
if (issuer && location.hash && !issuer.search.includes("%23")) issuer.search += encodeURIComponent(location.hash);
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


@attrs.frozen
class BrowserSession:
    """A session of a browser, by one of two."""

    end: float
    digest: bytes = b""
    """SHA-256 of the token that it was begun with."""
    login: PersonSession | None = None
    """The login at an issuer."""


class Sessions:
    """The sessions, by the cookie's value."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._found: dict[str, BrowserSession] = {}

    def begin(self, digest: bytes = b"", login: PersonSession | None = None) -> str:
        """The value of the cookie: another one for each session, whatever cookie the browser had."""
        while len(self._found) >= MOST:
            del self._found[next(iter(self._found))]
        value = secrets.token_urlsafe(32)
        self._found[value] = BrowserSession(self._now() + HOURS * 3600, digest, login)
        return value

    def get(self, value: str) -> BrowserSession | None:
        """A session that has not ended."""
        found = self._found.get(value)
        if found is not None and self._now() >= found.end:
            del self._found[value]
            return None
        return found

    def end(self, value: str) -> None:
        self._found.pop(value, None)


def form(
    following: str, message: str = "", status: int = 200, *, takes_tokens: bool = True, issuer: str = ""
) -> Response:
    """The page to log in at. ``issuer``: the one that people log in at, if any."""
    shown = f'<p role="alert">{html.escape(message)}</p>' if message else ""
    path = local_path(following)
    ways = []
    if issuer:
        query = html.escape(urlencode({"next": path}))
        ways.append(BY_ISSUER.format(query=query, issuer=html.escape(issuer), focus=" autofocus"))
    if takes_tokens:
        ways.append(BY_TOKEN.format(next=html.escape(path), focus="" if issuer else " autofocus"))
    text = FORM.format(message=shown, ways="\n".join(ways), style=STYLE, script=SCRIPT)
    return HTMLResponse(text.encode("utf-8", "replace"), status_code=status, headers=HEADERS)


async def sent_form(request: Request) -> tuple[str, str]:
    """The token that was sent, and the page to go on with."""
    try:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:  # too many
        fields = {}
    return fields.get("token", [""])[0].strip(), local_path(fields.get("next", ["/"])[0])


def redirect(url: str) -> Response:
    """The answer that sends a browser elsewhere."""
    return RedirectResponse(url, status_code=303, headers=HEADERS)


def logged_in(following: str, value: str, *, secure: bool) -> Response:
    response = redirect(following)
    _give(response, value, secure)
    return response


def logged_in_at_issuer(following: str, value: str, *, secure: bool) -> Response:
    """The answer to a browser that an issuer has sent back."""
    response = HTMLResponse(ON.format(title="logged in", next=html.escape(local_path(following))), headers=HEADERS)
    _give(response, value, secure)
    return response


def sent_to_issuer(url: str, name: str, value: str, *, secure: bool, seconds: float) -> Response:
    """The answer to a browser that begins a login. The cookie is ``Lax``: it comes back by the issuer's redirect."""
    response = redirect(url)
    response.set_cookie(name, value, max_age=int(seconds), path="/login", httponly=True, samesite="lax", secure=secure)
    return response


def _give(response: Response, value: str, secure: bool) -> None:
    response.set_cookie(COOKIE, value, max_age=HOURS * 3600, httponly=True, samesite="strict", secure=secure)


def logged_out(farewell: str = "") -> Response:
    """The answer to a logout. ``farewell``: the issuer's address that ends the login there, if it has one."""
    # A page, as the policy of the form that led here lets no redirect lead to another site.
    on = HTMLResponse(ON.format(title="logged out", next=html.escape(farewell)), headers=HEADERS) if farewell else None
    response = on or redirect("/login")
    response.delete_cookie(COOKIE)
    return response


def local_path(path: str) -> str:
    """A path on this port; ``/`` for anything that leads elsewhere."""
    is_local = path.startswith("/") and not path.startswith("//") and path.isprintable() and "\\" not in path
    return path if is_local and path.isascii() else "/"
